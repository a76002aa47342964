"""One request to a forked process: replies and printed text come back, and the process ends in any case."""

from __future__ import annotations

import os
import select
import tempfile
import threading
import time
from dataclasses import dataclass, field

from gemm_course.isolation.landlock import PATIENCE
from gemm_course.judging.causes import MaskProblem
from gemm_course.judging.untrusted import Layout, Reply, bytes_in, parse_reply
from gemm_course.runner import serialization
from gemm_course.runner.fork_server import MAX_THREADS, Template

GRACE_S = 2.8  # beyond an exercise's limit, before its process is killed: a busy machine is slow to take a signal
MAX_FILES_MB = 256  # that a compilation leaves in its folder
POLL_S = 0.2
MAX_PRINTED = 1 << 18
KEPT_PRINTED = 4000


@dataclass
class Outcome:
    """The replies, the output and the end of one process."""

    messages: list[Reply] = field(default_factory=list)  # its replies after the first
    status: int | None = None  # exit status, as `subprocess` gives it
    printed: str = ""  # the beginning of what it printed
    printed_too_much: bool = False
    timed_out: bool = False
    malformed: bool = False  # whether it sent something that is no reply
    wrote_too_much: bool = False
    started_too_much: bool = False  # threads, or programs that need more memory together than it has
    not_started: str = ""  # why there was no process; empty if there was one
    ready: bool = False  # confined, and about to load the answer; an error before that is not the answer's
    setup_error: str = ""  # its own words on why it did not get there
    layouts: list[Layout] = field(default_factory=list)  # of each input, from before the answer was loaded
    masks: list[MaskProblem] = field(default_factory=list)
    defined: dict[str, str] = field(default_factory=dict)

    @property
    def how_it_ended(self) -> str:
        """One word for the reason of a missing result.

        The process "printed" too much, sent something "malformed", or was "done" without a result. Or it started too
        many "threads", wrote too large "files", was "endless", or ended by itself with an exit "status".
        """
        facts = {
            "printed": self.printed_too_much, "malformed": self.malformed,
            "done": any(message.done for message in self.messages), "threads": self.started_too_much,
            "files": self.wrote_too_much, "endless": self.timed_out,
        }  # fmt: skip
        return next((how for how, holds in facts.items() if holds), "status")

    @property
    def reason(self) -> str:
        """The reason why the process gave no result, in its own words where it has any, on one line."""
        errors = [message.error for message in self.messages if message.error]
        reasons = [
            *("it did not end" if error.kind == "endless" else f"{error.type}: {error.text}" for error in errors),
            self.setup_error or self.not_started, "it did not end" if self.timed_out else "",
            self.printed.strip()[-300:], f"the process ended with status {self.status}",
        ]  # fmt: skip
        return " ".join(next(filter(None, reasons)).split())[:300]

    def take(self, messages: list) -> None:
        """Note replies, ValueError for malformed ones. The first is sent before the answer could forge any."""
        replies = [parse_reply(each) for each in messages]
        if replies and not (self.ready or self.setup_error):
            first = replies.pop(0)
            self.ready, self.setup_error, self.layouts = first.ready, first.setup_error, first.layouts
            if not (self.ready or self.setup_error):
                raise ValueError("a process whose first message is another")
        for each in replies:
            self.masks, self.defined = self.masks or each.masks or [], self.defined or each.defined or {}
        self.messages += [each for each in replies if each.masks is None and each.defined is None]


def ask(template: Template, request: dict, seconds: float, cancelled: threading.Event | None = None) -> Outcome:
    """Have a forked process answer a request. Ends soon after the time limit, or after it is cancelled.

    The request is what `worker.main` reads; "scratch" in it is a folder that the process may write to, "memory_mb" what
    all programs that it starts may need together. Raises RuntimeError or OSError if the template has died.
    """
    outcome = Outcome()
    results, results_end = os.pipe()
    prints, prints_end = os.pipe()
    try:
        with tempfile.TemporaryFile() as file:
            file.write(serialization.pack(request))
            file.seek(0)
            template.fork([file.fileno(), results_end, prints_end])
    except BaseException:
        os.close(results)
        os.close(prints)
        raise
    finally:
        os.close(results_end)
        os.close(prints_end)
    reader, printed = serialization.Reader(results), bytearray()
    stop, next_look = time.monotonic() + PATIENCE * seconds + GRACE_S, 0.0
    open_ends = {results, prints}
    try:
        while results in open_ends and not outcome.printed_too_much:
            remaining_s = stop - time.monotonic()
            outcome.timed_out = remaining_s <= 0
            if time.monotonic() >= next_look:
                _look(template, request, outcome)
                next_look = time.monotonic() + POLL_S
            too_much = outcome.timed_out or outcome.wrote_too_much or outcome.started_too_much
            if too_much or (cancelled is not None and cancelled.is_set()):
                break
            ready = select.select(list(open_ends), [], [], min(remaining_s, POLL_S))[0]
            if results in ready:
                reader.pump()
                if reader.closed:
                    open_ends.discard(results)
                outcome.take(reader.messages())
                if outcome.messages and outcome.messages[-1].done:
                    break
            if prints in ready:
                data = os.read(prints, 1 << 16)
                printed += data
                if not data:
                    open_ends.discard(prints)
                outcome.printed_too_much = len(printed) > MAX_PRINTED
    except ValueError:
        outcome.malformed = True
    finally:
        outcome.status = template.finish()
        while not outcome.printed_too_much and select.select([prints], [], [], 0)[0]:
            data = os.read(prints, 1 << 16)
            printed += data
            if not data or len(printed) > MAX_PRINTED:
                break
        os.close(results)
        os.close(prints)
    text = printed[:KEPT_PRINTED].decode(errors="replace")
    outcome.printed = text + ("…" if len(printed) > KEPT_PRINTED else "")
    return outcome


def _look(template: Template, request: dict, outcome: Outcome) -> None:
    """Note whether the process, with those that it started, uses more than it may of what no limit counts."""
    used = template.used()
    outcome.started_too_much = used["threads"] > MAX_THREADS or used["memory"] > request["memory_mb"] << 20
    outcome.wrote_too_much = used["nameless"] + bytes_in(request["scratch"]) > MAX_FILES_MB << 20
