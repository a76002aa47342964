"""Processes of this machine that form a process group and run a notebook's function, each as one rank.

A server process imports torch and the library once, and each call forks its ranks from it. A function of a notebook
travels as its code, with the functions, modules and values that it names.
"""

from __future__ import annotations

import importlib
import marshal
import multiprocessing
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

import torch
import torch.distributed as dist

import course_kernels.distributed  # noqa: F401 (imports it in the server, before processes fork)

_TIME_OUT = re.compile(r"(\[[^\]]*\] )?(Operation timed out!|Timed out waiting \d+ms for \w+ operation to complete)")
PATIENCE_S = 120.0  # for a machine that is busy with other things
_context = multiprocessing.get_context("forkserver")
# FSDP2 and checkpointing import the last one when they are first used: seconds, in every process.
_context.set_forkserver_preload([__name__, "torch.distributed.fsdp", "torch._dynamo"])


class Failure(NamedTuple):
    """The exception of a rank. As a string it is the same in every run: gloo has two texts for a time-out, one of them
    with addresses of sockets."""

    rank: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {_TIME_OUT.sub('timed out', self.text)}"


def run(function: Callable, ranks: int, *arguments, seconds: float = 60.0, fails: bool = False) -> list:
    """Call ``function(rank, *arguments)`` in as many processes as there are ranks, in one group of the backend gloo.

    Args:
        function: of a notebook or of a module. It must not be a method, nor have a closure.
        ranks: how many processes.
        arguments: what ``pickle`` takes, such as tensors and numbers.
        seconds: the time-out of the group.
        fails: return a ``Failure`` in place of a rank's result.

    Returns:
        The results, in the order of ranks.

    Raises:
        RuntimeError: a rank failed, and ``fails`` is False; or a process ended without a result.
    """
    parcel = pickle.dumps((_packed(function), arguments))
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_context.Pipe() for _ in range(ranks)]
        workers = [
            _context.Process(target=_work, args=(rank, ranks, parcel, f"{folder}/store", seconds, there), daemon=True)
            for rank, (_, there) in enumerate(pipes)
        ]
        try:
            for worker, (_, there) in zip(workers, pipes):
                worker.start()
                there.close()
            results = [_received(rank, here) for rank, (here, _) in enumerate(pipes)]
        finally:
            for worker in workers:
                if worker.pid is not None:
                    worker.kill()
                    worker.join()
    failed = [each for each in results if isinstance(each, Failure)]
    if failed and not fails:
        raise RuntimeError(f"rank {failed[0].rank}: {failed[0].kind}: {failed[0].text}")
    return results


def _received(rank: int, pipe: Connection):
    try:
        if pipe.poll(PATIENCE_S):
            return pickle.loads(pipe.recv_bytes())
    except EOFError:
        pass
    raise RuntimeError(f"rank {rank} ended without a result")


def _work(rank: int, ranks: int, parcel: bytes, store: str, seconds: float, pipe: Connection) -> None:
    """The whole life of a rank."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        limit = timedelta(seconds=seconds)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=limit)
        packed, arguments = pickle.loads(parcel)
        result = _unpacked(*packed)(rank, *arguments)
    except Exception as error:
        result = Failure(rank, type(error).__name__, str(error))
    pipe.send_bytes(pickle.dumps(result))
    pipe.poll(PATIENCE_S)  # others may still wait for this one's messages: stay until all are ended
    os._exit(0)


# ---- functions as bytes


def _packed(function: Callable) -> tuple[str, dict[str, tuple], dict[str, tuple]]:
    """A function's name, the functions that travel as code, and the other names that these use."""
    functions: dict[str, tuple] = {}
    others: dict[str, tuple] = {}
    waiting = {function.__name__: function}
    while waiting:
        name, each = waiting.popitem()
        if not _travels(each):
            others[name] = "value", each
            continue
        if each.__closure__:
            raise TypeError(f"function {name} must not have a closure: pass what it needs as arguments")
        functions[name] = marshal.dumps(each.__code__), each.__defaults__
        for used in _names(each.__code__):
            if used in each.__globals__ and used not in functions and used not in others:
                value = each.__globals__[used]
                if _travels(value):
                    waiting[used] = value
                elif isinstance(value, ModuleType):
                    others[used] = "module", value.__name__
                else:
                    others[used] = "value", value
    return function.__name__, functions, others


def _travels(value) -> bool:
    """Whether a value is a function that other processes cannot import."""
    if not isinstance(value, FunctionType):
        return False
    home = sys.modules.get(value.__module__)
    return value.__module__ == "__main__" or getattr(home, value.__name__, None) is not value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _unpacked(name: str, functions: dict[str, tuple], others: dict[str, tuple]) -> Callable:
    there = {"__builtins__": __builtins__, "__name__": "notebook"}
    for each, (kind, value) in others.items():
        there[each] = importlib.import_module(value) if kind == "module" else value
    for each, (code, defaults) in functions.items():
        there[each] = FunctionType(marshal.loads(code), there, each, defaults)
    return there[name]
