"""The operands of a grouped product as NVIDIA's arguments, and what keeps an operator from taking them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import cutlass.operators as ops
import torch
from cutlass.operators.utils.dtype import get_torch_to_cutlass_dtype_map, torch_type_from_cutlass_type
from torch import Tensor

from course_kernels.dtypes import FP8, MODE_OF_RANKS, dtype_name

# What each dimension of mat_a, mat_b and out is called, by the extent that the groups share out.
_NAMES = {
    "m": (("total_m", "K"), ("G", "K", "N"), ("total_m", "N")),
    "n": (("G", "M", "K"), ("K", "total_n"), ("M", "total_n")),
    "k": (("M", "total_k"), ("total_k", "N"), ("G", "M", "N")),
}
_OPERANDS = ("mat_a", "mat_b", "out")
_FIELDS = {"mat_a": "A", "mat_b": "B", "out": "out", "offs": "offsets"}
_COMMON_DTYPES = (torch.bfloat16, FP8)  # a class that takes neither is not found when reasons are asked


class NoOperator(ValueError):
    """No operator takes these operands on this target.

    Attributes:
        reasons: what would have to be different, a sentence each.
    """

    def __init__(self, what: str, reasons: list[str]):
        super().__init__("\n".join([f"{what}:", *(f"- {reason}" for reason in reasons)]))
        self.reasons = reasons


def arguments(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    accumulator_type: torch.dtype = torch.float32,
) -> ops.IndexPtrGroupedGemmArguments:
    """Describe a grouped product to the Operator API. As for ``grouped_mm``, ranks say which extent the groups share.

    =====  ================  ================  ================
    mode   mat_a             mat_b             out
    =====  ================  ================  ================
    "m"    (total_m, K)      (G, K, N)         (total_m, N)
    "n"    (G, M, K)         (K, total_n)      (M, total_n)
    "k"    (M, total_k)      (total_k, N)      (G, M, N)
    =====  ================  ================  ================

    Args:
        mat_a, mat_b: as in the table. On the CPU or the "meta" device, too: enough to discover and to compile.
        offs: (G,) exclusive end of each group along the shared extent.
        out: where the result goes. Default: a new tensor, row-major.
        out_dtype: dtype of the new tensor. Default: mat_a's.
        accumulator_type: dtype of the sums.

    Returns:
        Arguments that refer to the tensors and do not copy them. Which dtypes, layouts and alignments there are
        operators for is for ``discover`` to say.

    Raises:
        TypeError: an argument is no tensor, or no dtype; ends that are no integers.
        ValueError: ranks, shapes or devices do not fit.
    """
    given = {"mat_a": mat_a, "mat_b": mat_b, "offs": offs} | ({} if out is None else {"out": out})
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    for name, value in (("out_dtype", out_dtype or mat_a.dtype), ("accumulator_type", accumulator_type)):
        if not isinstance(value, torch.dtype):
            raise TypeError(f"{name} must be a torch.dtype, got {value!r}")
    if offs.is_floating_point() or offs.is_complex() or offs.dtype == torch.bool:
        raise TypeError(f"offs must be torch.int32, got {offs.dtype}")
    along = MODE_OF_RANKS.get((mat_a.dim(), mat_b.dim()))
    if along not in _NAMES:
        raise ValueError(
            "mat_a and mat_b must have 2 and 3, 3 and 2, or 2 and 2 dimensions, got shapes "
            f"{tuple(mat_a.shape)} and {tuple(mat_b.shape)}"
        )
    if offs.dim() != 1:
        raise ValueError(f"offs must have one dimension, (G,), got shape {tuple(offs.shape)}")
    if mat_a.shape[-1] != mat_b.shape[-2]:
        turned = f"; mat_b has shape {tuple(mat_b.shape)}: pass its .mT" * (mat_a.shape[-1] == mat_b.shape[-1])
        raise ValueError(
            f"mat_a has K = {mat_a.shape[-1]}, mat_b has K = {mat_b.shape[-2]}: they must be equal{turned}"
        )
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        if matrix.dim() == 3 and matrix.shape[0] != offs.shape[0]:
            raise ValueError(f"offs has the ends of {offs.shape[0]} groups, {name} holds {matrix.shape[0]} matrices")
    shape = (mat_a.shape[-2], mat_b.shape[-1])
    shape = (offs.shape[0], *shape) if along == "k" else shape
    if out is None:
        out = torch.empty(shape, dtype=out_dtype or mat_a.dtype, device=mat_a.device)
    elif out_dtype not in (None, out.dtype):
        raise ValueError(f"out_dtype must be out's, {out.dtype}, or None, got {out_dtype}")
    if tuple(out.shape) != shape:
        raise ValueError(f"out must have shape {shape}, got {tuple(out.shape)}")
    for name, value in {**given, "out": out}.items():
        if value.device != mat_a.device:
            raise ValueError(f"{name} is on {value.device}, mat_a on {mat_a.device}: they must share a device")
        if value.dtype not in get_torch_to_cutlass_dtype_map():
            raise TypeError(f"{name} is {value.dtype}, a dtype that CUTLASS does not have")
    return ops.IndexPtrGroupedGemmArguments(
        mat_a.detach(),
        mat_b.detach(),
        out,
        accumulator_type=accumulator_type,
        offsets=offs,
        offsets_along=along,
    )


def tensors(args) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tensors that arguments refer to: mat_a, mat_b, out and offs."""
    return tuple(operand.tensor.runtime_tensor for operand in (args.A, args.B, args.out, args.offsets))


