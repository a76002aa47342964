"""A kept child process: it answers, says why it died, and goes when its parent goes."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
import time

import pytest

import forked
from course_kernels.child_process import Service, ServiceDied

MODULE = """
import gc, os, sys, time
from __main__ import answer_all  # what a child runs is child_process.py; its package would import torch

def answer(request):
    if request == b"die":
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)
    if request == b"sleep":
        time.sleep(60)
    if request == b"collects":
        return b"%d %d" % (gc.isenabled(), gc.get_freeze_count() > 1000)
    print("answering")
    sys.stdout.flush()
    return request.upper() + os.environ.get("MARK", "").encode()

def serve(connection):
    answer_all(connection, answer)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts services that run `MODULE`, or another text, and ends them."""
    started = []

    def start(text=MODULE, **environment):
        (tmp_path / "echo_of_a_test.py").write_text(text)
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        started.append(Service("echo_of_a_test", "the echo", {**os.environ, "PYTHONPATH": path, **environment}))
        return started[-1]

    yield start
    for each in started:
        each.close()


def gone(pid):
    stop = time.monotonic() + 10
    while time.monotonic() < stop:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_it_answers_again_and_again(start):
    echo = start(MARK="!")
    assert [echo.ask(text, 30.0) for text in (b"a", b"", b"b" * 300_000)] == [b"A!", b"!", b"B" * 300_000 + b"!"]
    assert echo.read_log() == "answering\n" * 3
    assert echo.read_log() == ""
    assert echo.alive


def test_what_it_imported_is_no_garbage_and_what_it_makes_may_be(start):
    assert start().ask(b"collects", 30.0) == b"1 1"


def test_a_death_says_how_and_the_last_words(start):
    echo = start()
    with pytest.raises(ServiceDied, match=r"^the echo died \(exit 7\)\nlast words$"):
        echo.ask(b"die", 30.0)
    assert not echo.alive


def test_one_that_cannot_start_says_why(start):
    with pytest.raises(ServiceDied, match=r"(?s)^the echo died \(exit 1\)\n.*ImportError: nothing here"):
        start("raise ImportError('nothing here')").ask(b"a", 30.0)


def test_one_that_hangs_is_ended(start):
    echo = start()
    with pytest.raises(TimeoutError, match=r"the echo did not answer within 0\.2 s"):
        echo.ask(b"sleep", 0.2)
    assert not echo.alive
    assert gone(echo.pid)


def test_after_an_interrupt_its_answer_does_not_reply_to_the_next_request(start, monkeypatch):
    echo = start()
    echo.wait_until_ready()

    def interrupted(timeout):
        raise KeyboardInterrupt

    monkeypatch.setattr(echo, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        echo.ask(b"a", 30.0)
    assert not echo.alive


def test_it_can_be_ended_while_it_is_asked(start):
    echo = start()
    echo.wait_until_ready()
    threading.Timer(0.3, echo.end).start()
    with pytest.raises(ServiceDied, match=f"exit {-signal.SIGTERM}"):
        echo.ask(b"sleep", 30.0)
    echo.close()  # twice is as good as once
    echo.close(grace=1.0)


def test_ctrl_c_does_not_reach_it(start):
    echo = start()
    echo.wait_until_ready()
    assert os.getpgid(echo.pid) != os.getpgid(0)


def test_a_module_of_the_working_directory_does_not_shadow_another(tmp_path):
    (tmp_path / "multiprocessing.py").write_text("raise SystemExit('shadowed')")
    script = textwrap.dedent("""
        from course_kernels.child_process import Service
        import os
        os.chdir(SHADOW)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        Service("course_kernels.codegen.child", "the compiler", environment).wait_until_ready()
    """)
    done = forked.run(f"SHADOW = {str(tmp_path)!r}\n{script}")
    assert done.returncode == 0, done.stderr


def test_it_ends_with_its_parent(tmp_path):
    (tmp_path / "echo_of_a_test.py").write_text(MODULE)
    script = "from course_kernels.child_process import Service\nimport os\n"
    script += f"os.environ['PYTHONPATH'] = {str(tmp_path)!r}\n"
    script += "child = Service('echo_of_a_test', 'the echo')\nchild.wait_until_ready()\n"
    script += "print(child.pid, flush=True)\nos._exit(0)"
    done = forked.run(script)
    assert done.returncode == 0, done.stderr
    assert gone(int(done.stdout))
