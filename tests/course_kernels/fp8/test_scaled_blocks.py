"""scaled_grouped_mm with a factor for each block of 128 along K: whole numbers and powers of two, so results are exact.

The oracle multiplies each block with its factor in float64, and multiplies the matrices of each group then.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch.nn.functional import ScalingType

from course_kernels import (
    GemmConfig,
    quantize_1x128,
    quantize_128x128,
    runtime,
    scaled_grouped_mm,
    to_fp8_then_scaled_grouped_mm,
)
from course_kernels.engine import plans as execute
from course_kernels.engine.hopper import cute
from course_kernels.engine.scaling import BLOCK_SCALINGS
from course_kernels.testing import integers, poisoned, reference
from cute_calls import cute_alone
from packed_errors import assert_message

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
DEVICE = runtime.device()
BACKENDS = ("torch", "triton")
FP8 = torch.float8_e4m3fn
LINE, SQUARE, ROW = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128, ScalingType.RowWise
RECIPES = {"1x128": LINE, "128x128": SQUARE}
SMALL = GemmConfig(32, 64, 128, group_m=2)
CASES = [(mode, scaling) for mode, scalings in BLOCK_SCALINGS.items() for scaling in scalings]


def laid_out(values, how):
    """The same values in memory that NaN surrounds."""
    shape = values.shape
    if how == "outer":
        return values.mT.contiguous().mT
    if how == "gaps":
        wide = torch.full((*shape[:-1], 2 * shape[-1] + 1), torch.nan, device=values.device)
        wide[..., 1::2] = values
        return wide[..., 1::2]
    return values.contiguous()


def factors(shape, seed, how="row"):
    return laid_out(2.0 ** integers(shape, torch.float32, seed, device=DEVICE), how)


def blocks(extent):
    return -(-extent // 128)


class Case:
    """Operands of a mode: groups of given sizes, a tail of NaN, and everything that a wrong read would find."""

    def __init__(self, mode, scaling, sizes=None, M=40, N=150, K=300, tail=9, how="row", whole=False):
        if sizes is None:
            sizes = {"k": (37, 0, 130, 5), "batch": (0, 0)}.get(mode, (37, 0, 20, 5))
        G, total = len(sizes), sum(sizes) + (tail if mode != "batch" else 0)
        sides = scaling.split()
        self.lines = tuple(int(side.split("x")[0]) for side in sides)
        self.mode, self.recipes = mode, [RECIPES[side] for side in sides]
        M, N, K = (total if mode == name else extent for name, extent in zip("mnk", (M, N, K)))
        ends = torch.tensor(sizes).cumsum(0).to(torch.int32).to(DEVICE)
        self.offs = None if mode == "batch" else ends
        batch_a, batch_b = ((G,) if mode in modes else () for modes in (("n", "batch"), ("m", "batch")))
        a, b = (
            integers((*batch_a, M, K), torch.float32, 1, device=DEVICE),
            integers((*batch_b, N, K), torch.float32, 2, device=DEVICE),
        )
        # The oracle's view of both: lines, and their factors by blocks along K.
        self.restart = ends if mode == "k" and not whole else None
        columns = blocks(K) if self.restart is None else K // 128 + G
        count_a, count_b = (extent if lines == 1 else blocks(extent) for extent, lines in zip((M, N), self.lines))
        left, right = factors((*batch_a, count_a, columns), 3, how), factors((*batch_b, count_b, columns), 4, how)
        wide = (
            reference.dequantize(a, left, self.lines[0], self.restart),
            reference.dequantize(b, right, self.lines[1], self.restart),
        )
        self.wanted = reference.grouped_mm(wide[0], wide[1].mT, self.offs)
        if self.restart is not None:
            used = torch.zeros(columns, dtype=torch.bool)
            for g, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
                used[start // 128 + g : start // 128 + g + blocks(end - start)] = True
            for scale in (left, right):
                scale[:, ~used.to(DEVICE)] = torch.nan
        last = sum(sizes)
        if tail and mode in ("m", "n", "k"):
            for name, matrix, scale in (("m", a, left), ("n", b, right)):
                if mode == name:
                    matrix[last:], scale[last:] = torch.nan, torch.nan
                elif mode == "k":
                    matrix[:, last:] = torch.nan
        self.a, self.b = a.to(FP8), b.to(FP8).mT
        self.scale_a, self.scale_b = left, right if self.lines[1] == 1 else right.mT

    def run(self, backend, config=SMALL, **changes):
        arguments = dict(
            mat_a=self.a, mat_b=self.b, scale_a=self.scale_a, scale_recipe_a=self.recipes[0], scale_b=self.scale_b,
            scale_recipe_b=self.recipes[1], offs=self.offs, output_dtype=torch.float32, backend=backend, config=config,
        )  # fmt: skip
        return scaled_grouped_mm(**(arguments | changes))

    def check(self, backend, **changes):
        out = self.run(backend, **changes)
        assert torch.equal(out.double(), self.wanted)


@pytest.mark.parametrize(("mode", "scaling"), CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_mode(backend, mode, scaling):
    Case(mode, scaling, how="outer").check(backend)
    case = Case(mode, scaling, how="gaps")
    out, verify = poisoned(case.wanted.shape, torch.float32, device=DEVICE)
    case.check(backend, out=out)
    verify()


# Tiles inside a block of columns, of a block exactly, and over the border of two; K in halves and quarters of a block.
@pytest.mark.parametrize("block", [(64, 128, 128), (64, 256, 32), (128, 32, 64)], ids=str)
@pytest.mark.parametrize(("mode", "scaling"), [CASES[0], CASES[2], CASES[4], CASES[6]])
def test_tiles(mode, scaling, block):
    sizes = {"k": (128, 0, 140, 1), "batch": (0,)}.get(mode, (5, 0, 67))
    schedule = "dynamic" if block[0] == 128 and mode != "k" else "round_robin"
    config = GemmConfig(*block, num_warps=8, num_stages=2, schedule=schedule)
    Case(mode, scaling, sizes, M=140, N=270, K=257).check("triton", config=config)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("mode", "scaling"), [CASES[0], CASES[2], CASES[4], CASES[5]])
def test_extents(backend, mode, scaling):
    for sizes, extents in (
        ((0, 0), (1, 1, 1)), ((1,), (1, 129, 128)), ((), (3, 5, 7)), ((129, 3), (128, 128, 129)), ((2, 3), (5, 0, 3)),
        ((2, 3), (0, 5, 130)), ((2, 3), (4, 5, 0)),
    ):  # fmt: skip
        M, N, K = extents
        Case(mode, scaling, sizes, M, N, K, tail=len(sizes) % 2).check(backend, config=GemmConfig(64, 64, 128))


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_blocks_along_k(backend):
    """DeepGEMM's form: every group ends at a multiple of 128, and the columns are those of K."""
    case = Case("k", "1x128 1x128", sizes=(128, 0, 256, 0), tail=0, M=20, N=30, whole=True)
    case.check(backend)
    case.check(backend, check=True)
    with pytest.raises(ValueError, match=r"offs\[2\] = 383 must be a multiple of 128 where scale_a has 3 columns"):
        case.run(backend, offs=torch.tensor([128, 128, 383, 384], dtype=torch.int32, device=DEVICE), check=True)
    Case("k", "1x128 1x128", sizes=(383,), tail=0, M=20, N=30).check(backend, check=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("mode", "scaling"), [CASES[0], CASES[4]])
