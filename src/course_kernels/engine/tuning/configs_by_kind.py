"""The configurations that are measured for each kind of products. Only these have constants, so every choice is one of
these or a rule of ``fallback_rules``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TypeAlias

from course_kernels.config import GemmConfig
from course_kernels.engine.tuning.fallback_rules import amd_configs, with_block_scales
from course_kernels.engine.tuning.gpu_distance import Gpu
from course_kernels.engine.tuning.kinds import Kind
from course_kernels.kernels.codes import Activation, Function, Scales
from course_kernels.kernels.cute_sm90.config import CuteConfig, configs_for
from course_kernels.kernels.cute_sm90.form import Form

Config: TypeAlias = CuteConfig | GemmConfig
CUTE_ARCH = "sm_90"  # the only architecture of the kernel in CuTe DSL


def _table(*rows) -> tuple[GemmConfig, ...]:
    return tuple(GemmConfig(*row) for row in rows)


# First through descriptors, then through pointers. Columns: block_m, block_n, block_k, warps, stages, group_m, programs
# per SM, store parts.
_TRITON_M = _table(
    (128, 256, 64, 8, 4, 8, 1, 2), (64, 256, 64, 4, 4, 8, 1, 2), (64, 128, 64, 4, 3, 8, 2, 2),
    (64, 128, 128, 4, 3, 1, 1, 1), (32, 128, 128, 4, 4, 1, 1, 1), (16, 128, 128, 4, 4, 1, 1, 1),
    (16, 64, 128, 4, 5, 1, 2, 1),
)  # fmt: skip
_TRITON_K = _table((128, 256, 64, 8, 4, 8, 1, 2), (128, 128, 64, 4, 3, 4, 2, 2), (128, 128, 32, 4, 4, 4, 2, 2))
_TRITON_8_BIT = _table(
    (16, 128, 128, 4, 5, 1, 1, 1), (16, 64, 128, 4, 5, 1, 2, 1), (32, 128, 128, 4, 4, 1, 1, 1),
    (64, 128, 128, 4, 4, 1, 1, 1), (64, 128, 128, 4, 4, 8, 1, 2), (128, 128, 128, 4, 3, 8, 2, 2),
    (128, 128, 128, 8, 3, 8, 1, 1),
)  # fmt: skip
# Added to those above on GPUs with less shared memory than Hopper's.
_TRITON_SMALL = _table(
    (128, 128, 64, 8, 2, 8, 1, 2), (128, 128, 32, 4, 2, 8, 2, 2), (32, 128, 64, 4, 4, 1, 1, 1),
    (16, 64, 128, 4, 3, 1, 2, 1),
)  # fmt: skip
_TRITON_SMALL_8_BIT = _table((128, 128, 64, 8, 3, 8, 1, 2), (64, 128, 128, 4, 3, 8, 1, 2))
_POINTERS_K = _table(
    (128, 128, 64, 8, 3, 8, 1, 1), (128, 128, 32, 8, 4, 8, 1, 1), (128, 64, 64, 4, 3, 8, 2, 1),
    (64, 128, 64, 4, 3, 8, 1, 1), (64, 64, 64, 4, 3, 8, 2, 1),
)  # fmt: skip
_POINTERS_M = _POINTERS_K + _table(
    (32, 128, 64, 4, 3, 1, 1, 1), (32, 64, 64, 4, 3, 1, 2, 1), (16, 128, 64, 4, 4, 1, 1, 1),
    (16, 64, 128, 4, 3, 1, 2, 1),
)  # fmt: skip
_POINTERS_8_BIT = _table(
    (128, 128, 64, 8, 3, 8, 1, 1), (64, 64, 64, 8, 3, 8, 2, 1), (32, 64, 128, 4, 3, 1, 2, 1),
    (16, 64, 128, 4, 3, 1, 2, 1),
)  # fmt: skip


def form_of(kind: Kind) -> Form:
    """The form of measured products of a kind. Those of a layer have SwiGLU as their activation."""
    scaling = {Scales.NONE: "none", Scales.LINES: "lines", Scales.BLOCKS: "blocks"}[kind.scaling]
    form = Form(kind.along, kind.b_major, kind.element_bytes, scaling=scaling)
    if kind.fused == "gathered":
        return form._replace(load="gather_b")
    activated = dict(load="gather", epilogue=kind.fused, activation=Activation(Function.SILU))
    return form._replace(**activated) if kind.fused else form


def _triton(kind: Kind, family: str) -> tuple[GemmConfig, ...]:
    described = family == "descriptors"
    if kind.element_bytes == 1:
        found = _TRITON_8_BIT if described else _POINTERS_8_BIT
        return tuple(dict.fromkeys(map(with_block_scales, found))) if kind.scaling == Scales.BLOCKS else found
    if kind.along == "k":
        return _TRITON_K if described else _POINTERS_K
    return _TRITON_M if described else _POINTERS_M


def _small(kind: Kind) -> tuple[GemmConfig, ...]:
    if kind.element_bytes == 1:
        return _TRITON_SMALL_8_BIT
    return tuple(each for each in _TRITON_SMALL if kind.along != "k" or each.block_m >= 64)


def _cute(kind: Kind) -> tuple[CuteConfig, ...]:
    # It reads 8-bit operands with their depth contiguous. The time model adds a copy to its time.
    return () if kind.b_major == "n" and kind.element_bytes == 1 else configs_for(form_of(kind))


def offered(kind: Kind, gpu: Gpu, triton_only: bool = False) -> tuple[Config, ...]:
    """The configurations that are measured for products of a kind on a GPU: those that fit into its shared memory."""
    of_cute = _cute(kind) if gpu.arch == CUTE_ARCH and not triton_only else ()
    if kind.fused:
        return of_cute
    if gpu.family == "amd":
        found = tuple(config for configs in amd_configs(gpu.arch, kind.along).values() for config in configs)
    else:
        found = _triton(kind, gpu.family)
    limits = dict(capability=gpu.capability, shared_limit=gpu.shared_limit, uses_tma=gpu.uses_tma)

    def fits(config: GemmConfig) -> bool:
        return config.valid_for(kind.kernel, kind.element_bytes, **limits) is None

    if gpu.uses_tma and not all(map(fits, found)):
        found += _small(kind)
    return (*of_cute, *filter(fits, found))


@functools.cache
def by_name(kind: Kind) -> Mapping[str, Config]:
    """Every configuration that some GPU has constants for, by its name in records."""
    found = [*_cute(kind)]
    if not kind.fused:
        found += [*_triton(kind, "descriptors"), *_triton(kind, "pointers"), *_small(kind)]
        found += [each for arch in ("gfx942", "gfx950") for of in amd_configs(arch, kind.along).values() for each in of]
    return {name_of(config): config for config in found}


def name_of(config: Config) -> str:
    """The short name of a configuration, for records."""
    if isinstance(config, CuteConfig):
        return f"cute {config.name}"
    c = config
    fields = c.block_m, c.block_n, c.block_k, c.num_warps, c.num_stages, c.group_m, c.programs_per_sm, c.store_parts
    return "triton " + "_".join(map(str, fields)) + f"_xcds{c.num_xcds}" * (c.num_xcds != 1)
