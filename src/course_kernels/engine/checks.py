"""Checks of the arguments of ``grouped_mm`` and ``scaled_grouped_mm``: the argument, what it got, what it wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from course_kernels import runtime
from course_kernels.config import GemmConfig
from course_kernels.dtypes import MODE_OF_RANKS, OUT_DTYPES, SCALED_DTYPES
from course_kernels.layout import GroupLayout
from course_kernels.memory import check_writable, overlaps_itself, share_memory

Backend: TypeAlias = Literal["auto", "triton", "cute", "torch"]
Tail: TypeAlias = Literal["zero", "keep"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
TAILS: tuple[Tail, ...] = get_args(Tail)
# Which dimension of which operand the groups share out, and what its extent is called.
_RAGGED = {"m": ("mat_a", 0, "rows"), "n": ("mat_b", 1, "columns"), "k": ("mat_a", 1, "columns")}


# ---- form: ranks, shapes, dtypes, devices; reads no values


def check_dense(name: str, value) -> None:
    """Raise unless a value is a tensor with strides."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if torch.compiler.is_compiling():  # which has strided tensors alone, and does not read a layout in a backward
        return
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(f"{name} must be a dense (strided) tensor, got layout {layout}")


def differ(one: int | torch.SymInt, other: int | torch.SymInt, rule: str) -> bool:
    """Whether two extents that must be equal differ. If a traced program learns them only at run time, it compares them
    then, and its error names the broken rule."""
    if not isinstance(one, torch.SymInt) and not isinstance(other, torch.SymInt):
        return bool(one != other)
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # imports sympy

    if guard_or_false(one != other):
        return True
    torch._check_value(one == other, lambda: f"{rule}, got {one} and {other}")
    return False


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def check_dtypes(mat_a: Tensor, mat_b: Tensor, out_dtype, scaled: bool) -> None:
    """Raise unless both operands and the result have dtypes that the function multiplies."""
    allowed = SCALED_DTYPES if scaled else OUT_DTYPES
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b))[: 2 if scaled else 1]:
        if matrix.dtype not in allowed:
            hint = "; scaled_grouped_mm multiplies float8" if not scaled and matrix.dtype in SCALED_DTYPES else ""
            raise TypeError(f"{name} must have a dtype of {allowed}, got {matrix.dtype}{hint}")
    if not scaled and mat_b.dtype != mat_a.dtype:
        raise TypeError(f"mat_b must have the dtype of mat_a, {mat_a.dtype}, got {mat_b.dtype}")
    if out_dtype is not None and out_dtype not in OUT_DTYPES:
        raise TypeError(f"{'output_dtype' if scaled else 'out_dtype'} must be one of {OUT_DTYPES}, got {out_dtype!r}")


def check_groups(mode: str, mat_a: Tensor, mat_b: Tensor, offs) -> int:
    """The number of groups, on which ``offs`` and the 3-D operands must agree."""
    shapes = f"(shapes {_shape(mat_a)} and {_shape(mat_b)})"
    if mode == "batch":
        if offs is not None:
            got = f"shape {_shape(offs)}" if isinstance(offs, Tensor) else type(offs).__name__
            raise ValueError(f"offs must be None where mat_a and mat_b are both 3-D, got {got} {shapes}")
        if differ(mat_a.shape[0], mat_b.shape[0], "mat_a and mat_b must hold as many matrices"):
            raise ValueError(
                f"mat_a holds {mat_a.shape[0]} matrices and mat_b holds {mat_b.shape[0]}; they must be equal {shapes}"
            )
        return mat_a.shape[0]
    name, _, what = _RAGGED[mode]
    if offs is None:
        raise ValueError(f"offs must give the ends of the groups in the {what} of {name}, got None {shapes}")
    check_offs(offs, "mat_a", mat_a.device)
    if mode == "k":
        return offs.shape[0]
    holder, groups = ("mat_b", mat_b.shape[0]) if mode == "m" else ("mat_a", mat_a.shape[0])
    if differ(offs.shape[0], groups, f"offs must have one end for each group of {holder}"):
        hint = ": it wants the exclusive ends alone, without a leading 0" if offs.shape[0] == groups + 1 else ""
        raise ValueError(
            f"offs must have one end for each of the {groups} groups of {holder}, got {offs.shape[0]}{hint}"
        )
    return groups