def test_other_arguments(backend, mode, scaling):
    case = Case(mode, scaling)
    case.check(backend, offs=case.offs.long())
    case.check(backend, offs=torch.stack([case.offs, case.offs], 1)[:, 0])
    case.check(backend, scale_a=[case.scale_a], scale_recipe_a=[case.recipes[0]], use_fast_accum=True, check=True)
    bias = integers((4, case.b.shape[-1]), torch.float32, 9, device=DEVICE)
    out = case.run(backend, bias=bias)
    bounds = [0, *case.offs.tolist()]
    for g, (start, end) in enumerate(itertools.pairwise(bounds)):
        part = g if mode == "k" else slice(start, end)
        assert torch.equal(out[part].double(), case.wanted[part] + bias[g].double())
    assert torch.equal(case.run(backend, output_dtype=None), case.wanted.float().bfloat16())
    for layouts in ((True, False), (False, True)):
        a, b = (t.mT.contiguous().mT if swap else t.contiguous() for t, swap in zip((case.a, case.b), layouts))
        case.check(backend, mat_a=a, mat_b=b)


def test_plans_serve_other_totals(monkeypatch):
    """Of scales in either order, a plan is kept for a layer, not for a batch of tokens."""
    monkeypatch.setattr(execute, "plans", execute.PlanCache())
    for how in ("row", "outer"):
        for tail in (3, 4, 5):
            Case("m", "1x128 128x128", N=20, tail=tail, how=how).check("triton")
    assert len(execute.plans) == 2
    for tail in (3, 4, 5):  # stored as a layer stores them
        case = Case("k", "1x128 1x128", N=20, tail=tail, how="outer")
        case.check("triton", mat_a=case.a.mT.contiguous().mT, mat_b=case.b.contiguous())
    assert len(execute.plans) == 3
    # The same tensors by another recipe are another product.
    case = Case("m", "1x128 1x128", N=3, K=300)
    square = Case("m", "1x128 128x128", N=300, K=300)
    case.check("triton")
    square.check("triton")
    assert len(execute.plans) == 5


