"""One layer of a model whose experts are spread over GPUs: by hand, and with ``ExpertParallel``.

    torchrun --nproc-per-node 2 benchmarks/expert_parallel.py [--tiny] [MODEL:TOKENS ...]

Every rank has as many tokens. A time is the median over repetitions of the slowest rank's, in microseconds; all ranks
start together. Outputs and gradients are compared with those of one GPU that has all experts. ``--tiny`` runs a small
layer, on CPUs, too. ``run.py`` makes the record of as many GPUs as there are.

By hand is what training frameworks do: tokens sorted by expert, a copy for each choice through ``all_to_all_single``,
sorted again, grouped products, and back. What the model of ``schedule`` predicts is written beside what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from course_kernels.bench import loaded  # isort: skip
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.nn.functional import grouped_mm as torch_grouped_mm
from torch.nn.functional import silu

from course_kernels import grouped_mm, moe_feed_forward
from course_kernels.bench import zoo
from course_kernels.bench.timing import capture
from course_kernels.distributed import ExpertParallel
from course_kernels.schedule.expert_parallel import Cluster, ExpertLayer, layer_time
from moe_api import Rows


class Sizes(NamedTuple):
    """A layer's sizes, and repetitions of a measurement."""

    hidden: int
    inner: int
    experts: int
    top_k: int
    repeats: int = 20

    @classmethod
    def of(cls, name: str) -> Sizes:
        """The sizes of a model of ``bench.zoo``."""
        (model,) = zoo.select_models([name])
        return cls(model.hidden, model.intermediate, model.experts, model.top_k)


TINY = Sizes(hidden=32, inner=16, experts=8, top_k=3, repeats=2)
TOKENS = {"qwen3-30b-a3b": (1024, 8192, 16384), "mixtral-8x7b": (8192,), "deepseek-v3": (8192,)}  # of a GPU
TOGETHER = 32768  # tokens of all GPUs, for strong scaling: the first model has a row of them, whatever the GPUs
ROUTINGS = ("uniform", "zipf")
QUEUED = 200_000  # cycles that a GPU waits while the host launches, about 0.1 ms


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


def slowest(function, repeats: int, device, queued: bool = False) -> float:
    """The median over repetitions of the slowest rank's time, in microseconds. ``queued``: a GPU is busy until the host
    has launched the function, as between a model's layers; of a graph, whose launch then takes no time of the GPU."""
    one, times = torch.zeros(1, device=device), []
    for i in range(repeats + 3):
        dist.all_reduce(one)  # all ranks start together
        if device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if queued:
                torch.cuda._sleep(QUEUED)
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


class Measured(NamedTuple):
    """A way to compute a layer: its call, what a step differentiates by, and the gradient of its result."""

    call: Callable[[], Tensor]
    leaves: tuple[Tensor, ...]
    grad: Tensor

    def forward(self) -> Tensor:
        """The result, without a graph of autograd."""
        with torch.no_grad():
            return self.call()

    def step(self) -> tuple[Tensor, ...]:
        """Forward and backward."""
        return torch.autograd.grad(self.call(), self.leaves, self.grad)


class Weights(NamedTuple):
    """Weights of all experts, and this rank's."""

    whole: list[Tensor]
    gate_up: Tensor
    down: Tensor

    @classmethod
    def draw(cls, sizes: Sizes, device, dtype) -> Weights:
        """The same on every rank."""
        generator = torch.Generator(device).manual_seed(1)
        shapes = (sizes.experts, 2 * sizes.inner, sizes.hidden), (sizes.experts, sizes.hidden, sizes.inner)
        whole = [torch.randn(s, generator=generator, device=device).mul_(s[2] ** -0.5).to(dtype) for s in shapes]
        held = sizes.experts // dist.get_world_size()
        first = dist.get_rank() * held
        return cls(whole, *(each[first : first + held].clone().requires_grad_() for each in whole))


