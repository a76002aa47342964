"""A layer in float8, forward and backward, against float64: exact where rounding is, and close where it is not."""

from __future__ import annotations

import shutil

import pytest
import torch

from course_kernels import grouped_mm, runtime, to_fp8_then_scaled_grouped_mm
from course_kernels.fp8 import training
from course_kernels.testing import integers, reference

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
DEVICE = runtime.device()
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OFFS = torch.tensor([20, 20, 150, 153], dtype=torch.int32, device=DEVICE)
TOTAL, K, N, G = 160, 136, 24, 4
EVERY = [("rowwise", E4M3), ("rowwise", E5M2), ("blockwise", E4M3)]


def operands(dtype=torch.bfloat16, transposed=True, whole=True):
    """Small whole numbers are exact in either type, with factors that are powers of two."""

    def values(shape, seed):
        if whole:
            return integers(shape, torch.float32, seed, device=DEVICE).to(dtype)
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    a, weight = values((TOTAL, K), 1), values((G, N, K) if transposed else (G, K, N), 2)
    grad = values((TOTAL, N), 3)
    a[153:], grad[153:] = 3, 4  # the tail
    b = weight.mT if transposed else weight
    return a.requires_grad_(), b.requires_grad_(), grad


def expected(a, b, grad):
    """Result and gradients in float64."""
    a, b, grad = a.detach().double(), b.detach().double(), grad.double()
    grad_b, start = torch.zeros_like(b), 0
    for g, end in enumerate(OFFS.tolist()):
        grad_b[g] = a[start:end].mT @ grad[start:end]
        start = end
    return reference.grouped_mm(a, b, OFFS), reference.grouped_mm(grad, b.mT, OFFS), grad_b


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize(("recipe", "grad_dtype"), EVERY, ids=str)
def test_whole_numbers_are_exact(recipe, grad_dtype, backend):
    for transposed in (True, False)[: 2 if backend == "torch" else 1]:
        a, b, grad = operands(torch.float32, transposed)
        options = dict(recipe=recipe, grad_dtype=grad_dtype, power_of_two=True, backend=backend)
        product = to_fp8_then_scaled_grouped_mm(a, b, offs=OFFS, **options)
        found = product, *torch.autograd.grad(product, (a, b), grad)
        for name, result, wanted in zip(("product", "of A", "of B"), found, expected(a, b, grad)):
            assert torch.equal(result.double(), wanted), name
        assert found[2].stride() == b.stride(), "a gradient is stored as its operand is"


def test_the_gradient_of_weights_with_one_input_has_their_layout():
    """Their transpose has strides of 1 in both directions, and counts as column-major, as for ``grouped_mm``."""
    a = torch.ones(TOTAL, 1, device=DEVICE)
    b = torch.ones(G, N, 1, device=DEVICE).mT.requires_grad_()
    product = to_fp8_then_scaled_grouped_mm(a, b, offs=OFFS, backend="torch")
    (grad,) = torch.autograd.grad(product, b, torch.ones_like(product))
    assert grad.stride() == b.stride()


@pytest.mark.parametrize(("recipe", "grad_dtype"), EVERY, ids=str)
def test_other_numbers_are_close(recipe, grad_dtype):
    a, b, grad = operands(whole=False)
    product = to_fp8_then_scaled_grouped_mm(a, b, offs=OFFS, recipe=recipe, grad_dtype=grad_dtype)
    found = product, *torch.autograd.grad(product, (a, b), grad)
    assert [each.dtype for each in found] == [torch.bfloat16] * 3
    for i, (result, wanted) in enumerate(zip(found, expected(a, b, grad))):
        # Two operands, each off by up to 1/16 of an element with three bits of mantissa, and 1/8 with two.
        limit = 0.08 if i and grad_dtype == E5M2 else 0.05
        assert (result.double() - wanted).norm() < limit * wanted.norm()
    assert (found[0][153:] == 0).all()
    assert (found[1][153:] == 0).all()
    assert (found[2][1] == 0).all()


def test_dtypes_of_master_weights_and_results():
    a, b, grad = operands(torch.bfloat16)
    b = b.detach().float().requires_grad_()
    product = to_fp8_then_scaled_grouped_mm(a, b, offs=OFFS.long(), out_dtype=torch.float32, power_of_two=True)
    grad_a, grad_b = torch.autograd.grad(product, (a, b), grad.float())
    assert (product.dtype, grad_a.dtype, grad_b.dtype) == (torch.float32, torch.bfloat16, torch.float32)
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        assert to_fp8_then_scaled_grouped_mm(a, b, offs=OFFS).dtype == torch.float16


@pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
def test_one_gradient_alone_and_none(recipe):
    a, b, grad = operands()
    for x, w in ((a, b.detach()), (a.detach(), b)):
        product = to_fp8_then_scaled_grouped_mm(x, w, offs=OFFS, recipe=recipe)
        (leaf,) = (each for each in (x, w) if each.requires_grad)
        assert torch.autograd.grad(product, leaf, grad)[0].shape == leaf.shape
    assert not to_fp8_then_scaled_grouped_mm(a.detach(), b.detach(), offs=OFFS, recipe=recipe).requires_grad


@pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
@pytest.mark.parametrize(("total", "k", "n", "groups"), [(0, 16, 16, 2), (8, 0, 16, 2), (8, 16, 16, 0), (8, 16, 0, 2)])
def test_extents_of_zero(recipe, total, k, n, groups):
    a = torch.ones(total, k, device=DEVICE, requires_grad=True)
    b = torch.ones(groups, k, n, device=DEVICE, requires_grad=True)
    offs = torch.full((groups,), total, dtype=torch.int32, device=DEVICE)
    product = to_fp8_then_scaled_grouped_mm(a, b, offs=offs, recipe=recipe)
    product.sum().backward()
    assert torch.equal(product, grouped_mm(a, b, offs=offs))
    assert a.grad.shape == a.shape
    assert b.grad.shape == b.shape


@pytest.mark.parametrize(("recipe", "grad_dtype"), EVERY[1:], ids=str)
def test_nan_and_infinities_become_nan_and_the_tails_do_not_count(recipe, grad_dtype):
    a, b, grad = operands(torch.float32)
    with torch.no_grad():
        a[5, 7], grad[30, 2], a[155, 0], grad[156, 1] = torch.inf, -torch.inf, torch.inf, torch.nan
    product = to_fp8_then_scaled_grouped_mm(a, b, offs=OFFS, recipe=recipe, grad_dtype=grad_dtype)
    grad_a, grad_b = torch.autograd.grad(product, (a, b), grad)
    rows = product.isnan().any(1).nonzero().flatten().tolist()
    assert rows == [5]
    assert grad_a.isnan().any(1).nonzero().flatten().tolist() == [30]
    spoilt = grad_b.isnan()
    assert spoilt[0, 7].all()
    assert spoilt[2, :, 2].all()
    assert spoilt.sum() == N + K


CPP = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.mark.parametrize(
    ("compiler", "backend"),
    [("aot_eager", "torch"), ("aot_eager", "triton"), pytest.param("inductor", "torch", marks=CPP)],
)
def test_compiled(compiler, backend):
    a, b, grad = operands(torch.float32)
    torch._dynamo.reset()

    def layer(a, b):
        rowwise, blockwise = (
            to_fp8_then_scaled_grouped_mm(a, b, offs=OFFS, recipe=recipe, power_of_two=True, backend=backend)
            for recipe in ("rowwise", "blockwise")
        )
        return ((rowwise + blockwise) * grad).sum()

    wanted = torch.autograd.grad(layer(a, b), (a, b))
    found = torch.autograd.grad(torch.compile(layer, backend=compiler, fullgraph=True)(a, b), (a, b))
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
def test_under_torch_func(recipe):
    a, b, grad = operands(torch.float32)

    def layer(a, b):
        return (to_fp8_then_scaled_grouped_mm(a, b, offs=OFFS, recipe=recipe, backend="torch") * grad).sum()

    wanted = torch.autograd.grad(layer(a, b), (a, b))
    assert all(map(torch.equal, torch.func.grad(layer, (0, 1))(a.detach(), b.detach()), wanted))


@pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
def test_gradients_of_gradients_are_refused(recipe):
    """By backward, whatever requires a gradient, and by torch.func: none may be zero silently."""
    for of_grad in (False, True):
        a, b, grad = operands()
        product = to_fp8_then_scaled_grouped_mm(a, b, offs=OFFS, recipe=recipe)
        (grad_a,) = torch.autograd.grad(product, a, grad.requires_grad_(of_grad), create_graph=True)
        with pytest.raises(RuntimeError, match="no gradients of gradients"):
            grad_a.sum().backward()
    first = torch.func.grad(lambda a: to_fp8_then_scaled_grouped_mm(a, B, offs=OFFS, recipe=recipe).square().sum())
    with pytest.raises(RuntimeError, match="no gradients of gradients"):
        torch.func.grad(lambda a: first(a).sum())(A.detach())


