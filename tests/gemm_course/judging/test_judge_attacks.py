"""Submissions that try to pass without computing. Each earns the points of what it computed; a message says why.

Some attacks are tried twice: as a learner could submit them, and with the static check switched off. Then only the
confined process protects the judge.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import json
import os
import random
import re
import time
from pathlib import Path

import msgspec
import pytest
import torch

import mutants
from altered_server import UNREAD, judge_of
from answers import OFFSETS as RIGHT
from gemm_course.exercises import manifest
from gemm_course.isolation import seccomp, static_check
from gemm_course.judging import judge as judging
from gemm_course.judging.case import Case
from gemm_course.judging.causes import Failure
from gemm_course.judging.judge import Judge
from gemm_course.judging.request import Outcome
from gemm_course.judging.results import Result
from gemm_course.judging.untrusted import Reply
from gemm_course.judging.verdict import Verdict
from gemm_course.notebook import cells
from places import ROOT

(OFFSETS,) = manifest.find("01")
(MASKS,) = manifest.find("03")
(TABLES,) = manifest.find("04b")
HEAD = "def describe_groups(sizes, total_m):\n    "
TILE = """
def product_tile(a_ptr, b_ptr, c_ptr, row, col, M, N, K, lda, ldb, ldc, BLOCK: tl.constexpr):
    """
SECONDS = 30  # on a busy machine: what waits has three times its processor time
HASTY = msgspec.structs.replace(OFFSETS, seconds=1.0)


@pytest.fixture(scope="module")
def judge():
    with Judge(manifest.examiner) as found:
        found.check(OFFSETS, RIGHT)
        yield found


@pytest.fixture(scope="module")
def open_judge(tmp_path_factory):
    """What an answer could do if reading it beforehand had found nothing."""
    with judge_of(tmp_path_factory.mktemp("unread"), UNREAD) as found:
        yield found


def landlock():
    return ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1


def attack(judge, source, exercise=OFFSETS, **options) -> Result:
    """Check it in time, with one clear message, and the next check none the worse."""
    started = time.monotonic()
    result = judge.check(exercise, source, **options)
    assert time.monotonic() - started < SECONDS
    assert result.status == "failed", result.text()
    assert result.points == 0, result.text()
    assert result.message
    assert len(result.text()) < 20_000
    assert judge.check(OFFSETS, RIGHT).passed, "the next try is none the worse"
    return result


# ---- what an answer imports


def test_what_an_answer_may_import_is_there_when_it_runs(judge):
    used = [f"from {module} import {name}" for module, names in static_check.STANDARD.items() for name in sorted(names)]
    used.remove("from itertools import batched")  # since Python 3.12
    result = judge.check(OFFSETS, "\n".join([*used, *(f"import {each}" for each in ("copy as c", "heapq")), RIGHT]))
    assert "cannot import heapq" in result.message, "of this exercise"
    result = judge.check(OFFSETS, "\n".join([*used, RIGHT]))
    assert result.passed, result.text()


def test_a_first_launch_imports_nothing(open_judge):
    """It would take 30 ms in every check, and the static check looks only at modules that are there."""
    source = "import sys\nbefore = set(sys.modules)\n" + TILE + "print(sorted(set(sys.modules) - before))"
    assert open_judge.check(MASKS, source, 1, compiling=False).printed.startswith("[]\n")


# ---- what an answer returns


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("class Yes:\n        def __eq__(self, o): return True\n        def __len__(self): return 2\n"
         "        def __getitem__(self, i): return self\n    return Yes()", "returned a Yes, not two tensors"),
        ("class T(torch.Tensor):\n        @classmethod\n        def __torch_function__(c, f, t, a=(), k=None):"
         " return True\n    return sizes.as_subclass(T), sizes.as_subclass(T)", "has no need of __torch_function__"),
        ("class L(list):\n        def __eq__(self, o): return True\n    return L([sizes, sizes])", "returned a L"),
        ("class B:\n        def __repr__(self): return 'x' * (1 << 40)\n        def __iter__(self):\n"
         "            while True: yield 1\n    return B()", "returned a B, not two tensors"),
        ("return [sizes] * 1000", "must return two tensors"),
        ("x = [sizes]\n    for _ in range(5000): x = [x]\n    return x", "RecursionError"),
        ("return sizes.to(torch.complex64), sizes", "two tensors"),
        ("print = int = len = lambda *a: True\n    return True", "returned a bool"),
    ],
)  # fmt: skip
def test_what_is_returned_is_judged_as_bytes(judge, body, says):
    result = attack(judge, HEAD + body)
    assert re.search(says, result.message), result.text()


def test_threads_that_change_a_result_earn_what_its_bytes_earn(open_judge):
    """What is judged is what was sent, and the threads end with their process."""
    source = (
        "import threading, time\ndef spoil(ends):\n    for _ in range(500): ends.fill_(7)\n"
        + RIGHT.replace("    return", "    every = [threading.Thread(target=spoil, args=(ends,)) for _ in range(8)]\n"
                        "    [each.start() for each in every], time.sleep(0.01)\n    return")
    )  # fmt: skip
    result = open_judge.check(HASTY, source, 1)
    assert result.status == "failed"
    assert "pass" not in [each.status for each in result.properties if each.name == "ends"], result.text()
    assert open_judge.check(OFFSETS, RIGHT).passed, "the next try is none the worse"


def test_tensors_without_memory_earn_nothing(judge):
    body = "return torch.empty(len(sizes), dtype=torch.int32, device='meta'), torch.empty(total_m, device='meta').int()"
    result = judge.check(OFFSETS, HEAD + body)
    assert (result.status, result.points) == ("failed", 0), result.text()
    assert all(each.message for each in result.properties if each.status == "fail"), result.text()


@pytest.mark.parametrize("exercise", manifest.exercises(), ids=lambda exercise: exercise.name)
def test_what_holds_for_anything_earns_nothing(judge, exercise):
    """A property that no answer can break, such as that it writes nothing outside, is worth nothing by itself."""
    numbers = "torch.zeros(4, dtype=torch.int64)"
    values = ("None", f"{numbers}, {numbers}", "0", "'x'", "[]", "[[]] * 4", "(0, 0)", numbers)
    dropped = exercise.compiles or exercise.id == "10"  # the result of a device function
    for seed, value in enumerate(values[: 2 if dropped else None]):
        source = f"def {exercise.function}(*arguments, **options):\n    return {value}"
        result = judge.check(exercise, source, seed, compiling=False)
        assert (result.status, result.points) == ("failed", 0), f"returns {value}: {result.text()}"


@pytest.mark.parametrize(
    "line",
    [
        "torch.arange(sizes.sum())",
        "torch.zeros(sizes[0])",
        "torch.tensor([size for size in sizes])",
        "rows[: sizes[0]]",
        "rows.narrow(0, 0, sizes[0])",
        "sizes.repeat(sizes[0])",
        "torch.repeat_interleave(sizes)",
        "torch.repeat_interleave(sizes, sizes)",
        "torch.where(sizes > 0)",
        "torch.nn.functional.one_hot(sizes.long())",
        "list(sizes.untyped_storage())",
        "[0].extend([]) or sizes.apply_(lambda size: size)",
        "f'{sizes[0]:d}'",
        "sizes.to('cpu')",
        "torch.argwhere(sizes)",
        "complex(sizes[0])",
        "sizes.to(torch.device('cpu'))",
        "sizes.to('cpu:0')",
        "torch.asarray(sizes, device='cpu')",
        "rows[sizes[0] * 0 :: 1] if total_m else sizes.tolist()",
        "rows[sizes[0] * 0] if total_m else sizes.tolist()",
        "torch.nn.functional.pad(rows, (0, sizes[0]))",
        "sizes.as_strided((sizes[0] * 0 + 1,), (1,))",
        "torch.broadcast_to(rows, (sizes[0] * 0 + 1, total_m))",
        "sizes.tensor_split(sizes[:1].long())",
        "torch.empty(len(sizes), dtype=sizes.dtype).copy_(sizes)",
        "sizes.clamp(max=4).to(torch.zeros(1))",
        "torch.movedim(rows.view(1, -1), sizes[0] * 0, 1)",
        "torch.sparse_coo_tensor(sizes[:1].view(1, 1).long(), sizes[:1])",
    ],
)
def test_no_way_to_the_host_goes_unseen(judge, line):
    result = judge.check(OFFSETS, RIGHT.replace("    group =", f"    {line}\n    group ="))
    (device,) = (each for each in result.properties if each.name == "device")
    assert device.message.startswith("line 5: "), result.text()
    assert result.points == OFFSETS.points - device.points


def test_an_error_that_says_a_number_goes_to_the_host(judge):
    asks = "try: rows.take(sizes[:1].long() + 10**6)\n    except IndexError: pass\n    group ="
    result = judge.check(OFFSETS, RIGHT.replace("group =", asks))
    (device,) = (each for each in result.properties if each.status == "fail")
    assert (device.name, "index out of range" in device.message) == ("device", True), result.text()


@pytest.mark.parametrize(
    "line",
    [
        "sizes.to(torch.int64).to(sizes.device)",
        "torch.full((total_m,), -1, device=sizes.device).view(-1, 1)",
        "rows[ends.clamp(max=0) * 0] if total_m else None",
        "torch.repeat_interleave(rows, rows * 0 + 1, output_size=total_m)",
        "torch.where(sizes > 0, sizes, 0)",
        "torch.cat([sizes, torch.zeros(1, dtype=sizes.dtype, device=sizes.device)]).expand(2, -1)",
        "(rows * 1)[rows < 3] = 0",
        "torch.where(sizes > 0, sizes, torch.tensor(3))",
        "torch.empty_like(sizes, device='cpu')",
        "sizes.new_zeros(3).to(sizes).is_cuda or 1 / 0",
    ],
)
def test_what_stays_on_the_device_is_no_host_sync(judge, line):
    result = judge.check(OFFSETS, RIGHT.replace("    group =", f"    {line}\n    group ="))
    assert result.passed, result.text()


# ---- what the process can do that runs it

WRITES = (  # to every descriptor that could be the one for results
    "import os, struct\nfrom gemm_course.runner import serialization as wire\n"
    "def everywhere(data):\n    for fd in range(3, 30):\n"
    "        try: os.write(fd, data)\n        except OSError: pass\n"
)


@pytest.mark.parametrize(
    ("before", "body", "says"),
    [
        ("import os", "os._exit(0)", "ended its own process \\(exit code 0\\)"),
        ("import atexit, os\natexit.register(os._exit, 0)", "return 1", "returned a int"),
        ("import torch\ntorch.equal = torch.allclose = lambda *a, **k: True", "return sizes", "returned a Tensor"),
        ("from gemm_course.judging import diagnosis, judge, results\nfrom gemm_course.exercises.e01_offsets "
         "import examine\nexamine.examine = lambda *a: []\njudge._examine = lambda *a: True\n"
         "results.PASSED = 'failed'", "return sizes", "no file to open"),
        ("import gemm_course.exercises.e01_offsets.examine as e\ne._mistake = lambda *a: None\n"
         "e.run = lambda *a: [1, 2]", "return sizes", "no file to open"),
        ("import builtins\nbuiltins.len = lambda x: 0\nbuiltins.isinstance = lambda *a: True", "pass", "."),
        (WRITES, "everywhere(wire.pack({'done': True})); os._exit(0)", "says that it is done, and sent no result"),
        (WRITES, "everywhere(wire.pack({'status': 'passed', 'points': 10, 'properties': []})); os._exit(0)",
         "makes no sense"),
        (WRITES, "everywhere(wire.pack([1])); everywhere(wire.pack('x')); os._exit(0)", "is no result"),
        (WRITES, "everywhere(wire.pack({'case': -1, 'value': 1, 'watched': {}})); os._exit(0)", "no sense"),
        (WRITES, "everywhere(wire.pack({'error': 3})); os._exit(0)", "is no result"),
        (WRITES, "header = b'{\"case\": 0, \"value\": {\"__tensor__\": [\"int8\", [0, 4611686018427387904, "
         "4611686018427387904], 0]}}'\n    everywhere(struct.pack('<QQ', len(header), 0) + header); os._exit(0)",
         "is no result"),
        (WRITES, "everywhere(b'x' * 64); os._exit(0)", "is no result"),
        ("import os, time", "os.closerange(3, 30); time.sleep(9)", "closed the pipe for its result"),
        (WRITES, "everywhere(wire.pack({'error': {'kind': 'refused', 'type': '', 'text': 'line 1: \\n' * 300000, "
         "'line': 0, 'code': ''}})); os._exit(0)", "line 1"),
        (WRITES, "everywhere(struct.pack('<QQ', 8, 0) + b'[[[[[[[['); os._exit(0)", "is no result"),
        (WRITES, "everywhere(wire.pack({'case': 0, 'value': None, 'watched': {'outputs': [{'name': 'C', 'shape': "
         "[10**6, 10**6], 'strides': [0, 0], 'offset': 0, 'buffer': torch.zeros(1), 'counts': torch.zeros(1), "
         "'writers': torch.zeros(1)}]}})); os._exit(0)", "no sense"),
        (WRITES, "everywhere(wire.pack({'case': 0, 'value': None, 'watched': {'events': [{'kind': 'sync', 'line': 0, "
         "'what': 'x' * 3000000}]}})); os._exit(0)", "."),
        ("import os\nclass P:\n    def __reduce__(self): return (os._exit, (0,))", "return P()", "returned a P"),
        ("", "raise type('\\x1b[2J', (Exception,), {})('\\x1b]0;mine\\x07' * 500)", "Exception|2J"),
        ("", "raise SystemExit(0)", "ends the program"),
        ("import sys\nsys.exit = sys.settrace", "raise KeyboardInterrupt", "ends the program"),
        ("import gc\ngc.unfreeze()", "return [o for o in gc.get_objects() if type(o).__name__ == 'Case'][0].expected",
         "IndexError"),
        ("import sys", "f = sys._getframe()\n    while f.f_back: f = f.f_back\n"
         "    return [v for v in f.f_locals.values() if 'expected' in str(v)][0]", "IndexError"),
    ],
)  # fmt: skip
def test_what_an_answer_sends_or_replaces_earns_nothing(open_judge, before, body, says):
    result = attack(open_judge, f"{before}\n{HEAD}{body}")
    assert re.search(says, result.message), result.text()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", result.text()), "nothing that moves a terminal's cursor"


def test_an_input_is_examined_once_whatever_is_sent_beside_it(monkeypatch):
    examined, cases = [], [Case({"n": 0}, ()), Case({"n": 1}, ())]
    monkeypatch.setattr(judging, "_examine", lambda module, case, *rest: examined.append(case))
    error = Failure(kind="exception", type="ValueError", text="mine", line=0, code="")
    replies = [Reply(case=case, value=1, error=error) for case in (0, 0, -1, 0, 1, 1, None, 7)]
    verdict = Verdict(OFFSETS)
    judging._note_outcome("run", manifest.examiner(OFFSETS), cases, Outcome(messages=replies), verdict)
    assert examined == cases
    assert "mine" in verdict.result("").message


@pytest.mark.skipif(not seccomp.supported(), reason="this kernel filters no system calls")
@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("import os", "while True: os.fork()"),
        ("import os", "os.execv('/bin/true', ['true'])"),
        ("import subprocess", "subprocess.run(['true'])"),
        ("import os", "os.posix_spawn('/bin/true', ['true'], {})"),
        ("import os", "os.kill(os.getppid(), 9)"),
        ("import os, signal", "os.kill(-1, signal.SIGKILL)"),
        ("import os, resource", "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))"),
        ("import socket", "socket.create_connection(('127.0.0.1', 1))"),
        ("import os", "os.memfd_create('room')"),
    ],
)
def test_no_other_process_and_no_network(open_judge, before, body):
    result = attack(open_judge, f"{before}\n{HEAD}{body}")
    assert "no process to start and no network" in result.message


@pytest.mark.parametrize(
    "read",
    [
        "open({!r}).read()",
        "__import__('pathlib').Path({!r}).read_text()",
        "__import__('numpy').fromfile({!r}, dtype='uint8')",
        "torch.load({!r})",
        "torch.from_file({!r}, size=10)",
        "__import__('os').open({!r}, 0)",
        "__import__('mmap').mmap(__import__('os').open({!r}, 0), 0)",
    ],
)
def test_the_solutions_cannot_be_read(open_judge, read):
    if not landlock():
        pytest.skip("this kernel has no Landlock")
    path = ROOT / "solutions" / "01_offsets.ipynb"
    assert path.is_file()
    result = attack(open_judge, HEAD + "return " + read.format(str(path)))
    assert re.search("no file to open|Permission denied|No such file", result.message), result.text()


def test_nothing_of_the_user_or_the_judge_can_be_read(open_judge, tmp_path, monkeypatch):
    if not landlock():
        pytest.skip("this kernel has no Landlock")
    (tmp_path / "other.ipynb").write_text("another student's")
    for path in (tmp_path / "other.ipynb", "/etc/passwd", f"/proc/{os.getpid()}/mem", f"/proc/{os.getpid()}/environ"):
        assert "no file to open" in attack(open_judge, HEAD + f"open({str(path)!r}, 'rb').read(1)").message
    for path in (tmp_path, ROOT, Path.home()):
        assert "no file to open" in attack(open_judge, f"import os\n{HEAD}os.listdir({str(path)!r})").message


def test_an_answer_does_not_see_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADING_TOKEN", "a secret")
    look = "print('PATH' in os.environ, 'GRADING_TOKEN' in os.environ, 'secret' in open('/proc/self/environ').read())"
    with judge_of(tmp_path, UNREAD) as judge:
        assert attack(judge, f"import os\n{HEAD}{look}").printed.startswith("True False False")


def test_garbage_of_an_answer_is_collected_and_what_was_imported_before_is_none(open_judge):
    assert attack(
        open_judge, f"import gc\n{HEAD}print(gc.isenabled(), gc.get_freeze_count() > 10**5)"
    ).printed.startswith("True True")


def test_a_forged_pass_needs_the_right_numbers(judge):
    """Whoever finds the pipe can send messages; what they say is compared like any other result."""
    forged = (
        WRITES + HEAD + "for case in range(20):\n"
        "        value = [torch.zeros(3, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)]\n"
        "        everywhere(wire.pack({'case': case, 'value': value, 'watched': {'events': [], 'outputs': []}}))\n"
        "    everywhere(wire.pack({'done': True})); os._exit(0)"
    )
    for seed in range(5):
        result = judge.check(OFFSETS, forged, seed)
        assert not result.passed
        failed = {each.name for each in result.properties if each.status == "fail"}
        assert {"ends", "rows", "empty", "tail"} <= failed or result.points == 0, result.text()


class Forger:
    """Makes messages of the right form with anything in them, as a child would that knows the judge's source."""

    ODD = (
        *(None, True, -1, 10**30, 0.5, float("inf"), float("nan")),
        *("", "x\x1b[2J", [], [[]], {}, {"not": 3}, [None] * 7),
    )

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def anything(self, depth=0):
        kind = self.rng.randrange(8 if depth < 3 else 4)
        if kind < 3:
            return self.rng.choice(self.ODD)
        if kind == 3:
            dtype = self.rng.choice([torch.int64, torch.float32, torch.bool, torch.float16])
            return torch.ones(self.rng.choice([(), (0,), (3,), (2, 3)]), dtype=dtype)
        if kind < 6:
            return [self.anything(depth + 1) for _ in range(self.rng.randrange(7))]
        return {name: self.anything(depth + 1) for name in self.rng.sample(["first", "key", "hashes", "line"], 2)}

    def altered(self, value):
        """A value with some of its parts replaced."""
        if self.rng.random() < 0.06:
            return self.anything()
        if isinstance(value, dict):
            return {key: self.altered(each) for key, each in value.items()}
        return [self.altered(each) for each in value] if isinstance(value, list) else value


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # a tensor where an examiner looks up a name
@pytest.mark.parametrize("exercise", manifest.exercises(), ids=lambda exercise: exercise.name)
def test_nothing_that_arrives_makes_the_judge_raise(judge, exercise, monkeypatch):
    solution = cells.of_notebook(ROOT / "solutions" / f"{exercise.name}.ipynb", exercise.function)
    wrong = next(iter(mutants.of(exercise.name).values())).source
    asked, sent, forger = judge.ask, [], Forger(exercise.name)
    monkeypatch.setattr(judge, "ask", lambda *arguments: sent.append(asked(*arguments)) or sent[-1])
    for source in (solution, wrong):
        judge.check(exercise, source, 1, compiling=False)

    def forge(*_):
        messages = [forger.altered(msgspec.structs.asdict(each)) for each in forger.rng.choice(sent).messages]
        outcome = judging.Outcome(ready=True, layouts=sent[0].layouts)
        for message in messages:
            with contextlib.suppress(ValueError):  # which ends a real process
                outcome.take([message])
        return outcome

    monkeypatch.setattr(judge, "ask", forge)
    cases = manifest.examiner(exercise).draw(random.Random(1))  # once: drawing takes longer than everything else
    monkeypatch.setattr(manifest.examiner(exercise), "draw", lambda _: cases)
    for _ in range(30):
        result = judge.check(exercise, solution, 1, compiling=False)
        assert Result.from_dict(json.loads(json.dumps(result.as_dict()))).text()