LAYOUTS = {
    "depth contiguous": lambda matrix: matrix,
    "lines contiguous": lambda matrix: matrix.mT.contiguous().mT,
    # The first line at an odd address, as far apart as nothing wants it.
    "gaps": lambda matrix: torch.stack([matrix, matrix], -1)[..., 1],
}


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["row", "outer", "gaps"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("sizes", "whole"),
    [((1, 127, 0, 128, 129, 5, 300, 0), False), ((0, 0, 700), False), ((3,), False), ((128, 0, 384, 256), True)],
    ids=str,
)
def test_the_kernel_in_cute_dsl_along_k(monkeypatch, sizes, whole, layout, how):
    """Groups that begin and end anywhere, NaN after the last; read as they are where they are whole blocks."""
    cute_alone(monkeypatch)
    case = Case("k", "1x128 1x128", sizes, M=131, N=264, tail=16 if whole else 9, how=how, whole=whole)
    a, b = (LAYOUTS[layout](each).view(FP8) for each in (bytes_of(case.a), bytes_of(case.b.mT)))
    for dtype in (torch.float32, torch.bfloat16):
        out, verify = poisoned(case.wanted.shape, dtype, device=DEVICE)
        for _ in range(2):
            case.run("cute", None, mat_a=a, mat_b=b.mT, out=out, output_dtype=dtype)
            assert torch.equal(out, case.wanted.to(dtype))
        verify()


