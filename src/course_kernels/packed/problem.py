"""What ``grouped_mm`` may be given, and what comes out: modes, extents, dtypes, and memory that must not overlap.

The good case is one lookup: a combination of shapes, dtypes and devices that passed once is remembered, and messages
are built only after something has failed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.layout.group_layout import GroupLayout
from course_kernels.lists.api import MAX_EXTENT
from course_kernels.memory import overlaps_itself, share_memory
from course_kernels.packed.backends import cute as grouped_cute

BACKENDS = ("auto", "triton", "cute", "torch")
TAILS = ("zero", "keep")
IN_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
OUT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FP8 = torch.float8_e4m3fn
MODES = {(2, 3): "m", (3, 2): "n", (2, 2): "k", (3, 3): "batch"}
# Which dimension of which operand the groups share out, and what its extent is called.
_RAGGED = {"m": ("mat_a", 0, "rows"), "n": ("mat_b", 1, "columns"), "k": ("mat_a", 1, "columns")}
_MOST_KNOWN = 4096  # a new total_m in every batch must not grow the memory for ever


class Problem(NamedTuple):
    """The extents of one grouped product.

    Attributes:
        mode: "m", "n", "k" (the ragged extent) or "batch".
        G: number of groups.
        M, N, K: extents of the operands; the ragged one of them is the sum over the groups, tail included.
        out_shape: (M, N), or (G, M, N) in modes "k" and "batch".
        out_dtype: of the result.
    """

    mode: str
    G: int
    M: int
    N: int
    K: int
    out_shape: tuple[int, ...]
    out_dtype: torch.dtype

    @property
    def ragged(self) -> int | None:
        """The extent that the groups share out; None in mode "batch"."""
        return {"m": self.M, "n": self.N, "k": self.K, "batch": None}[self.mode]


_known: dict[tuple, Problem] = {}


def check(mat_a, mat_b, offs, bias, out_dtype, backend: str, scaled: bool = False) -> Problem:
    """``problem``, remembered by shapes, dtypes, devices and layouts; for tensors whose extents are numbers."""
    try:
        key = (
            mat_a.shape, mat_a.dtype, mat_a.device, mat_a.layout,
            mat_b.shape, mat_b.dtype, mat_b.device, mat_b.layout,
            None if offs is None else (offs.shape, offs.dtype, offs.device, offs.layout),
            None if bias is None else (bias.shape, bias.dtype, bias.device, bias.layout),
            out_dtype, backend, scaled,
        )  # fmt: skip
        return _known[key]
    except KeyError:
        found = problem(mat_a, mat_b, offs, bias, out_dtype, backend, scaled)
    except (AttributeError, TypeError, RuntimeError):  # no tensor, not to be hashed, or without a shape: find out
        return problem(mat_a, mat_b, offs, bias, out_dtype, backend, scaled)
    if len(_known) >= _MOST_KNOWN:
        del _known[next(iter(_known))]  # the oldest
    _known[key] = found
    return found


def problem(mat_a, mat_b, offs, bias, out_dtype, backend: str, scaled: bool = False) -> Problem:
    """The problem that the arguments describe. Reads no values, so fake, meta and symbolic tensors will do.

    Args:
        mat_a, mat_b, offs, bias, out_dtype, backend: as for ``grouped_mm``.
        scaled: the operands are those of ``scaled_grouped_mm``.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {BACKENDS}, got {backend!r}")
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        _check_tensor(name, matrix)
        if matrix.dim() not in (2, 3):
            raise ValueError(f"{name} must be 2-D or 3-D, got shape {_shape(matrix)}")
    _check_dtypes(mat_a, mat_b, out_dtype, scaled)
    if mat_b.device != mat_a.device:
        raise ValueError(f"mat_b must be on the device of mat_a, {mat_a.device}, got {mat_b.device}")
    mode = MODES[mat_a.dim(), mat_b.dim()]
    groups = _check_groups(mode, mat_a, mat_b, offs)
    depth = mat_a.shape[-1]
    if depth != mat_b.shape[-2]:
        raise ValueError(
            f"mat_a has K = {depth} columns and mat_b has {mat_b.shape[-2]} rows; they must be equal (shapes "
            f"{_shape(mat_a)} and {_shape(mat_b)})"
        )
    rows, columns = mat_a.shape[-2], mat_b.shape[-1]
    out_shape = (rows, columns) if mode in ("m", "n") else (groups, rows, columns)
    for name, extents in (("mat_a", mat_a.shape), ("mat_b", mat_b.shape), ("the result", out_shape)):
        if any(type(extent) is int and extent > MAX_EXTENT for extent in extents):
            raise ValueError(f"{name} must have extents below 2**31 - 2**16, got shape {tuple(extents)}")
    if out_dtype is None:
        out_dtype = torch.bfloat16 if scaled else mat_a.dtype
    if bias is not None:
        _check_bias(mode, bias, (groups, columns), {out_dtype if scaled else mat_a.dtype, torch.float32}, mat_a.device)
    _check_hardware(mat_a, backend)
    return Problem(mode, groups, rows, columns, depth, out_shape, out_dtype)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _check_tensor(name: str, value) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(f"{name} must be a dense (strided) tensor, got layout {layout}")