def gaps(args) -> list[str]:
    """Operands with unused memory between their rows. The API's own checks let them pass, but what it compiles computes
    strides from shapes."""
    found = []
    for name, operand in zip(_OPERANDS, (args.A, args.B, args.out)):
        if 0 in operand.shape:
            continue
        expected = 1
        for extent, stride in sorted(zip(operand.shape, operand.stride), key=lambda each: each[1]):
            if extent != 1 and stride != expected:
                found.append(
                    f"{name} must be packed, without gaps between its rows: got shape {tuple(operand.shape)} with "
                    f"strides {tuple(operand.stride)}"
                )
                break
            expected *= extent
    return found


@functools.lru_cache(maxsize=64)
def _declared(operator_class: type[ops.Operator]) -> set[tuple]:
    """Every combination of dtypes that a class of operators claims to compute: of A, B and out, and of the sums.

    The API asks a class for its operators with the arguments in hand, and some then forget to look at dtypes: they
    return operators that do not compile, or that compute in less precision than they were given.
    """
    return {_dtypes(each.metadata.operands) for each in operator_class.generate_operators(lambda metadata: True)}


def accepts(operator: ops.Operator, args, target: ops.TargetSm) -> bool:
    """Whether an operator takes the arguments on a target: by its own word, and by what its class declares."""
    if not (operator.supports(args, target) and reaches(target, operator.metadata)):
        return False
    return _dtypes(args) in _declared(operator.metadata.operator_class)


def refusal(operator: ops.Operator, args, target: ops.TargetSm) -> list[str]:
    """Why an operator does not take the arguments on a target; nothing where it does."""
    if accepts(operator, args, target):
        return []
    if not reaches(target, operator.metadata):
        targets = {str(each): each for each in operator.metadata.supported_targets}
        return [f"target must be {_targets(targets)} for this operator, got {target}"]
    status = operator.supports(args, target)
    own = "its class does not claim to compute these dtypes" if status else str(status.error)
    if not isinstance(args, ops.IndexPtrGroupedGemmArguments):
        return [own]
    return _misfits(operator.metadata.operands, args) or reasons(args, target) or [own]


