"""No kernel computes an address in 32 bits, whatever the strides: as compiled, and on memory that is as large. Nor has
one the two chained products that Triton compiles wrongly for tcgen05."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch.nn.functional import ScalingType

from course_kernels import (
    GemmConfig,
    deepgemm,
    group_gemm,
    grouped_gemm_jagged_persistent,
    grouped_mm,
    quantize_1x128,
    quantize_128x128,
    runtime,
    scaled_grouped_mm,
)
from course_kernels.codegen import Build, build, compile_kernel
from course_kernels.codegen.jagged import build_jagged
from course_kernels.codegen.packed import build_group_sums
from course_kernels.fp8.lines import quantize_group_lines, quantize_lines
from course_kernels.packed.group_sums import group_sums
from course_kernels.testing import integers
from read_ttir import chained_products, narrow_offsets
from sparse_memory import spread

SMALL = GemmConfig(64, 64, 64, num_stages=1)
POINTERS = dict(config=SMALL, aligned=False, target="sm_89")
EIGHT = dict(dtype="float8_e4m3fn", bias=True, **POINTERS)
_QUANTIZE = "course_kernels.kernels.quantize"


def quantizing(kernel: str, extents: dict, constexprs: dict) -> Build:
    """A kernel of ``kernels.quantize``, which has no builder."""
    strides = {f"stride_{which}{dim}": "i32" for which in "xqs" for dim in extents["strides"]}
    signature = {"x_ptr": "*bf16", "q_ptr": "*fp8e4nv", "scale_ptr": "*fp32", **extents["arguments"], **strides}
    return Build(f"{_QUANTIZE}:{kernel}", signature, {**constexprs, "POWER_OF_TWO": False, "ROUND": False}, (),
                 num_warps=8, num_stages=1, label=kernel)  # fmt: skip


AS_IT_IS = dict(
    GATED=False, STEP=1, FUNCTION=None, ALPHA=1.0, LIMIT=None, SHIFT=0.0, POWER_OF_TWO=False, ROUND=False,
)  # fmt: skip
BUILDS = {
    "contiguous m": build("contiguous", bias=True, **POINTERS),
    "contiguous batch, scaled": build("contiguous", mode="batch", **EIGHT),
    "contiguous m, blocks": build("contiguous", scaling="1x128 1x128", **EIGHT),
    "contiguous batch, blocks": build("contiguous", mode="batch", scaling="1x128 128x128", **EIGHT),
    "contiguous m, descriptors": build("contiguous", bias=True, config=SMALL, dtype="float16"),
    "transposed": build("transposed", bias=True, **POINTERS),
    "transposed, added": build("transposed", accumulate=True, **POINTERS),
    "transposed, scaled": build("transposed", **EIGHT),
    "transposed, blocks": build("transposed", scaling="1x128 1x128", **EIGHT),
    "masked": build("masked", **POINTERS),
    "masked, rows": build("masked", dtype="float8_e4m3fn", scales="channel", **POINTERS),
    "masked, blocks, shuffled": build(
        "masked", dtype="float8_e4m3fn", scales="block", shuffled=True, config=SMALL, target="sm_89"
    ),
    "naive": build("naive", config=SMALL, aligned=False),
    "round_robin": build("round_robin", config=SMALL, a_layout="any", b_layout="any", c_layout="any"),
    "tma": build("tma", config=SMALL, c_layout="any", record=True),
    "jagged simple": build_jagged("simple", config=SMALL, aligned=False),
    "jagged persistent": build_jagged("persistent", config=SMALL, aligned=False),
    **{f"group_sums {i}": each for i, each in enumerate(build_group_sums(total=4096))},
    "quantize lines": quantizing(
        "quantize_lines_kernel",
        {"strides": "blk",
         "arguments": {"offs_ptr": "*i32"} | dict.fromkeys(("lines", "depth", "columns", "G"), "i32")},
        {"ends_ptr": None, "RESTART": True, "GROUPS": 8, "BLOCK_L": 32},
    ),
    "quantize lines, whole blocks": quantizing(
        "quantize_lines_kernel",
        {"strides": "blk",
         "arguments": dict.fromkeys(("offs_ptr", "ends_ptr"), "*i32")
         | dict.fromkeys(("lines", "depth", "columns", "G"), "i32")},
        {"RESTART": True, "GROUPS": 8, "BLOCK_L": 32},
    ),
    "quantize whole lines": Build(
        "course_kernels.kernels.moe_float8:quantize_rows_kernel",
        {"x_ptr": "*bf16", "q_ptr": "*fp8e4nv", "scale_ptr": "*fp32"} | dict.fromkeys(
            ("tokens", "lines", "stride_b", "stride_r", "stride_c"), "i32"),
        {"offs_ptr": None, "COLS": 4096, "EXPERTS": 0, "WHOLE": True, "BLOCK_M": 64, "BLOCK_N": 128, **AS_IT_IS},
    ),
    "quantize lines of groups": Build(
        "course_kernels.kernels.moe_float8:quantize_group_columns_kernel",
        {"x_ptr": "*bf16", "offs_ptr": "*i32", "q_ptr": "*fp8e4nv", "scale_ptr": "*fp32"} | dict.fromkeys(
            ("tokens", "stride_r", "stride_c"), "i32"),
        dict.fromkeys(("index_ptr", "slots_ptr", "weights_ptr"))
        | {"COLS": 4096, "EXPERTS": 8, "BLOCK_M": 64, "BLOCK_N": 64, **AS_IT_IS},
    ),
    "quantize squares": quantizing(
        "quantize_squares_kernel", {"strides": "brc", "arguments": {"rows": "i32", "cols": "i32"}}, {}
    ),
}  # fmt: skip


def with_any_strides(spec: Build) -> Build:
    """A build for strides of which none is known to be 1."""
    ones = [name for name, value in spec.constexprs.items() if name.startswith("stride_") and value == 1]
    constexprs = {name: value for name, value in spec.constexprs.items() if name not in ones}
    return dataclasses.replace(spec, signature=spec.signature | dict.fromkeys(ones, "i32"), constexprs=constexprs)


@functools.cache
def ttir_of(name: str) -> str:
    """The same for all targets."""
    return compile_kernel(with_any_strides(BUILDS[name]), "sm_90").asm["ttir"]


@pytest.mark.parametrize("name", BUILDS)
def test_addresses_have_64_bits(name):
    assert not narrow_offsets(ttir_of(name))


@pytest.mark.parametrize("name", BUILDS)
def test_products_are_not_chained(name):
    ttir = ttir_of(name)
    assert ("tt.dot" in ttir) == (not name.startswith(("group_sums", "quantize")))
    assert not chained_products(ttir)


def test_chained_products_are_found(tmp_path):
    source = tmp_path / "chained.py"
    source.write_text("""