def test_transforms_without_a_rule_are_refused():
    def layer(a):
        return to_fp8_then_scaled_grouped_mm(a, B.detach(), offs=OFFS)

    a = A.detach()
    for call in (
        lambda: torch.func.vmap(layer)(a[None]),
        lambda: torch.func.functionalize(layer)(a),
        lambda: torch.func.hessian(lambda a: layer(a).sum())(a),
        lambda: torch.func.jacrev(layer)(a),
    ):
        with pytest.raises(RuntimeError, match=r"no rule for torch\.func\.vmap, nor for functionalize"):
            call()


def test_compiled_transforms_lose_no_gradient():
    """torch's compiler inlines an autograd.Function under torch.func, without its backward."""
    torch._dynamo.reset()
    first = torch.func.grad(lambda a: to_fp8_then_scaled_grouped_mm(a, B.detach(), offs=OFFS).square().sum())
    with pytest.raises(Exception, match=r"under torch\.func is not compiled"):
        torch.compile(first, backend="eager", fullgraph=True)(A.detach())
    torch._dynamo.reset()


A, B, _ = operands()
ERRORS = {
    "A is no tensor": (dict(mat_a=[1]), TypeError, r"mat_a must be a torch.Tensor, got list"),
    "rank of A": (dict(mat_a=A[None]), ValueError, r"mat_a must be \(total_m, K\), got shape \(1, 160, 136\)"),
    "rank of B": (dict(mat_b=B[0]), ValueError, r"mat_b must be \(G, K, N\), got shape \(136, 24\)"),
    "float8 already": (dict(mat_b=B.detach().to(E4M3)), TypeError, r"mat_b must have a dtype of .*float8_e4m3fn"),
    "K": (dict(mat_a=A[:, :40]), ValueError, r"mat_a has K = 40 columns and mat_b has 136 rows"),
    "no offs": (dict(offs=None), ValueError, r"offs must give the ends .*None"),
    "ends": (dict(offs=OFFS[:3]), ValueError, r"offs must have one end for each of the 4 groups of mat_b, got 3"),
    "recipe": (dict(recipe="tensorwise"), ValueError, r"recipe must be one of \('rowwise', 'blockwise'\)"),
    "out_dtype": (dict(out_dtype=E4M3), TypeError, r"out_dtype must be one of .*got torch.float8_e4m3fn"),
    "gradient": (dict(grad_dtype=torch.bfloat16), TypeError, r"grad_dtype must be one of .*'rowwise', got torch.bf"),
    "gradient of blocks": (dict(grad_dtype=E5M2, recipe="blockwise"), TypeError, r"grad_dtype must .*'blockwise'"),
    "backend": (dict(backend="fast"), ValueError, r"backend must be one of .*'fast'"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_errors(what):
    changes, error, message = ERRORS[what]
    with pytest.raises(error, match=message):
        to_fp8_then_scaled_grouped_mm(**(dict(mat_a=A, mat_b=B, offs=OFFS) | changes))


def test_a_new_recipe_is_not_computed_as_one_of_the_others(monkeypatch):
    assert [training.scales_whole_lines(recipe) for recipe in training.RECIPES] == [True, False]
    monkeypatch.setattr(training, "RECIPES", (*training.RECIPES, "mx"))
    a, b, _ = operands()
    with pytest.raises(ValueError, match=r"recipe must be one of \('rowwise', 'blockwise'\), got 'mx'"):
        to_fp8_then_scaled_grouped_mm(a, b, offs=OFFS, recipe="mx")


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
def test_a_step_never_waits_and_can_be_captured(recipe):
    """Each replay reads the groups' ends and the operands as they are then."""
    a, b, grad = operands(torch.float32)
    x, w, offs = a.detach(), b.detach(), OFFS.clone()

    def step():
        left, right = x.requires_grad_(), w.requires_grad_()
        product = to_fp8_then_scaled_grouped_mm(left, right, offs=offs, recipe=recipe, power_of_two=True)
        return product, *torch.autograd.grad(product, (left, right), grad)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        offs.copy_(torch.tensor([0, 64, 100, 160]))
        x.neg_()
    graph.replay()
    wanted = step()
    assert all(map(torch.equal, found, wanted))
