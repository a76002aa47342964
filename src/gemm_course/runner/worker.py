"""The process that runs a learner's code, once: limits first, then the code, then its results as bytes.

Forked by a template of the fork server. It gets a request (the answer's source file, the module that runs it, drawn
inputs), lays out the inputs, says where they are, reads the source, and only then loads the answer. For each input it
sends what the call returned. It knows no expected result and holds no module that could compute one: those that draw
and examine are not imported here, nor is the library but for what watches memory and, for exercise 04b, the kernel that
reads its tables; and their files are closed to it. Another process judges what it sends.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import linecache
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType

import torch

from gemm_course.isolation import landlock, own_builtins, static_check
from gemm_course.runner import gpu, masks, probes, serialization
from gemm_course.runner.stuck_loops import LoopTracer

MODULE = "answer"  # the name under which the learner's cell is imported
_MAX_TEXT = 4000
_TRACE_S = 0.3  # for so long its loops are traced, when time is up

_EVERYWHERE = ("triton.language", *static_check.STANDARD)
_COMPILING = ("triton.compiler", "triton.backends")
_PRELOADED = {"run": (), "compile": _COMPILING, "gpu": _COMPILING}
# Triton's interpreter imports these at the first launch of a process: 30 ms, half of many a check.
_AT_A_LAUNCH = ("triton.compiler.code_generator", "triton.language.extra.libdevice")


def preload(mode: str, libraries: Sequence[str] = ()) -> None:
    """Import what every child needs, and ``libraries``. Nothing is computed, and nothing imported that knows
    results."""
    for name in (*_EVERYWHERE, *_PRELOADED[mode]):
        importlib.import_module(name)
    for name in libraries:
        with contextlib.suppress(Exception):  # a child tries it again, and reports the error
            importlib.import_module(name)
    if mode == "run":
        for name in _AT_A_LAUNCH:
            with contextlib.suppress(ImportError):  # in another version of Triton
                importlib.import_module(name)
        interpreter = importlib.import_module("gemm_course.runner.interpreter")
        interpreter.prepare_once()
        interpreter.accept_scalar_masks()
        interpreter.keep_its_globals()
        interpreter.stay_in_tensors()
        # Its warnings about divisions by zero and the like would look like prints of the answer's.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.runtime\.interpreter")
    else:
        # The compiler names what it keeps by a digest of Triton's own files. It takes 0.4 s: here, not in each child.
        with contextlib.suppress(Exception):  # a child tries it again, and reports the error
            importlib.import_module("triton.runtime.cache").triton_key()
    if mode == "gpu":
        gpu.prepare()


def load(path: str, given: Mapping[str, object] = MappingProxyType({})) -> ModuleType:
    """Import an answer; the names that the exercise's first cell imports are there already, and few builtins.

    Args:
        path: of the answer's source.
        given: further names, of an exercise's own.
    """
    import triton
    import triton.language as tl

    spec = importlib.util.spec_from_file_location(MODULE, path)
    module = importlib.util.module_from_spec(spec)
    own = {"__builtins__": own_builtins.of_an_answer(), "torch": torch, "triton": triton, "tl": tl}
    module.__dict__.update({**own, **given})
    sys.modules[MODULE] = module
    linecache.getlines(path)  # now: a message may need the text when files can no longer be opened
    spec.loader.exec_module(module)
    return module


def describe(error: BaseException, path: str) -> dict:
    """An exception as a message: type, text, and the last line of the learner's that it passed.

    The interpreter wraps exceptions of a kernel, so the innermost cause counts.
    """
    chain = [error]
    while (error.__cause__ or error.__context__) is not None and len(chain) < 20:
        error = error.__cause__ or error.__context__
        chain.append(error)
    root = chain[-1]
    lines = []  # of the learner's that the causes passed; the innermost cause's come last
    for each in chain:
        lines += [frame.lineno for frame in traceback.extract_tb(each.__traceback__) if frame.filename == path]
        if isinstance(each, SyntaxError) and each.filename == path:
            lines.append(each.lineno or 0)
    line = lines[-1] if lines else 0
    text = root.msg if isinstance(root, SyntaxError) else str(root).strip()
    innermost = traceback.extract_tb(root.__traceback__)[-1:]
    if not text and isinstance(root, AssertionError) and innermost and innermost[0].filename != path:
        text = (innermost[0].line or "").replace("assert ", "this must hold: ", 1)  # Triton asserts without a message
    if isinstance(root, AssertionError) and text.endswith("equal reduction dimensions"):
        text += _shapes_of_dot(root)
    # torch raises this class, too, for what it cannot do, from C++ with the learner's line as the last one.
    raised = _code(path, innermost[0].lineno or 0) if innermost and innermost[0].filename == path else ""
    hole = isinstance(root, NotImplementedError) and raised.startswith("raise NotImplementedError")
    return {
        "kind": "todo" if hole else "exception",
        "type": type(root).__name__,
        "text": text[:_MAX_TEXT] + ("…" if len(text) > _MAX_TEXT else ""),
        "line": line,
        "code": _code(path, line),
        "program": program() if len(chain) > 1 else None,
    }


def _shapes_of_dot(error: AssertionError) -> str:
    """The shapes that `tl.dot` was given, which its assertion does not say; empty if they are not in its frame."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    shapes = [frame.f_locals.get(name) for name in ("a_shape", "b_shape")]
    if not all(isinstance(shape, list) for shape in shapes):
        return ""
    first, second = (" × ".join(str(getattr(side, "value", side)) for side in shape) for shape in shapes)
    return f", got {first} and {second}"


