"""Rules for every public function: torch's defaults change nothing, flags are bool, tensors are dense."""

from __future__ import annotations

import contextlib
import inspect
import sys

import pytest
import torch
from torch.nn.functional import ScalingType

import course_kernels
from course_kernels import (
    GroupLayout,
    codegen,
    deepgemm,
    gmm,
    group_sums,
    grouped_gemm_jagged,
    grouped_mm,
    nptgmm,
    ptgmm,
    quantize_1x128,
    scaled_grouped_mm,
    to_fp8_then_scaled_grouped_mm,
)
from course_kernels.engine.plans import plans
from course_kernels.jagged import tritonbench
from course_kernels.testing import integers
from public_calls import CALLS_WITHOUT_TENSORS, calls, copied, flat, seeds

CALLS = calls()
DIFFERENTIABLE = [call for call in CALLS if call.leaves]
NO_CALLS = {"GemmConfig", "runtime"}  # they take no tensors


def test_every_public_function_has_a_call():
    assert {call.name.split()[0] for call in CALLS} >= set(course_kernels.__all__) - NO_CALLS


# ---- torch's defaults


@contextlib.contextmanager
def defaults(dtype: torch.dtype, device: str):
    """torch's defaults for tensors that name neither dtype nor device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def assert_same(found, wanted):
    """Equal dtypes, devices and bits."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert (one.dtype, one.device, one.shape) == (other.dtype, other.device, other.shape)
        assert torch.equal(*(each.detach().reshape(-1).view(torch.uint8) for each in (one, other)))


def forward_and_backward(call, given):
    """The results of a call, and the gradients of its leaves."""
    tensors = [each.clone().requires_grad_() for each in call.tensors()]
    results = call.results(tensors)
    wanted = [each for each in results if each.requires_grad]
    return results + list(torch.autograd.grad(wanted, tensors, given[: len(wanted)]) if wanted else ())


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_defaults_of_torch_change_nothing(call):
    given = seeds(call.results(call.tensors())) if call.leaves else []
    plain = forward_and_backward(call, given)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        for device in ("cpu", "meta"):
            plans.clear()  # a plan is made under these defaults, too
            with defaults(dtype, device):
                found = forward_and_backward(call, given)
            assert_same(found, plain)


# ---- gradients that are asked for after torch.func's transform has ended


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=str)
def test_the_function_of_vjp_runs_after_its_transform(call):
    tensors = [each.requires_grad_() for each in call.tensors()]
    results = [each for each in call.results(tensors) if each.requires_grad]
    given = seeds(results)
    wanted = torch.autograd.grad(results, tensors, given, create_graph=True)

    def function(*leaves):
        return tuple(each for each in call.results(list(leaves)) if each.requires_grad)

    def first(*leaves):
        return torch.func.vjp(function, *leaves)[1](tuple(given))

    detached = [each.detach() for each in tensors]
    assert_same(first(*detached), wanted)
    if call.orders > 1 and (places := [i for i, each in enumerate(wanted) if each.requires_grad]):
        ones = [torch.ones_like(each) for each in wanted]
        second = torch.autograd.grad(
            [wanted[i] for i in places], tensors, [ones[i] for i in places], materialize_grads=True
        )
        assert_same(torch.func.vjp(first, *detached)[1](tuple(ones)), second)


# ---- the number of tokens


