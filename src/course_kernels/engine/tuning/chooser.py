"""The choice of a configuration of the Triton kernels: by the time model, else by rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from course_kernels.config import GemmConfig
from course_kernels.engine.tuning import gpu_constants, time_model
from course_kernels.engine.tuning.fallback_rules import (
    ONE_TILE,
    ONE_TILE_DEPTH,
    all_by_hand,
    by_hand,
    with_block_scales,
)
from course_kernels.engine.tuning.gpu_constants import Source
from course_kernels.engine.tuning.gpu_distance import Gpu
from course_kernels.engine.tuning.kinds import Extents, Kind
from course_kernels.kernels.codes import Scales

SAME = 0.02  # up to this distance, two descriptions mean the same kind of GPU


class Choice(NamedTuple):
    """A configuration of the Triton kernels.

    Attributes:
        config: fits into the GPU's shared memory.
        us: the time that the model expects, in µs; None if a rule chose.
        why: the reason, a sentence.
    """

    config: GemmConfig
    us: float | None
    why: str


def choose(
    kind: Kind,
    extents: Extents,
    gpu: Gpu | None,
    *,
    uses_tma: bool | None = None,
    stores_tma: bool | None = None,
    out_bytes: int | None = None,
    accumulate: bool = False,
    rank_block: int = 0,
    programs: int | None = None,
    alone: bool = False,
) -> Choice:
    """Choose the configuration of the Triton kernels for a product.

    Args:
        kind, extents: of the product.
        gpu: the GPU that runs it; None for the interpreter.
        uses_tma: operands and result all go through descriptors. Default: whether the GPU has them.
        stores_tma: the result goes through a descriptor. Default: as ``uses_tma``.
        out_bytes: of an element of the result. Default: as an operand's, but 2 for 8-bit operands.
        accumulate: the product is added to its result, which takes shared memory where there is no descriptor.
        rank_block: as for ``GemmConfig.valid_for``.
        programs: the requested number. None for persistent programs, to which the model was fitted. If each tile of a
            product along K has its own program, the choice is ``fallback_rules.ONE_TILE``, except for deep groups.
        alone: programs do not share an SM. Configurations for which one program fills an SM come first.

    Raises:
        ValueError: no configuration fits into the GPU's shared memory.

    Notes:
        The model chooses if there are constants for the GPU or another one of its family, and only for launches that
        read operands as the measured ones did: through descriptors if the GPU has them.
    """
    uses_tma = (gpu is None or gpu.uses_tma) if uses_tma is None else uses_tma
    limits = dict(
        capability=gpu and gpu.capability, shared_limit=gpu and gpu.shared_limit, accumulate=accumulate,
        rank_block=rank_block, uses_tma=uses_tma if stores_tma is None else stores_tma,
    )  # fmt: skip
    reason = "it has no configurations"
    for option in _options(kind, extents, gpu, uses_tma, programs, alone):
        asked = with_block_scales(option.config) if kind.scaling == Scales.BLOCKS else option.config
        fitted = asked.fitted(kind.kernel, kind.element_bytes, out_bytes, **limits)
        if fitted is not None:
            fewer = "" if fitted == asked else f"; {fitted.num_stages} of {asked.num_stages} stages, for shared memory"
            return Choice(fitted, option.us, option.why + fewer)
        reason = asked.valid_for(kind.kernel, kind.element_bytes, out_bytes, **limits)
    raise ValueError(f"no configuration suits this GPU: {reason}")


def _options(
    kind: Kind, extents: Extents, gpu: Gpu | None, uses_tma: bool, programs: int | None, alone: bool
) -> Iterator[Choice]:
    """Yield the possible choices, the best first, before they are fitted into shared memory."""
    if gpu is not None and uses_tma == gpu.uses_tma:
        ranked = [each for each in time_model.ranking(kind, extents, gpu) if each.backend == "triton"]
        if alone:
            ranked.sort(key=lambda each: each.config.programs_per_sm > 1)
        source = gpu_constants.source_for(gpu, kind)
        if source.measured and _is_one_tile(kind, extents, uses_tma, programs):
            yield Choice(ONE_TILE, None, "each tile has a program of its own, and groups are shallow")
        for each in ranked:
            fills = " of those that fill an SM" if alone and each.config.programs_per_sm == 1 else ""
            why = f"the fastest{fills} by the time model, {in_words(source, kind, gpu)}"
            yield Choice(each.config, each.us, why)
    why = _why_by_hand(kind, gpu, uses_tma)
    for config in by_hand(kind, extents, gpu, uses_tma):
        yield Choice(config, None, why)


def _is_one_tile(kind: Kind, extents: Extents, uses_tma: bool, programs: int | None) -> bool:
    """Whether ``ONE_TILE`` serves a product."""
    if not (kind.along == "k" and kind.element_bytes == 2 and uses_tma and programs is not None):
        return False
    enough = programs >= extents.G * ONE_TILE.tiles(round(extents.M), extents.N)
    return enough and extents.K < ONE_TILE_DEPTH


def in_words(source: Source, kind: Kind, gpu: Gpu) -> str:
    """Name the GPU whose constants serve a kind of products on a GPU."""
    if source.measured is None:
        return "without constants"
    its = source.measured.gpu
    words = f"with constants of {source.measured.name}"
    if its.arch != gpu.arch or its.distance(gpu)[1] > SAME:
        words += f", the measured GPU most like this one ({its})"
    return words + (f", of {source.kind}: none were measured for {kind}" if source.kind != kind else "")


def _why_by_hand(kind: Kind, gpu: Gpu | None, uses_tma: bool) -> str:
    """The reason why a rule chooses and not the time model."""
    if gpu is None:
        return "the interpreter runs every product with small blocks"
    if uses_tma != gpu.uses_tma:
        return "a rule by hand: not everything goes through a descriptor, and constants are of launches where it does"
    if gpu_constants.source_for(gpu, kind).candidates:
        return "a rule by hand: no measured configuration suits so few or so many rows"
    return f"a rule by hand: no GPU like {gpu.arch} was measured with such products; `course tune` measures this one"


def all_configs(kind: Kind, gpu: Gpu | None, uses_tma: bool) -> tuple[GemmConfig, ...]:
    """Every configuration that ``choose`` may return for a kind of products, before stages are fitted."""
    found: list[GemmConfig] = []
    if gpu is not None and uses_tma == gpu.uses_tma:
        source = gpu_constants.source_for(gpu, kind)
        found = [each.config for each in source.candidates if isinstance(each.config, GemmConfig)]
        found += [ONE_TILE] if source.measured and kind.along == "k" and kind.element_bytes == 2 and uses_tma else []
    return tuple(dict.fromkeys((*found, *all_by_hand(kind, gpu, uses_tma))))
