"""Gradients of grouped_mm, to second order, in every mode, against torch's own through the float64 oracle."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_kernels import grouped_mm, runtime
from course_kernels.testing import integers, reference, strided_like

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
MODES = ("m", "n", "k", "batch")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
DEVICE = runtime.device()
ENDS, TOTAL, G, M, N, K = (5, 5, 17), 20, 3, 6, 10, 7  # an empty group between others, and a tail of 3
NAN = float("nan")


def id_of(value):
    return str(value).removeprefix("torch.")


def shapes(mode, total=TOTAL, groups=G):
    return {
        "m": ((total, K), (groups, K, N)),
        "n": ((groups, M, K), (K, total)),
        "k": ((M, total), (total, N)),
        "batch": ((groups, M, K), (groups, K, N)),
    }[mode]


def ends(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def leaf(shape, dtype, seed, strides="row"):
    values = integers(shape, dtype, seed, device=DEVICE)
    return strided_like(values, strides).detach().requires_grad_()


def operands(mode, dtype=torch.float32, bias=False, strides="row", offs=ENDS, total=TOTAL):
    """mat_a, mat_b, bias (leaves that require gradients, or None) and offs."""
    groups = len(offs)
    a, b = (leaf(shape, dtype, i, strides) for i, shape in enumerate(shapes(mode, total, groups)))
    made = leaf((groups, N), dtype, 2, "row") if bias and mode != "n" else None
    return a, b, made, None if mode == "batch" else ends(*offs)


def wide(*tensors):
    """float64 leaves of the same values."""
    return [None if t is None else t.detach().double().clone().requires_grad_(t.requires_grad) for t in tensors]


def oracle(a, b, bias, offs):
    """The product in float64, differentiable. The reference multiplies slices and joins them; torch does the rest."""
    return reference.grouped_mm(a, b, offs, bias=bias)


def check(tensors, grad, offs, got=None):
    """Compare the leaves' gradients with the oracle's for the same upstream gradient, exactly."""
    copies = wide(*tensors)
    oracle(*copies, offs).backward(grad.double())
    for name, t, copy in zip(("mat_a", "mat_b", "bias"), tensors, copies):
        if t is None or not t.requires_grad:
            continue
        assert t.grad.dtype == t.dtype
        assert t.grad.shape == t.shape
        assert torch.equal(t.grad, copy.grad.to(t.dtype)), f"gradient of {name}"


def upstream(out, strides="row"):
    return strided_like(integers(out.shape, out.dtype, 9, device=DEVICE), strides)


# ---- exact on whole numbers


@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_exact(backend, mode, bias, dtype):
    a, b, made, offs = operands(mode, dtype, bias)
    out = grouped_mm(a, b, offs=offs, bias=made, backend=backend)
    grad = upstream(out)
    out.backward(grad)
    check((a, b, made), grad, offs)


@pytest.mark.parametrize("needed", ["a", "b", "bias", "a b", "a bias", "b bias", ""])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_subset_of_the_arguments(backend, mode, needed):
    a, b, made, offs = operands(mode, bias=True)
    for name, tensor in (("a", a), ("b", b), ("bias", made)):
        if tensor is not None:
            tensor.requires_grad_(name in needed.split())
    out = grouped_mm(a, b, offs=offs, bias=made, backend=backend)
    assert out.requires_grad == any(t is not None and t.requires_grad for t in (a, b, made))
    if not out.requires_grad:
        return
    grad = upstream(out)
    out.backward(grad)
    check((a, b, made), grad, offs)
    assert all(t is None or t.requires_grad or t.grad is None for t in (a, b, made))


@pytest.mark.parametrize("grad_strides", ["row", "col", "transposed", "unaligned", "every_other", "expanded"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_of_upstream_gradients(backend, mode, grad_strides):
    a, b, made, offs = operands(mode, bias=True)
    out = grouped_mm(a, b, offs=offs, bias=made, backend=backend)
    grad = upstream(out, grad_strides)
    out.backward(grad)
    check((a, b, made), grad, offs)


@pytest.mark.parametrize("strides", ["col", "unaligned", "every_other"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_of_operands(backend, mode, strides):
    a, b, made, offs = operands(mode, bias=True, strides=strides)
    out = grouped_mm(a, b, offs=offs, bias=made, backend=backend)
    grad = upstream(out)
    out.backward(grad)
    check((a, b, made), grad, offs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sum_sends_back_an_expanded_scalar(backend, mode):
    a, b, made, offs = operands(mode, bias=True)
    out = grouped_mm(a, b, offs=offs, bias=made, backend=backend)
    out.sum().backward()
    check((a, b, made), torch.ones_like(out), offs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_weights_collect_from_every_group(backend):
    """One matrix under every group's index, stride 0: its gradient is the sum over the groups."""
    a, _, _, offs = operands("m")
    shared = leaf((K, N), torch.float32, 1)
    out = grouped_mm(a, shared.expand(G, K, N), offs=offs, backend=backend)
    grad = upstream(out)
    out.backward(grad)
    assert torch.equal(shared.grad, a.detach()[:17].t() @ grad[:17])