# ---- what the process knows that runs it

LOOK = """
import gc, importlib, os, sys
looked = []
def {function}(*arguments, **options):
    if looked: return
    looked.append(True)
    ours = sorted(name for name in sys.modules if name.startswith(("course_kernels", "gemm_course")))
    paths = [file for name in ours if (file := getattr(sys.modules[name], "__file__", None))]
    top = [place for name in ("course_kernels", "gemm_course") for place in sys.modules[name].__path__]
    for name in {names}:
        try: importlib.import_module(name); ours.append("IMPORTED " + name)
        except (OSError, ImportError): pass
    for path in [*paths, *(os.path.join(each, "__init__.py") for each in top)]:
        try: open(path).read(1); ours.append("READ " + path)
        except OSError: pass
    gc.unfreeze()  # also what was there before the fork
    made = [each for each in gc.get_objects() if type(each).__name__ in ("function", "type")]
    known = [each for each in made if each.__name__ in ("examine", "draw", "Case")]
    print(ours, len([each for each in known if str(each.__module__).startswith(("course_kernels", "gemm_course"))]))
"""
KNOWING = (
    "gemm_course.judging.judge", "gemm_course.exercises.manifest", "course_kernels.testing.reference",
    "course_kernels.packed.api", "course_kernels.masked.shuffle", "course_kernels.lists.launch",
    "gemm_course.exercises.e01_offsets.run",
)  # fmt: skip


