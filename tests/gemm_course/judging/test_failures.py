"""Why an answer gave no result, in one message: exceptions, endless loops, dead processes, compilers."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from gemm_course.judging.failures import compiler_message, describe_exception, describe_exit, malformed_reply
from gemm_course.judging.request import Outcome
from gemm_course.judging.untrusted import Reply, parse_reply

ENDLESS = {"kind": "endless", "type": "", "text": "", "line": 9, "code": "tick()", "program": [0]}


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["g"], "as g in its condition never changes"),
        (["g", "n"], "as g and n in its condition never change"),
        (["a", "b", "c"], "as a, b and c in its condition never change"),
        ([], "as nothing changes from one turn to the next"),
    ],
)
def test_the_loop_comes_first_and_then_where_it_was_stopped(names, says):
    error = parse_reply({"error": {**ENDLESS, "loop": {"line": 4, "code": "while g < n:", "names": names}}}).error
    assert describe_exception(error, SimpleNamespace(seconds=6.0, exceptions=())) == (
        "still running after 6 s (in program 0), so it was stopped: the loop in line 4 makes no progress, "
        f"{says}\n    while g < n:\nIt was in line 9: tick()"
    )


def test_without_a_loop_to_name_the_line_is_said():
    error = parse_reply({"error": ENDLESS}).error
    told = describe_exception(error, SimpleNamespace(seconds=6.0, exceptions=()))
    assert told == "still running after 6 s (in program 0), so it was stopped in line 9: tick()"


LIMITS = SimpleNamespace(seconds=6.0, memory_mb=1024, function="f", exceptions=[("stored (N", "transpose it")])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "missing"}, "the cell must define the function f"),
        ({"type": "EOFError"}, "line 9: this waits for typed input, and a check gives it none"),
        ({"type": "MemoryError"}, "line 9: this wants more memory than an answer gets (1024 MB)"),
        (
            {"type": "RuntimeError", "text": "you tried to allocate memory"},
            "line 9: this wants more memory than an answer gets (1024 MB)",
        ),
        (
            {"type": "AssertionError", "text": "B is stored (N, K)", "program": None},
            "line 9: AssertionError: B is stored (N, K)\n    tick()\ntranspose it",
        ),
        ({"type": "SystemExit"}, "line 9: this ends the program (SystemExit); a function returns instead"),
        (
            {"type": "PermissionError", "text": "x" * 300},
            f"line 9: an answer has no file to open, no process to start and no network: it computes ({'x' * 200})",
        ),
        (
            {"type": "NameError", "text": "no y", "program": None},
            "line 9: NameError: no y: a check sees the cell with your function and nothing else\n    tick()",
        ),
        (
            {"type": "AttributeError", "text": "'function' object has no attribute 'to'", "line": 0, "code": ""},
            "AttributeError: 'function' object has no attribute 'to': a function stands where its result is meant: "
            "call it, as in tl.num_programs(0) (in program 4)",
        ),
        (
            {"type": "ValueError", "text": "arange's arguments must be of type tl.constexpr", "line": 0, "code": ""},
            "ValueError: arange's arguments must be of type tl.constexpr: the size of a block is known when a kernel "
            "is compiled, so use a tl.constexpr and a mask (in program 4)",
        ),
        (
            {"type": "TypeError", "text": "'function' object is not subscriptable", "line": 0, "program": None},
            "TypeError: 'function' object is not subscriptable: the launch found a plain function. A kernel has "
            "@triton.jit in the line above `def`\n    tick()",
        ),
        (
            {"type": "ValueError", "text": "Cannot make_shape_compatible: 4 and 16", "line": 0, "code": ""},
            "ValueError: Cannot make_shape_compatible: 4 and 16: one number for each row becomes a column by [:, "
            "None], one for each column a row by [None, :] (in program 4)",
        ),
        (
            {"type": "RuntimeError", "text": "ZeroDivisionError", "line": 0, "code": "", "program": None},  # torch's
            "RuntimeError: ZeroDivisionError: what this line divides by, or takes the remainder of, is 0",
        ),
        ({"type": "ValueError", "text": "y" * 700}, f"line 9: ValueError: {'y' * 600} (in program 4)\n    tick()"),
    ],
)
def test_an_exception_takes_one_message(change, says):
    error = parse_reply({"error": {**ENDLESS, "kind": "exception", "program": [4], **change}}).error
    assert describe_exception(error, LIMITS) == says


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"printed_too_much": True, "malformed": True}, "this printed more than 256 kB"),
        ({"malformed": True, "timed_out": True}, "what came back is no result"),
        ({"messages": [Reply(done=True)], "status": 0}, "this says that it is done, and sent no result"),
        ({"wrote_too_much": True}, "this wrote more than 256 MB, or 1000 files and folders, so it was stopped"),
        ({"started_too_much": True}, "this started more than 1024 threads, or programs that need more than 1024 MB"),
        ({"timed_out": True, "status": -9}, "still running after 6 s and deaf to a signal, so it was killed"),
        ({"status": -signal.SIGSEGV}, "this crashed its process (segmentation fault)"),
        ({"status": -signal.SIGABRT}, "this crashed its process (abort)"),
        ({"status": -signal.SIGXCPU}, "this used more than 6 s of processor time"),
        ({"status": -signal.SIGKILL}, "this was ended by SIGKILL before a result came back"),
        ({"status": 7}, "this ended its own process (exit code 7) before a result came back"),
        ({}, "this ended its own process (exit code 0) before a result came back"),
    ],
)
def test_a_process_that_ended_early_says_how(parts, says):
    assert describe_exit(Outcome(**parts), LIMITS).startswith(says)


def test_a_compilers_message_names_the_line_of_the_answer(tmp_path):
    path = tmp_path / "answer.py"
    path.write_text("def f(x):\n    y = x\n    return x @ y\n")
    text = "at 3:11:\ndef f(x):\n    y = x\n    return x @ y\n           ^\n\nno dot for int1\n"
    assert compiler_message(text, path) == "line 3: return x @ y\nno dot for int1"
    path.write_text("    return x @ y\n    return x @ y\n")
    assert compiler_message(text, path) == "return x @ y\nno dot for int1", "which of two is not known"
    long = "\n".join(f"{number}{'x' * 300}" for number in range(9))
    assert compiler_message(long, path).splitlines() == [f"{number}{'x' * 199}" for number in range(6)]


def test_a_malformed_reply_is_named_with_its_error():
    assert malformed_reply(ValueError("no tensor")).startswith("what came back makes no sense (ValueError: no tensor):")
