"""Train a model with experts on several GPUs, or on a CPU: FSDP2 shards the dense part, ranks share out the experts.

    torchrun --nproc-per-node 4 examples/train_experts.py [--expert-ranks N] [--steps N] [--tokens N] [--hidden N] ...

Every number of processes trains the same model on the same tokens, so losses are the same but for roundings. Compare
with ``--nproc-per-node 1``. The default sizes are tiny, for a laptop. GPUs use NCCL, CPUs gloo.

The processes form a grid, a mesh of the dimensions "dp" and "ep". The ranks of a row ("ep") have all experts together:
``ExpertParallel`` sends each token to the ranks of its experts. The ranks of a column ("dp") have the same experts:
FSDP2 shards these once more. The dense part has no experts, and FSDP2 shards it over all ranks.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from course_kernels.distributed import ExpertParallel
from course_kernels.moe import Experts

SIZES = dict(hidden=16, inner=24, experts=8, top_k=3, layers=2)  # of a model, tiny

# ---- a model of one process


class Layer(nn.Module):
    """A router, and the experts that it chooses for each token."""

    def __init__(self, hidden: int, inner: int, experts: int, top_k: int):
        super().__init__()
        self.top_k = top_k
        self.norm = nn.LayerNorm(hidden)
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = Experts(experts, hidden, inner)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (T, hidden) to (T, hidden)."""
        rows = self.norm(x)
        weights, ids = self.router(rows).softmax(-1).topk(self.top_k)
        return x + self.experts(rows, ids, weights)


class Model(nn.Module):
    """Layers of experts and a linear map."""

    def __init__(self, hidden: int, inner: int, experts: int, top_k: int, layers: int):
        super().__init__()
        self.layers = nn.ModuleList(Layer(hidden, inner, experts, top_k) for _ in range(layers))
        self.head = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (T, hidden) to (T, hidden)."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


# ---- the same model on many


def spread(model: Model, expert_ranks: int) -> None:
    """Shard a model over all processes. Every gradient is then the sum over all ranks.

    FSDP2 would divide by the ranks of a weight's mesh: all of them for the dense part, those of "dp" for experts, whose
    backward has summed over "ep".

    Args:
        model: the same on all ranks. Its experts' values come from the first rank.
        expert_ranks: over how many ranks the experts are spread. It divides the number of ranks.

    Raises:
        ValueError: it does not.
    """
    ranks, kind = dist.get_world_size(), next(model.parameters()).device.type
    if expert_ranks < 1 or ranks % expert_ranks:
        raise ValueError(f"expert_ranks must divide the number of ranks, {ranks}, got {expert_ranks}")
    everyone = init_device_mesh(kind, (ranks,), mesh_dim_names=("all",))
    grid = init_device_mesh(kind, (ranks // expert_ranks, expert_ranks), mesh_dim_names=("dp", "ep"))
    for layer in model.layers:
        ExpertParallel(grid["ep"], layer.experts.num_experts).shard(layer.experts)
        fully_shard(layer.experts, mesh=grid["dp"])
        fully_shard(layer, mesh=everyone)
    fully_shard(model, mesh=everyone)
    for module in model.modules():
        if isinstance(module, FSDPModule):  # all gradients are sums over all ranks; ``train`` divides the loss
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor


def clip(model: nn.Module, most: float) -> float:
    """Clip the gradients to a norm, and return the norm before.

    ``clip_grad_norm_`` takes tensors of one mesh only. Here each gradient is sharded over all ranks, on whichever mesh:
    the squares of all parts add up.
    """
    spread_out = [each.grad for each in model.parameters() if isinstance(each.grad, DTensor)]
    grads = [each.to_local() for each in spread_out] or [each.grad for each in model.parameters()]
    square = nn.utils.get_total_norm(grads).square()
    if spread_out:
        dist.all_reduce(square)
    norm = square.sqrt()
    for each in grads:
        each.mul_((most / norm).clamp(max=1.0))
    return norm.item()


# ---- training


def batches(steps: int, tokens: int, hidden: int, rank: int, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's part of each step's tokens and targets. All parts together are the same for any ``ranks``."""
    if tokens % ranks:
        raise ValueError(f"tokens must be a multiple of the number of ranks, {ranks}, got {tokens}")
    generator = torch.Generator().manual_seed(3)
    own = slice(rank * tokens // ranks, (rank + 1) * tokens // ranks)
    for _ in range(steps):
        x = torch.randn(tokens, hidden, generator=generator)
        yield x[own], x.roll(1, 1)[own].sin()


def train(
    model: nn.Module,
    data: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    ranks: int = 1,
    most: float | None = 1.0,
) -> Iterator[tuple[float, float | None]]:
    """Train, and yield the loss of each step, the mean over all ranks, and the norm of its gradient.

    Args:
        model: spread over all ranks by ``spread``, or a whole one.
        data: this rank's tokens and targets, as many on each rank.
        device: of the model.
        ranks: how many train together; 1 for a whole model.
        most: clip gradients to this norm; None clips nothing and yields no norm.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)  # one by one: they are on two meshes
    for x, target in data:
        loss = (model(x.to(device)) - target.to(device)).square().mean() / ranks  # the sum over all is the mean
        loss.backward()
        norm = None if most is None else clip(model, most)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        if ranks > 1:
            dist.all_reduce(mean)
        yield mean.item(), norm


# ---- the program


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--expert-ranks", type=int, help="how many ranks share out the experts; 2, if there are as many"
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=48, help="of a step, of all ranks; a multiple of their number")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    return parser.parse_args(arguments)


def build(given: argparse.Namespace, device: torch.device) -> Model:
    """Draw a model, the same for any number of ranks, and spread it."""
    torch.manual_seed(0)
    model = Model(**{name: getattr(given, name) for name in SIZES}).to(device)
    spread(model, min(2, dist.get_world_size()) if given.expert_ranks is None else given.expert_ranks)
    return model


def stored(model: Model) -> tuple[int, int]:
    """How many weights this rank stores, and how many there are."""
    return sum(each.to_local().numel() for each in model.parameters()), sum(each.numel() for each in model.parameters())


def main() -> None:
    """Train as the command line says. The first rank prints."""
    given, device = parse(), torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = batches(given.steps, given.tokens, given.hidden, rank, ranks)
    model = build(given, device)
    if rank == 0:
        print("{} of {} weights are on the first rank, of {}".format(*stored(model), ranks))
    for step, (loss, norm) in enumerate(train(model, data, device, ranks)):
        if rank == 0:
            print(f"step {step:3}  loss {loss:.6f}  gradient {norm:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