def functions_of_tokens():
    """Results of the first three tokens of a matrix (total, 6), as functions of it; the others are in no group."""
    weights, right, ends = integers((2, 6, 4)), integers((24, 4), torch.float16, 1), torch.tensor([1, 3])
    sizes, float8, kinds = torch.tensor([1, 2]), torch.float8_e4m3fn, ScalingType
    factors = torch.arange(1.0, 25.0)

    def scaled(x, scale_a, recipe_a, scale_b, recipe_b, other):
        return scaled_grouped_mm(x.to(float8), other.to(float8), scale_a, recipe_a, scale_b, recipe_b, offs=ends)

    def masked(x):
        batch, out = torch.stack([x, x]), torch.zeros(2, x.shape[0], 4)
        deepgemm(batch.to(float8), weights.mT.to(float8), out, sizes, factors[: x.shape[0]].repeat(2, 1), factors[:2])
        return out[:, :3]

    def restarting(x):
        (left, of_left), (other, of_right) = (quantize_1x128(each.mT, offs=ends) for each in (x, right[: x.shape[0]]))
        recipe = kinds.BlockWise1x128
        return scaled_grouped_mm(left, other.mT, of_left, recipe, of_right, recipe, offs=ends)

    layout = GroupLayout.from_ends(ends)
    offsets = torch.tensor([0, 1, 3])
    functions = {
        "grouped_mm m": lambda x: grouped_mm(x, weights, offs=ends)[:3],
        "grouped_mm n": lambda x: grouped_mm(weights.mT, x.mT, offs=ends)[:, :3],
        "grouped_mm k": lambda x: grouped_mm(x.mT, right[: x.shape[0]], offs=ends),
        "grouped_mm k, longer": lambda x: grouped_mm(x.mT, right, offs=ends),
        "group_sums": lambda x: group_sums(x, ends),
        "scaled_grouped_mm rows": lambda x: scaled(
            x, factors[: x.shape[0]], kinds.RowWise, torch.ones(2, 4), kinds.RowWise, weights
        )[:3],
        "scaled_grouped_mm blocks": lambda x: scaled(
            x, factors[: x.shape[0], None], kinds.BlockWise1x128, torch.ones(2, 1, 1), kinds.BlockWise128x128, weights
        )[:3],
        "scaled_grouped_mm restarting": restarting,
        "quantize_1x128": lambda x: quantize_1x128(x)[1][:3],
        "to_fp8_then_scaled_grouped_mm": lambda x: to_fp8_then_scaled_grouped_mm(x, weights, offs=ends)[:3],
        "deepgemm": masked,
        "grouped_gemm_jagged": lambda x: grouped_gemm_jagged(x, weights[0], offsets)[:3],
        "GroupLayout.pad": lambda x: layout.pad(x, 4),
        "GroupLayout.row_groups": lambda x: layout.row_groups(x.shape[0])[:3],
        "gmm": lambda x: gmm(x, weights, sizes)[:3],
        "gmm transposed": lambda x: gmm(x, weights.mT.contiguous(), sizes)[:3],
    }
    for name, function in (("ptgmm", ptgmm), ("nptgmm", nptgmm)):
        functions |= {
            f"{name} rows": lambda x, of=function: of(x.mT.contiguous(), right[: x.shape[0]], sizes),
            f"{name} columns": lambda x, of=function: of(x.mT, right[: x.shape[0]], sizes),
            f"{name} transposed": lambda x, of=function: of(x, right[: x.shape[0]], sizes),
        }
    return functions


@pytest.mark.parametrize(("name", "function"), functions_of_tokens().items())
def test_no_number_of_tokens_changes_what_is_meant(name, function):
    wanted = function(integers((24, 6)))
    for total in range(3, 24):
        if "ptgmm" in name and total == 6:
            with pytest.raises(ValueError, match="lhs_layout must be 'km' or 'mk' where K equals M"):
                function(integers((24, 6))[:total])
        else:
            assert torch.equal(function(integers((24, 6))[:total]), wanted), total


# ---- groups by their sizes

BY_ENDS = [call for call in CALLS if "offs" in call.arguments and call.name.split()[0] in course_kernels.__all__]
FIRST_BY_ENDS = {call.name.split()[0]: call for call in reversed(BY_ENDS) if call.arguments["backend"] == "torch"}


def by_sizes(call, **changes):
    """The same call with the sizes of the groups in place of their ends."""
    sizes = torch.diff(call.arguments["offs"], prepend=torch.zeros_like(call.arguments["offs"][:1]))
    return call.with_(**dict(offs=None, sizes=sizes) | changes)


def test_every_public_function_of_ends_takes_sizes():
    found = {name for name in course_kernels.__all__ if "offs" in parameters_of(getattr(course_kernels, name))}
    assert found == FIRST_BY_ENDS.keys()
    assert len(found) == 5
    assert all("sizes" in parameters_of(getattr(course_kernels, name)) for name in found)


def parameters_of(function):
    return inspect.signature(function).parameters if inspect.isfunction(function) else ()


@pytest.mark.parametrize("call", BY_ENDS, ids=str)
def test_sizes_are_an_alternative_to_ends(call):
    given = seeds(call.results(call.tensors())) if call.leaves else []
    assert_same(forward_and_backward(by_sizes(call), given), forward_and_backward(call, given))


@pytest.mark.parametrize("call", FIRST_BY_ENDS.values(), ids=str)
def test_sizes_are_compiled(call):
    compiled = torch.compile(call.function, fullgraph=True, backend="aot_eager")
    found = list(flat([compiled(**copied(by_sizes(call).arguments))]))
    assert_same(found, list(flat([call.function(**copied(call.arguments))])))


@pytest.mark.parametrize("call", FIRST_BY_ENDS.values(), ids=str)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(offs=torch.tensor([3])), ValueError, "offs must be None where sizes is given"),
        (dict(sizes=torch.ones(3)), TypeError, "sizes must be torch.int32 or torch.int64, got torch.float32"),
        (dict(sizes=torch.ones(1, 3, dtype=torch.int64)), ValueError, r"sizes must be 1-D.*got shape \(1, 3\)"),
        (dict(sizes=[3, 4]), TypeError, "sizes must be a torch.Tensor, got list"),
        (dict(sizes=torch.ones(3, dtype=torch.int64, device="meta")), ValueError, "sizes must be on the device of"),
    ],
    ids=["both", "floats", "2-D", "list", "device"],
)
def test_wrong_sizes_are_named(call, change, error, message):
    with pytest.raises(error, match=message):
        call.function(**copied(by_sizes(call, **change).arguments))


