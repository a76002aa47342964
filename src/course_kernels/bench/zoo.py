"""The expert layers of published models, as rows of the benchmark: model × tokens × routing × projection.

The thirteen rows of `bench.rows` are those that choices were once made from. These are shapes that users have, and the
time model is fitted to them. Python's generator draws the routings from fixed seeds, so they are the same on every
machine.
"""

from __future__ import annotations

import difflib
import functools
import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from course_kernels.bench.rows import Row, named, zipf

__all__ = [
    "MODELS",
    "PASSES",
    "PROJECTIONS",
    "ROUTINGS",
    "TOKENS",
    "Model",
    "compact",
    "routed",
    "rows",
    "select_models",
]

TOKENS = (1, 64, 512, 4096, 16384, 65536)
# "random": every token picks its experts evenly. "zipf": experts are loaded by rank ** -0.8. "half-cold": half the
# experts get no rows, and tokens pick evenly among the others.
ROUTINGS = ("random", "zipf", "half-cold")
PROJECTIONS = ("up", "down")
PASSES = ("forward", "dA", "dB", "step")  # what is measured of a row
# FLOP per byte from which arithmetic bounds a product in bfloat16: an H200's dense products reach about 660 TFLOP/s,
# its copies 4.27 TB/s. An H100 has less bandwidth, so rows just above it are bound by memory there.
COMPUTE_BOUND_FLOP_PER_BYTE = 150.0
_DRAWS_ONE_BY_ONE = 64
_COMPACT = ("mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b", "gpt-oss-120b", "granite-3.0-3b-a800m")
_ROUTING_TITLES = {"random": "random", "zipf": "Zipf", "half-cold": "half cold"}


@dataclass(frozen=True)
class Model:
    """The routed experts of one layer of a published model; shared experts are dense products and left out.

    Attributes:
        name: for the command line and the names of rows.
        experts, top_k: experts of a layer, and how many of them a token visits.
        hidden, intermediate: extents of the layer's input, and of an expert's hidden activations.
        source: the repository of the model on the hub, and the file that has these numbers.
    """

    name: str
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    source: str

    def extents(self, projection: str) -> tuple[int, int]:
        """(N, K) of a projection: "up" is gate and up as one weight of 2 × intermediate rows."""
        return (2 * self.intermediate, self.hidden) if projection == "up" else (self.hidden, self.intermediate)


MODELS = (
    Model("mixtral-8x7b", 8, 2, 4096, 14336, "mistralai/Mixtral-8x7B-v0.1, config.json"),
    Model("deepseek-v2-lite", 64, 6, 2048, 1408, "deepseek-ai/DeepSeek-V2-Lite, config.json"),
    Model("deepseek-v3", 256, 8, 7168, 2048, "deepseek-ai/DeepSeek-V3, config.json"),
    Model("qwen3-30b-a3b", 128, 8, 2048, 768, "Qwen/Qwen3-30B-A3B, config.json"),
    Model("qwen3-235b-a22b", 128, 8, 4096, 1536, "Qwen/Qwen3-235B-A22B, config.json"),
    Model("glm-4.5", 160, 8, 5120, 1536, "zai-org/GLM-4.5, config.json"),
    Model("glm-4.5-air", 128, 8, 4096, 1408, "zai-org/GLM-4.5-Air, config.json"),
    Model("gpt-oss-20b", 32, 4, 2880, 2880, "openai/gpt-oss-20b, config.json"),
    Model("gpt-oss-120b", 128, 4, 2880, 2880, "openai/gpt-oss-120b, config.json"),
    Model("llama-4-scout", 16, 1, 5120, 8192, "meta-llama/Llama-4-Scout-17B-16E, config.json (text_config)"),
    Model("granite-3.0-3b-a800m", 40, 8, 1536, 512, "ibm-granite/granite-3.0-3b-a800m-base, config.json"),
    Model("phi-3.5-moe", 16, 2, 4096, 6400, "microsoft/Phi-3.5-MoE-instruct, config.json"),
    Model("olmoe-1b-7b", 64, 8, 2048, 1024, "allenai/OLMoE-1B-7B-0924, config.json"),
    Model("dbrx", 16, 4, 6144, 10752, "databricks/dbrx-base, config.json (ffn_config)"),
    Model("qwen2-57b-a14b", 64, 8, 3584, 2560, "Qwen/Qwen2-57B-A14B, config.json"),
)


