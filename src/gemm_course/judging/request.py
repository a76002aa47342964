"""One forked process: a request goes in, messages and what it prints come out, and it ends in any case."""

from __future__ import annotations

import os
import select
import tempfile
import threading
import time
from dataclasses import dataclass, field

from gemm_course.judging import untrusted as distrust
from gemm_course.runner import wire
from gemm_course.runner.fork_server import Zygote

GRACE_S = 2.8  # beyond an exercise's limit, before its process is killed: a busy machine is slow to take a signal
MAX_FILES_MB = 256  # that a compilation leaves in its folder
LOOK_S = 0.2  # how often a process is looked after
MAX_PRINTED = 1 << 18
KEPT_PRINTED = 4000


@dataclass
class Outcome:
    """What one process left behind."""

    messages: list = field(default_factory=list)
    status: int | None = None
    printed: str = ""
    flooded: bool = False
    late: bool = False
    garbled: bool = False
    filled: bool = False
    died: str = ""
    """Why there was no process to begin with."""
    ready: bool = False
    """Whether the process was confined and about to load the answer: what went wrong before is not the answer's."""
    unfit: str = ""
    """Why it did not get there, in its own words."""

    def take(self, messages: list) -> None:
        """Note messages. The first is the process's own, sent before the answer was there to forge one.

        Args:
            messages: that have arrived since the last call.

        Raises:
            ValueError: they are none.
        """
        messages = [distrust.message(each) for each in messages]
        if messages and not (self.ready or self.unfit):
            first = messages.pop(0)
            self.ready, self.unfit = first.get("ready") is True, str(first.get("unfit", ""))
            if not (self.ready or self.unfit):
                raise ValueError("a process that begins with something else")
        self.messages += messages


def ask(zygote: Zygote, request: dict, seconds: float, hopeless: threading.Event | None = None) -> Outcome:
    """Have a forked process answer a request; never takes longer than the limit and the grace, nor once hopeless.

    Args:
        zygote: that forks it.
        request: what `worker.main` reads; "scratch" is a folder that it may write to.
        seconds: the limit.
        hopeless: set when nobody wants the answer any more.

    Raises:
        RuntimeError, OSError: the zygote has died.
    """
    outcome = Outcome()
    results, results_end = os.pipe()
    prints, prints_end = os.pipe()
    try:
        with tempfile.TemporaryFile() as file:
            file.write(wire.pack(request))
            file.seek(0)
            pid = zygote.fork([file.fileno(), results_end, prints_end])
    except BaseException:
        os.close(results)
        os.close(prints)
        raise
    finally:
        os.close(results_end)
        os.close(prints_end)
    reader, printed = wire.Reader(results), bytearray()
    stop = time.monotonic() + seconds + GRACE_S
    open_ends = {results, prints}
    try:
        while results in open_ends and not outcome.flooded:
            left = stop - time.monotonic()
            outcome.late = left <= 0
            outcome.filled = distrust.bytes_in(request["scratch"]) > MAX_FILES_MB << 20
            if outcome.late or outcome.filled or (hopeless is not None and hopeless.is_set()):
                break
            ready = select.select(list(open_ends), [], [], min(left, LOOK_S))[0]
            if results in ready:
                reader.pump()
                if reader.closed:
                    open_ends.discard(results)
                outcome.take(reader.messages())
                if outcome.messages and outcome.messages[-1].get("done"):
                    break
            if prints in ready:
                data = os.read(prints, 1 << 16)
                printed += data
                if not data:
                    open_ends.discard(prints)
                outcome.flooded = len(printed) > MAX_PRINTED
    except ValueError:
        outcome.garbled = True
    finally:
        outcome.status = zygote.finish(pid)
        while not outcome.flooded and select.select([prints], [], [], 0)[0]:
            data = os.read(prints, 1 << 16)
            printed += data
            if not data or len(printed) > MAX_PRINTED:
                break
        os.close(results)
        os.close(prints)
    text = printed[:KEPT_PRINTED].decode(errors="replace")
    outcome.printed = text + ("…" if len(printed) > KEPT_PRINTED else "")
    return outcome
