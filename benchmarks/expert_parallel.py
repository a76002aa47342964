"""One layer of Qwen3-30B-A3B whose experts are spread over GPUs: by hand, and with ``ExpertParallel``.

    torchrun --nproc-per-node 2 benchmarks/expert_parallel.py [--out FILE] [--commit ID] [--tiny]

Every rank has as many tokens. A time is the median over repetitions of the slowest rank's, in microseconds; all ranks
start together. Outputs and gradients are compared with those of one GPU that has all experts. ``--tiny`` runs a small
layer, on CPUs, too.

By hand is what training frameworks do: tokens sorted by expert, a copy for each choice through ``all_to_all_single``,
sorted again, grouped products, and back.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.nn.functional import grouped_mm as torch_grouped_mm
from torch.nn.functional import silu

from course_kernels import grouped_mm, moe_feed_forward
from course_kernels.bench import record
from course_kernels.bench.timing import capture
from course_kernels.distributed import ExpertParallel


class Sizes(NamedTuple):
    """The layer's sizes, tokens of a GPU, and repetitions of a measurement."""

    hidden: int = 2048
    inner: int = 768
    experts: int = 128
    top_k: int = 8
    tokens: tuple[int, ...] = (1024, 8192, 16384)
    repeats: int = 20


TINY = Sizes(hidden=32, inner=16, experts=8, top_k=3, tokens=(24,), repeats=2)
ROUTINGS = ("uniform", "zipf")