@pytest.mark.skipif(not landlock(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("exercise", manifest.exercises(), ids=lambda exercise: exercise.name)
def test_the_process_of_an_answer_knows_no_result_and_nobody_who_does(open_judge, exercise):
    names = [*KNOWING, exercise.run.replace(".run", ".examine")]
    names.remove(exercise.run) if exercise.run in names else None
    source = LOOK.format(function=exercise.function, names=names)
    if exercise.compiles and exercise.id != "11b":  # a device function is only called in a launch
        source = source.replace("(*arguments, **options):", "():", 1) + f"\n{exercise.function}()\n"
    printed = open_judge.check(exercise, source, 1, compiling=False).printed
    assert printed, "it looked"
    named, _, count = printed.splitlines()[0].rpartition(" ")
    there = set(ast.literal_eval(named))
    assert count == "0"
    allowed = {
        "course_kernels", "course_kernels.late_interpreter", "course_kernels.runtime",
        "course_kernels.testing", "course_kernels.testing.canaries",
        "gemm_course", "gemm_course.bfloat16", "gemm_course.isolation", "gemm_course.isolation.landlock",
        "gemm_course.isolation.own_builtins", "gemm_course.isolation.seccomp", "gemm_course.isolation.static_check",
        "gemm_course.runner", "gemm_course.exercises", exercise.run, exercise.run.removesuffix(".run"),
    }  # fmt: skip
    allowed |= {name for name in there if re.fullmatch(r"gemm_course\.runner\.\w+", name)}
    allowed |= {
        "10": {"gemm_course.lessons", "gemm_course.lessons.hopper_kernel"},
        "13": {exercise.run.replace(".run", ".language")},
    }.get(exercise.id, set())
    if exercise.id == "04b":  # the kernel that reads the tables
        parts = ("", ".codes", ".common", ".language", ".record", ".round_robin")
        allowed |= {f"course_kernels.kernels{part}" for part in parts}
    assert there <= allowed


# ---- kernels


def test_a_result_that_no_kernel_stored_is_told_apart(open_judge):
    """The right numbers, computed by numpy and moved to C's address: each exercise asks for a kernel that stores."""
    source = "import ctypes, numpy as np\n" + TILE + (
        "def read(p, rows, cols, ld):\n"
        "        base, size = int(p.handle.data.flat[0]), 4 * ld * rows\n"
        "        flat = np.frombuffer((ctypes.c_char * size).from_address(base), np.float32)\n"
        "        return np.stack([flat[i * ld : i * ld + cols] for i in range(rows)])\n"
        "    M, N, K, lda, ldb, ldc = (int(x.handle.data.item()) for x in (M, N, K, lda, ldb, ldc))\n"
        "    c = np.ascontiguousarray(read(a_ptr, K, M, lda).T @ read(b_ptr, K, N, ldb))\n"
        "    base = int(c_ptr.handle.data.flat[0])\n"
        "    for i in range(M): ctypes.memmove(base + 4 * ldc * i, c[i].ctypes.data, 4 * N)\n"
    )  # fmt: skip
    result = attack(open_judge, source, MASKS, compiling=False)
    assert "C changed, and no kernel's tl.store did it" in result.message, result.text()


def test_a_product_computed_without_the_kernel_earns_nothing(judge):
    """As a learner could hand it in: torch computes, and the tables let the library's kernel do nothing."""
    source = cells.of_notebook(ROOT / "solutions" / f"{TABLES.name}.ipynb", TABLES.function)
    empty = source.replace("(sizes, dtype=torch.int32", "([[0, 0, 0] for _ in sizes], dtype=torch.int32")
    copied = "    for x, w, y in zip(inputs, weights, outputs): y.copy_(x @ w.T)\n    problems ="
    assert empty != source
    result = attack(judge, empty.replace("    problems =", copied), TABLES)
    assert "no kernel's tl.store did it" in result.message


def test_what_is_compiled_has_to_be_what_ran(open_judge):
    """A version for the interpreter, and an empty one where the decorator makes something that has a cache's key."""
    solution = cells.of_notebook(ROOT / "solutions" / "03_tail_masks.ipynb", MASKS.function)
    empty = "@triton.jit" + TILE + "pass\n"
    source = f"{solution}\nran = product_tile\n{empty}\nif not hasattr(ran, 'cache_key'): product_tile = ran\n"
    result = open_judge.check(MASKS, source, 1)
    (failed,) = (each for each in result.properties if each.status != "pass")
    assert failed.name == "compiles"
    assert failed.message == "where it is compiled, the cell makes something else of product_tile"


def test_outputs_of_another_size_than_was_laid_out_are_not_looked_at(open_judge):
    """A log of two million programs would keep a judge busy for minutes."""
    (walk,) = manifest.find("04a")
    forged = (
        WRITES + "many = torch.zeros(6 << 20, dtype=torch.int32)\n"
        "output = {'buffer': many, 'counts': many[:9], 'writers': many[:9], 'shape': [2 << 20, 3], 'strides': [3, 1]}\n"
        "layout = {'outputs': [{**output, 'name': 'log', 'dtype': 'int32', 'elements': 6 << 20, 'offset': 0}]}\n"
        "everywhere(wire.pack({'case': 0, 'value': None, 'layouts': [], 'watched': {'outputs': [output]}}))\n"
        "os._exit(0)\ndef walk_tiles(): pass"
    )
    started = time.monotonic()
    result = open_judge.check(walk, forged, 1, compiling=False)
    assert time.monotonic() - started < SECONDS
    assert result.points == 0
    assert "makes no sense" in result.message, result.text()


@pytest.mark.parametrize(
    ("x", "status"), [("x.data_ptr()", "pass"), ("64 if len(asked) % 2 else x.data_ptr()", "fail")]
)
def test_addresses_are_those_from_before_the_answer(open_judge, x, status):
    """The answer claims that every X is at address 64: in its own process, and in a message of the right form."""
    source = cells.of_notebook(ROOT / "solutions" / f"{TABLES.name}.ipynb", TABLES.function)
    # The probes find a matrix by `low` and `high`, which stay: the kernel still runs.
    forge = (
        "    asked.append(1)\n    watches = [each for each in gc.get_objects() if type(each).__name__ == 'Watch']\n"
        "    for region in [region for each in watches for region in each._regions]:\n"
        "        if region.name.startswith('X'): region.base = 64\n"
        "    everywhere(wire.pack({'masks': [], 'layouts': [each.layout() for each in watches]}))\n    problems ="
    )
    source = (
        "import gc\nasked = []\n" + WRITES + source.replace("    problems =", forge, 1).replace("x.data_ptr()", x, 1)
    )
    assert "gc.get_objects" in source
    assert f"[[{x}, w" in source
    result = open_judge.check(TABLES, source, 1)
    pointers = next(each for each in result.properties if each.name == "pointers")
    assert pointers.status == status, result.text()
    assert "`pointers[0, 0]` is not the address of X of problem 0" in pointers.message or status == "pass"


# It computes nothing: it looks for lists of a table's form, in memory and in what functions of ours return.
HUNT = """
import gc, sys, types
def problem_tables(inputs, weights, outputs):
    count, found = len(inputs), {3: [], 6: []}
    def look(each, depth=3):
        if type(each) is torch.Tensor and each.dim() == 2 and not each.is_floating_point(): each = each.tolist()
        each = list(each.values()) if type(each) is dict else each
        if type(each) not in (list, tuple): return
        rows = [row for row in each if type(row) in (list, tuple) and all(type(part) is int for part in row)]
        widths = {len(row) for row in rows}
        if len(each) == len(rows) == count and widths in ({3}, {6}): found[widths.pop()].append(each)
        for part in each if depth else (): look(part, depth - 1)
    problems, frame = list(zip(inputs, weights, outputs)), sys._getframe().f_back
    while frame: look(frame.f_locals, 5); frame = frame.f_back
    places = "course_kernels.", "gemm_course.exercises."
    ours = [each for name, each in sys.modules.items() if name.startswith(places)]
    for each in [each for module in ours for each in vars(module).values() if type(each) is types.FunctionType]:
        for arguments in ((problems,), ("pointers", problems), ("sizes", problems), ("strides", problems)):
            try: look(each(*arguments))
            except BaseException: pass
        try: look([each(*problem) for problem in problems])
        except BaseException: pass
    gc.unfreeze()
    for each in gc.get_objects(): look(each, 0)
    wide = [each for each in found[3] if min(map(min, each)) >> 32]  # addresses
    thin = [each for each in found[3] if not max(map(max, each)) >> 32]
    def table(rows, columns, dtype):
        return torch.tensor((rows or [[[0] * columns] * count])[-1], dtype=dtype, device=inputs[0].device)
    return table(wide, 3, torch.int64), table(thin, 3, torch.int32), table(found[6], 6, torch.int64)
"""


def test_the_tables_are_nowhere_to_be_found(open_judge):
    result = open_judge.check(TABLES, HUNT, 1)
    assert [each.status for each in result.properties] == ["fail"] * len(TABLES.checks), result.text()


# Its products are torch's; no kernel is launched, but is said to have stored them. With tables of zeros or right ones.
FORGE = """
import gc, sys
runs, wire = (sys.modules[f"gemm_course.{name}"] for name in ("exercises.e04b_tables.run", "runner.serialization"))
runs._launch = lambda *_: True
runs.FakeGPU.has = lambda *_: True
calls = []
def problem_tables(*lists):
    tables = [table * FACTOR for table in solved(*lists)]
    calls.append((tables, list(zip(*lists))))
    watches = [each for each in gc.get_objects() if type(each).__name__ == "Watch"]
    (watch,) = [each for each in watches if any(region.view is lists[2][0] for region in each._regions)]
    if len(calls) % 2:
        for region in watch._regions: region.disclose()
        for x, w, y in zip(*lists): y.copy_(x.float() @ w.float().T)
        for region in watch._regions:
            region._known[:] = region._shown[:] = region._memory
            if region.output: region.counts[:] = 1
        return tables
    (first, problems), (second, _) = calls[-2:]
    value = {"after": [[[list(each.shape), list(each.stride())] for each in problem] for problem in problems]}
    value.update(launched=True, first=runs._described(first, None), second=runs._described(second, None))
    frame = sys._getframe()
    while "results" not in frame.f_locals: frame = frame.f_back
    for value in VALUES:
        message = {"case": len(calls) // 2 - 1, "value": value, "watched": watch.report()}
        wire.send(frame.f_locals["results"], message)
    return tables
"""


def forging(factor, values):
    solution = cells.of_notebook(ROOT / "solutions" / f"{TABLES.name}.ipynb", TABLES.function)
    source = solution.replace("def problem_tables", "def solved")
    return source + FORGE.replace("FACTOR", str(factor)).replace("VALUES", values)


@pytest.mark.parametrize(("factor", "points"), [(0, 0), (1, TABLES.points)])
@pytest.mark.parametrize("values", ["[]", "[value]"], ids=["in the process", "as a message"])
def test_forged_products_count_beside_right_tables_alone(open_judge, factor, points, values):
    result = open_judge.check(TABLES, forging(factor, values), 1)
    assert result.points == points, result.text()
    if not points:
        assert result.properties[-1].message.startswith("not judged, since not all tables are right")


@pytest.mark.parametrize("values", ["[{}]", "[{**value, 'first': []}]", "[{**value, 'first': {}}]"])
def test_a_message_without_tables_earns_nothing(open_judge, values):
    result = attack(open_judge, forging(1, values), TABLES)
    assert "makes no sense" in result.message


# Each is right, and its kernel computes nothing: torch does, in the place of the line.
IDLE = """
@triton.jit
def column_sums(
    grad_ptr, ends_ptr, out_ptr, N, stride_grad, stride_out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    g = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    places = out_ptr + g * stride_out + cols
    KERNEL

def sums(grad, ends, into):
    bounds = [0, *ends.tolist()]
    for g, (start, end) in enumerate(zip(bounds, bounds[1:])):
        into[g, :] = grad[start:end].float().sum(0)

def bias_gradient(grad, ends, out):
    N, BLOCK_M, BLOCK_N = grad.shape[1], 16, 16
    grid = (len(ends), triton.cdiv(N, BLOCK_N))
    arguments = grad, ends, out, N, grad.stride(0), out.stride(0), BLOCK_M, BLOCK_N
    BODY
"""
LAUNCH, ADDS = "column_sums[grid](*arguments)", "tl.store(places, tl.load(places, mask=cols < N) + 0.0, mask=cols < N)"
ZEROS, FROM_GRAD = "tl.store(places, tl.zeros((BLOCK_N,), tl.float32), mask=cols < N)", (
    "tl.store(places, tl.load(grad_ptr + g * stride_grad + cols, mask=cols < N).to(tl.float32), mask=cols < N)"
)  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "body"),
    [
        (ADDS, f"sums(grad, ends, out); {LAUNCH}"),
        ("tl.atomic_add(places, tl.zeros((BLOCK_N,), tl.float32), mask=cols < N)", f"sums(grad, ends, out); {LAUNCH}"),
        (ZEROS, f"{LAUNCH}; sums(grad, ends, out)"),
        (f"if BLOCK_M == 16:\n        {ZEROS}\n    else:\n        {ADDS}",
         f"{LAUNCH}; sums(grad, ends, out); column_sums[grid](*arguments[:-2], 8, 16)"),
        (FROM_GRAD, f"sums(grad, ends, grad); {LAUNCH}"),
    ],
    ids=["adds 0", "adds 0 by an atomic", "is overwritten", "adds 0 to what another stored", "copies from an input"],
)  # fmt: skip
def test_a_kernel_that_passes_on_what_torch_computed_earns_nothing(judge, kernel, body):
    (exercise,) = manifest.find("11b")
    result = attack(judge, IDLE.replace("KERNEL", kernel).replace("BODY", body), exercise, compiling=False)
    assert "holds numbers that Python code put there" in result.message


