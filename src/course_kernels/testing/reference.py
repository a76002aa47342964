"""The oracle: every product as a plain loop over groups in high precision.

Nothing here calls the library's kernels, so a test that compares with it compares two independent computations. All
functions accept any strides and every floating or integer dtype that torch can widen exactly (fp8 included). They may
wait for the device, and are differentiable where torch's casts are.

Arguments that all functions share: ``out_dtype`` is the dtype of the result, and None keeps ``compute_dtype``, so that
nothing is rounded; ``compute_dtype`` is float64, or float32 where speed matters more than the last digits. All raise
TypeError for an operand that is no tensor, or boolean or complex, and ValueError for any other ``compute_dtype``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from course_kernels.dtypes import MODE_OF_RANKS
from course_kernels.layout.group_layout import GroupLayout

__all__ = ["dequantize", "gemm", "group_gemm", "grouped_mm", "padded_bmm", "quantize"]


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Switch TF32 off: its 11-bit arithmetic would make the oracle wrong."""
    matmul = torch.backends.cuda.matmul
    try:
        setting, saved, off = "allow_tf32", matmul.allow_tf32, False
    except RuntimeError:  # the newer setting is in use, and torch refuses to answer by the older one
        setting, saved, off = "fp32_precision", matmul.fp32_precision, "ieee"
    setattr(matmul, setting, off)
    try:
        yield
    finally:
        setattr(matmul, setting, saved)


def _check_matrix(name: str, value: Tensor, ndim: int) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, got shape {tuple(value.shape)}")
    if value.dtype.is_complex or value.dtype == torch.bool:
        raise TypeError(f"{name} must be floating point or integer, got {value.dtype}")


def _check_precision(compute_dtype: torch.dtype) -> None:
    if compute_dtype not in (torch.float64, torch.float32):
        raise ValueError(f"compute_dtype must be torch.float64 or torch.float32, got {compute_dtype}")


def gemm(
    a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None, *, compute_dtype: torch.dtype = torch.float64
) -> Tensor:
    """Multiply two matrices after widening both, and round once at the end.

    Args:
        a: (M, K), any dtype and strides.
        b: (K, N), any dtype and strides, on the device of `a`.

    Returns:
        (M, N) on the device of `a`; zeros where K is 0.

    Raises:
        ValueError: an operand is not 2-D, or the K extents or the devices differ.

    Notes:
        torch narrows float64 to 16 bits through float32. The two roundings differ from a single one only for
        sums that need more than 24 bits; sums of small integers never do.
    """
    _check_precision(compute_dtype)
    _check_matrix("a", a, 2)
    _check_matrix("b", b, 2)
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a has K = {a.shape[1]} columns, b has {b.shape[0]} rows: they must be equal")
    if a.device != b.device:
        raise ValueError(f"a is on {a.device}, b is on {b.device}: they must share a device")
    with _without_tf32():
        product = a.to(compute_dtype) @ b.to(compute_dtype)
    return product if out_dtype is None else product.to(out_dtype)