def _check_dtypes(mat_a: Tensor, mat_b: Tensor, out_dtype, scaled: bool) -> None:
    allowed = (FP8,) if scaled else IN_DTYPES
    if mat_a.dtype not in allowed:
        hint = "; scaled_grouped_mm multiplies float8_e4m3fn" if not scaled and mat_a.dtype == FP8 else ""
        raise TypeError(f"mat_a must have a dtype of {allowed}, got {mat_a.dtype}{hint}")
    if mat_b.dtype != mat_a.dtype:
        raise TypeError(f"mat_b must have the dtype of mat_a, {mat_a.dtype}, got {mat_b.dtype}")
    if out_dtype is not None and out_dtype not in OUT_DTYPES:
        raise TypeError(f"{'output_dtype' if scaled else 'out_dtype'} must be one of {OUT_DTYPES}, got {out_dtype!r}")


def _check_groups(mode: str, mat_a: Tensor, mat_b: Tensor, offs) -> int:
    """The number of groups, on which ``offs`` and the 3-D operands must agree."""
    shapes = f"(shapes {_shape(mat_a)} and {_shape(mat_b)})"
    if mode == "batch":
        if offs is not None:
            raise ValueError(f"offs must be None where mat_a and mat_b are both 3-D, got {_described(offs)} {shapes}")
        if mat_a.shape[0] != mat_b.shape[0]:
            raise ValueError(
                f"mat_a holds {mat_a.shape[0]} matrices and mat_b holds {mat_b.shape[0]}; they must be equal {shapes}"
            )
        return mat_a.shape[0]
    name, _, what = _RAGGED[mode]
    if offs is None:
        raise ValueError(f"offs must give the ends of the groups in the {what} of {name}, got None {shapes}")
    _check_tensor("offs", offs)
    if offs.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"offs must be torch.int32 or torch.int64, got {offs.dtype}")
    if offs.dim() != 1:
        raise ValueError(f"offs must be 1-D, one end for each group, got shape {_shape(offs)}")
    if offs.device != mat_a.device:
        raise ValueError(f"offs must be on the device of mat_a, {mat_a.device}, got {offs.device}")
    if mode == "k":
        return offs.shape[0]
    holder, groups = ("mat_b", mat_b.shape[0]) if mode == "m" else ("mat_a", mat_a.shape[0])
    if offs.shape[0] != groups:
        hint = ": it wants the exclusive ends alone, without a leading 0" if offs.shape[0] == groups + 1 else ""
        raise ValueError(
            f"offs must have one end for each of the {groups} groups of {holder}, got {offs.shape[0]}{hint}"
        )
    return groups


def _described(value) -> str:
    return f"shape {_shape(value)}" if isinstance(value, Tensor) else type(value).__name__


def _check_bias(mode: str, bias, shape: tuple[int, int], dtypes: set[torch.dtype], device: torch.device) -> None:
    _check_tensor("bias", bias)
    if mode == "n":
        raise ValueError(
            f"bias must be None where mat_b is 2-D and mat_a 3-D, got shape {_shape(bias)}: each group has columns of "
            "its own there, and no bias (G, N) describes them"
        )
    if tuple(bias.shape) != shape:
        raise ValueError(f"bias must have shape (G, N) = {shape}, got {_shape(bias)}")
    if bias.dtype not in dtypes:
        wanted = " or ".join(sorted(map(str, dtypes)))
        raise TypeError(f"bias must have dtype {wanted}, got {bias.dtype}")
    if bias.device != device:
        raise ValueError(f"bias must be on the device of mat_a, {device}, got {bias.device}")