def _code(path: str, line: int) -> str:
    return linecache.getline(path, line).strip() if line else ""


def program() -> list[int] | None:
    """Grid indices of the program that the interpreter is in, or was in last."""
    with contextlib.suppress(Exception):
        from triton.runtime.interpreter import interpreter_builder

        return [int(index) for index in interpreter_builder.grid_idx]
    return None


class Alarm:
    """When time is up: reports the line of the learner's code, and the loop that makes no progress.

    Processor time counts: a busy machine costs nobody points. An answer that waits has `landlock.PATIENCE` times that.
    """

    def __init__(self, path: str, seconds: float, results: int):
        self.path, self.results, self.seconds = path, results, seconds
        self.started, self.used = time.monotonic(), sum(os.times()[:4])
        self.tracer: LoopTracer | None = None
        signal.signal(signal.SIGALRM, self)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def __call__(self, number, frame) -> None:
        """The signal's handler."""
        used, passed = sum(os.times()[:4]) - self.used, time.monotonic() - self.started
        remaining_s = min(self.seconds - used, landlock.PATIENCE * self.seconds - passed)
        if self.tracer is None and remaining_s > 0.1 * self.seconds:
            signal.setitimer(signal.ITIMER_REAL, remaining_s)
            return
        if self.tracer is None:
            self.tracer = LoopTracer(self.path)
            with contextlib.suppress(BaseException):
                self.tracer.start(self.tracer.frames(frame))
            signal.setitimer(signal.ITIMER_REAL, _TRACE_S)
            return
        frames, loop = self.tracer.frames(frame), None
        with contextlib.suppress(BaseException):
            loop = self.tracer.stuck(frames)
        line = frames[0].f_lineno if frames else 0
        error = {
            "kind": "endless", "type": "", "text": "", "line": line, "code": _code(self.path, line),
            "program": program(), "waited_s": passed if used < 0.5 * self.seconds else 0.0,
            "loop": loop and {"line": loop.line, "code": _code(self.path, loop.line), "names": list(loop.names)},
        }  # fmt: skip
        with contextlib.suppress(BaseException):
            serialization.send(self.results, {"error": error})
        os._exit(0)


def main(mode: str, fds: list[int]) -> None:
    """The child's whole life; ends the process. Descriptors: the request's, then those of results and of prints."""
    try:
        os.setsid()
        requests, results, prints = fds
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(prints, 1)
        os.dup2(prints, 2)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (lives as long as the process)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        _answer(mode, requests, results)
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _answer(mode: str, requests: int, results: int) -> None:
    request = serialization.Reader(requests).next(timeout=30.0)
    path = request["path"]
    try:
        runs = importlib.import_module(request["module"]) if "module" in request else None
    except ImportError as error:  # a package that this exercise needs beyond torch and Triton
        serialization.send(results, {"setup_error": str(error)[:_MAX_TEXT]})
        return
    if runs is not None:
        linecache.getlines(runs.__file__)  # the interpreter reads the source of a kernel at its launch
    if problem := _confine(mode, request):
        serialization.send(results, {"setup_error": problem})
        return
    prepared = [] if mode == "compile" or runs is None else _prepare(runs, request)
    # The first message, before the answer could send any: what it says of the layout is true.
    serialization.send(results, {"ready": True, "layouts": [watch.layout() for watch, _ in prepared]})
    Alarm(path, request["seconds"], results)
    try:
        if runs is None:
            gpu.try_kernel()
            serialization.send(results, {"case": 0, "value": {}, "watched": {}})
        elif (answer := _read_and_load(runs, request, results)) is not None and mode == "compile":
            _compile(runs, answer)
            serialization.send(results, {"case": 0, "value": {}, "watched": {}})
        elif answer is not None:
            _run(prepared, getattr(answer, request["function"]), path, results)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the learner's as well
        serialization.send(results, {"error": describe(error, path)})
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        serialization.send(results, {"done": True})  # a process that the answer left behind may hold the pipe open


def _prepare(runs: ModuleType, request: dict) -> list[tuple]:
    """A watch, and the call of the answer, for each input."""
    watches = [probes.Watch(request["path"]) for _ in request["cases"]]
    return [(watch, runs.prepare(case, watch)) for watch, case in zip(watches, request["cases"])]


