"""One request to a forked process, with a thread in its place: what comes back, and why it is stopped."""

from __future__ import annotations

import os
import threading

import pytest

from gemm_course.judging import request as requests
from gemm_course.judging.request import Outcome, ask
from gemm_course.judging.untrusted import parse_reply
from gemm_course.runner import serialization

READY, DONE = {"ready": True}, {"done": True}
RESULT = {"case": 0, "value": 3}


class Template:
    """Runs a function in a thread where the real one forks a process; `status` is how that ends."""

    def __init__(self, serve, status=0, **uses):
        self.serve, self.status, self.uses, self.release = serve, status, uses, threading.Event()
        self.released = True

    def fork(self, fds):
        file, results, prints = map(os.dup, fds)
        self.request = os.pread(file, 1 << 16, 0)
        os.close(file)

        def run():
            try:
                self.serve(self, results, prints)
            except BrokenPipeError:
                pass  # nobody reads any more
            finally:
                os.close(results)
                os.close(prints)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        return 17

    def used(self):
        return {"threads": 1, "memory": 0, "nameless": 0, **self.uses}

    def finish(self):
        self.release.set()
        return self.status


def asked(tmp_path, serve, seconds=5.0, cancelled=None, status=0, **uses):
    template, request = Template(serve, status, **uses), {"scratch": str(tmp_path), "memory_mb": 64}
    outcome = ask(template, request, seconds, cancelled)
    template.thread.join(5)
    assert not template.thread.is_alive()
    assert template.released, "it was waited for to the end"
    assert template.request == serialization.pack(request)
    return outcome


def send(*messages):
    def serve(template, results, prints):
        for each in messages:
            serialization.send(results, each)

    return serve


def wait(template, results, prints):
    template.released = template.release.wait(5)


def test_replies_and_printed_text_come_back(tmp_path):
    def serve(template, results, prints):
        os.write(prints, "grün".encode())
        send(READY, RESULT, DONE)(template, results, prints)

    outcome = asked(tmp_path, serve, status=-9)
    assert (outcome.ready, outcome.printed, outcome.status) == (True, "grün", -9)
    assert [(each.case, each.value, each.done) for each in outcome.messages] == [(0, 3, False), (None, None, True)]
    stopped = (outcome.malformed, outcome.timed_out, outcome.printed_too_much, outcome.wrote_too_much)
    assert stopped == (False,) * 4


def test_only_the_first_reply_says_that_it_is_ready():
    outcome = Outcome()
    outcome.take([{"setup_error": "no Landlock"}])
    outcome.take([READY])
    assert (outcome.ready, outcome.setup_error, len(outcome.messages)) == (False, "no Landlock", 1)
    with pytest.raises(ValueError, match="a process whose first message is another"):
        Outcome().take([RESULT])
    with pytest.raises(ValueError, match=r"at `\$\.case`"):
        outcome.take([{"case": "0"}])


@pytest.mark.parametrize("messages", [[RESULT], [READY, {"case": "0"}], [READY, 3]])
def test_a_reply_of_another_form_ends_it(tmp_path, messages):
    outcome = asked(tmp_path, send(*messages))
    assert (outcome.malformed, outcome.messages) == (True, [])


def test_it_ends_after_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "GRACE_S", 0.0)
    assert asked(tmp_path, wait, seconds=0.02).timed_out


def test_it_ends_when_nobody_wants_it(tmp_path):
    cancelled = threading.Event()
    cancelled.set()
    outcome = asked(tmp_path, wait, seconds=60.0, cancelled=cancelled)
    assert not outcome.timed_out
    assert outcome.messages == []


def test_it_ends_when_it_writes_too_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "MAX_FILES_MB", 0)
    (tmp_path / "large").write_bytes(b"x" * 10_000)
    assert asked(tmp_path, wait).wrote_too_much


@pytest.mark.parametrize(
    ("uses", "what"),
    [({"threads": 1025}, "started"), ({"memory": 65 << 20}, "started"), ({"nameless": 257 << 20}, "wrote"), ({}, "")],
)
def test_it_ends_when_it_uses_too_much_of_what_no_limit_counts(tmp_path, uses, what):
    outcome = asked(tmp_path, wait if uses else send(READY, DONE), **uses)
    assert (outcome.started_too_much, outcome.wrote_too_much) == (what == "started", what == "wrote")


def test_it_ends_when_it_prints_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "MAX_PRINTED", 10_000)

    def serve(template, results, prints):
        while not template.release.is_set():
            os.write(prints, b"x" * 5000)

    outcome = asked(tmp_path, serve)
    assert outcome.printed_too_much
    assert outcome.printed == "x" * requests.KEPT_PRINTED + "…"


def test_a_template_that_has_died_leaves_no_descriptor_open(tmp_path):
    class Dead:
        def fork(self, fds):
            raise RuntimeError("the process that starts checks has died.")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError, match="has died"):
        ask(Dead(), {"scratch": str(tmp_path)}, 1.0)
    assert len(os.listdir("/proc/self/fd")) == before


def outcome(*messages, **parts):
    return Outcome([parse_reply(each) for each in messages], **parts)


ERROR = {"type": "OSError", "text": "no\n  device", "line": 0, "code": ""}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (outcome({"case": 0, "error": {**ERROR, "kind": "exception"}}, status=1), "OSError: no device"),
        (outcome({"error": {**ERROR, "kind": "endless"}}), "it did not end"),
        (outcome(timed_out=True, printed="x"), "it did not end"),
        (outcome(setup_error="no Landlock", timed_out=True), "no Landlock"),
        (outcome(not_started="no room"), "no room"),
        (outcome(printed=" last\nwords \n", status=1), "last words"),
        (outcome(status=-9), "the process ended with status -9"),
        (outcome(printed="x" * 600 + "y" * 300), "y" * 300),
    ],
)
def test_why_there_is_no_result_takes_one_line(found, says):
    assert found.reason == says