def by_hand(x, ids, weights, gate_up, down, product, group):
    """The layer as thirty lines around a grouped product."""
    ranks, local, top_k = group.size(), gate_up.shape[0], ids.shape[1]
    order = ids.reshape(-1).argsort(stable=True)
    counts = torch.bincount(ids.reshape(-1), minlength=ranks * local).reshape(ranks, local)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    sent, received = torch.stack([counts.sum(1), arriving.sum(1)]).tolist()
    rows = wait_tensor(all_to_all_single_autograd(x[order // top_k], received, sent, group))
    expert = torch.arange(local, device=x.device).repeat(ranks)
    expert = expert.repeat_interleave(arriving.reshape(-1), output_size=sum(received))
    again = expert.argsort(stable=True)
    offs = arriving.sum(0).cumsum(0).to(torch.int32)
    gate, up = product(rows[again], gate_up.mT, offs=offs).chunk(2, dim=1)
    results = product(silu(gate) * up, down.mT, offs=offs)
    results = results[again.argsort()]
    home = wait_tensor(all_to_all_single_autograd(results, sent, received, group))
    places = home[order.argsort()].reshape(*ids.shape, -1)
    return (places * weights[:, :, None].to(places.dtype)).sum(1)


def inputs(sizes: Sizes, tokens: int, routing: str, device, dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """This rank's x, ids, weights, and gradient of the result."""
    generator = torch.Generator(device).manual_seed(10 + dist.get_rank())
    shared = torch.Generator(device).manual_seed(5)
    x, grad = (torch.randn(tokens, sizes.hidden, generator=generator, device=device).to(dtype) for _ in range(2))
    load = torch.ones(sizes.experts, device=device)
    if routing == "zipf":
        load = torch.arange(1, sizes.experts + 1, device=device).float() ** -0.8
        load = load[torch.randperm(sizes.experts, generator=shared, device=device)]
    ids = torch.multinomial(load.expand(tokens, -1), sizes.top_k, generator=generator)
    weights = torch.rand(tokens, sizes.top_k, generator=generator, device=device).softmax(1)
    return x, ids, weights, grad


def slowest(function, repeats: int, device) -> float:
    """The median over repetitions of the slowest rank's time, in microseconds."""
    one, times = torch.zeros(1, device=device), []
    for i in range(repeats + 3):
        dist.all_reduce(one)  # all ranks start together
        if device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            function()
            last.record()
            torch.cuda.synchronize()
            taken = first.elapsed_time(last) * 1e3
        else:
            start = time.perf_counter()
            function()
            taken = (time.perf_counter() - start) * 1e6
        found = torch.tensor([taken], device=device, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        if i >= 3:
            times.append(found.item())
    return statistics.median(times)


def worst_error(got, wanted) -> float:
    """The largest difference of tensors, as a share of the largest value."""
    errors = [((a.float() - b.float()).abs().max() / b.float().abs().max()).item() for a, b in zip(got, wanted)]
    return max(errors)


def measure(sizes: Sizes, tokens: int, routing: str, device, dtype) -> list[dict]:
    """All ways of one row."""
    group, rank, ranks = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    generator = torch.Generator(device).manual_seed(1)
    shapes = (sizes.experts, 2 * sizes.inner, sizes.hidden), (sizes.experts, sizes.hidden, sizes.inner)
    whole = [torch.randn(s, generator=generator, device=device).mul(s[2] ** -0.5).to(dtype) for s in shapes]
    held = sizes.experts // ranks
    gate_up, down = (each[rank * held : (rank + 1) * held].clone().requires_grad_() for each in whole)
    x, ids, weights, grad = inputs(sizes, tokens, routing, device, dtype)
    leaves = x.requires_grad_(), weights.requires_grad_()
    one = moe_feed_forward(x, *whole, ids, weights)
    wanted = [one.detach(), *torch.autograd.grad(one, leaves, grad)]

    spread = ExpertParallel(group, sizes.experts)
    ways = {
        "by hand, torch's products": lambda: by_hand(x, ids, weights, gate_up, down, torch_grouped_mm, group),
        "by hand, our products": lambda: by_hand(x, ids, weights, gate_up, down, grouped_mm, group),
        "all_to_all": lambda: moe_feed_forward(x, gate_up, down, ids, weights, ep=spread),
    }
    if device.type == "cuda":
        direct = ExpertParallel(group, sizes.experts, transport="symmetric", max_tokens=tokens)
        ways["symmetric"] = lambda: moe_feed_forward(x, gate_up, down, ids, weights, ep=direct)

    rows, choices, handle = spread.dispatch(x.detach(), ids, weights.detach())
    rows.requires_grad_()
    results = torch.randn_like(rows)
    moving = sum(handle.matrix[rank]) - handle.matrix[rank][rank]  # rows that leave this GPU
    each = -(-sum(map(sum, handle.matrix)) // ranks**2)  # rows of a pair of ranks, on average
    equal = torch.zeros(ranks * each, sizes.hidden, dtype=dtype, device=device)
    landing = torch.empty_like(equal)
    ways_alone = {
        "the layer alone, on the rows that arrive": lambda: moe_feed_forward(
            rows, gate_up, down, None, choices.weights, routing=choices.routing
        ),
        "one GPU, all experts, its tokens": lambda: moe_feed_forward(x, *whole, ids, weights),
    }
    bound = moving * sizes.hidden * x.element_size()
    about = dict(tokens=tokens, routing=routing, imbalance=imbalance(handle.matrix), deduplicated_bytes=bound)
    found = []

    def note(way, forward, both=None, **more):
        found.append(about | dict(way=way, forward_us=forward, both_us=both) | more)

    for name, way in (ways | ways_alone).items():
        asked = (rows, gate_up, down) if name.startswith("the layer alone") else (*leaves, gate_up, down)
        asked = leaves if name.startswith("one GPU") else asked
        into = results if name.startswith("the layer alone") else grad

        def both(way=way, asked=asked, into=into):
            return torch.autograd.grad(way(), asked, into)

        error = None
        if name in ways:
            out = way()
            error = worst_error([out, *torch.autograd.grad(out, leaves, grad)], wanted)
            limit = 0.05 if dtype == torch.bfloat16 else 1e-4
            if not error < limit:
                raise RuntimeError(f"{name}: differs from one GPU's by {error}")
        with torch.no_grad():
            forward = slowest(way, sizes.repeats, device)
        wire = None
        if name.startswith("by hand"):
            wire = int((ids // held != rank).sum()) * sizes.hidden * x.element_size()
        elif name in ways:
            wire = bound + moving * 8 * sizes.top_k
        note(name, forward, slowest(both, sizes.repeats, device), error=error, bytes_one_way=wire)
    if device.type == "cuda":
        with torch.no_grad():
            graph = capture(ways["symmetric"])
        note("symmetric, forward in a graph", slowest(graph.replay, sizes.repeats, device))

    def exchange():
        dist.all_to_all_single(landing, equal)

    note("all_to_all_single, equal splits of the deduplicated bytes", slowest(exchange, sizes.repeats, device))
    return found


def imbalance(matrix) -> float:
    """The rows of the rank that gets most, over the mean."""
    arriving = [sum(line[rank] for line in matrix) for rank in range(len(matrix))]
    return max(arriving) * len(arriving) / max(1, sum(arriving))


def main() -> None:
    """Measure, and print or write a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the record's file")
    parser.add_argument("--commit", help="of the code, where there is no git checkout")
    parser.add_argument("--tokens", type=int, nargs="+", help=f"of a GPU; default: {Sizes().tokens}")
    parser.add_argument("--tiny", action="store_true", help="a small layer, to try the program")
    given = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    sizes, dtype = (TINY if given.tiny else Sizes()), torch.bfloat16 if cuda else torch.float32
    rows = []
    for tokens in given.tokens or sizes.tokens:
        for routing in ROUTINGS:
            found = measure(sizes, tokens, routing, device, dtype)
            rows += found
            if dist.get_rank() == 0:
                for each in found:
                    both = "" if each["both_us"] is None else f"{each['both_us'] / 1e3:8.3f}"
                    print(f"{tokens:6} {routing:8} {each['way']:58} {each['forward_us'] / 1e3:8.3f} {both}", flush=True)
    if given.out and dist.get_rank() == 0:
        about = record.provenance(given.commit) if cuda else {}
        record.write(given.out, dict(ranks=dist.get_world_size(), sizes=sizes._asdict(), rows=rows), about)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