def group_gemm(
    group_A: Sequence[Tensor],
    group_B: Sequence[Tensor],
    out_dtype: torch.dtype | None = None,
    *,
    compute_dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Multiply each pair of a list of problems; M, N and K may differ from problem to problem.

    Args:
        group_A: G matrices (M_i, K_i).
        group_B: G matrices (K_i, N_i).

    Returns:
        G matrices (M_i, N_i).

    Raises:
        ValueError: the lists differ in length, or a problem's operands do not fit; the message has its index.
    """
    if len(group_A) != len(group_B):
        raise ValueError(f"group_A has {len(group_A)} matrices, group_B has {len(group_B)}: one B for each A")
    results = []
    for i, (a, b) in enumerate(zip(group_A, group_B, strict=True)):
        try:
            results.append(gemm(a, b, out_dtype, compute_dtype=compute_dtype))
        except (ValueError, TypeError) as error:
            raise type(error)(f"problem {i}: {error}") from None
    return results


def _grouped_shape(mat_a: Tensor, mat_b: Tensor, offs: Tensor | GroupLayout | None) -> tuple[str, int, list[int]]:
    """Check shapes and ends; return the mode, G, and the (G + 1) bounds of the groups (none in mode "batch")."""
    for name, value in (("mat_a", mat_a), ("mat_b", mat_b)):
        _check_matrix(name, value, 3 if isinstance(value, Tensor) and value.ndim == 3 else 2)
    mode = MODE_OF_RANKS[mat_a.ndim, mat_b.ndim]
    if mat_a.shape[-1] != mat_b.shape[-2]:
        raise ValueError(f"mat_a has K = {mat_a.shape[-1]}, mat_b has K = {mat_b.shape[-2]}: they must be equal")
    counts = {name: t.shape[0] for name, t in (("mat_a", mat_a), ("mat_b", mat_b)) if t.ndim == 3}
    if mode == "batch":
        if offs is not None:
            raise ValueError("offs must be None where mat_a and mat_b both hold one matrix for each group")
        if counts["mat_a"] != counts["mat_b"]:
            raise ValueError(f"mat_a holds {counts['mat_a']} matrices, mat_b holds {counts['mat_b']}: one for each")
        return mode, counts["mat_a"], []
    if offs is None:
        raise ValueError("offs must be given where an operand packs its groups, got None")
    layout = offs if isinstance(offs, GroupLayout) else GroupLayout.from_ends(offs)
    for name, count in counts.items():
        if layout.G != count:
            raise ValueError(f"offs describes {layout.G} groups, {name} holds {count} matrices")
    layout.validate(total_m=mat_b.shape[1] if mode == "n" else mat_a.shape[mode == "k"])
    return mode, layout.G, layout.offsets.tolist()


def _per_group(name: str, value: Tensor | None, lengths: list[int]) -> list[Tensor | None]:
    """A vector for each group, from a tensor that holds them packed or as rows."""
    if value is None:
        return [None] * len(lengths)
    _check_matrix(name, value, 2 if isinstance(value, Tensor) and value.ndim == 2 else 1)
    equal = len(set(lengths)) == 1
    if value.ndim == 2 and lengths and not (equal and tuple(value.shape) == (len(lengths), lengths[0])):
        raise ValueError(f"{name} must hold {len(lengths)} vectors of {lengths} elements, got {tuple(value.shape)}")
    if value.ndim == 1 and value.shape[0] < sum(lengths):
        raise ValueError(f"{name} must have at least {sum(lengths)} elements, got {value.shape[0]}")
    return list(value.flatten()[: sum(lengths)].split(lengths)) if lengths else []


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | GroupLayout | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    compute_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Multiply the matrices of each group; the ranks of the operands say which extent the groups share out.

    ========  =====================================  ======================  ============================
    mode      operands                               result                  scale_a, scale_b
    ========  =====================================  ======================  ============================
    "m"       (total_m, K) and (G, K, N)             (total_m, N)            (total_m,), (G, N)
    "n"       (G, M, K) and (K, total_n)             (M, total_n)            (G, M), (total_n,)
    "k"       (M, total_k) and (total_k, N)          (G, M, N)               (G, M), (G, N), or both flat
    "batch"   (G, M, K) and (G, K, N)                (G, M, N)               (G, M), (G, N)
    ========  =====================================  ======================  ============================

    Args:
        mat_a, mat_b: as in the table, any dtype and strides, on one device.
        offs: (G,) exclusive group ends along the shared extent, or any GroupLayout with G groups; its values are
            validated. None in mode "batch".
        bias: (G, N), added to every row of its group before the result is rounded; not in mode "n".
        scale_a, scale_b: multiply the rows, and the columns, of each group's product, as in the table.

    Returns:
        As in the table. The tail (rows of mode "m", columns of mode "n" past the last group) is zero, and so is the
        product of an empty group in mode "k" before its bias is added. Operands past the last group have no effect.

    Raises:
        ValueError: shapes do not fit, the ends decrease or leave the shared extent, or a bias in mode "n".
    """
    _check_precision(compute_dtype)
    mode, groups, bounds = _grouped_shape(mat_a, mat_b, offs)
    m, n = mat_a.shape[-2], mat_b.shape[-1]
    spans = [slice(start, end) for start, end in itertools.pairwise(bounds)]
    sizes = [span.stop - span.start for span in spans]
    if bias is not None:
        if mode == "n":
            raise ValueError('bias must be None in mode "n", whose groups share out the N that a bias would have')
        if not isinstance(bias, Tensor) or tuple(bias.shape) != (groups, n):
            raise ValueError(f"bias must have shape {(groups, n)}, got {tuple(getattr(bias, 'shape', ()))}")
    scales_a = _per_group("scale_a", scale_a, sizes if mode == "m" else [m] * groups)
    scales_b = _per_group("scale_b", scale_b, sizes if mode == "n" else [n] * groups)

    blocks = []
    for g in range(groups):
        a = mat_a[g] if mat_a.ndim == 3 else mat_a[spans[g]] if mode == "m" else mat_a[:, spans[g]]
        b = mat_b[g] if mat_b.ndim == 3 else mat_b[:, spans[g]] if mode == "n" else mat_b[spans[g]]
        block = gemm(a, b, compute_dtype=compute_dtype)
        if scales_a[g] is not None:
            block = block * scales_a[g].to(compute_dtype)[:, None]
        if scales_b[g] is not None:
            block = block * scales_b[g].to(compute_dtype)
        if bias is not None:
            block = block + bias[g].to(compute_dtype)
        blocks.append(block)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=compute_dtype, device=mat_a.device)

    if mode == "m":
        result = torch.cat([*blocks, zeros(m - bounds[-1], n)])
    elif mode == "n":
        result = torch.cat([*blocks, zeros(m, n - bounds[-1])], dim=1)
    else:
        result = torch.stack(blocks) if blocks else zeros(0, m, n)
    return result if out_dtype is None else result.to(out_dtype)


