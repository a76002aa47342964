"""Compile in a child process that is started once and kept.

A process that runs Triton's interpreter cannot compile: the choice is made when Triton is imported. Starting another
takes two seconds, so it stays for the next call. Triton's cache on disk makes a repeated compilation fast.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from course_kernels.child_process import Service, ServiceDied
from course_kernels.codegen import child
from course_kernels.codegen.builds import build
from course_kernels.codegen.cells import plain_function, write_file
from course_kernels.codegen.compiled import Compiled
from course_kernels.codegen.spec import KERNELS, Build
from course_kernels.kernels.codes import FunctionName
from course_kernels.targets import Target, find_target

_MAX_IDLE = 2
_COMPILING = "COURSE_KERNELS_COMPILING"  # set in the processes that compile


class CompileError(RuntimeError):
    """A kernel does not compile for a target; the message is the compiler's own, shortened."""


class _Worker(Service):
    """One child process. Not for use by two threads at once."""

    def __init__(self):
        if _COMPILING in os.environ:  # a file that compiles its own kernels would be imported without end
            raise CompileError("compile_kernel was called in a file that the compiler imports to read a kernel from")
        # Fusion is on unless the user turns it off. That is today's default too: Triton warns that it will change.
        environment = {"TRITON_DEFAULT_FP_FUSION": "1", **os.environ, "TRITON_INTERPRET": "0", _COMPILING: "1"}
        super().__init__(child.__name__, "the compiler", environment)

    def compile(self, spec: Build, target: Target, timeout: float) -> dict:
        try:
            # Where this process finds modules; the child was started elsewhere. "" is where this one works.
            path = [os.path.abspath(entry) for entry in sys.path]
            status, result = pickle.loads(self.ask(pickle.dumps((spec, target, path)), timeout))
        except TimeoutError:
            raise CompileError(f"{spec} for {target}: not compiled within {timeout:g} s") from None
        except ServiceDied as error:
            raise CompileError(f"{spec} for {target}: {error}") from None
        log = self.read_log()
        if status == "ok":
            sys.stderr.write(log)
            return result
        raise CompileError("\n".join([f"{spec} for {target}:", *_diagnostics(log), result]))


def _diagnostics(log: str) -> list[str]:
    """The compiler's error lines; the module dump that follows them is thousands of lines long."""
    return [line[:300] for line in log.splitlines() if "error:" in line][:10]


_lock = threading.Lock()
_idle: list[_Worker] = []
_owner = os.getpid()


@contextlib.contextmanager
def _borrowed_worker() -> Iterator[_Worker]:
    global _owner
    with _lock:
        if _owner != os.getpid():  # after a fork the workers are the parent's
            _idle.clear()
            _owner = os.getpid()
        worker = _idle.pop() if _idle else None
    if worker is None or not worker.alive:
        worker = _Worker()
    try:
        yield worker
    finally:
        with _lock:
            keep = worker.alive and len(_idle) < _MAX_IDLE
            if keep:
                _idle.append(worker)
        if not keep:
            worker.close()


@atexit.register
def close() -> None:
    """End the child processes that compile. The next call starts another."""
    with _lock:
        while _idle:
            worker = _idle.pop()
            if _owner == os.getpid():
                worker.close()


def compile_kernel(kernel: object, target: str | Target, *, timeout: float = 120.0, **options: object) -> Compiled:
    """Compile a kernel for a GPU that this machine need not have.

    Args:
        kernel: a ``Build``; or a name of one of the library's kernels, with the options of ``build``; or any
            ``@triton.jit`` function, as "module:function", "path/to/file.py:function" or itself, with the options of
            ``Build`` (``signature``, ``constexprs``, ``divisible_by_16``, ``num_warps``, ``num_stages``). The
            function may come from a notebook's cell. ``constexprs`` may hold functions of its module, or of cells.
        target: a name in ``TARGETS``.
        timeout: seconds.

    Raises:
        CompileError: it does not compile there, or not in time.
        ValueError: there is no such target, kernel or option value.
    """
    target = find_target(target)
    spec = _as_build(kernel, options, target)
    with _borrowed_worker() as worker:
        return Compiled.from_artefacts(spec, target, worker.compile(spec, target, timeout))


def compile_many(
    pairs: Iterable[tuple[Build | str, str | Target]],
    *,
    workers: int = 2,
    timeout: float = 120.0,
    return_errors: bool = False,
) -> list[Compiled | CompileError]:
    """Compile several kernels at a time; results are in the order of ``pairs``.

    Args:
        pairs: (kernel, target), each as for ``compile_kernel``.
        workers: child processes to use.
        timeout: seconds for each.
        return_errors: put a ``CompileError`` in the result's place instead of raising the first.
    """
    if not isinstance(workers, int) or workers < 1:
        raise ValueError(f"workers must be a positive integer, got {workers!r}")

    def one(pair):
        try:
            return compile_kernel(*pair, timeout=timeout)
        except CompileError as error:
            if return_errors:
                return error
            raise

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, pairs))


def _as_build(kernel, options: dict, target: Target) -> Build:
    if isinstance(kernel, Build):
        if options:
            raise TypeError(f"a Build takes no further options, got {sorted(options)}")
        return kernel
    if isinstance(kernel, str) and ":" not in kernel:
        return build(kernel, **{"target": target, **options})
    if not isinstance(kernel, str):
        kernel, options = _from_function(kernel, options)
    place, colon, function = kernel.rpartition(":")
    if place.endswith(".py"):
        kernel = f"{Path(place).resolve()}{colon}{function}"  # the child was started in another directory
    return Build(kernel, **{"signature": {}, "label": function, **options})


def _from_function(kernel, options: dict) -> tuple[str, dict]:
    """The name of a function, and its options: functions among the constexprs become names, too.

    Functions of cells are written to a file, all into the same one.
    """
    function = plain_function(kernel)
    if function is None:
        raise TypeError(f"kernel must be a Build, a name of {KERNELS} or a function, got {type(kernel).__name__}")
    constexprs = options.get("constexprs", {})
    passed = {name: inner for name, value in constexprs.items() if (inner := plain_function(value)) is not None}
    place = Path(function.__code__.co_filename)
    if not place.is_file():
        place = write_file(*passed.values(), function)
    if passed:
        named = {name: FunctionName(inner.__name__) for name, inner in passed.items()}
        options = {**options, "constexprs": {**constexprs, **named}}
    return f"{place}:{function.__name__}", options