@pytest.mark.parametrize("mode", ["k", "batch"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_tensor_on_both_sides(backend, mode):
    a, _, _, offs = operands(mode)
    out = grouped_mm(a, a.mT, offs=offs, backend=backend)
    grad = upstream(out)
    out.backward(grad)
    (copy,) = wide(a)
    oracle(copy, copy.mT, None, offs).backward(grad.double())
    assert torch.equal(a.grad, copy.grad.float())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_that_is_used_twice(backend, mode):
    a, b, made, offs = operands(mode, bias=True)
    out = grouped_mm(a, b, offs=offs, bias=made, backend=backend)
    grad = upstream(out)
    ((out * grad).sum() + 2 * (out * grad).sum()).backward()
    check((a, b, made), 3 * grad, offs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operands_used_in_two_products_collect_both(backend):
    a, b, _, offs = operands("m")
    first, second = (grouped_mm(a, b, offs=o, backend=backend) for o in (offs, ends(20, 20, 20)))
    grad = upstream(first)
    torch.autograd.backward([first, second], [grad, grad])
    one, two = wide(a, b)
    torch.autograd.backward(
        [oracle(one, two, None, offs), oracle(one, two, None, ends(20, 20, 20))], [grad.double()] * 2
    )
    assert torch.equal(a.grad, one.grad.float())
    assert torch.equal(b.grad, two.grad.float())


# ---- dtypes


@pytest.mark.parametrize("dtype, out_dtype", list(itertools.product(DTYPES, DTYPES)), ids=id_of)
@pytest.mark.parametrize("mode", MODES)
def test_gradients_have_the_operands_type_whatever_the_results(mode, dtype, out_dtype):
    a, b, made, offs = operands(mode, dtype, bias=True)
    out = grouped_mm(a, b, offs=offs, bias=made, out_dtype=out_dtype)
    assert out.dtype == out_dtype
    grad = upstream(out)
    out.backward(grad)
    check((a, b, made), grad, offs)


@pytest.mark.parametrize("mode", ["m", "k", "batch"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_bias_of_half_operands(backend, mode):
    a, b, _, offs = operands(mode, torch.float16)
    made = leaf((G, N), torch.float32, 2)
    out = grouped_mm(a, b, offs=offs, bias=made, backend=backend)
    grad = upstream(out)
    out.backward(grad)
    check((a, b, made), grad, offs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bias_gradient_is_summed_in_float32(backend):
    """2048 and fifteen ones: float16 sums would stay at 2048, and no float16 is 2063."""
    a, b = torch.zeros(16, 4, device=DEVICE).half(), torch.zeros(1, 4, 2, device=DEVICE).half()
    bias = torch.zeros(1, 2, device=DEVICE, requires_grad=True)
    grad = torch.ones(16, 2, device=DEVICE, dtype=torch.float16)
    grad[0] = 2048
    grouped_mm(a, b, offs=ends(16), bias=bias, backend=backend).backward(grad)
    assert (bias.grad == 2063).all()
    bias.grad = None
    grouped_mm(a[None], b, bias=bias, backend=backend).backward(grad[None])
    assert (bias.grad == 2063).all()


# ---- empty groups, tails, and what lies in them


@pytest.mark.parametrize("offs", [(0, 0, 0), (0, 20, 20), (20, 20, 20), (0, 0, 20), (7, 7, 7)], ids=str)
@pytest.mark.parametrize("mode", ["m", "n", "k"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_groups(backend, mode, offs):
    a, b, made, group_ends = operands(mode, bias=True, offs=offs)
    out = grouped_mm(a, b, offs=group_ends, bias=made, backend=backend)
    grad = upstream(out)
    out.backward(grad)
    check((a, b, made), grad, group_ends)
    sizes = [end - start for start, end in zip((0, *offs), offs)]
    holder = {"m": b, "n": a}.get(mode)
    for g, size in enumerate(sizes):
        if holder is not None and not size:
            assert (holder.grad[g] == 0).all(), "an empty group's gradient is exactly zero"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_groups_and_no_rows(backend, mode):
    a, b, _, _ = operands(mode, offs=())
    out = grouped_mm(a, b, offs=None if mode == "batch" else ends(), backend=backend)
    out.sum().backward()
    assert not a.grad.any()
    assert not b.grad.any()
    if mode == "batch":
        return
    a, b, _, _ = operands(mode, offs=(0, 0, 0), total=0)
    out = grouped_mm(a, b, offs=ends(0, 0, 0), backend=backend)
    out.sum().backward()
    for tensor in (a, b):
        assert tensor.grad.shape == tensor.shape
        assert not tensor.grad.any()


@pytest.mark.parametrize("mode", ["m", "n", "k"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_the_tail_reaches_nothing(backend, mode):
    a, b, made, offs = operands(mode, bias=True)
    used = slice(0, 17)
    with torch.no_grad():
        if mode == "m":
            a[17:] = NAN
        if mode in "nk":
            (b[:, 17:] if mode == "n" else b[17:]).fill_(NAN)
        if mode == "k":
            a[:, 17:] = NAN
    out = grouped_mm(a, b, offs=offs, bias=made, backend=backend)
    assert not out.isnan().any()
    grad = upstream(out)
    if mode == "m":
        grad[17:] = NAN
    if mode == "n":
        grad[:, 17:] = NAN
    out.backward(grad)
    for tensor in (a, b, made):
        assert tensor is None or not tensor.grad.isnan().any()
    tails = {"m": [a.grad[17:]], "n": [b.grad[:, 17:]], "k": [a.grad[:, 17:], b.grad[17:]]}[mode]
    assert all((tail == 0).all() for tail in tails)
    whole = {"m": (a, b), "n": (a, b), "k": (a, b)}[mode]
    cut = [t.detach().clone() for t in whole]
    if mode == "m":
        cut[0] = cut[0][used]
    if mode == "n":
        cut[1] = cut[1][:, used]
    if mode == "k":
        cut = [cut[0][:, used], cut[1][used]]
    cut = [t.requires_grad_() for t in cut]
    bias = None if made is None else made.detach().clone().requires_grad_()
    short = {"m": grad[used], "n": grad[:, used], "k": grad}[mode]
    oracle(cut[0].double(), cut[1].double(), None if bias is None else bias.double(), offs).backward(short.double())
    got = {"m": (a.grad[used], b.grad), "n": (a.grad, b.grad[:, used]), "k": (a.grad[:, used], b.grad[used])}[mode]
    assert all(torch.equal(g, c.grad) for g, c in zip(got, cut))
    assert bias is None or torch.equal(made.grad, bias.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operands_of_different_total_k(backend):
    """In mode "k" the longer operand's surplus is padding, whose gradient is zero."""
    a, b = leaf((M, 19), torch.float32, 0), leaf((25, N), torch.float32, 1)
    out = grouped_mm(a, b, offs=ends(5, 5, 17), backend=backend)
    grad = upstream(out)
    out.backward(grad)
    one, two = wide(a, b)
    oracle(one[:, :17], two[:17], None, ends(5, 5, 17)).backward(grad.double())
    assert torch.equal(a.grad, one.grad.float())
    assert torch.equal(b.grad, two.grad.float())


# ---- higher order, and random numbers


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_second_order(backend, mode, bias):
    """The gradient of a gradient's square, against the same of the float64 oracle."""
    tensors = operands(mode, bias=bias)[:3]
    offs = None if mode == "batch" else ends(*ENDS)
    present = [t for t in tensors if t is not None]

    def penalty(multiply, leaves):
        table = iter(leaves)
        a, b, made = (None if t is None else next(table) for t in tensors)
        loss = (multiply(a, b, made) ** 3).sum()
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        return torch.autograd.grad(sum((g * g).sum() for g in first), leaves)

    random = torch.Generator().manual_seed(3)
    leaves = [torch.randn(t.shape, generator=random).to(DEVICE).requires_grad_() for t in present]
    got = penalty(lambda a, b, c: grouped_mm(a, b, offs=offs, bias=c, backend=backend), leaves)
    wanted = penalty(lambda a, b, c: oracle(a, b, c, offs), wide(*leaves))
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=1e-4, atol=1e-5 * w.abs().max().item())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend, mode):
    """Finite differences of the float64 oracle, in a few random directions, against the float32 gradient.

    The step is 2^-13, central; the product is at most bilinear in one operand, so the difference has no error but
    float64's. What remains is float32's: sums of at most 20 products of numbers of order 1, hence the bound of 1e-4.
    """
    random = torch.Generator().manual_seed(7)
    tensors = operands(mode, bias=True)
    offs = tensors[3]
    leaves = [
        None if t is None else torch.randn(t.shape, generator=random).to(DEVICE).requires_grad_() for t in tensors[:3]
    ]
    out = grouped_mm(leaves[0], leaves[1], offs=offs, bias=leaves[2], backend=backend)
    grad = torch.randn(out.shape, generator=random).to(DEVICE)
    out.backward(grad)
    exact = [None if t is None else t.detach().double() for t in leaves]
    for i, t in enumerate(leaves):
        if t is None:
            continue
        for _ in range(3):
            direction = torch.randn(t.shape, generator=random).to(DEVICE).double()
            moved = []
            for sign in (1, -1):
                shifted = list(exact)
                shifted[i] = exact[i] + sign * 2.0**-13 * direction
                moved.append((oracle(*shifted, offs) * grad.double()).sum())
            numeric = (moved[0] - moved[1]) * 2.0**12
            analytic = (t.grad.double() * direction).sum()
            scale = (t.grad.double().abs() * direction.abs()).sum().item()
            assert abs(numeric - analytic).item() <= 1e-4 * scale


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_the_same_bit_for_bit(mode):
    random = torch.Generator().manual_seed(1)
    tensors = operands(mode, bias=True)
    leaves = [
        None if t is None else torch.randn(t.shape, generator=random).to(DEVICE).requires_grad_() for t in tensors[:3]
    ]
    runs = []
    for _ in range(3):
        out = grouped_mm(leaves[0], leaves[1], offs=tensors[3], bias=leaves[2])
        runs.append(torch.autograd.grad(out.sin().sum(), [t for t in leaves if t is not None]))
    for again in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(runs[0], again, strict=True))


def test_operands_changed_before_backward_are_noticed():
    a, b, _, offs = operands("m")
    out = grouped_mm(a, b, offs=offs)
    with torch.no_grad():
        a.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_backward_uses_the_backend_of_forward_and_configurations_of_its_own(monkeypatch):
    from course_kernels import GemmConfig
    from course_kernels.engine import plans as execute
    from course_kernels.engine import triton_launch as triton

    monkeypatch.setattr(execute, "plans", execute.PlanCache())
    used = []
    genuine = triton.plan

    def spy(problem, *rest):
        used.append(problem.options.config)
        return genuine(problem, *rest)

    monkeypatch.setattr(triton, "plan", spy)
    a, b, made, offs = operands("m", bias=True)
    config = GemmConfig(16, 16, 16, schedule="dynamic")
    out = grouped_mm(a, b, offs=offs, bias=made, backend="triton", config=config)
    out.backward(upstream(out))
    assert used == [config, None, None], "the bias's gradient is no product"
