"""Every cause in words; and a message of several, with the lines of the answer, and each reason once."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from gemm_course.judging import cause_sentences, causes
from gemm_course.judging.cause_sentences import Line, Writer, counted, lines_of
from gemm_course.judging.causes import ABOVE, BELOW, Drawn, Event, MaskProblem, Observed, OnlyOnGPU, Words, causes_of
from gemm_course.judging.request import Outcome
from gemm_course.judging.untrusted import Reply, parse_reply


def said(cause):
    return "\n".join(line.text for line in lines_of(cause))


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
    assert said(causes.Raised(error, SimpleNamespace(seconds=6.0, exceptions=()))) == (
        "still running after 6 s (in program 0), so it was stopped: the loop in line 4 makes no progress, "
        f"{says}\n    while g < n:\nIt was in line 9: tick()"
    )


def test_without_a_loop_to_name_the_line_is_said():
    error = parse_reply({"error": ENDLESS}).error
    text = said(causes.Raised(error, SimpleNamespace(seconds=6.0, exceptions=())))
    assert text == "still running after 6 s (in program 0), so it was stopped in line 9: tick()"


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
            {"type": "TypeError", "text": "f() missing 1 required positional argument: 'n'", "line": 0, "code": ""},
            "TypeError: f() missing 1 required positional argument: 'n': the arguments are those of the given first "
            "line of the function, so leave it as it was (in program 4)",
        ),
        (
            {"type": "TypeError", "text": "f() takes 1 positional argument but 2 were given", "program": None},
            "line 9: TypeError: f() takes 1 positional argument but 2 were given: the arguments are those of the given "
            "first line of the function, so leave it as it was\n    tick()",
        ),
        (
            {"type": "TypeError", "text": "cumsum() missing 1 required positional arguments: 'dim'", "program": None},
            "line 9: TypeError: cumsum() missing 1 required positional arguments: 'dim'\n    tick()",
        ),
        (
            {"type": "TypeError", "text": "own() takes 1 positional arguments but 2 were given", "program": None},
            "line 9: TypeError: own() takes 1 positional arguments but 2 were given\n    tick()",
        ),
        (
            {"type": "RuntimeError", "text": "ZeroDivisionError", "line": 0, "code": "", "program": None},  # torch's
            "RuntimeError: ZeroDivisionError: what this line divides by, or takes the remainder of, is 0",
        ),
        (
            {"type": "AssertionError", "text": "cannot cast [[1. 2.]]", "code": "acc.to(c_ptr.dtype)", "program": None},
            "line 9: AssertionError: cannot cast to this type: c_ptr.dtype is the type of a pointer, and "
            "c_ptr.dtype.element_ty that of its elements\n    acc.to(c_ptr.dtype)",
        ),
        (
            {"type": "AssertionError", "text": "cannot cast [[1. 2.]]", "code": "acc.to(x.dtype)", "program": None},
            "line 9: AssertionError: cannot cast to this type\n    acc.to(x.dtype)",
        ),
        (
            {"type": "E", "text": f"wrong: [[{'1.5e-3 nan ' * 9}]\n [{'-2, inf, ' * 9}0]] in x[1]", "program": None},
            "line 9: E: wrong: […] in x[1]\n    tick()",
        ),
        (
            {"type": "E", "text": "invalid operands of type pointer<int32> and int32", "code": "x < n_ptr", "line": 0},
            "E: invalid operands of type pointer<int32> and int32: n_ptr is an address; tl.load(n_ptr) is the number "
            "there (in program 4)\n    x < n_ptr",
        ),
        (
            {"type": "E", "text": "invalid operands of type pointer<int32> and pointer<int32>", "line": 0, "code": ""},
            "E: invalid operands of type pointer<int32> and pointer<int32>: one of them is an address; tl.load gives "
            "the number there (in program 4)",
        ),
        ({"type": "ValueError", "text": "y" * 700}, f"line 9: ValueError: {'y' * 600} (in program 4)\n    tick()"),
    ],
)
def test_an_exception_takes_one_message(change, says):
    error = parse_reply({"error": {**ENDLESS, "kind": "exception", "program": [4], **change}}).error
    assert said(causes.Raised(error, LIMITS)) == says


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"printed_too_much": True, "malformed": True}, "this printed more than 256 kB"),
        ({"malformed": True, "timed_out": True}, "what came back is no result"),
        ({"messages": [Reply(done=True)], "status": 0}, "this says that it is done, and sent no result"),
        ({"wrote_too_much": True}, "this wrote more than 256 MB, or 1000 files and folders, so it was stopped"),
        ({"started_too_much": True}, "this started more than 1024 threads, or programs that need more than 1024 MB"),
        ({"timed_out": True, "status": -9}, "still running after 21 s and deaf to a signal, so it was killed"),
        ({"status": -signal.SIGSEGV}, "this crashed its process (segmentation fault)"),
        ({"status": -signal.SIGABRT}, "this crashed its process (abort)"),
        ({"status": -signal.SIGXCPU}, "this used more than 6 s of processor time"),
        ({"status": -signal.SIGKILL}, "this process was killed before a result came back: it used too much memory, or"),
        ({"status": -signal.SIGHUP}, "this was ended by SIGHUP before a result came back"),
        ({"status": 7}, "this ended its own process (exit code 7) before a result came back"),
        ({}, "this ended its own process (exit code 0) before a result came back"),
    ],
)
def test_a_process_that_ended_early_says_how(parts, says):
    assert said(causes.Ended(Outcome(**parts).how_it_ended, parts.get("status", 0), 6.0, 1024)).startswith(says)


def compiled(text, source, how="status"):
    first, *rest = lines_of(causes.NotCompiled(how, text, source, 7.0, 4096))
    assert (first.text, first.leads) == ("it runs in the interpreter, but the compiler refuses it:", True)
    return "\n".join(line.text for line in rest)


def test_a_compilers_message_names_the_line_of_the_answer():
    source = "def f(x):\n    y = x\n    return x @ y\n"
    text = "at 3:11:\ndef f(x):\n    y = x\n    return x @ y\n           ^\n\nno dot for int1\n"
    assert compiled(text, source) == "line 3: return x @ y\nno dot for int1"
    twice = "    return x @ y\n    return x @ y\n"
    assert compiled(text, twice) == "return x @ y\nno dot for int1", "which of two is not known"
    long = "\n".join(f"{number}{'x' * 300}" for number in range(9))
    assert compiled(long, source).splitlines() == [f"{number}{'x' * 199}" for number in range(6)]


def test_a_compiler_that_says_nothing_took_too_long_or_too_much_or_died():
    assert compiled("", "", "endless") == "not compiled within 7 s"
    assert "more than 4096 MB together" in compiled("", "", "threads")
    assert compiled("", "") == "the compiler died"


def test_a_malformed_reply_is_named_with_its_error():
    text = said(causes.Malformed("ValueError: no tensor"))
    assert text.startswith("what came back makes no sense (ValueError: no tensor):")


EVENT = {
    "kind": "store", "matrix": "C", "line": 5, "side": "rows", "place": (9, 2), "far": (12, 3), "shape": (9, 4),
    "program": (3, 0, 0), "count": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "line 5: program 3 writes row 9 of C, which has rows 0 to 8"),
        ({"line": 0, "kind": "load"}, "program 3 reads row 9 of C, which has rows 0 to 8"),
        (
            {"far": (9, 3)},
            "line 5: program 3 writes row 9 of C, which has rows 0 to 8: one too many, as `<=` in place of `<` gives",
        ),
        (
            {"side": "columns", "place": (0, -1)},
            "line 5: program 3 writes column -1 of C, which has columns 0 to 3",
        ),
        ({"shape": (0, 4)}, "line 5: program 3 writes row 9 of C, which has no rows"),
        (
            {"side": "columns", "place": (0, 9), "far": (0, 9), "shape": (1, 9)},
            "line 5: program 3 writes entry 9 of C, which has entries 0 to 8: one too many, as `<=` in place of `<` "
            "gives",
        ),
        (
            {"side": "columns", "place": (0, 0), "shape": (1, 0)},
            "line 5: program 3 writes entry 0 of C, which has no entries",
        ),
        ({"shape": (1, 4)}, "line 5: program 3 writes row 9 of C, which has rows 0 to 0"),
        ({"matrix": None}, "line 5: program 3 writes an address that belongs to no matrix"),
        ({"side": "gap"}, "line 5: program 3 writes between the elements of C: is a stride wrong?"),
        (
            {"kind": "sync", "what": "`.item()` reads a tensor"},
            "line 5: `.item()` reads a tensor, so the CPU has to wait for the GPU",
        ),
        (
            {"pitch": (7, 132), "far": (9, 3)},
            "line 5: program 3 writes row 9 of C, which has rows 0 to 8"
            "\nthe rows of C are 132 elements apart, and those of the pointers 7",
        ),
        ({"kind": "atomic"}, "line 5: program 3 updates C by an atomic operation"),
        (
            {"kind": "undefined"},
            "line 5: this load's mask leaves elements out and no `other=` says what they are: anything may be there",
        ),
    ],
)
def test_what_a_probe_saw_becomes_a_sentence(change, says):
    event = Event(**{**EVENT, **change})
    assert said(Observed(event)) == says
    assert said(Observed(event, ". So")) == f"{says}. So"
    without = says.replace(": one too many, as `<=` in place of `<` gives", "")
    assert said(Observed(event, single=True)) == without


def test_numbers_have_their_plural():
    assert [counted(number, "tile") for number in (0, 1, 2)] == ["0 tiles", "1 tile", "2 tiles"]


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        (causes.UnwrittenTile("C", (0, 1), True, 1), "tile (0, 1) of C was never written, and 1 more like it"),
        (causes.UnwrittenTile("C", (1, 0), False, 0), "tile (1, 0) of C was only partly written"),
        (
            causes.WrongTile("C", (0, 0), (0, 3), 1.0, 3.5, -1, 2, 2),
            "tile (0, 0) of C is wrong: at (0, 3) there is 1, not 3.5; 2 tiles of 2 are wrong",
        ),
        (
            causes.WrongTile("C", (1, 0), (4, 1), 1.0, 3.5, 6, 1, 2),
            "tile (1, 0) of C is wrong: at (4, 1) there is 1, not 3.5; program 6 wrote it",
        ),
        (causes.ChangedAround("C", 2), "2 elements around C changed: something was written outside of it"),
        (causes.ChangedAround("C", 1, "."), "1 element around C changed: something was written outside of it."),
        (
            causes.NotStored("C"),
            "C changed, and no kernel's tl.store did it: the exercise asks for a kernel that stores",
        ),
        (
            causes.MadeOnCPU("x.device"),
            "torch makes a tensor on the CPU unless the call names a device: `device=x.device`",
        ),
        (ABOVE, "wrong for the reason above"),
        (BELOW, "wrong for the reason below"),
        (Drawn("M = 3"), "(M = 3)"),
        (causes.CompilesToOther("f"), "where it is compiled, the cell makes something else of f"),
        (causes.CannotCheck("no numpy"), "this cannot be checked here: no numpy"),
        (
            causes.CannotCheck("no numpy", "busy"),
            "this cannot be checked here: no numpy. And no answer runs on the GPU: busy",
        ),
        (
            causes.NotOnGPU("busy"),
            "this did not run on the GPU (`course doctor` says more), so the interpreter's word counts alone: busy",
        ),
        (causes.NotStarted("twice"), "twice"),
        (causes.Hole("TODO 03: write it"), "TODO 03: write it"),
        (Words("odd", 3), "line 3: odd"),
        (Words("odd", because=Words("even")), "odd:\neven"),
        (OnlyOnGPU((Words("odd", 3), Words("even"))), "right in the interpreter, but on the GPU: line 3: odd\neven"),
    ],
)
def test_a_cause_has_words(cause, says):
    assert said(cause) == says


def test_every_cause_has_words():
    kinds = [each for each in vars(causes).values() if isinstance(each, type) and issubclass(each, causes.Cause)]
    assert len(kinds) > 15
    base = lines_of.dispatch(object)
    wordless = {each for each in kinds if lines_of.dispatch(each) is base} - set(cause_sentences._TEMPLATES)
    assert wordless == {causes.Cause}


# ---- a message


SOURCE = "def f():\r\n    return tl.load(x)\n"


def message(*found, source=SOURCE, masks=()):
    return Writer(source, masks).write(causes_of(found))[0]


def test_a_line_that_a_message_is_about_is_quoted_below_it():
    assert message(Words("odd\nand worse", 2)) == "line 2: odd\n    return tl.load(x)\nand worse"
    both = message(OnlyOnGPU((Words("odd", 1), Words("worse", 2), Words("worst", 2))))
    assert both.splitlines()[1::2] == ["    def f():", "    return tl.load(x)"], "each of them once"
    assert message(Words("beyond the end", 9)) == "line 9: beyond the end"
    assert message("tile (0, 0) is wrong: line 1: is text") == "tile (0, 0) is wrong: line 1: is text"
    assert message(Words("return tl.load(x) is not allowed", 2)) == "line 2: return tl.load(x) is not allowed"


OUTSIDE = Observed(Event("store", "C", 2, "rows", (9, 2), (12, 3), (9, 4)))
MASK = MaskProblem(1, 3, 2, "and")


def test_the_mask_of_an_access_outside_is_explained_before_it():
    first, code, second = message(OUTSIDE, masks=[MASK]).splitlines()
    assert first == "line 2: `and` keeps only one of two masks, as Python reads it: combine them with `&`"
    assert code.strip() == "return tl.load(x)"
    assert second.startswith("line 2: program 0 writes row 9")
    assert message(OUTSIDE, masks=[MaskProblem(3, 5, 3, "and")]) == message(OUTSIDE), "that of another access"
    assert message("tile (0, 0) is wrong", OUTSIDE, masks=[MASK]) == message("tile (0, 0) is wrong", OUTSIDE)


def shown(*messages):
    writer = Writer("")
    return [writer.write(causes_of(each))[1].splitlines() for each in messages]


@pytest.mark.parametrize(("source", "said"), [("", True), ("a <= b", True), ("~(a > b)", True), ("a < b", False)])
def test_one_too_many_is_put_down_to_a_sign_that_is_there(source, said):
    far = Observed(Event("load", "A", 1, "columns", (0, 9), (0, 9), (2, 9)))
    text, _ = Writer(source).write([far])
    assert text.startswith("line 1: program 0 reads column 9 of A, which has columns 0 to 8: one too many")
    assert ("`<=`" in text) == said


def test_a_reason_and_its_inputs_are_shown_once():
    lost = Words("tile 3 is lost", because="K is taken for N")
    turn = Words("tile 4 has another's turn", because="K is taken for N")
    assert shown(None, (lost, Drawn("inputs")), (turn, Drawn("inputs")), (lost, Drawn("inputs")), "no program") == [
        [],
        ["tile 3 is lost:", "K is taken for N", "(inputs)"],
        ["tile 4 has another's turn: for the reason above"],
        ["wrong for the reason above"],
        ["no program"],
    ]
    assert shown("no program", "no program") == [["no program"], ["wrong for the reason above"]]
    assert shown((lost, Drawn("[2]")), (turn, Drawn("[3]")))[1] == [
        "tile 4 has another's turn: for the reason above",
        "([3])",
    ]


def test_a_repeated_reason_with_other_inputs_keeps_a_reason():
    assert shown(("odd", Drawn("[2, 3]")), ("odd", Drawn("[4]"))) == [
        ["odd", "([2, 3])"],
        ["wrong for the reason above", "([4])"],
    ]


def test_a_text_of_an_answers_own_cannot_move_the_cursor():
    assert message("a\x1b[2Jb") == "a�[2Jb"
    assert Line("a") == Line("a", 0, False)
