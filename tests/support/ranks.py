"""Cases that several processes run together, started once: ``python -m <module> <device> <ranks>...`` of a module that
calls ``main(CASES)``. Worlds of several numbers of ranks run one after another.

A case takes a ``World`` and returns True or a description of the mistake. The last line is JSON: for each world a
dictionary with, for each case, true or the first description.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import queue
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

import guards
from gemm_course.runner import interpreter

PATIENCE = {"cpu": 150, "cuda": 500}  # seconds for all cases of a world: on GPUs, kernels are compiled


class World(NamedTuple):
    rank: int
    size: int
    device: torch.device

    @property
    def group(self):
        return dist.group.WORLD

    def mesh(self, *shape: int, names=None):
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.device.type, shape or (self.size,), mesh_dim_names=names)


def _work(rank, size, kind, port, cases, results):
    torch.set_num_threads(1)
    guards.time_nothing()
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    backend = "gloo" if kind == "cpu" else "nccl"
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    world = World(rank, size, device)
    for name, case in cases.items():
        try:
            results.put((rank, name, case(world)))
        except Exception:
            results.put((rank, name, traceback.format_exc()))
            break  # the processes may wait for each other from here on
    results.put((rank, None, None))
    results.close()
    results.join_thread()
    os._exit(0)  # another process that has failed would keep this one waiting


def _collected(results, workers, patience) -> list[dict]:
    """The results that each process has sent; of one that crashed or does not end, those before that."""
    found, ended, until = [{} for _ in workers], set(), time.monotonic() + patience
    while len(ended) < len(workers) and time.monotonic() < until:
        try:
            rank, name, result = results.get(timeout=1)
        except queue.Empty:
            if any(worker.exitcode and rank not in ended for rank, worker in enumerate(workers)):
                return found
        else:
            ended.update([rank] if name is None else [])
            found[rank] |= {} if name is None else {name: result}
    return found


def main(cases, prepare=None) -> None:
    """Run cases in the processes that the command line asks for. Before they fork, ``prepare`` does once what each
    of them would do first, such as imports. It computes no gradients: a fork cannot use autograd's threads."""
    kind, *sizes = sys.argv[1:]
    pickle.dumps(cases)  # as it is for processes that are not forked: one without GPUs shall notice, too
    if kind == "cpu":
        interpreter.prepare_once()
        if prepare is not None:
            prepare()
        gc.freeze()  # a fork would go through all of it, and copy its pages
        gc.set_threshold(20_000)  # as in conftest.py
    print(json.dumps([_merged(cases, int(size), kind) for size in sizes]))


def _merged(cases, size, kind) -> dict:
    """The result of each case in a world of this size."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    # A fork has torch already; a GPU's context does not live through one.
    context = multiprocessing.get_context("fork" if kind == "cpu" else "spawn")
    results = context.Queue()
    workers = [context.Process(target=_work, args=(r, size, kind, port, cases, results)) for r in range(size)]
    for worker in workers:
        worker.start()
    try:
        found = _collected(results, workers, PATIENCE[kind])
    finally:
        for worker in workers:
            worker.kill()
    merged = {}
    for name in cases:
        wrong = [
            f"rank {rank} of {size}: {each[name]}"
            for rank, each in enumerate(found)
            if each.get(name, True) is not True
        ]
        reached = all(name in each for each in found)
        merged[name] = wrong[0] if wrong else reached or f"not reached by each of {size} processes"
    return merged


def check(module: str, sizes: Sequence[int], device: str) -> None:
    """Run all cases of a module of ``tests/support`` in worlds of these sizes, and raise unless all are right. One test
    does: several ones would be dealt to processes of pytest, each of which would run all cases, and several starts
    would import and prepare the same."""
    worlds = found(module, sizes, device)
    assert len(worlds) == len(sizes) > 0
    assert all(worlds)
    wrong = [f"{name}: {result}" for world in worlds for name, result in world.items() if result is not True]
    assert not wrong, "\n".join(wrong)


def found(module: str, sizes: Sequence[int], device: str) -> list[dict]:
    """For each world, the result of each case of a module of ``tests/support``."""
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, module, device, *map(str, sizes)],
        capture_output=True,
        text=True,
        timeout=PATIENCE[device] * len(sizes) + 50,
        env=os.environ | paths | ({"TRITON_INTERPRET": "1"} if device == "cpu" else {}),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