def measure(sizes: Sizes, tokens: int, routing: str, device, dtype) -> list[dict]:
    """All ways of one row."""
    group, rank = dist.group.WORLD, dist.get_rank()
    weights = Weights.draw(sizes, device, dtype)
    x, ids, gates, grad = inputs(sizes, tokens, routing, device, dtype)
    leaves = x.requires_grad_(), gates.requires_grad_()
    experts = weights.gate_up, weights.down
    one = moe_feed_forward(x, *weights.whole, ids, gates)
    wanted = [one.detach(), *torch.autograd.grad(one, leaves, grad)]
    del one  # autograd's nodes of the leaves belong to this stream as long as it is there, and graphs have another

    def way(call) -> Measured:
        return Measured(call, (*leaves, *experts), grad)

    spread = ExpertParallel(group, sizes.experts)
    ways = {
        "by hand, torch's products": way(lambda: by_hand(x, ids, gates, *experts, torch_grouped_mm, group)),
        "by hand, our products": way(lambda: by_hand(x, ids, gates, *experts, grouped_mm, group)),
        "all_to_all": way(lambda: moe_feed_forward(x, *experts, ids, gates, ep=spread)),
    }
    if (parts := chunks_of(sizes, tokens)) > 1:
        chunked = ExpertParallel(group, sizes.experts, chunks=parts)
        ways[f"all_to_all, {parts} chunks"] = way(lambda: moe_feed_forward(x, *experts, ids, gates, ep=chunked))
    if device.type == "cuda":
        direct = ExpertParallel(group, sizes.experts, transport="symmetric", max_tokens=tokens)
        ways["symmetric"] = way(lambda: moe_feed_forward(x, *experts, ids, gates, ep=direct))
    rows, choices, handle = spread.dispatch(x.detach(), ids, gates.detach())
    rows.requires_grad_()
    alone = Measured(
        lambda: moe_feed_forward(rows, *experts, None, choices.weights, routing=choices.routing),
        (rows, *experts),
        torch.randn_like(rows),
    )
    whole = [each.detach().requires_grad_() for each in weights.whole]
    references = {
        "the layer alone, on the rows that arrive": alone,
        "one GPU, all experts, its tokens": Measured(
            lambda: moe_feed_forward(x, *whole, ids, gates), (*leaves, *whole), grad
        ),
    }
    if tokens * dist.get_world_size() == TOGETHER:  # strong scaling compares with this
        everyone = [torch.cat([each] * dist.get_world_size()) for each in (x.detach(), ids, gates.detach())]
        references["one GPU, all experts, all ranks' tokens"] = Measured(
            lambda: moe_feed_forward(everyone[0], *whole, *everyone[1:]),
            (everyone[0].requires_grad_(), everyone[2].requires_grad_(), *whole),
            torch.cat([grad] * dist.get_world_size()),
        )
    bound = _leaving(handle.matrix, rank) * sizes.hidden * x.element_size()
    uneven = dict(imbalance=imbalance(handle.matrix), imbalance_of_choices=imbalance_of_choices(handle.choices, device))
    about = dict(
        tokens=tokens, routing=routing, **uneven, deduplicated_bytes=bound,
        predicted_us=predicted(sizes, tokens, max(uneven.values())),
    )  # fmt: skip
    found = []
    for name, each in (ways | references).items():
        error, wire = None, None
        if name in ways:
            out = each.call()
            error = worst_error([out, *torch.autograd.grad(out, leaves, grad)], wanted)
            limit = 0.05 if dtype == torch.bfloat16 else 1e-4
            if not error < limit:
                raise RuntimeError(f"{name}: differs from one GPU's by {error}")
            ids_and_weights = tokens * (dist.get_world_size() - 1) * 8 * sizes.top_k
            wire = bound + (ids_and_weights if name == "symmetric" else _leaving(handle.matrix, rank) * 8 * sizes.top_k)
            if name == "symmetric" and direct.transport.copies(x, sizes.top_k):
                wire = ids_and_weights + x.numel() * x.element_size() * (dist.get_world_size() - 1)
            if name.startswith("by hand"):
                wire = int((ids // experts[0].shape[0] != rank).sum()) * sizes.hidden * x.element_size()
            del out
        steps = name in ways or each is alone or has_room(weights.whole, device)
        times = dict(
            forward_us=slowest(each.forward, sizes.repeats, device),
            both_us=slowest(each.step, sizes.repeats, device) if steps else None,
        )
        peak = peak_bytes(each.step if steps else each.forward, device)
        found.append(about | dict(way=name, error=error, bytes_one_way=wire, peak_bytes=peak) | times)
        if device.type == "cuda" and (name == "symmetric" or each is alone or "its tokens" in name):
            in_a_graph = dict(
                forward_us=slowest(capture(each.forward).replay, sizes.repeats, device, True),
                both_us=slowest(capture(each.step).replay, sizes.repeats, device, True) if steps else None,
            )
            found.append(about | dict(way=f"{name}, in a graph") | in_a_graph)
    landing = equal_splits(handle.matrix, sizes.hidden, dtype, device)
    wire = slowest(lambda: dist.all_to_all_single(*landing), sizes.repeats, device)
    name = "all_to_all_single, equal splits of the deduplicated bytes"
    return [*found, about | dict(way=name, forward_us=wire, both_us=None)]


def has_room(whole: list[Tensor], device) -> bool:
    """Whether a GPU has room for the gradients of all experts' weights beside these, this rank's, and its gradients."""
    size = sum(each.numel() * each.element_size() for each in whole)
    return device.type != "cuda" or 4 * size < torch.cuda.get_device_properties(device).total_memory


def chunks_of(sizes: Sizes, tokens: int) -> int:
    """The number of chunks that the model of ``schedule`` takes for balanced routing."""
    layer = ExpertLayer(sizes.hidden, sizes.inner, sizes.experts, sizes.top_k)
    return layer_time(layer, tokens, Cluster(dist.get_world_size())).chunks


def predicted(sizes: Sizes, tokens: int, uneven: float) -> float:
    """The forward's time by the model of ``schedule``, in microseconds: fitted to two GPUs, asked for any number."""
    layer = ExpertLayer(sizes.hidden, sizes.inner, sizes.experts, sizes.top_k)
    return layer_time(layer, tokens, Cluster(dist.get_world_size()), imbalance=uneven, chunks=1).total_us


def peak_bytes(call: Callable[[], object], device) -> int | None:
    """Memory of a call on the rank that takes most, above what is there before; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    found = torch.tensor([torch.cuda.max_memory_allocated() - before], dtype=torch.int64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


def equal_splits(matrix, hidden: int, dtype, device) -> tuple[Tensor, Tensor]:
    """Buffers of an ``all_to_all_single`` of as many rows as ``matrix`` has, equally many between any two ranks."""
    ranks = len(matrix)
    each = -(-sum(map(sum, matrix)) // ranks**2)
    sent = torch.zeros(ranks * each, hidden, dtype=dtype, device=device)
    return torch.empty_like(sent), sent


def _leaving(matrix, rank: int) -> int:
    """Rows that leave a rank."""
    return sum(matrix[rank]) - matrix[rank][rank]


def imbalance(matrix) -> float:
    """The rows of the rank that gets most, over the mean."""
    arriving = [sum(line[rank] for line in matrix) for rank in range(len(matrix))]
    return max(arriving) * len(arriving) / max(1, sum(arriving))


def imbalance_of_choices(mine: int, device) -> float:
    """The rows that the experts of the rank with most compute, over the mean."""
    found = torch.tensor([mine, mine], dtype=torch.float64, device=device)
    dist.all_reduce(found[:1], dist.ReduceOp.MAX)
    dist.all_reduce(found[1:])
    return float(found[0] * dist.get_world_size() / found[1].clamp(min=1))


def rows_of(model: str, tokens: int, sizes: Sizes, device, dtype) -> list[dict]:
    """All rows of a model with ``tokens`` on each GPU."""
    found, about = [], dict(ranks=dist.get_world_size(), model=model)
    for routing in ROUTINGS:
        found += [about | each for each in measure(sizes, tokens, routing, device, dtype)]
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return found


def line(row: dict) -> str:
    """A row as text: milliseconds forward, and forward and backward."""
    both = "" if row["both_us"] is None else f"{row['both_us'] / 1e3:8.3f}"
    about = f"{row['ranks']} {row['model']:14} {row['tokens']:6} {row['routing']:8} {row['way']:58}"
    return f"{about} {row['forward_us'] / 1e3:8.3f} {both}"


# ---- the record


@dataclass(frozen=True)
class Case:
    """A model with some tokens on each of some GPUs; in all routings and ways.

    Attributes:
        ranks: GPUs.
        model: its name in ``bench.zoo``.
        tokens: of each GPU.
    """

    ranks: int
    model: str
    tokens: int


def cases() -> list[Case]:
    """The record's cases, for as many GPUs as this host has: 2, 4, 8.

    Raises:
        RuntimeError: it has not two.
    """
    ranks = max((each for each in (2, 4, 8) if each <= torch.cuda.device_count()), default=0)
    if not ranks:
        raise RuntimeError("expert parallelism is measured on two GPUs or more, and torch sees fewer")
    found = []
    for model, counts in TOKENS.items():
        together = {TOGETHER // ranks} if model == next(iter(TOKENS)) else set()
        found += [Case(ranks, model, tokens) for tokens in sorted({*counts, *together})]
    return found


def rows(keep: Callable[[Rows], None] = lambda found: None) -> dict:
    """Measure all cases, in as many processes as they have GPUs; ``keep`` gets the rows so far after each case."""
    found, wanted = Rows(), cases()
    if not wanted:
        return found.as_json()
    ranks, these = wanted[0].ranks, [f"{case.model}:{case.tokens}" for case in wanted]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with subprocess.Popen([*launcher, __file__, "--json", *these], stdout=subprocess.PIPE, text=True) as process:
        for printed in process.stdout:
            if not printed.startswith("[{"):
                print(printed, end="", flush=True)
                continue
            found += (new := json.loads(printed))
            print(*map(line, new), sep="\n", flush=True)
            keep(found)
    if process.returncode:
        raise RuntimeError(f"measuring with {ranks} GPUs ended with exit code {process.returncode}")
    return found.as_json()


def main() -> None:
    """Measure, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL:TOKENS", help=f"of a GPU; models: {', '.join(TOKENS)}")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each case")
    parser.add_argument("--tiny", action="store_true", help="a small layer, to try the program")
    given = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    dtype = torch.bfloat16 if cuda else torch.float32
    everything = [f"{model}:{tokens}" for model, counts in TOKENS.items() for tokens in counts]
    for case in ["tiny:24"] if given.tiny else given.cases or everything:
        model, tokens = case.split(":")
        found = rows_of(model, int(tokens), TINY if given.tiny else Sizes.of(model), device, dtype)
        loaded.share()
        if dist.get_rank() == 0:
            print(json.dumps(found) if given.json else "\n".join(map(line, found)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