# The numbers are arguments of launches of the kernel that the exercise asks for.
HANDED_OVER = """
@triton.jit
def column_sums(
    grad_ptr, ends_ptr, out_ptr, N, stride_grad, stride_out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    tl.store(out_ptr, N + LOAD)

def bias_gradient(grad, ends, out):
    bounds = [0, *ends.tolist()]
    for g, (start, end) in enumerate(zip(bounds, bounds[1:])):
        for column, number in enumerate(grad[start:end].float().sum(0).tolist()):
            column_sums[(1,)](grad, ends, out[g, column:], number, grad.stride(0), 0, 16, 32)
"""

# In the interpreter a kernel is Python code, too: it could tell what it has loaded.
TOLD = """
seen = []

@triton.jit
def tell(grad_ptr, out_ptr, stride_grad, row, column):
    seen.append(float(str(tl.load(grad_ptr + row * stride_grad + column)).strip("[]")))

@triton.jit
def put(out_ptr, number):
    tl.store(out_ptr, number)

def bias_gradient(grad, ends, out):
    bounds = [0, *ends.tolist()]
    for g, (start, end) in enumerate(zip(bounds, bounds[1:])):
        for column in range(grad.shape[1]):
            seen.clear()
            for row in range(start, end):
                tell[(1,)](grad, out, grad.stride(0), row, column)
            put[(1,)](out[g, column:], float(sum(seen)))
"""