def _misfits(wanted, args) -> list[str]:
    """Which dtypes and layouts are not those of one operator."""
    if getattr(wanted, "offsets_along", None) != args.offsets_along:
        return [f"offs shares out {args.offsets_along.upper()}, which this operator is not for"]
    pairs = [(name, getattr(wanted, each).dtype, getattr(args, each).dtype) for name, each in _FIELDS.items()]
    pairs.append(("accumulator_type", wanted.accumulator_type, args.accumulator_type))
    wrong = [
        f"{name} must be {_name(needed)} for this operator, got {_name(given)}"
        for name, needed, given in pairs
        if needed != given
    ]
    return wrong or _empty(args) or _layouts(args, wanted)


def reaches(target: ops.TargetSm, metadata: ops.OperatorMetadata) -> bool:
    """Whether an operator can be compiled for a target: the API lets code for "100f" pass for "100", where the
    instructions of the family are missing."""
    portable = ops.ArchPortability.Portable
    return any(
        each.is_portable_to(target) and (target.portability != portable or each.portability == portable)
        for each in metadata.supported_targets
    )


def _dtypes(of) -> tuple:
    return of.A.dtype, of.B.dtype, of.out.dtype, of.accumulator_type


def reasons(args, target: ops.TargetSm) -> list[str]:
    """Why no operator takes these arguments on this target.

    Nothing here knows an operator: dtypes, layouts, alignments and targets are what the registered ones declare.
    """
    along = args.offsets_along
    known = _known(along)
    if not known:
        alongs = [each for each in ("m", "n", "k") if _known(each)]
        others = _list(alongs).upper()
        return [f"offs shares out {along.upper()}, and there are operators only where it shares out {others}"]
    found = []

    def narrow(complaint: str, fits) -> None:
        """Go on with those that fit; where none does, complain and go on with all."""
        nonlocal known
        fitting = [each for each in known if fits(each.operands)]
        if fitting:
            known = fitting
        else:
            found.append(complaint)

    def names(operand: str) -> str:
        """The dtypes that operators take, on this target where there are some for it."""
        here = [each for each in known if reaches(target, each)] or known
        return _list({_name(getattr(each.operands, operand).dtype) for each in here})

    mat_a = _name(args.A.dtype)
    narrow(f"mat_a must be {names('A')}, got {mat_a}", lambda wanted: wanted.A.dtype == args.A.dtype)
    if not found:  # else what the others have to be is not known
        narrow(
            f"mat_b must be {names('B')} where mat_a is {mat_a}, got {_name(args.B.dtype)}",
            lambda wanted: wanted.B.dtype == args.B.dtype,
        )
        narrow(
            f"out must be {names('out')} for operands of {mat_a}, got {_name(args.out.dtype)}: give out_dtype",
            lambda wanted: wanted.out.dtype == args.out.dtype,
        )
    sums = {each.operands.accumulator_type for each in known}
    narrow(
        f"accumulator_type must be {_list(map(_name, sums))}, got {_name(args.accumulator_type)}",
        lambda wanted: wanted.accumulator_type == args.accumulator_type,
    )
    narrow(
        f"offs must be {names('offsets')}, got {_name(args.offsets.dtype)}: use .to(torch.int32)",
        lambda wanted: wanted.offsets.dtype == args.offsets.dtype,
    )
    if args.offsets.shape[0] > 1 and tuple(args.offsets.stride) != (1,):
        found.append(f"offs must have stride 1, got {args.offsets.stride[0]}")
    targets = {str(each): each for metadata in known for each in metadata.supported_targets}
    fitting = [each for each in known if reaches(target, each)]
    wrong_target = [] if fitting else [f"target must be {_targets(targets)} for these dtypes, got {target}"]
    found += _empty(args) or min((_layouts(args, each.operands) for each in fitting or known), key=len)
    return found + wrong_target or _own_words(args, target, {each.operator_class for each in known})


def _own_words(args, target: ops.TargetSm, classes: set[type[ops.Operator]]) -> list[str]:
    """What operators whose metadata admits the arguments say against them."""
    admitting = [
        each
        for cls in classes
        for each in cls.generate_operators(lambda metadata: bool(metadata.supports(args, target_sm=target)), args=args)
    ]
    errors = (each.supports(args, target).error for each in admitting)
    return list(dict.fromkeys(str(error) for error in errors if error is not None))