def _binomial(draw: random.Random, trials: int, chance: float) -> int:
    """Successes of `trials`; of many, the normal approximation, rounded."""
    if chance >= 1.0 or trials <= 0:
        return max(trials, 0)
    if trials <= _DRAWS_ONE_BY_ONE:
        return sum(draw.random() < chance for _ in range(trials))
    mean = trials * chance
    return min(trials, max(0, round(draw.normalvariate(mean, math.sqrt(mean * (1.0 - chance))))))


def _picks(experts: int, top_k: int, tokens: int, draw: random.Random) -> list[int]:
    """Rows of each expert, when every token picks `top_k` different experts evenly.

    The experts are gone through one by one. A token that still has to pick `left` of the `rest` experts picks the next
    one with chance left / rest, so tokens need only be counted by `left`: no token is drawn by itself.
    """
    undecided = [0] * top_k + [tokens]  # tokens by the number of experts that they still pick
    sizes = []
    for rest in range(experts, 0, -1):
        chosen = [0, *(_binomial(draw, undecided[left], left / rest) for left in range(1, top_k + 1))]
        sizes.append(sum(chosen))
        undecided = [
            undecided[left] - chosen[left] + (chosen[left + 1] if left < top_k else 0) for left in range(top_k + 1)
        ]
    return sizes


@functools.cache
def routed(model: Model, tokens: int, routing: str) -> tuple[int, ...]:
    """Rows of each expert: they sum to tokens × top_k, and no expert has more than `tokens`.

    Args:
        routing: of `ROUTINGS`.

    Notes:
        Where Zipf's law would give an expert more rows than there are tokens, it gets every token, and the others
        share what is left by the same law.
    """
    seed = zlib.crc32(f"{model.name}-{tokens}-{routing}".encode())
    if routing == "zipf":
        return zipf(model.experts, tokens * model.top_k, seed, most=tokens)
    draw = random.Random(seed)
    if routing == "random":
        return tuple(_picks(model.experts, model.top_k, tokens, draw))
    warm = sorted(draw.sample(range(model.experts), max(model.top_k, model.experts - model.experts // 2)))
    sizes = dict(zip(warm, _picks(len(warm), model.top_k, tokens, draw)))
    return tuple(sizes.get(expert, 0) for expert in range(model.experts))


def row_of(model: Model, tokens: int, routing: str, projection: str) -> Row:
    """The product of a layer of a model with a number of tokens; arguments of `ROUTINGS` and `PROJECTIONS`."""
    N, K = model.extents(projection)
    title = f"{model.name}: {model.experts} experts, {tokens:,} tokens ({_ROUTING_TITLES[routing]}), N {N}, K {K}"
    row = Row(f"{model.name}-{tokens}-{routing}-{projection}", title, routed(model, tokens, routing), N, K, "memory")
    dense_enough = row.flops / row.bytes_moved() >= COMPUTE_BOUND_FLOP_PER_BYTE
    return replace(row, kind="compute") if dense_enough else row


def select_models(names: Sequence[str] | None) -> list[Model]:
    """Models by name, as ``rows.named``: "gpt-oss" selects two."""
    return named("models", {model.name: model for model in MODELS}, names)


def rows(
    models: Sequence[str] | None = None,
    tokens: Sequence[int] = TOKENS,
    routings: Sequence[str] = ROUTINGS,
    projections: Sequence[str] = PROJECTIONS,
) -> list[Row]:
    """Every combination as a row named "model-tokens-routing-projection".

    Args:
        models: names or beginnings of names; None is every model.
        tokens: numbers of tokens, each at least 1; `TOKENS` are the ones that records have.
        routings: of `ROUTINGS`.
        projections: of `PROJECTIONS`.

    Raises:
        ValueError: an unknown name, or fewer than 1 token.
    """
    chosen = select_models(models)
    for what, given, known in (("routings", routings, ROUTINGS), ("projections", projections, PROJECTIONS)):
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
                raise ValueError(f"{what} must be among {', '.join(known)}, got {name!r}; {hint}")
    if wrong := [count for count in tokens if count < 1]:
        raise ValueError(f"tokens must be at least 1, got {wrong[0]}")
    return [
        row_of(model, count, routing, projection)
        for model in chosen
        for count in dict.fromkeys(tokens)
        for routing in dict.fromkeys(routings)
        for projection in dict.fromkeys(projections)
    ]


def compact() -> list[Row]:
    """Twenty rows that differ most, which take about three minutes: five models, 512 and 4,096 tokens, Zipf's law.

    Notes:
        DeepSeek-V3 needs the most memory, 15 GB for each weight. Operands and results are 32 GB, and torch's own weight
        gradient makes it 47; a training step may hold two weight gradients more, which is 62. That fits on 80 GB.
    """
    return rows(_COMPACT, tokens=(4096, 512), routings=("zipf",))