def _read_and_load(runs: ModuleType, request: dict, results: int) -> ModuleType | None:
    """The answer; None if what it may not use, or lacks, was sent instead."""
    # Half of a surrogate pair has to get as far as the static check.
    source = Path(request["path"]).read_bytes().decode("utf-8", "surrogatepass")
    error = {"kind": "missing", "type": "", "text": "", "line": 0, "code": ""}
    if violation := static_check.find_violation(source, request["function"], request["imports"]):
        refused = {"kind": "refused", "line": violation.line, "text": violation.text, "hostile": violation.hostile}
        serialization.send(results, {"error": {**error, **refused}})
        return None
    serialization.send(results, {"masks": masks.problems(source)})
    answer = load(request["path"], getattr(runs, "GIVEN", {}))
    serialization.send(results, {"defined": definitions(answer)})
    found = getattr(answer, request["function"], None)
    if callable(found):
        return answer
    serialization.send(results, {"error": {**error, "type": type(found).__name__ if found is not None else ""}})
    return None


def definitions(answer: ModuleType) -> dict[str, str]:
    """The definitions of a cell: lines of functions, plain values. Compiled and interpreted answers must agree."""
    found = {}
    for name, value in list(vars(answer).items())[:200]:
        inner = getattr(value, "fn", value)
        value = getattr(value, "value", None) if type(value).__name__ == "constexpr" else value
        if isinstance(inner, FunctionType) and inner.__module__ == MODULE:
            found[name] = f"line {inner.__code__.co_firstlineno}"
        elif isinstance(value, (bool, int, float, str)) and not name.startswith("__"):
            found[name] = repr(value)[:100]
    return found


def _confine(mode: str, request: dict) -> str:
    """Confine this process to what an answer may use. Returns the reason if a GPU cannot be used inside; else ""."""
    without = request.get("without", ())
    readable = [os.path.dirname(request["path"])]
    landlock.die_with_parent()
    if mode == "run":
        files_mb = request.get("files_mb", 0)
        tempfile.tempdir = request["scratch"] if files_mb else None
        landlock.confine(readable, tempfile.tempdir)
        landlock.limit(request["memory_mb"], request["seconds"], files_mb)
        return ""
    # Triton writes what it compiles, and has other programs make the last steps. CUDA keeps some kernels, too.
    os.environ["TRITON_CACHE_DIR"] = os.environ["TMPDIR"] = os.environ["CUDA_CACHE_PATH"] = request["scratch"]
    tempfile.tempdir = request["scratch"]
    landlock.confine(readable, request["scratch"], programs=True, gpu=mode == "gpu", without=without)
    if mode == "gpu":
        try:
            gpu.start()
        except BaseException as error:
            return f"{type(error).__name__}: {str(error).strip() or 'without a message'}"[:_MAX_TEXT]
    if landlock.LIMITS not in without:
        landlock.limit(request["memory_mb"], request["seconds"], file_mb=64)
    return ""


def _run(prepared: list[tuple], function, path: str, results: int) -> None:
    for index, (watch, call) in enumerate(prepared):
        try:
            with watch:
                value = call(function)
            message = {"case": index, "value": _sendable(value), "watched": watch.report()}
        except BaseException as error:
            message = {"case": index, "error": describe(error, path)}
        serialization.send(results, message)
        if "error" in message and message["error"]["kind"] == "todo":
            return


def _sendable(value):
    """Tensors, numbers and containers as they are; for anything else only the name of its type."""
    if type(value) is torch.Tensor:
        if serialization.travels(value):
            return value
        return {"not": f"{value.dtype} tensor on {value.device} ({value.layout})".replace("torch.", "")}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [_sendable(each) for each in value]
    if type(value) is dict:
        return {str(key): _sendable(each) for key, each in value.items()}
    return {"not": type(value).__name__}


def _compile(runs: ModuleType, answer: ModuleType) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for kernel, signature, constexprs in runs.builds(answer):
        for function in (kernel, *constexprs.values()):
            _expect_constexprs(function, constexprs)
        types = {name: "constexpr" if name in constexprs else signature[name] for name in kernel.arg_names}
        triton.compile(ASTSource(kernel, types, constexprs), target=GPUTarget("cuda", 90, 32))


def _expect_constexprs(function, names: Mapping[str, object]) -> None:
    """Raise TypeError if a function of the answer lacks the tl.constexpr of a parameter that the exercise gives it."""
    inner = getattr(function, "fn", None)
    for each in getattr(function, "params", ()) if getattr(inner, "__module__", "") == MODULE else ():
        if each.name in names and not each.is_constexpr:
            raise TypeError(
                f"{each.name} has lost its tl.constexpr: write `{each.name}: tl.constexpr`, as it was given. What a "
                "kernel computes with when it is compiled has to be one"
            )