def padded_bmm(
    mat_a: Tensor,
    mat_b: Tensor,
    masked_m: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    compute_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Multiply padded groups one by one, ignoring the padding.

    Args:
        mat_a: (G, max_m, K), each group's rows first, padding after them.
        mat_b: (G, K, N).
        masked_m: (G,) int32 or int64 active rows of each group; None means that all rows are active.

    Returns:
        (G, max_m, N); padding rows are zero whatever mat_a holds there, NaN included.

    Raises:
        ValueError: shapes do not fit, or an entry of `masked_m` leaves [0, max_m].
    """
    _check_precision(compute_dtype)
    _check_matrix("mat_a", mat_a, 3)
    _check_matrix("mat_b", mat_b, 3)
    groups, max_m, k = mat_a.shape
    if (groups, k) != tuple(mat_b.shape[:2]):
        raise ValueError(
            f"mat_a has (G, K) = ({groups}, {k}), mat_b has ({mat_b.shape[0]}, {mat_b.shape[1]}): they must be equal"
        )
    if masked_m is None:
        rows = [max_m] * groups
    else:
        layout = GroupLayout.from_masked(masked_m, max_m).validate()
        if layout.G != groups:
            raise ValueError(f"masked_m describes {layout.G} groups, mat_a holds {groups}")
        rows = masked_m.tolist()
    result = torch.zeros(groups, max_m, mat_b.shape[2], dtype=compute_dtype, device=mat_a.device)
    for g, m in enumerate(rows):
        result[g, :m] = gemm(mat_a[g, :m], mat_b[g], compute_dtype=compute_dtype)
    return result if out_dtype is None else result.to(out_dtype)


# ---- operands in 8 bits with a factor for each block of 128 along K


def _blocks_along(depth: int, offs: Tensor | None) -> Iterator[tuple[int, slice]]:
    """Columns of factors and what each is for; with ends of groups, blocks restart at every group."""
    start = 0
    for g, end in enumerate([depth] if offs is None else offs.tolist()):
        for i, first in enumerate(range(start, end, 128)):
            yield start // 128 + g + i, slice(first, min(first + 128, end))
        start = end


def dequantize(
    q: Tensor, scale: Tensor, lines: int = 1, offs: Tensor | None = None, *, compute_dtype: torch.dtype = torch.float64
) -> Tensor:
    """Multiply each block with its factor.

    Args:
        q: (..., L, K), any dtype.
        scale: (..., L, blocks), or (..., blocks of L, blocks) where ``lines`` is 128.
        lines: of a block, 1 or 128.
        offs: (G,) ends of groups along K: blocks restart at every group, those of group g from column
            ``offs[g - 1] // 128 + g`` on.

    Returns:
        (..., L, K); zeros after the last group.
    """
    _check_precision(compute_dtype)
    result = torch.zeros(q.shape, dtype=compute_dtype, device=q.device)
    for column, part in _blocks_along(q.shape[-1], offs):
        line = torch.arange(q.shape[-2], dtype=torch.int64, device=q.device) // lines
        factor = scale[..., line, column, None].to(compute_dtype)
        result[..., part] = q[..., part].to(compute_dtype) * factor
    return result


def quantize(
    x: Tensor, lines: int = 1, offs: Tensor | None = None, *, power_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """Float8 values and factors of blocks, one after the other, in float32.

    Args:
        x: (..., L, K), floating point.
        lines, offs: as for `dequantize`.
        power_of_two: factors are powers of two, rounded up.

    Returns:
        q (..., L, K) float8_e4m3fn, zeros after the last group, and the factors as `dequantize` takes them, zeros where
        no block has one.
    """
    *batch, height, depth = x.shape
    columns = -(-depth // 128) if offs is None else depth // 128 + offs.shape[0]
    q = torch.zeros(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.zeros(*batch, -(-height // lines), columns, dtype=torch.float32, device=x.device)
    for column, part in _blocks_along(depth, offs):
        for row in range(scale.shape[-2]):
            at = (..., slice(row * lines, (row + 1) * lines), part)
            block = x[at].float()
            magnitude = torch.where(block.isfinite(), block.abs(), torch.zeros_like(block)).flatten(-2).amax(-1)
            factor = magnitude.clamp(min=2.0**-100) / torch.full_like(magnitude, 448.0)
            if power_of_two:
                mantissa, exponent = torch.frexp(factor)
                factor = torch.ldexp(torch.ones_like(factor), exponent - (mantissa == 0.5).int())
            values = block * (torch.ones_like(factor) / factor)[..., None, None]
            q[at] = torch.where(block.isfinite(), values, torch.full_like(values, torch.nan)).to(q.dtype)
            scale[..., row, column] = factor
    return q, scale
