"""How far a product may be from the oracle: a bound for each element, from the arithmetic that made it.

A sum of K products with unit error u in each step is off by at most gamma(K) * sum(|a| * |b|), with
gamma(K) = K * u / (1 - K * u), whatever the order of the steps (Higham, "Accuracy and Stability of Numerical
Algorithms", section 3.1). Rounding the sum to the result's dtype adds half a unit in its last place. So the bound
grows with K and with the magnitudes of the operands, and is 0 where all of them are 0. One misplaced element cannot
hide in it, as it can in one global tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_kernels.testing import reference

__all__ = ["TOLERANCES", "Tolerance", "assert_close_to_oracle", "assert_exact", "assert_group_close", "error_bound"]


@dataclass(frozen=True)
class Tolerance:
    """Error of one way to accumulate.

    Attributes:
        unit: relative error of one step of the sum.
        per_product: relative error of each product before it is summed, from rounding the inputs.
        why: where both numbers come from.
    """

    unit: float
    per_product: float
    why: str


_TENSOR_CORE = Tolerance(
    2.0**-23,
    0.0,
    "products of 8- and 16-bit floats are exact in 24 bits; tensor cores truncate (instead of rounding) the "
    "addends of a float32 accumulator, hence 2^-23 for each and not 2^-24",
)
_IEEE = Tolerance(2.0**-24, 2.0**-24, "a product rounded to 24 bits, then an addition rounded to 24 bits")
_TF32 = Tolerance(
    2.0**-23,
    2 * 2.0**-10 + 2.0**-20,
    "each input is cut to 11 significant bits: 2^-10 each when hardware truncates; then as on every tensor core",
)
_FP8_HOPPER = Tolerance(
    2.0**-13,
    0.0,
    "Hopper aligns the addends of an fp8 product to the largest and keeps 13 bits after it (DeepSeek-V3 "
    "technical report, section 3.3.2)",
)

TOLERANCES: dict[tuple[torch.dtype, str], Tolerance] = {
    (torch.float16, "fp32"): _TENSOR_CORE,
    (torch.bfloat16, "fp32"): _TENSOR_CORE,
    (torch.float32, "ieee"): _IEEE,
    (torch.float32, "tf32"): _TF32,
    (torch.float8_e4m3fn, "fp32"): _TENSOR_CORE,
    (torch.float8_e5m2, "fp32"): _TENSOR_CORE,
    (torch.float8_e4m3fn, "fp8"): _FP8_HOPPER,
    (torch.float8_e5m2, "fp8"): _FP8_HOPPER,
    (torch.float64, "fp64"): Tolerance(2.0**-52, 2.0**-52, "twice float64's rounding, as the oracle has it as well"),
}


def lookup(dtype: torch.dtype, accumulation: str | None, on_gpu: bool) -> Tolerance:
    """The table's entry for operands of `dtype`, as in `error_bound`."""
    offered = [name for known, name in TOLERANCES if known == dtype]
    if not offered:
        raise ValueError(f"no tolerance is known for operands of {dtype}")
    if accumulation is None:
        accumulation = "fp8" if on_gpu and "fp8" in offered else offered[0]
    if accumulation not in offered:
        raise ValueError(f"accumulation for {dtype} must be one of {', '.join(offered)}, got {accumulation!r}")
    return TOLERANCES[dtype, accumulation]


def _product(a: Tensor, b: Tensor) -> Tensor:
    return reference.gemm(a, b) if a.ndim == 2 else reference.padded_bmm(a, b)