@pytest.fixture
def few_columns(monkeypatch):
    """One input of exercise 11b, with four columns: for attacks that launch a kernel for each number. What earns
    nothing here earns nothing with more inputs, which can only reject it again."""
    examiner = manifest.examiner(*manifest.find("11b"))
    draw = examiner.draw

    def drawn(rng):
        case = draw(rng)[0]
        return [Case({**case.inputs, "grad": case.inputs["grad"][:, :4].contiguous()}, case.checks, label=case.label)]

    monkeypatch.setattr(examiner, "draw", drawn)


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize("name", ["tell", "column_sums"])
def test_what_another_kernel_tells_python_code_earns_nothing(judge, name):
    (exercise,) = manifest.find("11b")
    solution = cells.of_notebook(ROOT / "solutions" / f"{exercise.name}.ipynb", exercise.function)
    exercise = msgspec.structs.replace(exercise, seconds=30.0)
    told = TOLD
    if name != "tell":
        told = told.replace("@triton.jit\ndef tell", "sums = column_sums\n@triton.jit\ndef column_sums")
        told = told.replace("tell[", "column_sums[").replace("\ndef put", "\ndef put") + "\n"
        told = told.replace("def bias_gradient", "tell = column_sums\ncolumn_sums = sums\ndef bias_gradient")
        told = told.replace("column_sums[(1,)]", "tell[(1,)]")
    result = attack(judge, solution.replace("def bias_gradient", "def unused") + told, exercise, compiling=False)
    assert f"the kernel `{name}` is launched, too" in result.message, result.text()


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize(
    ("load", "says"),
    [
        ("0.0", "^no kernel reads anything of grad: a kernel has to"),
        ("tl.load(grad_ptr).to(tl.float32) * 0", r"is launched \d+ times: the given line launches it once"),
    ],
    ids=["idle", "reads and forgets"],
)
def test_sums_that_torch_computed_are_wrong_as_arguments_of_a_launch(judge, load, says):
    (exercise,) = manifest.find("11b")
    for seed in range(3):
        result = attack(judge, HANDED_OVER.replace("LOAD", load), exercise, seed=seed, compiling=False)
        assert re.search(says, result.message), result.text()