def _check_hardware(mat_a: Tensor, backend: str) -> None:
    device = mat_a.device
    if backend == "cute" and device.type != "meta" and not isinstance(mat_a, FakeTensor):
        grouped_cute.check_available(device)
    if backend == "torch" or device.type in ("cpu", "meta"):
        return
    if device.type != "cuda":
        raise ValueError(
            f"mat_a must be on a CPU or a GPU of type cuda, got {device}; backend='torch' takes tensors of any device"
        )
    if not torch.cuda.is_available():  # fake tensors of a GPU that this machine lacks
        return
    needs = {FP8: (runtime.supports_fp8, "8.9"), torch.bfloat16: (runtime.supports_bf16, "8.0")}
    if mat_a.dtype in needs and not needs[mat_a.dtype][0](device):
        raise TypeError(
            f"mat_a has dtype {str(mat_a.dtype).removeprefix('torch.')}, which needs a GPU of compute capability "
            f"{needs[mat_a.dtype][1]} or newer; {device} has {runtime.capability(device)}. Convert the operands to "
            "float16, or pass backend='torch'."
        )


def check_scales(found: Problem, scale_a, scale_b, device: torch.device) -> tuple[Tensor, Tensor]:
    """Check row-wise scales, and give them the shapes that kernels read: (total,) or (G, extent), contiguous."""
    made = []
    sides = (("scale_a", scale_a, found.M, "m", "row of mat_a"), ("scale_b", scale_b, found.N, "n", "column of mat_b"))
    for name, scale, extent, ragged_mode, line in sides:
        if not isinstance(scale, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(scale).__name__}")
        if scale.dtype != torch.float32:
            raise TypeError(f"{name} must be torch.float32, got {scale.dtype}")
        if scale.device != device:
            raise ValueError(f"{name} must be on the device of mat_a, {device}, got {scale.device}")
        shape = (extent,) if found.mode == ragged_mode else (found.G, extent)
        flat = (found.G * extent,)
        if found.mode == "k" and tuple(scale.shape) == flat:
            scale = scale.reshape(shape)
        if tuple(scale.shape) != shape:
            either = f"{flat} or {shape}" if found.mode == "k" else f"{shape}"
            of = line if shape == (extent,) else f"{line} and group"
            raise ValueError(f"{name} must have shape {either}, one factor for each {of}, got {tuple(scale.shape)}")
        made.append(scale.contiguous())
    return made[0], made[1]


def check_options(tail, config, has_out: bool) -> None:
    """Raise unless ``tail`` and ``config`` are what ``grouped_mm`` takes."""
    if tail not in TAILS:
        raise ValueError(f"tail must be one of {TAILS}, got {tail!r}")
    if tail == "keep" and not has_out:
        raise ValueError("tail must be 'zero' where out is not given, got 'keep': there is nothing to keep")
    if config is not None and not isinstance(config, GemmConfig):
        raise TypeError(f"config must be a GemmConfig, got {type(config).__name__}")


def validate_offs(found: Problem, offs: Tensor | None) -> None:
    """Check the values of the group ends; waits for the device.

    Raises:
        ValueError: with the index and the value.
    """
    if offs is None:
        return
    try:
        GroupLayout.from_ends(offs).validate()
    except ValueError as error:
        raise ValueError(str(error).replace("ends[", "offs[")) from None
    last = int(offs[-1]) if found.G else 0
    if last > found.ragged:
        extent = f"total_{found.mode} = {found.ragged}"
        raise ValueError(f"offs[{found.G - 1}] = {last} is past the end of the operands, {extent}")


# ---- out


def check_out(out, found: Problem, operands: dict[str, Tensor | None]) -> None:
    """Check a result tensor that the caller gave. Nothing is written.

    Args:
        out: the tensor.
        found: the problem whose result it is to hold.
        operands: by name, tensors that it must not share memory with.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    check_out_form(out, found, operands["mat_a"].device)
    if out.is_neg():  # its memory would hold the result with the other sign
        raise ValueError("out is a lazily negated view, which kernels cannot write: pass another tensor")
    if not out.is_contiguous() and overlaps_itself(out):
        raise ValueError(f"out has elements that share memory (strides {out.stride()}); pass a clone of it")
    for name, operand in operands.items():
        if operand is not None and share_memory(out, operand):
            raise ValueError(f"out shares memory with {name}; they must not overlap")


def check_out_form(out, found: Problem, device: torch.device) -> None:
    """The part of ``check_out`` that fake tensors have: shape, dtype, device."""
    _check_tensor("out", out)
    if tuple(out.shape) != tuple(found.out_shape):
        raise ValueError(f"out must have shape {tuple(found.out_shape)}, got {_shape(out)}")
    if out.dtype != found.out_dtype:
        raise TypeError(f"out must have dtype {found.out_dtype}, got {out.dtype}")
    if out.device != device:
        raise ValueError(f"out must be on the device of mat_a, {device}, got {out.device}")
    if out.requires_grad:
        raise ValueError("out requires a gradient, which a write into it would lose: pass out.detach()")