def error_bound(
    a: Tensor, b: Tensor, out_dtype: torch.dtype, *, accumulation: str | None = None
) -> tuple[Tensor, Tensor]:
    """The exact product, and how far from it a correct kernel may be.

    Args:
        a: (M, K), or (G, M, K).
        b: (K, N), or (G, K, N), of the dtype of `a`.
        out_dtype: floating dtype that the result is rounded to.
        accumulation: "fp32" (16- and 8-bit operands), "fp8" (8-bit operands on Hopper's tensor cores), "ieee" or "tf32"
            (float32), "fp64"; None takes "fp8" for 8-bit operands on a GPU, else the first named here for the dtype.

    Returns:
        Two float64 tensors of the product's shape: the value, and the largest absolute error.

    Raises:
        ValueError: the dtypes differ or have no tolerance, K is too long for a bound, or shapes do not fit.
    """
    if a.dtype != b.dtype:
        raise ValueError(f"a is {a.dtype}, b is {b.dtype}: they must be equal")
    k = a.shape[-1]
    relative = relative_error(lookup(a.dtype, accumulation, a.is_cuda), k, k)
    exact = _product(a, b)
    magnitude = _product(*(t.detach().to(torch.float64).abs() for t in (a, b)))
    return exact.detach(), rounded_bound(exact, relative * magnitude, magnitude, k, out_dtype)


def relative_error(rule: Tolerance, steps: int | Tensor, most: int) -> float | Tensor:
    """gamma(steps), and the products' own error; ValueError where `most`, the largest of `steps`, has no bound."""
    if most * rule.unit >= 0.5:
        raise ValueError(f"K = {most} steps with an error of {rule.unit} each have no useful bound")
    return steps * rule.unit / (1 - steps * rule.unit) + rule.per_product


def rounded_bound(exact: Tensor, error: Tensor, magnitude: Tensor, k: int, out_dtype: torch.dtype) -> Tensor:
    """The largest error of sums of `k` products that are off by `error`, after rounding to `out_dtype`."""
    info = torch.finfo(out_dtype)
    # Half a unit in the last place of the result, taken where the accumulated error may have carried it.
    rounding = (exact.abs() + error) * info.eps / 2
    # Below float32's normal range hardware may flush to zero; below the result's it rounds to its finest step. A
    # product of zeros is exact.
    flushed = k * torch.finfo(torch.float32).tiny + info.smallest_normal * info.eps
    return error + rounding + torch.where(magnitude > 0, flushed, 0.0)


def check_result(out: Tensor, shape: torch.Size, what: str) -> None:
    """Assert that `out` is a floating tensor of this shape."""
    if not isinstance(out, Tensor):
        raise AssertionError(f"{what} must be a torch.Tensor, got {type(out).__name__}")
    if out.shape != shape:
        raise AssertionError(f"{what} has shape {tuple(out.shape)}, wants {tuple(shape)}")
    if not out.dtype.is_floating_point:
        raise AssertionError(f"{what} has dtype {out.dtype}, wants a floating one")


def fail(what: str, out: Tensor, wanted: Tensor, wrong: Tensor, error: Tensor, detail) -> None:
    """Raise AssertionError with the number of wrong elements, the first and the worst, each with `detail(index)`."""
    first = wrong.nonzero()[0].tolist()
    worst_at = torch.where(wrong, error.nan_to_num(torch.inf, torch.inf), -1.0).flatten().argmax()
    worst = [int(i) for i in torch.unravel_index(worst_at, wrong.shape)]
    lines = [f"{what}: {int(wrong.sum())} of {wrong.numel()} elements are wrong"]
    for name, at in (("first", first), ("worst", worst)):
        at = tuple(at)
        lines.append(f"  {name} at {list(at)}: got {out[at].item():g}, wants {wanted[at].item():g}{detail(at)}")
    raise AssertionError("\n".join(lines))


def assert_close_to_oracle(
    out: Tensor, a: Tensor, b: Tensor, *, accumulation: str | None = None, what: str = "the product"
) -> None:
    """Check a product element by element against the float64 oracle, each within its own error bound.

    Args:
        out: (M, N) or (G, M, N) result, of any floating dtype. NaN is never right; infinity only where the
            exact value is beyond the range of the dtype.
        a, b: (M, K) and (K, N), or (G, M, K) and (G, K, N).
        accumulation: as in `error_bound`.
        what: names the result in the message.

    Raises:
        AssertionError: shape or dtype is wrong, or elements are; the message has their number, the first, the worst,
            and the bound there.
        ValueError: as `error_bound`, or an operand is not finite, so that there is no answer.
    """
    check_result(out, torch.Size((*a.shape[:-1], b.shape[-1])), what)
    exact, bound = error_bound(a, b, out.dtype, accumulation=accumulation)
    if not bound.isfinite().all():
        raise ValueError("a and b must be finite: there is no answer to compare with otherwise")
    compare(out, exact, bound, what)