def bytes_of(matrix):
    """The bytes of a matrix, lines at multiples of 16 among NaN."""
    lines, depth = matrix.shape
    wide = torch.full((lines, -(-depth // 16) * 16 + 16), 0x7F, dtype=torch.uint8, device=matrix.device)
    wide[:, :depth] = matrix.contiguous().view(torch.uint8)
    return wide[:, :depth]


@pytest.mark.gpu
def test_ends_along_k_may_change_under_a_graph(monkeypatch):
    cute_alone(monkeypatch)
    cases = [Case("k", "1x128 1x128", sizes, M=130, N=136, tail=200 - sum(sizes)) for sizes in ((1, 130), (0, 190))]
    names = dict(mat_a="a", mat_b="b", scale_a="scale_a", scale_b="scale_b", offs="offs")
    tensors = {name: getattr(cases[0], field).clone() for name, field in names.items()}
    out = torch.empty(cases[0].wanted.shape, device=DEVICE)
    run = functools.partial(cases[0].run, "cute", None, out=out, **tensors)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for case in reversed(cases):
        out.fill_(torch.nan)
        for name, field in names.items():
            tensors[name].copy_(getattr(case, field))
        graph.replay()
        assert torch.equal(out.double(), case.wanted)


@pytest.mark.gpu
def test_float8_training_needs_no_copy_along_k(monkeypatch):
    """The gradient of the weights takes the quantised operands as they are."""
    cute_alone(monkeypatch)
    monkeypatch.setattr(cute, "pack", None)
    x = integers((300, 128), torch.bfloat16, 1, device=DEVICE)
    w = integers((3, 64, 128), torch.bfloat16, 2, device=DEVICE).requires_grad_()
    offs = torch.tensor([1, 130, 290], dtype=torch.int32, device=DEVICE)
    y = to_fp8_then_scaled_grouped_mm(x, w.mT, offs=offs, recipe="blockwise", power_of_two=True)
    dy = integers(y.shape, torch.bfloat16, 3, device=DEVICE)
    (grad,) = torch.autograd.grad(y, w, dy)
    assert torch.equal(grad, reference.grouped_mm(dy.mT, x, offs).bfloat16())


def long_operands():
    """Sums of positive whole numbers of which 14 bits do not hold a block's products added to thousands."""
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(1, 5, shape, generator=generator).float().to(DEVICE) for shape in ((133, 7168), (264, 7168)))
    sa, sb = torch.ones(133, 56, device=DEVICE), torch.ones(1, 56, 3, device=DEVICE)
    sa[:, ::2], sb[:, 1::2] = 2.0, 0.5
    wide = reference.dequantize(a, sa), reference.dequantize(b, sb[0].mT, 128)
    return a.to(FP8), b.to(FP8).mT[None], sa, sb, wide[0] @ wide[1].mT


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cute"])
def test_blocks_are_added_in_float32(backend):
    a, b, sa, sb, wanted = long_operands()
    assert wanted.max() < 2**24
    offs = torch.tensor([133], dtype=torch.int32, device=DEVICE)
    out = scaled_grouped_mm(a, b, sa, LINE, sb, SQUARE, offs=offs, output_dtype=torch.float32, backend=backend)
    assert torch.equal(out.double(), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_three_products_of_a_layer(backend):
    """From what the quantisers make, with groups that begin anywhere."""
    total, N, K, sizes = 150, 140, 200, (30, 0, 101, 12)
    generator = torch.Generator().manual_seed(5)
    x, dy, w = (
        torch.randn(shape, generator=generator).to(DEVICE) for shape in ((total, K), (total, N), (4, N, K))
    )  # fmt: skip
    offs = torch.tensor(sizes).cumsum(0).to(torch.int32).to(DEVICE)
    options = dict(offs=offs, output_dtype=torch.float32, backend=backend, config=GemmConfig(64, 64, 64))
    used = offs[-1]

    def near(found, wanted, left, right, wide):
        """Of the operands as they were rounded all but exact; of the operands as they were, near."""
        magnitude = reference.grouped_mm(left.abs(), right.abs(), offs)
        bound = 2.0**-18 if runtime.mode() != "gpu" else 2.0**-9
        assert ((found - wanted).abs() <= bound * magnitude).all()
        assert ((found - wide).abs() <= 0.07 * magnitude).all()
        assert (found - wide).abs().max() > 1e-3

    (qx, sx), (qw, sw) = quantize_1x128(x, backend=backend), quantize_128x128(w, backend=backend)
    dx_, dw_ = reference.dequantize(qx, sx), reference.dequantize(qw, sw, 128)
    y = scaled_grouped_mm(qx, qw.mT, sx, LINE, sw.mT, SQUARE, **options)
    near(y, reference.grouped_mm(dx_, dw_.mT, offs), dx_, dw_.mT, reference.grouped_mm(x, w.mT, offs))

    qd, sd = quantize_1x128(dy, backend=backend)
    dd = reference.dequantize(qd, sd)
    grad_x = scaled_grouped_mm(qd, qw, sd, LINE, sw, SQUARE, **options)
    near(grad_x, reference.grouped_mm(dd, dw_, offs), dd, dw_, reference.grouped_mm(dy, w, offs))
    assert not grad_x[used:].any()

    (qd, sd), (qx, sx) = (quantize_1x128(t.mT, offs=offs, backend=backend) for t in (dy, x))
    dd, dx_ = reference.dequantize(qd, sd, 1, offs), reference.dequantize(qx, sx, 1, offs)
    grad_w = scaled_grouped_mm(qd, qx.mT, sd, LINE, sx, LINE, **options)
    near(grad_w, reference.grouped_mm(dd, dx_.mT, offs), dd, dx_.mT, reference.grouped_mm(dy.mT, x, offs))


def test_traced_and_faked():
    case = Case("k", "1x128 1x128")
    compiled = torch.compile(lambda *a, **k: case.run("torch", None, **k), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled().double(), case.wanted)
    for mode, scaling in CASES:
        case = Case(mode, scaling)
        tensors = dict(mat_a=case.a, mat_b=case.b, scale_a=case.scale_a, scale_b=case.scale_b, offs=case.offs)
        meta = {name: None if t is None else t.to("meta") for name, t in tensors.items()}
        out = case.run("auto", None, **meta)
        assert (out.shape, out.dtype, out.device.type) == (case.wanted.shape, torch.float32, "meta")


# ---- bad input

M_CASE, K_CASE = Case("m", "1x128 128x128"), Case("k", "1x128 1x128")
N_CASE = Case("n", "128x128 1x128")
ERRORS = {
    "one of rows": (M_CASE, dict(scale_recipe_b=ROW), ValueError, ["scale_recipe_a and", "RowWise", "1x128"]),
    "another recipe": (M_CASE, dict(scale_recipe_b=ScalingType.BlockWise1x32), ValueError,
                       ["scale_recipe_b", "RowWise, BlockWise1x128 or BlockWise128x128", "1x32"]),
    "squares of ragged rows": (M_CASE, dict(scale_recipe_a=SQUARE), ValueError,
                               ["scale_recipe_a and", "mode 'm'", "RowWise with RowWise",
                                "BlockWise1x128 with BlockWise128x128", "got BlockWise128x128 with BlockWise128x128"]),
    "squares along k": (K_CASE, dict(scale_recipe_b=SQUARE), ValueError, ["scale_recipe_a and", "mode 'k'"]),
    "scale dtype": (M_CASE, dict(scale_a=M_CASE.scale_a.half()), TypeError, ["scale_a", "float32", "float16"]),
    "scale device": (M_CASE, dict(scale_b=M_CASE.scale_b.to("meta")), ValueError, ["scale_b", "device", "meta"]),
    "no scale": (M_CASE, dict(scale_a=None), TypeError, ["scale_a", "torch.Tensor", "NoneType"]),
    "scale_a": (M_CASE, dict(scale_a=M_CASE.scale_a[:, :2]), ValueError,
                ["scale_a", "(71, 3)", "block of 1x128 of mat_a", "(71, 2)"]),
    "scale_b": (M_CASE, dict(scale_b=M_CASE.scale_b.mT), ValueError,
                ["scale_b", "(4, 3, 2)", "block of 128x128 of mat_b", "(4, 2, 3)"]),
    "scale_b of n": (N_CASE, dict(scale_b=N_CASE.scale_b.mT), ValueError, ["scale_b", "(71, 3)", "(3, 71)"]),
    "columns": (K_CASE, dict(scale_a=K_CASE.scale_a[:, 1:]), ValueError, ["scale_a", "(40, 5) or (40, 2)", "(40, 4)"]),
    "columns differ": (K_CASE, dict(scale_b=K_CASE.scale_b[:, :2]), ValueError, ["scale_b", "scale_a, 5", "got 2"]),
    "depth of blocks": (M_CASE, dict(config=GemmConfig(16, 16, 256)), ValueError,
                        ["config", "128 deep", "block_k is 256"]),
    "gradient": (M_CASE, dict(scale_a=M_CASE.scale_a.clone().requires_grad_()), TypeError, ["scale_a", "gradient"]),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
def test_bad_input(what):
    case, changes, error, words = ERRORS[what]
    out, verify = poisoned(case.wanted.shape, torch.float32, device=DEVICE)
    for options in (dict(), dict(out=out)):
        with pytest.raises(error) as caught:
            case.run("triton", **changes, **options)
        assert_message(caught, words)
    verify()
    assert out.isnan().all()