def test_sizes_of_another_number_of_groups_are_named():
    rows, weights, sizes = torch.ones(3, 4), torch.ones(2, 4, 5), torch.tensor([0, 1, 2])
    for function in (grouped_mm, to_fp8_then_scaled_grouped_mm):
        with pytest.raises(ValueError, match="sizes must have one entry for each of the 2 groups of mat_b, got 3"):
            function(rows, weights, sizes=sizes)
    with pytest.raises(ValueError, match="sizes must be None where mat_a and mat_b are both 3-D"):
        grouped_mm(weights.mT, weights, sizes=sizes)


# ---- flags

MODULES = course_kernels, sys.modules["course_kernels.gmm"], codegen, tritonbench
FUNCTIONS = {name: getattr(module, name) for module in MODULES for name in module.__all__}


def flags_of(name):
    """The arguments of a public function that are True or False."""
    function = FUNCTIONS.get(name)
    if not callable(function) or (inspect.isclass(function) and issubclass(function, Exception)):
        return []
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if str(each.annotation).startswith("bool")]


def test_every_flag_has_a_call():
    called = {call.name.split()[0] for call in (*CALLS, *CALLS_WITHOUT_TENSORS)}
    assert {name for name in FUNCTIONS if flags_of(name)} - called == {"compile_many"}  # which compiles for seconds


@pytest.mark.parametrize(
    ("call", "flag"),
    {
        (name, flag): (call, flag)
        for call in (*CALLS, *CALLS_WITHOUT_TENSORS)
        for name in call.name.split()[:1]
        for flag in flags_of(name)
    }.values(),
    ids=str,
)
@pytest.mark.parametrize("value", ["no", 1, torch.tensor(False)], ids=["text", "number", "tensor"])
def test_a_flag_is_true_or_false(call, flag, value):
    arguments = copied(call.arguments) | {flag: value}
    with pytest.raises(TypeError, match=f"^{flag} must be True"):
        call.function(**arguments)
    for found, before in zip(flat(list(arguments.values())), flat(list((call.arguments | {flag: value}).values()))):
        assert found is before or torch.equal(found, before)  # nothing was written


# ---- arguments that are no dense tensors


def not_dense(tensor):
    """Values in a tensor's place, with what their error says."""
    empty = torch.sparse_coo_tensor(size=tensor.shape, dtype=tensor.dtype, device=tensor.device, check_invariants=False)
    return {"torch.sparse_coo": empty, "the class Tensor": torch.Tensor, "str": "tensor"}


@pytest.mark.parametrize("call", [call for call in CALLS if call.arguments.get("backend") != "triton"], ids=str)
def test_every_tensor_is_dense(call):
    for name, given in call.arguments.items():
        listed = isinstance(given, list)
        if listed or isinstance(given, torch.Tensor):
            for text, value in not_dense(given[1] if listed else given).items():
                changed = {name: [given[0], value] if listed else value}
                name_in_error = rf"{name}\[1\]" if listed else name
                with pytest.raises(TypeError, match=rf"\b{name_in_error} must be a .*got .*{text}"):
                    call.function(**copied(call.arguments) | changed)


# ---- vmap

HAVE_RULES = "grouped_mm", "scaled_grouped_mm", "group_sums", "quantize_1x128", "quantize_128x128", "deepgemm", "gmm"


@pytest.fixture
def no_fallback():
    """Refuse torch's own loop over a batch, which warns of a performance drop."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize(
    "call",
    [
        call.with_(check=False) if "check" in call.arguments else call
        for call in CALLS
        if call.name.split()[0] in HAVE_RULES and call.arguments.get("backend") == "torch"
        if not {"out", "main_grad", "WQ"} & call.arguments.keys() or call.name == "deepgemm float8 torch"
    ],
    ids=str,
)
def test_operators_have_rules_for_batches(call):
    names = [name for name, given in call.arguments.items() if isinstance(given, torch.Tensor)]
    tensors = [call.arguments[name] for name in names]

    def function(*given):
        found = call.function(**call.arguments | dict(zip(names, given)))
        return found if isinstance(found, tuple) else (found,)

    others = [each.float().flip(-1).to(each.dtype) if each.is_floating_point() else each for each in tensors]
    elements = [function(*copied(given)) for given in (tensors, others)]
    found = torch.func.vmap(function)(*map(torch.stack, zip(copied(tensors), copied(others))))
    for i, wanted in enumerate(elements):
        assert_same([each[i] for each in found], wanted)
    assert any(not torch.equal(one.float(), other.float()) for one, other in zip(*elements)), "they can be told apart"