def _empty(args) -> list[str]:
    """Extents of 0: a product without elements, or a sum of nothing, is no operator's to compute."""
    found: dict[str, str] = {}
    for names, name, operand in zip(_NAMES[args.offsets_along], _OPERANDS, (args.A, args.B, args.out)):
        for extent, size in zip(names, operand.shape):
            if size == 0:
                found.setdefault(extent, f"{extent} must be at least 1, got {name} of shape {tuple(operand.shape)}")
    return list(found.values())


def _layouts(args, wanted) -> list[str]:
    """What of the operands' strides and addresses breaks an operator's rules."""
    given, rules = (args.A, args.B, args.out), (wanted.A, wanted.B, wanted.out)
    each = zip(_OPERANDS, given, rules, _NAMES[args.offsets_along])
    return [complaint for operand in each for complaint in _layout(*operand)]


def _layout(name: str, operand, rule, names: tuple[str, ...]) -> Iterator[str]:
    """What of a dense operand's strides and address breaks an operator's rule."""
    rank = len(operand.shape)
    along = rule.stride[-rank:].index(1)
    shape, strides = tuple(operand.shape), tuple(operand.stride)
    if strides[along] != 1 and shape[along] != 1:
        stored = (*(n for i, n in enumerate(names) if i != along), names[along])
        remedy = "use .contiguous()" if along == rank - 1 else f"store it as ({', '.join(stored)}) and pass its .mT"
        yield f"{name} ({', '.join(names)}) must have stride 1 along {names[along]}, got strides {strides}: {remedy}"
        return
    odd = [i for i in range(rank) if i != along and strides[i] % rule.divisibility and shape[i] != 1]
    if odd:
        size = rule.divisibility * rule.dtype.width // 8
        yield (
            f"{name}'s stride along {_list([names[i] for i in odd], 'and')} must be a multiple of {rule.divisibility} "
            f"elements ({size} bytes), got strides {strides} for shape {shape}: pad {names[along]}"
        )
    if past := operand.data_ptr % rule.ptr_alignment_bytes:
        yield (
            f"{name} must start at a multiple of {rule.ptr_alignment_bytes} bytes, got an address {past} bytes past "
            "one: use .clone()"
        )


def _known(along: str) -> list[ops.OperatorMetadata]:
    """What the operators for groups that share out this extent declare; designs that take the same operands once."""
    classes = {}
    for dtype, transposed in itertools.product(_COMMON_DTYPES, itertools.product((False, True), repeat=3)):
        found = ops.get_operators(_example(along, dtype, transposed))
        classes |= dict.fromkeys(each.metadata.operator_class for each in found)
    every = [each.metadata for cls in classes for each in cls.generate_operators(lambda metadata: True)]
    every = [each for each in every if each.operands.offsets_along == along]
    return list({(each.operator_class, repr(each.operands)): each for each in every}.values())


def _example(along: str, dtype: torch.dtype, transposed: tuple[bool, ...]):
    """Arguments without memory whose alignment is beyond doubt."""
    operands = []
    for names, flip in zip(_NAMES[along], transposed):
        tensor = torch.empty([2 if name == "G" else 256 for name in names], dtype=dtype, device="meta")
        operands.append(tensor.mT if flip else tensor)
    mat_a, mat_b, out = operands
    return arguments(mat_a, mat_b, offs=torch.empty(2, dtype=torch.int32, device="meta"), out=out)


def _name(dtype) -> str:
    """torch's name of a CUTLASS type, or CUTLASS's where torch has none."""
    try:
        return dtype_name(torch_type_from_cutlass_type(dtype))
    except KeyError:
        return dtype.__name__


def _list(values, last: str = "or") -> str:
    values = sorted(values)
    return f" {last} ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)


def _targets(targets: dict[str, ops.TargetSm]) -> str:
    """Targets in words; "f" stands for a family, of which each member is one."""
    return _list(f"{name} (or any {name[:-2]}xa)" if name.endswith("f") else name for name in targets)
