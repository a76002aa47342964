"""A training script that knows nothing of this library: FSDP2, torch.compile and activation checkpointing.

``test_sharding`` changes its one import of ``grouped_mm``.
"""

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import grouped_mm, one_hot
from torch.utils.checkpoint import checkpoint

EXPERTS, WIDTH, HIDDEN, TOKENS = 4, 16, 32, 24


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / HIDDEN**0.5)

    def forward(self, x):
        weights, ids = self.router(self.norm(x)).softmax(-1).max(-1)
        order = ids.argsort(stable=True)
        offs = one_hot(ids, EXPERTS).sum(0).cumsum(0).to(torch.int32)
        hidden = grouped_mm(x[order], self.up.mT, offs=offs).relu()
        rows = grouped_mm(hidden, self.down.mT, offs=offs) * weights[order, None]
        return x.index_add(0, order, rows)


class Model(nn.Module):
    def __init__(self, compiler):
        super().__init__()
        self.layers = nn.ModuleList(Experts() for _ in range(2))
        for layer in self.layers:
            layer.compile(backend=compiler, fullgraph=True)

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def train(mesh, compiler, steps=4):
    """Train for a few steps on this process's part of the tokens; returns the losses and the final weights."""
    device = mesh.device_type
    torch.manual_seed(0)
    model = Model(compiler).to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1 + mesh.get_rank())
    tokens, target = (torch.randn(TOKENS, WIDTH, generator=generator).to(device) for _ in range(2))
    losses = []
    for _ in range(steps):
        loss = (model(tokens) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]
