"""An explanation in words of a product's backend and configuration, and a log of what was chosen."""

from __future__ import annotations

import logging
import math
from numbers import Real
from typing import Any

from course_kernels.config import GemmConfig
from course_kernels.engine.tuning import gpu_constants, time_model
from course_kernels.engine.tuning.chooser import choose, in_words
from course_kernels.engine.tuning.gpu_distance import Gpu
from course_kernels.engine.tuning.kinds import Extents, Kind
from course_kernels.kernels.cute_sm90.config import CuteConfig

_LOGGER = logging.getLogger("course_kernels")


def log_choice(
    problem: object, backend: str, config: CuteConfig | GemmConfig | None, us: float | None, why: str
) -> None:
    """Log the choice for a problem at level DEBUG. It is called when a plan is made, and in the interpreter at every
    launch.

    Args:
        problem: an ``engine.product.Problem``, logged as text.
        backend: the chosen one.
        config: its configuration; None for torch.
        us: the expected time in µs; None if unknown.
        why: the reason.
    """
    if _LOGGER.isEnabledFor(logging.DEBUG):
        what = backend if config is None else f"{backend} {describe(config)}"
        _LOGGER.debug("%s: %s: %s", problem, what if us is None else f"{what}, {us:,.0f} µs expected", why)


def explain(
    kind: Kind, extents: Extents, gpu: Gpu | None, backend: str | None = None, others: int = 2, **launch: Any
) -> str:
    """Explain why a product gets its backend and configuration: the work, the expected time, and the runners-up.

    Args:
        kind, extents: of the product.
        gpu: the GPU that runs it, such as ``gpu_constants.read(path).gpu``; None for the interpreter.
        backend: "cute" or "triton" to consider only that one.
        others: number of runners-up to list, each with its loss.
        launch: keywords of ``choose`` that differ from their defaults, for the Triton kernels.

    Returns:
        Lines of text.

    Raises:
        ValueError: an extent is negative, infinite or not a number.
    """
    for name, extent in extents._asdict().items():
        if not (isinstance(extent, Real) and 0 <= extent < math.inf):
            raise ValueError(f"{name} must be a number from 0 on, got {extent!r}")
    M, N, K, G = extents
    lines = [f"{kind.title}, {G:,} × (M {M:,.4g}, N {N:,}, K {K:,.4g}) on average; {gpu or 'interpreter'}"]
    if extents.is_empty:
        return "\n".join([*lines, "  an empty product: nothing is multiplied"])
    as_measured = gpu is None or launch.get("uses_tma", gpu.uses_tma) == gpu.uses_tma
    ranked = time_model.ranking(kind, extents, gpu) if as_measured else ()
    found = [each for each in ranked if backend in (None, each.backend)]
    chosen = None if backend == "cute" else choose(kind, extents, gpu, **launch)
    if not found or (chosen and chosen.us is None and found[0].backend == "triton"):
        what = f"triton {describe(chosen.config)}: {chosen.why}" if chosen else "no configuration was measured"
        return "\n".join([*lines, f"  {what}"])
    best = found[0]
    parts = [part for spread in time_model.SPREADS for part in time_model.work(best.config, kind, extents, spread)]
    of_parts = zip(*((part.tiles, part.tiles * part.blocks, part.bytes) for part in parts))
    tiles, depth, moved = (math.fsum(each) / len(time_model.SPREADS) for each in of_parts)
    places = gpu.sms * time_model.slots(best.config)
    lines += [
        f"  {best.us:,.0f} µs expected: {best.backend} {describe(best.config)}",
        f"    {tiles:,.0f} tiles, {places} at a time: {tiles / places:.1f} waves of {depth / tiles:.1f} blocks of K",
        f"    {moved / 1e6:,.0f} MB, which the memory moves in {moved / (gpu.bandwidth * 1e6):,.0f} µs at best",
    ]
    if best.backend == "cute" and time_model.is_copied(kind):
        lines.append(f"    B is copied first, which takes {time_model.copy_us(extents):,.0f} µs")
    lines.append(f"    {in_words(gpu_constants.source_for(gpu, kind), kind, gpu)}")
    for each in found[1 : others + 1]:
        lines.append(f"  {each.us / best.us - 1:+.1%}: {each.backend} {describe(each.config)}")
    return "\n".join(lines)


def describe(config: CuteConfig | GemmConfig) -> str:
    """Describe a configuration in words; unusual options come last."""
    return _of_cute(config) if isinstance(config, CuteConfig) else _of_triton(config)


def _of_triton(config: GemmConfig) -> str:
    block = "×".join(map(str, config.block))
    words = [block, f"{config.num_warps} warps", f"{config.num_stages} stages", f"strips of {config.group_m}"]
    words += [f"{config.programs_per_sm} per SM", f"{config.store_parts}-part store"]
    words += [config.schedule] * (config.schedule != "round_robin")
    words += [f"{config.programs} programs"] * (config.programs is not None)
    return ", ".join(words + [f"{config.num_xcds} XCDs"] * (config.num_xcds != 1))


def _of_cute(config: CuteConfig) -> str:
    words = [f"{config.tile_m}×{config.tile_n}×{config.tile_k}", config.schedule, f"{config.stages} stages"]
    words += [f"strips of {config.swizzle_size}"] + ["clusters of 2"] * (config.cluster == 2)
    words += [f"narrow tiles of {config.last_tile_n} columns"] * bool(config.last_tile_n)
    words += [f"flat tiles of {config.tail_tile_n} columns"] * bool(config.tail_tile_n)
    words += ["last wave in halves"] * config.split_last_wave + ["dynamic order"] * config.dynamic
    small = " small" if config.store_row_bytes < 128 else ""
    words += [f"{config.most_stores}{small} blocks for stores"] * (config.most_stores != 2)
    return ", ".join(words)
