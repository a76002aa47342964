"""grouped_gemm_jagged and its persistent sibling: one contract, whatever computes it.

Small problems in Triton's interpreter or, where there is one, on the GPU; `test_api_gpu` has the real sizes.
"""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

import course_kernels.jagged
import forked
from course_kernels import grouped_gemm_jagged, runtime
from course_kernels.jagged import triton_kernels
from jagged_cases import DEVICE, FUNCTIONS, IMPLEMENTATIONS, SIZES, expected, guarded_results, offsets_of
from jagged_cases import operands as make

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
TYPES = [
    (torch.bfloat16, torch.bfloat16, torch.int32),
    (torch.float16, torch.float32, torch.int64),
    (torch.float16, torch.bfloat16, torch.int32),
    (torch.float32, torch.float32, torch.int64),
]


@pytest.fixture(params=FUNCTIONS)
def function(request):
    return FUNCTIONS[request.param]


@pytest.mark.parametrize(("dtype", "b_dtype", "index"), TYPES, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("implementation", ["auto", "triton"])
def test_products_of_every_type(function, implementation, dtype, b_dtype, index):
    A_packed, B, offsets = make(dtype=dtype, b_dtype=b_dtype, index=index)
    result = function(A_packed, B, offsets, implementation=implementation)
    assert result.is_contiguous()
    torch.testing.assert_close(result, expected(A_packed, B, sum(SIZES)), rtol=0, atol=0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_products_by_every_implementation(function, implementation):
    A_packed, B, offsets = make((5, 0, 33), 20, 37, torch.bfloat16, torch.float16, tail=35)
    result = function(A_packed, B, offsets, implementation=implementation)
    torch.testing.assert_close(result, expected(A_packed, B, 38), rtol=0, atol=0)
    assert torch.equal(result, function(A_packed, B, offsets, implementation=implementation)), "bit for bit"


@pytest.mark.parametrize("how", [("padded", "transposed"), ("col", "unaligned"), ("every_other", "expanded")])
@pytest.mark.parametrize("implementation", ["auto", "triton"])
def test_any_strides(function, implementation, how):
    A_packed, B, offsets = make(how=how)
    result = function(A_packed, B, offsets, implementation=implementation)
    torch.testing.assert_close(result, expected(A_packed, B, sum(SIZES)), rtol=0, atol=0)


def test_offsets_with_gaps_between_them_and_negated_operands(function):
    A_packed, B, offsets = make()
    spread = torch.stack([offsets, -offsets], 1)[:, 0]
    negated = torch.complex(torch.zeros_like(B), B).conj().imag
    assert negated.is_neg()
    result = function(A_packed, negated, spread, implementation="triton")
    torch.testing.assert_close(result, -expected(A_packed, B, sum(SIZES)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("offsets", "covered"),
    [
        ((0, 10, 5, 40), 40),  # a group that ends before it starts is empty
        ((0, 99, 3), 45),  # past the end
        ((-7, -5, 20), 20),
        ((9, 9, 9), 9),  # the first group starts at 0
        ((0, 0), 0),
    ],
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_wrong_offsets_write_every_row_once_and_nothing_else(monkeypatch, function, implementation, offsets, covered):
    A_packed, B, _ = make((45,), 16, 24)
    wrong = torch.tensor(offsets, dtype=torch.int32, device=DEVICE)
    if implementation == "auto":
        assert function(A_packed, B, wrong).shape == (45, 24)
        return
    function(A_packed, B, wrong, implementation=implementation)  # compiles, which allocates what it traces
    with guarded_results(monkeypatch, (45, 24)):
        result = function(A_packed, B, wrong, implementation=implementation)
    torch.testing.assert_close(result, expected(A_packed, B, covered), rtol=0, atol=0)


def test_interpreted_programs_share_the_tiles(monkeypatch):
    """Any number of programs; more of them than tiles, too."""
    A_packed, B, offsets = make()
    for programs in (1, 7, 1000):
        monkeypatch.setattr(triton_kernels, "_INTERPRETER_PROGRAMS", programs)
        result = triton_kernels.multiply("persistent", A_packed, B, offsets)
        torch.testing.assert_close(result, expected(A_packed, B, sum(SIZES)), rtol=0, atol=0)


@pytest.mark.parametrize(("total", "K", "N", "groups"), [(0, 8, 8, 2), (5, 0, 8, 2), (5, 8, 0, 2), (5, 8, 8, 0)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_extents_of_zero(function, implementation, total, K, N, groups):
    A_packed, B = (torch.ones(shape, dtype=torch.bfloat16, device=DEVICE) for shape in ((total, K), (K, N)))
    offsets = offsets_of([total] + [0] * (groups - 1) if groups else [])
    result = function(A_packed, B, offsets, implementation=implementation)
    assert result.shape == (total, N)
    assert result.dtype == torch.bfloat16
    assert not result.any()


# ---- gradients


@pytest.mark.parametrize(("dtype", "b_dtype"), [(torch.float32, torch.float32), (torch.bfloat16, torch.float16)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_are_those_of_the_dense_product_up_to_the_last_offset(implementation, dtype, b_dtype):
    A_packed, B, offsets = make((5, 0, 33), 20, 37, dtype, b_dtype, tail=4, how=("row", "transposed"))
    operands = [tensor.detach().clone(memory_format=torch.preserve_format) for tensor in (A_packed, B)]
    ours, dense = ([tensor.detach().requires_grad_() for tensor in operands] for _ in range(2))
    result = FUNCTIONS["persistent"](*ours, offsets, implementation=implementation)
    grad = torch.randint(-2, 3, result.shape, device=DEVICE).to(result.dtype)
    # Not backward(), which would copy a gradient into its operand's layout.
    found = torch.autograd.grad(result, ours, grad)
    wanted = torch.autograd.grad(dense[0][:38].to(result.dtype) @ dense[1].to(result.dtype), dense, grad[:38])
    for operand, mine, right in zip(ours, found, wanted):
        assert mine.dtype == operand.dtype
        torch.testing.assert_close(mine, right, rtol=0, atol=0)
    assert not found[0][38:].any()
    if implementation != "auto":  # which is grouped_mm, gradients and all
        assert found[1].stride() == ours[1].stride(), "no transposing copy"


def test_second_derivatives():
    A_packed, B, offsets = make((3, 4), 5, 6)
    A_packed, B = A_packed.clone().requires_grad_(), B.clone().requires_grad_()

    def penalty(product):
        (grad,) = torch.autograd.grad(product.square().sum(), A_packed, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), B)[0]

    mine = penalty(grouped_gemm_jagged(A_packed, B, offsets, implementation="triton"))
    torch.testing.assert_close(mine, penalty(A_packed @ B), rtol=1e-5, atol=1e-3)


# ---- torch's contexts


def test_autocast_casts_as_for_matmul(function):
    A_packed, B, offsets = make()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        for implementation in ("auto", "triton"):
            result = function(A_packed, B, offsets, implementation=implementation)
            assert result.dtype == torch.bfloat16
            torch.testing.assert_close(result.float(), expected(A_packed, B, sum(SIZES)), rtol=0, atol=0)


def test_auto_compiles_whole(function):
    A_packed, B, offsets = make((5, 0, 33), 24, 32)
    compiled = torch.compile(lambda *operands: function(*operands) + 1, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(A_packed, B, offsets), expected(A_packed, B, 38) + 1, rtol=0, atol=0)


@pytest.mark.parametrize("implementation", ["auto", "triton"])
def test_forward_mode(function, implementation):
    A_packed, B, offsets = make((3, 0, 2), 4, 5)
    with torch.autograd.forward_ad.dual_level():
        duals = [torch.autograd.forward_ad.make_dual(each, torch.ones_like(each)) for each in (A_packed, B)]
        result = torch.autograd.forward_ad.unpack_dual(function(*duals, offsets, implementation=implementation))
    tangent = torch.ones_like(A_packed).double() @ B.double() + A_packed.double() @ torch.ones_like(B).double()
    torch.testing.assert_close(result.tangent.double(), tangent, rtol=0, atol=0)


# ---- errors


def test_check_reports_wrong_offsets_and_passes_right_ones(function):
    A_packed, B, offsets = make((3, 4), 5, 6)
    assert function(A_packed, B, offsets, check=True).shape == (7, 6)
    for values, message in (
        ((0, 3, 2), r"group_offsets\[2\] = 2 is less than group_offsets\[1\] = 3"),
        ((1, 3, 7), r"group_offsets\[0\] = 1"),
        ((0, 3, 6), r"group_offsets\[2\] = 6 must be the number of A_packed's rows, 7"),
        ((0, 3, 8), r"group_offsets\[2\] = 8 must be"),
    ):
        with pytest.raises(ValueError, match=message):
            function(A_packed, B, torch.tensor(values, device=DEVICE), check=True)


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        (None, r"pip install '\.\[helion\]' in a checkout"),
        (ModuleType("helion"), r"does not import with torch \d.*helion\.language"),
    ],
    ids=["none", "broken"],
)
def test_without_helion_the_error_names_the_extra_and_with_a_broken_one_its_fault(monkeypatch, installed, message):
    monkeypatch.setitem(sys.modules, "helion", installed)
    monkeypatch.delitem(sys.modules, "helion.language", raising=False)
    monkeypatch.delitem(sys.modules, "course_kernels.jagged.helion_kernels", raising=False)
    monkeypatch.delattr(course_kernels.jagged, "helion_kernels", raising=False)
    A_packed, B, offsets = make((3,), 4, 5)
    with pytest.raises(ImportError, match=message):
        grouped_gemm_jagged(A_packed, B, offsets, implementation="helion")


def test_importing_the_library_imports_neither_triton_nor_helion():
    code = "import sys, course_kernels; print([name for name in ('triton', 'helion') if name in sys.modules])"
    done = forked.run(code)
    assert done.stdout.strip() == "[]", done.stderr