import triton
import triton.language as tl

@triton.jit
def kernel(a, b, c, K, TWICE: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, K):
        acc += tl.dot(tl.load(a + at), tl.load(b + at))
        if TWICE:
            acc += tl.dot(tl.load(b + at), tl.load(a + at))
    tl.store(c + at, acc)
""")
    for twice in (False, True):
        spec = Build(f"{source}:kernel", {"a": "*fp16", "b": "*fp16", "c": "*fp32", "K": "i32"}, {"TWICE": twice})
        assert len(chained_products(compile_kernel(spec, "sm_90").asm["ttir"])) == twice


def test_narrow_offsets_are_found():
    ttir = """
      tt.func public @kernel(%p: !tt.ptr<f32> loc("p"(#loc)), %stride: i32 loc("stride"(#loc)), %M: i32 loc(#loc)) {
        %c8 = arith.constant 8 : i32 loc(#loc)
        %g = tt.get_program_id x : i32 loc(#loc)
        %row = arith.muli %g, %c8 : i32 loc(#loc)
        %a = tt.addptr %p, %row : !tt.ptr<f32>, i32 loc(#loc)
        %by_extent = arith.muli %g, %M : i32 loc(#loc)
        %more = arith.addi %by_extent, %row : i32 loc(#loc)
        %tile = arith.divsi %by_extent, %M : i32 loc(#loc)
        %b = tt.addptr %p, %tile : !tt.ptr<f32>, i32 loc(#loc)
        %lines = tt.splat %stride : i32 -> tensor<8xi32> loc(#loc)
        %indices = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32> loc(#loc)
        %by_stride = arith.muli %indices, %lines : tensor<8xi32> loc(#loc)
        %wide = arith.extsi %stride : i32 to i64 loc(#loc)
        %right = arith.muli %wide, %wide : i64 loc(#loc)
        %c = tt.addptr %p, %right : !tt.ptr<f32>, i64 loc(#loc)
    """
    added = "        %d = tt.addptr %p, %more : !tt.ptr<f32>, i32 loc(#loc)\n"
    assert narrow_offsets(ttir) == ["%by_stride = arith.muli %indices, %lines : tensor<8xi32>"]
    assert [line.partition(" ")[0] for line in narrow_offsets(ttir + added)] == ["%by_extent", "%by_stride"]


# ---- on memory that is as large


def matrix(*shape, seed=0, dtype=torch.float16):
    return integers(shape, torch.float16, seed).to(dtype)


OFFS = torch.tensor([1, 1, 4], dtype=torch.int32)
ROW, LINE, SQUARE = ScalingType.RowWise, ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
CONFIG = GemmConfig(16, 16, 16)


def grouped(mat_a, mat_b, bias=None, out=None):
    offs = OFFS if mat_a.dim() + mat_b.dim() < 6 else None
    return grouped_mm(mat_a, mat_b, offs=offs, bias=bias, out=out, backend="triton", config=CONFIG)


def scaled(mat_a, mat_b, scale_a, scale_b, bias, recipes=(LINE, LINE)):
    return scaled_grouped_mm(mat_a, mat_b, scale_a, recipes[0], scale_b, recipes[1], bias=bias, offs=OFFS,
                             output_dtype=torch.float32, backend="triton")  # fmt: skip


def listed(method):
    def call(a, b, out):
        return group_gemm([a], [b], out=[out], method=method, config=CONFIG)[0]

    return call, dict(a=matrix(4, 5), b=matrix(5, 3, seed=1), out=torch.zeros(4, 3, dtype=torch.float16))


def summed(matrix, out):
    return group_sums(matrix, OFFS, out=out, backend="triton")


def decoded(XQ, WQ, Y):
    return deepgemm(XQ, WQ, Y, torch.tensor([3, 0, 2], dtype=torch.int32), backend="triton", config=CONFIG)


FP8 = dict(dtype=torch.float8_e4m3fn)
# A function, and its arguments by name.
CALLS = {
    "m": (grouped, dict(mat_a=matrix(4, 5), mat_b=matrix(3, 5, 6, seed=1), bias=matrix(3, 6, seed=2),
                        out=torch.zeros(4, 6, dtype=torch.float16))),
    "n": (grouped, dict(mat_a=matrix(3, 5, 3), mat_b=matrix(3, 4, seed=1), out=torch.zeros(5, 4, dtype=torch.float16))),
    "k": (grouped, dict(mat_a=matrix(3, 4), mat_b=matrix(4, 5, seed=1), bias=matrix(3, 5, seed=2),
                        out=torch.zeros(3, 3, 5, dtype=torch.float16))),
    "batch": (grouped, dict(mat_a=matrix(3, 4, 5), mat_b=matrix(3, 5, 6, seed=1), bias=matrix(3, 6, seed=2),
                            out=torch.zeros(3, 4, 6, dtype=torch.float16))),
    "blocks m": (scaled, dict(mat_a=matrix(4, 5, **FP8), mat_b=matrix(3, 5, 6, seed=1, **FP8), scale_a=torch.rand(4, 1),
                              scale_b=torch.rand(3, 6, 1), bias=torch.rand(3, 6))),
    "blocks k": (scaled, dict(mat_a=matrix(3, 4, **FP8), mat_b=matrix(4, 5, seed=1, **FP8), scale_a=torch.rand(3, 3),
                              scale_b=torch.rand(5, 3), bias=torch.rand(3, 5))),
    "naive": listed("naive"),
    "round_robin": listed("round_robin"),
    "tma": listed("tma"),
    "masked": (decoded, dict(XQ=matrix(3, 4, 5), WQ=matrix(3, 6, 5, seed=1), Y=torch.zeros(3, 4, 6))),
    "jagged": (
        lambda A, B: grouped_gemm_jagged_persistent(A, B, torch.tensor([0, 1, 1, 4]), implementation="triton"),
        dict(A=matrix(4, 5), B=matrix(5, 6, seed=1)),
    ),
    "sums": (summed, dict(matrix=matrix(4, 6), out=torch.zeros(3, 6))),
    "lines": (lambda x: quantize_1x128(x, backend="triton")[0].float(), dict(x=matrix(3, 4, 5))),
    "whole lines": (lambda x: quantize_lines(x, torch.float8_e4m3fn, backend="triton")[0].float(),
                    dict(x=matrix(3, 4, 5))),
    "lines of groups": (lambda x: quantize_group_lines(x, OFFS, torch.float8_e4m3fn, backend="triton")[0].float(),
                        dict(x=matrix(6, 5))),
    "squares": (lambda x: quantize_128x128(x, backend="triton")[0].float(), dict(x=matrix(3, 4, 5))),
}  # fmt: skip


@pytest.mark.skipif(runtime.mode() != "interpreter", reason="a GPU's memory is not given page by page")
@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("name", CALLS)
def test_elements_beyond_2_to_31_of_any_argument(name, aligned):
    function, arguments = CALLS[name]
    wanted = function(**arguments).clone()
    for argument, dense in arguments.items():
        for dim in range(dense.dim()):
            if dense.shape[dim] >= 3:
                found = function(**{**arguments, argument: spread(dense, dim, aligned)})
                assert torch.equal(found, wanted), f"{argument}, dimension {dim}"
