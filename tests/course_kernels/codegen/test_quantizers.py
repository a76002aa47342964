"""The kernels that quantise, and those that copy groups into whole blocks, compile for every kind of GPU."""

from __future__ import annotations

import contextlib
import functools
import re
from unittest import mock

import pytest
import torch

import compiled
from course_kernels import quantize_1x128, quantize_128x128, runtime
from course_kernels.codegen import TARGETS, Build
from course_kernels.codegen.packed import specialize
from course_kernels.dtypes import FP8
from course_kernels.engine import whole_blocks
from course_kernels.engine.scale_blocks import padded_columns
from course_kernels.fp8 import quantize
from course_kernels.kernels import quantize as kernels

COPIES = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")
QUANTIZES = COPIES[1:]  # compute capability 8.0 has no 8-bit floats, and is refused
NAMES = ("quantize_lines_kernel", "quantize_squares_kernel", "pack_lines_kernel")
EXTENT, GROUPS = 512, 8


class Recorder:
    """Stands for a kernel, and keeps the build that its launch asks for."""

    def __init__(self, name: str, builds: list[Build]):
        self.name, self.builds, self.function = name, builds, getattr(kernels, name)

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *values, num_warps=4, **constexprs):
        arguments = dict(zip(self.function.arg_names, values)) | constexprs
        if "ROUND" in arguments:
            arguments["ROUND"] = False  # the interpreter's alone
        # ``specialize`` does not know the type of bytes.
        known = {n: v.view(FP8) if getattr(v, "dtype", None) == torch.uint8 else v for n, v in arguments.items()}
        signature, constants, divisible = specialize(self.function, known)
        signature |= {name: "*u8" for name in signature if known[name] is not arguments[name]}
        form = " ".join(word for word, there in (
            (f"{arguments['x_ptr'].dtype}".removeprefix("torch."), True),
            ("col" if 1 in (arguments.get("stride_xl"), arguments.get("stride_xr")) else "row", True),
            ("groups", arguments.get("offs_ptr") is not None and "packed_ptr" not in arguments),
            ("whole blocks", arguments.get("ends_ptr") is not None),
            ("factors", arguments.get("packed_scale_ptr") is not None),
            ("powers of two", arguments.get("POWER_OF_TWO")),
            ("unaligned", not {"stride_xl", "stride_xk", "stride_xr", "stride_xc"} & set(divisible)),
        ) if there)  # fmt: skip
        name = f"{kernels.__name__}:{self.name}"
        self.builds.append(Build(name, signature, constants, divisible, num_warps, label=f"{self.name} {form}"))


@functools.cache
def builds() -> tuple[Build, ...]:
    """The builds that calls ask for: two types of elements, both layouts, aligned or not; without groups, with groups,
    and with groups as whole blocks; copies of bytes, with and without factors."""
    made: list[Build] = []
    with contextlib.ExitStack() as stack:
        for name in NAMES:
            stack.enter_context(mock.patch.object(kernels, name, Recorder(name, made)))
        # As if the tensors were on a GPU. Their memory is never touched.
        stack.enter_context(mock.patch.object(quantize, "uses_torch", return_value=False))
        stack.enter_context(mock.patch.object(quantize, "readable", lambda x: x))
        stack.enter_context(mock.patch.object(runtime, "interpreting", contextlib.nullcontext))
        offs = torch.empty(GROUPS, dtype=torch.int32)
        for dtype, aligned, power_of_two in ((torch.bfloat16, True, False), (torch.float32, False, True)):
            x = torch.empty(EXTENT, EXTENT + (not aligned), dtype=dtype)[:, :EXTENT]
            quantize_1x128(x, power_of_two=power_of_two)
            quantize_1x128(x.mT, offs=offs, power_of_two=power_of_two)
            quantize.quantize_whole_blocks(x.mT, offs, power_of_two=power_of_two)
            quantize_128x128(x, power_of_two=power_of_two)
            # Extents that are not multiples of 16: the kernel does not specialise for those of its depth.
            q = torch.empty(EXTENT, EXTENT + (not aligned), dtype=FP8)[: EXTENT - 12, : EXTENT - 12]
            scale = torch.empty(padded_columns(EXTENT, GROUPS), EXTENT - 12).mT
            whole_blocks.pack(q, offs, scale)
            whole_blocks.pack(q.mT, offs, scale if aligned else None)
    return tuple(dict.fromkeys(made))


def recorded_pairs() -> list[compiled.Pair]:
    """What ``compiled`` keeps on record for this module."""
    return [(spec, t) for spec in builds() for t in (COPIES if str(spec).startswith("pack") else QUANTIZES)]


@pytest.mark.parametrize("target", COPIES)
def test_what_is_launched_compiles_and_fits(target):
    pairs = [pair for pair in recorded_pairs() if pair[1] == target]
    assert pairs
    for (spec, _), found in zip(pairs, compiled.facts(pairs), strict=True):
        assert not found.error, f"{spec}: {found.error}"
        assert found.shared <= TARGETS[target].shared_limit, str(spec)


def test_every_kernel_is_among_them():
    names = [re.match(r"\w+", str(spec))[0] for spec in builds()]
    assert {name: names.count(name) for name in NAMES} == dict(zip(NAMES, (6, 2, 4), strict=True))
    assert len({str(spec) for spec in builds()}) == len(builds())