def check_offs(offs, name: str, device: torch.device) -> None:
    """Raise unless ``offs`` has the form of group ends, on the device of the tensor ``name``."""
    check_dense("offs", offs)
    if offs.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"offs must be torch.int32 or torch.int64, got {offs.dtype}")
    if offs.dim() != 1:
        raise ValueError(f"offs must be 1-D, one end for each group, got shape {_shape(offs)}")
    if offs.device != device:
        raise ValueError(f"offs must be on the device of {name}, {device}, got {offs.device}")


def check_bias(mode: str, bias, shape: tuple[int, int], dtypes: set[torch.dtype], device: torch.device) -> None:
    """Raise unless a bias (G, N) fits the product."""
    check_dense("bias", bias)
    if mode == "n":
        raise ValueError(
            f"bias must be None where mat_b is 2-D and mat_a 3-D, got shape {_shape(bias)}: each group has columns of "
            "its own there, and no bias (G, N) describes them"
        )
    if bias.dim() != 2 or any(differ(*each, "bias must have shape (G, N)") for each in zip(bias.shape, shape)):
        raise ValueError(f"bias must have shape (G, N) = {shape}, got {_shape(bias)}")
    if bias.dtype not in dtypes:
        wanted = " or ".join(sorted(map(str, dtypes)))
        raise TypeError(f"bias must have dtype {wanted}, got {bias.dtype}")
    if bias.device != device:
        raise ValueError(f"bias must be on the device of mat_a, {device}, got {bias.device}")


def check_device(mat_a: Tensor, backend: str) -> None:
    """Raise where no kernel runs on the operands' kind of device, or the GPU does not multiply their dtype."""
    device = mat_a.device
    if backend == "torch" or device.type in ("cpu", "meta"):
        return
    if device.type != "cuda":
        raise ValueError(
            f"mat_a must be on a CPU or a GPU of type cuda, got {device}; backend='torch' takes tensors of any device"
        )
    if torch.cuda.is_available() or not isinstance(mat_a, FakeTensor):  # fake tensors of a GPU that is not here
        runtime.check_dtype("mat_a", mat_a.dtype, device, "Convert the operands to float16, or pass backend='torch'.")


