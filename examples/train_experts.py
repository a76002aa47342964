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
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from course_kernels.distributed import ExpertParallel
from course_kernels.moe import Experts

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

    def __init__(self, hidden: int = 16, inner: int = 24, experts: int = 8, top_k: int = 3, layers: int = 2):
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
    """Shard a model over all processes.

    Args:
        model: the same on all ranks.
        expert_ranks: over how many ranks the experts are spread. It divides the number of ranks.
    """
    ranks, kind = dist.get_world_size(), next(model.parameters()).device.type
    everyone = init_device_mesh(kind, (ranks,), mesh_dim_names=("all",))
    grid = init_device_mesh(kind, (ranks // expert_ranks, expert_ranks), mesh_dim_names=("dp", "ep"))
    for layer in model.layers:
        ExpertParallel(grid["ep"], layer.experts.num_experts).shard(layer.experts)
        fully_shard(layer.experts, mesh=grid["dp"])
        mean_over(ranks, layer.experts)
        fully_shard(layer, mesh=everyone)
    fully_shard(model, mesh=everyone)


def mean_over(ranks: int, experts: nn.Module) -> None:
    """Make the gradients of sharded experts means over all ranks, as those of the dense part are.

    Backward sums them over "ep", where tokens of all ranks arrive. FSDP2 would divide by the ranks of "dp" alone.
    """
    experts.set_gradient_divide_factor(float(ranks))
    experts.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor


def clip(model: Model, most: float) -> float:
    """Clip the gradients to a norm, and return the norm before.

    torch adds up norms on one mesh only, so the tensors of each mesh come first.
    """
    by_mesh: dict[DeviceMesh | None, list[Tensor]] = {}
    for parameter in model.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        by_mesh.setdefault(mesh, []).append(parameter)
    norms = [nn.utils.get_total_norm([each.grad for each in those]) for those in by_mesh.values()]
    total = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).norm()
    for those in by_mesh.values():
        nn.utils.clip_grads_with_norm_(those, most, total)
    return total.item()


# ---- training


def batches(steps: int, tokens: int, hidden: int, rank: int, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's part of each step's tokens and targets. All parts together depend on no number of ranks."""
    generator = torch.Generator().manual_seed(3)
    own = slice(rank * tokens // ranks, (rank + 1) * tokens // ranks)
    for _ in range(steps):
        x = torch.randn(tokens, hidden, generator=generator)
        yield x[own], x.roll(1, 1)[own].sin()


def train(model: nn.Module, data: Iterable[tuple[Tensor, Tensor]], device: torch.device) -> Iterator[tuple]:
    """Train, and yield each step's loss, the mean over all ranks, and the norm of its gradient."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)  # parameters are on several meshes
    for x, target in data:
        loss = (model(x.to(device)) - target.to(device)).square().mean()
        loss.backward()
        norm = clip(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        if dist.is_initialized():
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
        yield loss.item(), norm


def main() -> None:
    """Train as the command line says; the first rank prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--expert-ranks", type=int, help="ranks that share out the experts; default: two, if there are")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=48, help="of a step, of all ranks; a multiple of their number")
    for name, default in dict(hidden=16, inner=24, experts=8, top_k=3, layers=2).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    given = vars(parser.parse_args())
    steps, tokens, expert_ranks = given.pop("steps"), given.pop("tokens"), given.pop("expert_ranks")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    expert_ranks = expert_ranks or min(2, ranks)
    if ranks % expert_ranks or tokens % ranks:
        parser.error(f"{ranks} ranks must be a multiple of --expert-ranks {expert_ranks}, and --tokens {tokens} of them")
    torch.manual_seed(0)
    model = Model(**given).to(device)
    spread(model, expert_ranks)
    if rank == 0:
        local, whole = (sum(f(each) for each in model.parameters()) for f in (local_size, Tensor.numel))
        print(f"{ranks} ranks, dp {ranks // expert_ranks} x ep {expert_ranks}; each stores {local:,} of {whole:,} weights")
    for step, (loss, norm) in enumerate(train(model, batches(steps, tokens, given["hidden"], rank, ranks), device)):
        if rank == 0:
            print(f"step {step:3}  loss {loss:.6f}  gradient {norm:.6f}", flush=True)
    dist.destroy_process_group()


def local_size(parameter: DTensor) -> int:
    """How many elements of a parameter this rank stores."""
    return parameter.to_local().numel()


if __name__ == "__main__":
    main()
