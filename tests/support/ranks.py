"""Cases that several processes run together, started once: ``python -m <module> <ranks> <device>`` of a module that
calls ``main(CASES)``.

A case takes a ``World`` and returns True or a description of the mistake. The last line is JSON: for each case true, or
the first description.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist


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
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    backend = "gloo" if kind == "cpu" else "nccl"
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    world, found = World(rank, size, device), {}
    for name, case in cases.items():
        try:
            found[name] = case(world)
        except Exception:
            found[name] = traceback.format_exc()
            break  # the processes may wait for each other from here on
    results.put((rank, found))
    results.close()
    results.join_thread()
    os._exit(0)  # another process that has failed would keep this one waiting


def _collected(results, workers, patience=150) -> dict:
    """What each process has put; nothing of one that has crashed."""
    found, until = {}, time.monotonic() + patience
    while len(found) < len(workers) and time.monotonic() < until:
        try:
            rank, each = results.get(timeout=1)
            found[rank] = each
        except queue.Empty:
            crashed = [rank for rank, worker in enumerate(workers) if worker.exitcode and rank not in found]
            if crashed:
                return {rank: {} for rank in crashed} | found
    return {rank: {} for rank in range(len(workers))} | found


def main(cases) -> None:
    """Run cases in the processes that the command line asks for."""
    size, kind = int(sys.argv[1]), sys.argv[2]
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
        found = _collected(results, workers)
    finally:
        for worker in workers:
            worker.kill()
    merged = {}
    for name in cases:
        wrong = [f"rank {rank}: {each[name]}" for rank, each in found.items() if each.get(name, True) is not True]
        reached = all(name in each for each in found.values())
        merged[name] = wrong[0] if wrong else reached or "not reached by every process"
    print(json.dumps(merged))


def check(module: str, size: int, device: str) -> None:
    """Run all cases of a module of ``tests/support``, and raise unless all are right. One test does: several ones would
    be dealt to processes of pytest, each of which would run all cases."""
    results = found(module, size, device)
    wrong = {name: result for name, result in results.items() if result is not True}
    assert results
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


def found(module: str, size: int, device: str) -> dict:
    """The result of each case of a module of ``tests/support``."""
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, module, str(size), device],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | paths | ({"TRITON_INTERPRET": "1"} if device == "cpu" else {}),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
