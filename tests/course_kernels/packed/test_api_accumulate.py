"""grouped_mm that adds to what ``out`` holds: in float32, rounded once, and not where a group is empty."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, grouped_mm, runtime
from course_kernels.engine.options import Options
from course_kernels.engine.plans import execute
from course_kernels.engine.product import Product
from course_kernels.engine.signature import signature
from course_kernels.engine.triton_arguments import prepare
from course_kernels.kernels.codes import Store
from course_kernels.packed.checks import check_call, problem_of
from course_kernels.runtime import Device
from course_kernels.testing import integers, poisoned, reference
from course_kernels.testing.canaries import canaries, laid_out
from packed_operands import DEVICE, operands

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ENDS = (0, 20, 20, 41)  # empty groups at the start and between, and a tail
OPS = torch.ops.course_kernels


def product(dtype, layout_a="col", layout_b="row", M=24, N=40, total=50):
    """mat_a, mat_b with NaN in the tail, offs, and the exact product."""
    a, b = integers((M, total), dtype, 1, device=DEVICE), integers((total, N), dtype, 2, device=DEVICE)
    offs = torch.tensor(ENDS, dtype=torch.int32, device=DEVICE)
    exact = reference.grouped_mm(a, b, offs, torch.float32)
    a[:, ENDS[-1] :] = b[ENDS[-1] :] = float("nan")
    return laid_out(a, layout_a), laid_out(b, layout_b), offs, exact


def add(a, b, offs, out, **options):
    return grouped_mm(a, b, offs=offs, out=out, out_dtype=out.dtype, accumulate=True, **options)


@pytest.mark.parametrize("config", [None, GemmConfig(16, 32, 32, store_parts=2)], ids=["chosen", "in parts"])
@pytest.mark.parametrize("layout_out", ["row", "col", "padded", "every_other"])
@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_product_is_added_and_empty_groups_keep_their_bits(backend, out_dtype, layout_out, config):
    a, b, offs, exact = product(torch.bfloat16 if out_dtype == torch.float32 else out_dtype)
    held = integers(exact.shape, out_dtype, 3, device=DEVICE)
    held[0] = canaries(held[0].numel(), out_dtype, DEVICE).view_as(held[0])  # NaN with bits of their own
    held[2] = -0.0
    out = laid_out(held, layout_out)
    version = out._version
    assert add(a, b, offs, out, backend=backend, config=config if backend == "triton" else None) is out
    assert out._version > version
    bits = torch.int32 if out_dtype == torch.float32 else torch.int16
    assert torch.equal(out[::2].contiguous().view(bits), held[::2].view(bits))
    assert torch.equal(out[1::2], (held[1::2].float() + exact[1::2]).to(out_dtype))


@pytest.mark.parametrize("layouts", [("row", "row"), ("col", "col"), ("every_other", "unaligned")], ids="-".join)
@pytest.mark.parametrize("backend", BACKENDS)
def test_operands_of_any_strides(backend, layouts):
    a, b, offs, exact = product(torch.float16, *layouts, M=17, N=19)
    out, verify = poisoned(exact.shape, torch.float32, device=DEVICE)
    out.fill_(5)
    add(a, b, offs, out, backend=backend)
    verify()
    assert torch.equal(out, exact + 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_are_rounded_once(backend, dtype):
    """A product of 1 + 2**-12 on 1, and on -1: rounded before it is added, 2**-12 would be lost. 4096 times it is 1."""
    a = torch.tensor([[1.0, 2.0**-6]], device=DEVICE, dtype=dtype)
    b = torch.tensor([[1.0], [2.0**-6]], device=DEVICE, dtype=dtype)
    out = torch.full((1, 1, 1), -1.0, device=DEVICE, dtype=dtype)
    add(a, b, torch.tensor([2], device=DEVICE), out, backend=backend)
    assert out.item() == 2.0**-12


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_empty_changes_nothing(backend):
    a, b, offs, _ = product(torch.float32)
    out = canaries(4 * 24 * 40, torch.float32, DEVICE).view(4, 24, 40)
    before = out.clone().view(torch.int32)
    for length in (50, 0):
        add(a[:, :length], b[:length], torch.zeros_like(offs), out, backend=backend)
        assert torch.equal(out.view(torch.int32), before)
    add(a, b, offs[:0], out[:0], backend=backend)
    add(a[:0], b, offs, out[:, :0], backend=backend)
    assert torch.equal(out.view(torch.int32), before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_five_times_is_the_same_bit_for_bit(backend):
    a, b, offs, _ = product(torch.float32)
    a.normal_(), b.normal_()
    runs = []
    for _ in range(2):
        out = torch.full((4, 24, 40), 0.1, device=DEVICE)
        for _ in range(5):
            add(a, b, offs, out, backend=backend)
        runs.append(out)
    assert torch.equal(*runs)


def test_a_plan_of_its_own():
    a, b, offs, _ = product(torch.float32)
    out = torch.ones(4, 24, 40, device=DEVICE)
    keys = {signature(Product.packed(a, b, offs, accumulate=each), Options(), out) for each in (False, True)}
    assert len(keys) == 2
    grouped_mm(a, b, offs=offs, out=out)
    once = out.clone()
    add(a, b, offs, out)
    add(a, b, offs, out)
    assert torch.equal(out, 3 * once)


def test_through_which_access_is_added():
    """Float32 through the descriptor, whose hardware adds it; all else through pointers, and so is all in the
    interpreter."""
    tensors = torch.empty(4096, 512).bfloat16().mT, torch.empty(4096, 256).bfloat16(), torch.empty(8).int()
    h200, interpreter = Device((9, 0), (9, 0), 132, 232448, True), Device(None, None, None, None, True)

    def access(device, dtype, accumulate):
        out = torch.empty(8, 512, 256, dtype=dtype)
        product = Product.packed(*tensors, accumulate=accumulate)
        arguments = prepare(problem_of(product, Options(dtype)), product, out, device).arguments
        assert arguments["ACCUMULATE"] == accumulate
        return arguments["C_KIND"]

    assert access(h200, torch.float32, True) == Store.GROUPED
    assert access(h200, torch.bfloat16, True) == Store.POINTERS
    assert access(h200, torch.bfloat16, False) == Store.GROUPED
    assert access(interpreter, torch.float32, True) == Store.POINTERS


# ---- torch's modes


def test_opcheck_and_the_operator_of_older_programs():
    a, b, offs, _ = operands("k")
    out = torch.ones(3, 6, 10, device=DEVICE)
    arguments = (a, b, offs, None, None, None, None, out, False, False, "auto", "")
    torch.library.opcheck(OPS.grouped_mm_out, (*arguments, True))
    OPS.grouped_mm_out(*arguments)
    once = out.clone()
    OPS.grouped_mm_out(*arguments, True)
    assert torch.equal(out, 2 * once)


def test_compiled_without_a_graph_break():
    torch._dynamo.reset()
    a, b, offs, _ = operands("k")
    function = torch.compile(lambda a, out: add(2 * a, b, offs, out) + 1, fullgraph=True, backend="aot_eager")
    out = torch.ones(3, 6, 10, device=DEVICE)
    plus_one = function(a, out)
    assert torch.equal(out, 2 * grouped_mm(a, b, offs=offs) + 1)
    assert torch.equal(plus_one, out + 1)
    torch._dynamo.reset()


# ---- what is refused


@pytest.mark.parametrize("mode", ["m", "n", "batch"])
def test_other_modes_are_refused(mode):
    a, b, offs, _ = operands(mode)
    out = torch.ones_like(grouped_mm(a, b, offs=offs))
    with pytest.raises(ValueError, match=rf"accumulate must be False but in mode \"k\".* got True in mode '{mode}'"):
        grouped_mm(a, b, offs=offs, out=out, accumulate=True)
    assert (out == 1).all()


def test_nothing_to_add_to_and_a_bias_are_refused():
    a, b, offs, bias = operands("k", bias=True)
    with pytest.raises(ValueError, match="accumulate must be False where out is not given"):
        grouped_mm(a, b, offs=offs, accumulate=True)
    with pytest.raises(ValueError, match="accumulate must be False where out is not given"):
        execute(Product.packed(a, b, offs, accumulate=True), Options(), None, check_call)
    out = torch.ones(3, 6, 10, device=DEVICE)
    with pytest.raises(ValueError, match="bias must be None where accumulate is set"):
        grouped_mm(a, b, offs=offs, bias=bias, out=out, accumulate=True)
    with pytest.raises(TypeError, match="out must have dtype"):
        grouped_mm(a, b, offs=offs, out=out.half(), accumulate=True)
    assert (out == 1).all()


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "auto"])
@pytest.mark.parametrize("extents", [(272, 208), (264, 1032), (131, 77)], ids=str)
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_real_sizes(out_dtype, extents, backend):
    M, N = extents
    sizes = (0, 300, 1, 128, 0, 513, 77, 0)
    offs = torch.tensor(sizes, device="cuda").cumsum(0).int()
    a = torch.empty(1100, M, dtype=torch.bfloat16, device="cuda").random_(-2, 3).mT
    b = torch.empty(1100, N, dtype=torch.bfloat16, device="cuda").random_(-2, 3)
    out, verify = poisoned((8, M, N), out_dtype, device="cuda")
    filled = torch.tensor(sizes, device="cuda") > 0
    out[filled] = torch.empty_like(out[filled]).random_(-9, 9)
    before = out.clone()
    add(a, b, offs, out, backend=backend)
    verify()
    exact = reference.grouped_mm(a, b, offs, torch.float32)
    assert torch.equal(out[filled], (before[filled].float() + exact[filled]).to(out_dtype))
    bits = torch.int32 if out_dtype == torch.float32 else torch.int16
    assert torch.equal(out[~filled].view(bits), before[~filled].view(bits))


@pytest.mark.gpu
def test_a_graph_adds_at_every_replay():
    offs = torch.tensor([100, 100, 400], dtype=torch.int32, device="cuda")
    a, b = (torch.empty(400, n, dtype=torch.bfloat16, device="cuda").random_(-2, 3) for n in (128, 256))
    out = torch.zeros(3, 128, 256, device="cuda")
    add(a.mT, b, offs, out)
    once = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add(a.mT, b, offs, out)
    for _ in range(3):
        graph.replay()
    assert torch.equal(out, 4 * once)