def check_scales(mode: str, extents: tuple[int, int, int], scale_a, scale_b, device: torch.device) -> list[Tensor]:
    """Row-wise scales in the form that kernels read: (total,) or (G, extent), contiguous.

    Args:
        mode: of the product.
        extents: M, N and G.
        scale_a, scale_b: as given.
        device: of mat_a.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    M, N, G = extents
    found = []
    for name, scale, extent, ragged_mode, line in (
        ("scale_a", scale_a, M, "m", "row of mat_a"),
        ("scale_b", scale_b, N, "n", "column of mat_b"),
    ):
        if not isinstance(scale, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(scale).__name__}")
        if scale.dtype != torch.float32:
            raise TypeError(f"{name} must be torch.float32, got {scale.dtype}")
        if scale.device != device:
            raise ValueError(f"{name} must be on the device of mat_a, {device}, got {scale.device}")
        shape = (extent,) if mode == ragged_mode else (G, extent)
        flat = (G * extent,)
        if mode == "k" and tuple(scale.shape) == flat:
            scale = scale.reshape(shape)
        if tuple(scale.shape) != shape:
            either = f"{flat} or {shape}" if mode == "k" else f"{shape}"
            of = line if shape == (extent,) else f"{line} and group"
            raise ValueError(f"{name} must have shape {either}, one factor for each {of}, got {tuple(scale.shape)}")
        found.append(scale.contiguous())
    return found


def check_options(tail, config, has_out: bool, accumulate: bool = False) -> None:
    """Raise unless ``tail``, ``config`` and ``accumulate`` are what ``grouped_mm`` takes."""
    if tail not in TAILS:
        raise ValueError(f"tail must be one of {TAILS}, got {tail!r}")
    if tail == "keep" and not has_out:
        raise ValueError("tail must be 'zero' where out is not given, got 'keep': there is nothing to keep")
    if config is not None and not isinstance(config, GemmConfig):
        raise TypeError(f"config must be a GemmConfig, got {type(config).__name__}")
    if accumulate and not has_out:
        raise ValueError("accumulate must be False where out is not given, got True: there is nothing to add to")


def check_accumulate(mode: str, bias) -> None:
    """Raise unless a product can be added to what ``out`` holds."""
    if mode != "k":
        raise ValueError(
            'accumulate must be False but in mode "k" (mat_a and mat_b both 2-D, the result 3-D), got True in mode '
            f"{mode!r}: add the result with torch there"
        )
    if bias is not None:
        raise ValueError(f"bias must be None where accumulate is set, got shape {_shape(bias)}: it is added once")


def check_main_grad(main_grad, mat_a, mat_b, others: Mapping[str, Tensor | None] | None = None) -> None:
    """Raise unless the gradient of mat_b can be added to ``main_grad``.

    Args:
        main_grad: as given.
        mat_a, mat_b: of the product.
        others: the product's tensors by name, whose memory is compared; None where they have none.
    """
    for name, tensor in (("mat_a", mat_a), ("mat_b", mat_b), ("main_grad", main_grad)):
        check_dense(name, tensor)
    mode = MODE_OF_RANKS.get((mat_a.dim(), mat_b.dim()))
    if mode != "m":
        raise ValueError(
            f'main_grad must be None but in mode "m" (mat_a 2-D, mat_b 3-D), got it for mat_a of shape '
            f"{_shape(mat_a)} and mat_b of shape {_shape(mat_b)}"
        )
    if main_grad.dtype != torch.float32:
        raise TypeError(f"main_grad must be torch.float32, got {main_grad.dtype}")
    if main_grad.shape != mat_b.shape:
        raise ValueError(f"main_grad must have the shape of mat_b, {_shape(mat_b)}, got {_shape(main_grad)}")
    if main_grad.device != mat_b.device:
        raise ValueError(f"main_grad must be on the device of mat_b, {mat_b.device}, got {main_grad.device}")
    if main_grad.requires_grad:
        raise ValueError("main_grad requires a gradient, which a write into it would lose: pass main_grad.detach()")
    check_writable("main_grad", main_grad)
    if others is None:
        return
    if main_grad.is_neg():
        raise ValueError("main_grad is a lazily negated view, which kernels cannot write: pass another tensor")
    if not main_grad.is_contiguous() and overlaps_itself(main_grad):
        raise ValueError(f"main_grad has elements that share memory (strides {main_grad.stride()}); pass a clone of it")
    for name, tensor in others.items():
        if tensor is not None and share_memory(main_grad, tensor):
            raise ValueError(f"main_grad shares memory with {name}; they must not overlap")


# ---- values and memory


def check_ends(offs: Tensor | None, mode: str, total: int | None) -> None:
    """Check the values of the group ends against the ragged extent's total; waits for the device.

    Raises:
        ValueError: with the index and the value.
    """
    if offs is None:
        return
    try:
        GroupLayout.from_ends(offs).validate()
    except ValueError as error:
        raise ValueError(str(error).replace("ends[", "offs[")) from None
    groups = offs.shape[0]
    last = int(offs[-1]) if groups else 0
    if last > total:
        raise ValueError(f"offs[{groups - 1}] = {last} is past the end of the operands, total_{mode} = {total}")


def check_out(out, shape: tuple[int, ...], dtype: torch.dtype, operands: Mapping[str, Tensor | None]) -> None:
    """Check a result tensor that the caller gave. Nothing is written.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    first = next(iter(operands))
    check_out_form(out, shape, dtype, operands[first].device, first)
    check_writable("out", out)
    if out.is_neg():  # its memory would hold the result with the other sign
        raise ValueError("out is a lazily negated view, which kernels cannot write: pass another tensor")
    if not out.is_contiguous() and overlaps_itself(out):
        raise ValueError(f"out has elements that share memory (strides {out.stride()}); pass a clone of it")
    for name, operand in operands.items():
        if operand is not None and share_memory(out, operand):
            raise ValueError(f"out shares memory with {name}; they must not overlap")


def check_out_form(
    out, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, operand: str = "mat_a"
) -> None:
    """The part of ``check_out`` that fake tensors have: shape, dtype, device."""
    check_dense("out", out)
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"out must have shape {tuple(shape)}, got {tuple(out.shape)}")
    if out.dtype != dtype:
        raise TypeError(f"out must have dtype {dtype}, got {out.dtype}")
    if out.device != device:
        raise ValueError(f"out must be on the device of {operand}, {device}, got {out.device}")
    if out.requires_grad and torch.is_grad_enabled():
        raise ValueError("out requires a gradient, which a write into it would lose: pass out.detach()")