def compare(
    out: Tensor, exact: Tensor, bound: Tensor, what: str, group_at: Callable[[Sequence[int]], str] = lambda at: ""
) -> None:
    """Assert that `out` is within `bound` of `exact`, as `assert_close_to_oracle` says."""
    got = out.detach().to(exact)
    error = (got - exact).abs()
    largest = torch.finfo(out.dtype).max
    overflow = got.isinf() & (got.sign() == exact.sign()) & (exact.abs() + bound > largest)
    wrong = ~((error <= bound) | overflow)  # written so that a NaN is wrong
    if wrong.any():

        def detail(at: Sequence[int]) -> str:
            return f", off by {error[at].item():g}, bound {bound[at].item():g}{group_at(at)}"

        fail(what, got, exact, wrong, error, detail)


def assert_group_close(
    outs: Sequence[Tensor], group_A: Sequence[Tensor], group_B: Sequence[Tensor], *, accumulation: str | None = None
) -> None:
    """Check every product of a list with `assert_close_to_oracle`.

    Args:
        outs: G results (M_i, N_i).
        group_A, group_B: G matrices (M_i, K_i) and (K_i, N_i).
        accumulation: as in `error_bound`.

    Raises:
        AssertionError: the number of results is wrong, or one of them is; the message has the problem's index.
        ValueError: as `error_bound`.
    """
    if not len(outs) == len(group_A) == len(group_B):
        raise AssertionError(f"{len(outs)} results for {len(group_A)} A and {len(group_B)} B matrices")
    for i, (out, a, b) in enumerate(zip(outs, group_A, group_B, strict=True)):
        assert_close_to_oracle(out, a, b, accumulation=accumulation, what=f"problem {i}")


def assert_exact(out: Tensor, a: Tensor, b: Tensor, *, what: str = "the product") -> None:
    """Check that the product of whole numbers is the exact one, rounded once to the result's dtype.

    Args: as `assert_close_to_oracle`; the operands hold whole numbers.

    Raises:
        AssertionError: as `assert_close_to_oracle`.
        ValueError: the operands are not whole, or so large that a sum may leave float32's 24 bits (14 bits for 8-bit
            operands, as many as Hopper keeps), so that a correct kernel need not be exact.
    """
    check_result(out, torch.Size((*a.shape[:-1], b.shape[-1])), what)
    wide = whole_numbers(a=a, b=b)
    check_sums(_product(*(t.abs() for t in wide)), a.dtype)
    compare_exact(out, _product(*wide).to(out.dtype), what)


def whole_numbers(**operands: Tensor | None) -> list[Tensor]:
    """The operands in float64; ValueError for one that holds a fraction. NaN passes: it may be past the last group."""
    wide = {name: t.detach().to(torch.float64) for name, t in operands.items() if t is not None}
    for name, t in wide.items():
        if not torch.equal(t.nan_to_num(0.0), t.nan_to_num(0.0).round()):
            raise ValueError(f"{name} must hold whole numbers")
    return list(wide.values())


def check_sums(magnitude: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError unless every sum of products of operands of `dtype` is exact, whatever the order."""
    limit = 2**13 if dtype.itemsize == 1 else 2**24
    if not (magnitude <= limit).all():
        raise ValueError(f"sum(|a| * |b|) reaches {magnitude.max().item():g}, past {limit}: sums need not be exact")


def compare_exact(
    out: Tensor, wanted: Tensor, what: str, group_at: Callable[[Sequence[int]], str] = lambda at: ""
) -> None:
    """Assert that `out` equals `wanted`, which has its dtype."""
    got, wanted = out.detach().to(torch.float64), wanted.to(torch.float64)
    wrong = ~(got == wanted)
    if wrong.any():
        fail(what, got, wanted, wrong, (got - wanted).abs(), group_at)