# The branch is not compiled: BLOCK_M is 16 there.
TELLS = """
seen = []

@triton.jit
def column_sums(
    grad_ptr, ends_ptr, out_ptr, N, stride_grad, stride_out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    if BLOCK_M == 1:
        seen.append(float(str(tl.load(grad_ptr).to(tl.float32)).strip("[]")))
    elif BLOCK_M == 2:
        tl.store(out_ptr, N + 0.0)

def bias_gradient(grad, ends, out):
    bounds = [0, *ends.tolist()]
    for g, (start, end) in enumerate(zip(bounds, bounds[1:])):
        for column in range(grad.shape[1]):
            seen.clear()
            for row in range(start, end):
                column_sums[(1,)](grad[row, column:], ends, out, 0, 0, 0, 1, 1)
            column_sums[(1,)](grad, ends, out[g, column:], float(sum(seen)), 0, 0, 2, 1)
"""


@pytest.mark.usefixtures("few_columns")
def test_what_the_kernel_tells_python_code_in_other_launches_earns_nothing(judge):
    (exercise,) = manifest.find("11b")
    result = attack(judge, TELLS, msgspec.structs.replace(exercise, seconds=30.0), compiling=False)
    assert re.search(r"column_sums is launched \d+ times: the given line launches it once", result.message)


