"""Training steps of a Qwen3-MoE model of two layers in transformers, on its own experts and on this library's.

Attention and experts have Qwen3-30B-A3B's extents; the vocabulary is small, so that the layers take most of the time. A
step is forward, backward, and AdamW. Both models start from the same parameters, and see the same tokens.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from course_kernels.bench import timing
from course_kernels.bench.interface import WrongResult

WAYS = {"transformers": "grouped_mm", "ours": "course_kernels"}  # way → transformers' name of the experts
VERIFIED, REPEATS = 4, 10  # steps whose losses are compared, and steps that are timed
EXTENTS = dict(
    hidden_size=2048, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, num_attention_heads=32,
    num_key_value_heads=4, head_dim=128, num_hidden_layers=2, vocab_size=4096,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A batch of sequences."""

    sequences: int
    length: int


def trained(case: Case, way: str, device: str = "cuda", **changes: int) -> Callable[[], torch.Tensor]:
    """A function that makes a step and returns its loss.

    Args:
        changes: extents of another model.
    """
    import transformers

    from course_kernels.integrations.transformers import register

    register()
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(**EXTENTS | changes)
    with torch.device(device):  # a CPU takes minutes to draw its parameters
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.set_experts_implementation(WAYS[way])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator(device).manual_seed(1)
    ids = torch.randint(config.vocab_size, (case.sequences, case.length), generator=generator, device=device)

    def step() -> torch.Tensor:
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def verify(losses: dict[str, list[float]]) -> None:
    """Compare the losses of the first steps.

    Raises:
        WrongResult: two ways differ by over 1 %, or a loss does not fall.
    """
    for way, found in losses.items():
        if not found[-1] < found[0]:
            raise WrongResult(f"{way}: the loss does not fall: {found}")
        for mine, theirs in zip(found, losses["transformers"], strict=True):
            if not abs(mine - theirs) <= 0.01 * theirs:  # both round to bfloat16, at other places
                raise WrongResult(f"{way}: losses {found} differ from transformers' {losses['transformers']}")


def measure(case: Case) -> dict:
    """Measure a case: µs and tokens a second of each way, and the peak of memory, its parameters included."""
    steps, losses, peak = {}, {}, {}
    for way in WAYS:
        gc.collect()
        before = torch.cuda.memory_allocated()
        steps[way] = trained(case, way)
        losses[way] = [float(steps[way]()) for _ in range(VERIFIED)]
        torch.cuda.reset_peak_memory_stats()
        steps[way]()
        torch.cuda.synchronize()
        peak[way] = torch.cuda.max_memory_allocated() - before
    verify(losses)
    us = {way: statistics.median(each) for way, each in timing.interleaved_us(steps, repeats=REPEATS).items()}
    rates = {way: case.sequences * case.length / each * 1e6 for way, each in us.items()}
    return asdict(case) | dict(tokens_per_second=rates, us=us, peak=peak, losses=losses)


def cases() -> list[Case]:
    """The cases of the record."""
    return [Case(4, 4096), Case(1, 4096)]


def rows() -> dict:
    """Measure every case."""
    found = [measure(case) for case in cases()]
    for row in found:
        print(row, flush=True)
    return {"extents": EXTENTS, "rows": found}