# Memory of this process as an array of objects: numpy believes what an object says of its own.
VIEW = "view = {'data': (id(describe_groups) + 16, True), 'shape': (1,), 'typestr': '|O', 'version': 3}\n"
OBJECT = "print('LEAKED', torch.zeros(1, dtype=torch.int64).numpy().choose([x])[0])"
POKE = "@triton.jit\ndef peek(p, o):\n    tl.store(o, tl.load(p.to(tl.int64).to(tl.pointer_type(tl.int64))))\n\n"

# Pointers of its own, which could be others at the next look.
HANDLE = """
there = torch.full((1,), 7, dtype=torch.int64)

class Block:
    dtype = tl.pointer_type(tl.int64)

    @property
    def data(self):
        return there.data_ptr()

    def get_element_ty(self):
        return tl.int64

@triton.jit
def peek(p, BLOCK: tl.constexpr):
    return tl.load(tl.tensor(BLOCK, tl.pointer_type(tl.int64)))

peek[(1,)](there, Block())
print("LEAKED")
"""

# Lines that read the sizes of exercise 01 on the host, where no probe sees them; and what refuses them.
CODE = r"'def f(x: Tensor) -> List[int]:\n    r: List[int] = x.tolist()\n    return r\n'"
_VIEW = "{'_' * 2 + 'array_interface' + '_' * 2: {'data': (sizes.data_ptr(), True), 'shape': (len(sizes),), "
_VIEW += "'typestr': '<i4', 'version': 3}}"
READS_OF_SIZES = {
    f"host = (torch.zeros(1, dtype=torch.int32).numpy() + type('V', (), {_VIEW})()).tolist()": ".numpy",
    f"host = torch.CompilationUnit({CODE}).f(sizes.to(torch.int64))": ".CompilationUnit",
    "with torch.DisableTorchFunction(): host = sizes.tolist()": ".DisableTorchFunction",
}
LOOP_OVER_ROWS = """
    ends, group, total = [], [], 0
    for g, size in enumerate(host):
        total += size
        ends.append(total)
        group += [g] * size
    group += [-1] * (total_m - total)
    made = {"dtype": torch.int32, "device": sizes.device}
    return torch.tensor(ends, **made), torch.tensor(group, **made)
"""

# Ways past the static check that were found: code that runs anything in the answer's process, by no refused name.
WAYS_IN = {
    "a format string": 'try: "{0.__globals__[torch].sys.nope}".format(describe_groups)\n'
    "except AttributeError as error: error.obj.exit(3)",
    "a name in a string": 'try: torch.set_default_tensor_type("os.nope")\nexcept AttributeError as error: '
    "error.obj._exit(3)",
    "text from elsewhere": 'text = "{0.__glo" + "bals__}"\nprint(text.format(describe_groups))',
    "map": 'print(*map(str.format, ["{0.__globals__}"], [describe_groups]))',
    "a traceback": "try: 1 / 0\nexcept ArithmeticError as error: print(error.with_traceback(None).__traceback__)",
    "a generator": "print((each for each in ()).gi_frame)",
    "a coroutine": "async def f(): pass\nprint(f().cr_frame.f_globals)",
    "a class that numpy believes": VIEW + "x = type('V', (), {'__array_interface__': view})()\n" + OBJECT,
    "a pattern in a class": VIEW
    + "class V:\n    match view:\n        case __array_interface__: pass\nx = V()\n"
    + OBJECT,
    "torch's class of any attributes": VIEW + "x = torch.nn.ParameterDict({'__array_interface__': view})\n" + OBJECT,
}
# The same where nothing shows it before it runs.
LATE = "'_' * 2 + 'array_interface' + '_' * 2"
LATE_WAYS_IN = {
    "a class of texts": (VIEW + f"x = type('V', (), {{{LATE}: view}})()\nprint('LEAKED')", "takes 1 positional"),
    "a class of a class": (VIEW + f"x = type(int)('V', (), {{{LATE}: view}})()\nprint('LEAKED')", "type of a class"),
    "a class by map": (VIEW + f"(x,) = map(type, 'V', [()], [{{{LATE}: view}}])\nprint('LEAKED')", "1 positional"),
    "numpy's view of numbers as objects": (
        "a = torch.tensor([id(print)]).numpy()\nprint('LEAKED', type(a)(1, 'O', a))", "no need of .numpy",
    ),
    "the bytes of an array of objects": (
        "a = torch.zeros(1).numpy().astype('O')\nb = a.data.cast('B')\nprint('LEAKED')", "no need of .numpy",
    ),
    "a memo": ("from copy import deepcopy\nmemo = {}\ndeepcopy([].append, memo)\nprint('LEAKED')", "1 positional"),
    "any address in a kernel": (
        POKE + "o = torch.zeros(1, dtype=torch.int64)\npeek[(1,)](id(peek), o)\nprint('LEAKED')", "outside of them",
    ),
    "a pointer of its own making": (HANDLE, "made by Triton"),
    "the interpreter's globals": (
        POKE + "o = torch.zeros(1, dtype=torch.int64)\npeek[(1,)](o, o)\nprint('LEAKED', inspect)", "'inspect' is not",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS_IN)
def test_a_way_past_the_static_check_is_closed_and_marked(judge, way):
    result = attack(judge, f"{RIGHT}\n{WAYS_IN[way]}")
    assert result.flagged is (way not in ("text from elsewhere", "map")), "of a text that is not known nobody knows"
    assert re.search("no need of|format", result.message)
    assert result.points == 0


@pytest.mark.parametrize("way", LATE_WAYS_IN)
def test_a_way_that_shows_only_when_it_runs_is_closed(judge, way):
    source, says = LATE_WAYS_IN[way]
    result = attack(judge, f"{RIGHT}\n{source}")
    assert (result.status, result.points, "LEAKED" in result.printed) == ("failed", 0, False), result.text()
    assert says in result.message


@pytest.mark.parametrize("line", READS_OF_SIZES)
def test_no_number_is_read_past_the_probes(judge, line):
    result = attack(judge, f"{HEAD}{line}\n{LOOP_OVER_ROWS}")
    assert (result.status, result.points) == ("failed", 0), result.text()
    assert f"no need of {READS_OF_SIZES[line]}" in result.message


def test_the_record_of_a_helion_walk_cannot_be_wiped(judge):
    (exercise,) = manifest.find("13")
    solution = cells.of_notebook(ROOT / "solutions" / f"{exercise.name}.ipynb", exercise.function)
    wipe = "    from copy import deepcopy\n    memo = {}\n    deepcopy(hl.grid, memo)\n    for worker in hl.grid("
    result = attack(judge, solution.replace("    for worker in hl.grid(", wipe, 1), exercise)
    assert (result.points, "deepcopy() takes 1" in result.message) == (0, True), result.text()


def test_a_kernel_that_stores_nothing_or_anything_earns_nothing(judge):
    store = "tl.store(c_ptr + row * ldc + col + tl.arange(0, BLOCK)[:, None] * ldc + tl.arange(0, BLOCK)[None, :], "
    for body in ("pass", store + "tl.zeros((BLOCK, BLOCK), tl.float32))", store + "float('nan'))", "return 1"):
        result = judge.check(MASKS, "@triton.jit" + TILE + body)
        assert (result.status, result.points) == ("failed", 0), result.text()


# ---- time, memory and disk


@pytest.mark.parametrize(
    ("before", "body", "says"),
    [
        ("while True: pass", "return 1", r"still running after 1 s.* in line 1\b"),
        ("import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, "
         "ValueError): pass", "while True: print('.', end='')", "processor time|printed more than 256 kB"),
        ("import signal, time, sys\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)",
         "while True: print('.', flush=True); time.sleep(0.002)", "deaf to a signal"),
        (WRITES + "import time, signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)",
         "everywhere(struct.pack('<QQ', 1000000, 0))\n    while True: everywhere(b' '); time.sleep(0.002)",
         "deaf to a signal"),
        ("import os, signal", "os.kill(os.getpid(), signal.SIGSTOP)", "deaf to a signal"),
        ("import time", "time.sleep(100)", "still running after 2 s, nearly all of them waiting, so it was stopped"),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()", "return 1", "a int"),
        ("", "return bytearray(2 << 30)", "wants more memory than an answer gets"),
        ("import mmap", "return mmap.mmap(-1, 2 << 30)", "wants more memory than an answer gets"),
        ("", "return torch.empty(2 << 30, dtype=torch.uint8)", "wants more memory than an answer gets"),
        (WRITES, "everywhere(struct.pack('<QQ', 1 << 40, 0)); os._exit(0)", "is no result"),
        (WRITES, "header = b'{\"case\": 0, \"value\": [' + b'0,' * (4 << 20) + b'0], \"watched\": {}}'\n"
         "    everywhere(struct.pack('<QQ', len(header), 0) + header); os._exit(0)", "is no result"),
        ("import tempfile", "tempfile.NamedTemporaryFile().write(b'x' * (1 << 30))", "no file to open|No usable"),
    ],
)  # fmt: skip
def test_runaways_are_stopped_in_time(open_judge, monkeypatch, before, body, says):
    # What answers no signal says nothing however long the judge waits; what waits, waits three times as long.
    seconds, grace_s = (0.3, 0.3) if says == "deaf to a signal" else (1.0, 1.0)
    if "waiting" in says:
        seconds = 0.5
    monkeypatch.setattr(judging.request, "GRACE_S", grace_s)
    result = attack(open_judge, f"{before}\n{HEAD}{body}", msgspec.structs.replace(HASTY, seconds=seconds))
    assert re.search(says, result.message), result.text()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("while True: pass", "not compiled within 1 s"),
        (
            "[open(__import__('os').environ['TMPDIR'] + f'/{i}', 'wb').write(bytes(60 << 20)) for i in range(999)]",
            "this wrote more than 256 MB",
        ),
        (
            "import os, tempfile; os.chdir(tempfile.tempdir); "
            "[(os.mkdir('d'), os.chdir('d')) for _ in range(1200)]; wait()",
            "or 1000 files and folders",
        ),
        (
            "import os, tempfile; files = [tempfile.TemporaryFile() for _ in range(6)]; "
            "[file.write(bytes(60 << 20)) for file in files]; wait()",
            "this wrote more than 256 MB",
        ),
        (
            "import mmap, tempfile; files = [tempfile.TemporaryFile() for _ in range(6)]; "
            "kept = [(file.truncate(60 << 20), mmap.mmap(file.fileno(), 60 << 20), file.close()) for file in files]; "
            "wait()",
            "this wrote more than 256 MB",
        ),
        (
            "while True: __import__('subprocess').Popen(['/bin/sleep', '1000'], start_new_session=True)",
            "not compiled within 1 s|compiler|started more than 1024 threads",
        ),
        (
            "import threading, time; threading.stack_size(32768); "
            "[threading.Thread(target=time.sleep, args=(9,), daemon=True).start() for _ in range(1200)]; wait()",
            "started more than 1024 threads",
        ),
        (
            "import subprocess, sys; program = 'x = b\"x\" * (400 << 20); input()'; kept = "
            "[subprocess.Popen([sys.executable, '-c', program], stdin=subprocess.PIPE) for _ in range(3)]; wait()",
            "programs that need more than 1024 MB together",
        ),
    ],
    ids=["endless", "disk", "depth", "nameless", "mapped", "programs", "threads", "memory"],
)
def test_the_process_that_compiles_is_limited_too(open_judge, line, says, monkeypatch):
    """Only there does the attack begin; the kernel is right."""
    # Attacks that reach another limit get more time: on a busy machine they may take longer than a second to reach it.
    monkeypatch.setattr(judging, "COMPILE_S", 1.0 if "1 s" in says else 8.0)
    monkeypatch.setattr(judging, "COMPILE_MB", 1024)
    line = line.replace("wait()", "__import__('time').sleep(9)")
    source = f"if triton.knobs.runtime.interpret is False or not hasattr(tl.cdiv, 'rewriter'):\n    {line}\n"
    source += cells.of_notebook(ROOT / "solutions" / "03_tail_masks.ipynb", MASKS.function)
    started = time.monotonic()
    result = open_judge.check(MASKS, source)
    assert time.monotonic() - started < SECONDS
    (failed,) = (each for each in result.properties if each.status == "fail")
    assert failed.name == "compiles"
    assert re.search(says, failed.message), result.text()
    assert open_judge.check(OFFSETS, RIGHT).passed


def test_an_input_is_examined_once_however_often_it_comes_back(monkeypatch):
    """Also if it led to a finding: exercise 10 follows the PTX of each for up to a second."""
    examined, cases = [], [Case({}, ()), Case({}, ())]
    exercise = manifest.find("10")[0]
    monkeypatch.setattr(judging, "_examine", lambda module, case, *_: examined.append(case))
    outcome = judging.Outcome(messages=[Reply(case=case) for case in (0, 0, 0, 1, 0, 1)])
    judging._note_outcome("run", manifest.examiner(exercise), cases, outcome, Verdict(exercise))
    assert [id(each) for each in examined] == [id(each) for each in cases]


def test_nobody_waits_for_the_compiler_where_nothing_runs(judge, monkeypatch):
    monkeypatch.setattr(judging, "COMPILE_S", 60.0)
    source = "while True: pass\n" + cells.of_notebook(ROOT / "solutions" / f"{MASKS.name}.ipynb", MASKS.function)
    result = attack(judge, source, msgspec.structs.replace(MASKS, seconds=1.0))
    assert "still running after 1 s" in result.message
