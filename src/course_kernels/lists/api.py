"""Grouped GEMM over lists of matrices: every M, N and K may differ.

``group_gemm`` checks, plans, launches. A ``GroupGemmPlan`` is the middle step kept: tables on the device, outputs
allocated, kernels chosen, so that running it again copies nothing and allocates nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, SupportsIndex, TypeAlias

import torch

from course_kernels import flops, runtime
from course_kernels.config import GemmConfig
from course_kernels.contexts import (
    functorch_level,
    has_memory,
    has_modes,
    is_batched_by_autograd,
    is_profiling,
    is_sharded,
    is_traced,
    refuse_tangents,
    wants_function,
)
from course_kernels.dtypes import FP8, Precision
from course_kernels.lists.checks import Method, Settings, check_operands, prepare_out
from course_kernels.type_checks import check_flags

if TYPE_CHECKING:
    from course_kernels.lists.launch import Launch, Prepared  # imports Triton

Matrices: TypeAlias = Sequence[torch.Tensor] | torch.nn.ParameterList


def group_gemm(
    group_A: Matrices,
    group_B: Matrices,
    *,
    method: Method = "auto",
    out_dtype: torch.dtype | None = None,
    precision: Precision = "ieee",
    out: Matrices | None = None,
    config: GemmConfig | None = None,
) -> list[torch.Tensor]:
    """Multiply many pairs of matrices of different sizes, in one launch where they are alike in layout.

    >>> [c.shape for c in group_gemm([torch.ones(2, 3), torch.ones(4, 1)], [torch.ones(3, 5), torch.ones(1, 6)])]
    [torch.Size([2, 5]), torch.Size([4, 6])]

    Args:
        group_A: G matrices (M_i, K_i); float16, bfloat16, float32 or float8_e4m3fn, one dtype and device for all.
        group_B: G matrices (K_i, N_i) of the same dtype and device. Any strides, for A and B alike; any size may be 0.
        method: "naive" launches once per problem; "round_robin" walks all tiles in one launch; "tma" does so with
            descriptors, for problems that satisfy their 16-byte rule (base address and leading stride multiples of
            16 bytes, other stride 1), on hardware that has them, and is "round_robin" for the others. "auto" takes the
            fastest of them; on CPU tensors it computes with torch, where naming a method runs that kernel in Triton's
            interpreter.
        out_dtype: float16, bfloat16 or float32. Default: the operands' dtype, and bfloat16 for float8_e4m3fn.
        precision: for float32 operands, "ieee" multiplies in full float32, "tf32" on tensor cores with 10 bits of
            mantissa. Sums are float32 in any case and rounded once.
        out: G matrices (M_i, N_i) of out_dtype to write to, any strides; not with gradients.
        config: block sizes and launch parameters instead of the chosen ones (``GemmConfig`` says which are valid).

    Returns:
        List of G matrices (M_i, N_i); those of ``out`` if it was given. K_i of 0 gives zeros.

    Raises:
        TypeError: an argument is not a sequence of tensors, or of an unsupported or mixed dtype.
        ValueError: lengths, shapes or devices do not fit, or a name is unknown.
        RuntimeError: called while a CUDA graph is being captured (capture a plan's ``run`` instead), or with ``out``
            on dual tensors of forward-mode differentiation or under ``torch.func``, or the process cannot run kernels.

    Notes:
        Differentiable in both modes, to any order, under ``torch.func``, too; gradients are grouped GEMMs of the same
        method, over transposed views. ``torch.func.vmap`` makes one launch of all elements of the batch.
        Tensors that kernels cannot read (meta tensors, subclasses with ``__torch_dispatch__``, such as DTensor, and
        those that ``functionalize`` and ``make_fx`` trace) are multiplied by torch, and only where ``method`` is
        "auto"; so are all in forward mode within forward mode. So are the derivatives of ``is_grads_batched``, whatever
        the method.
        Under ``torch.autocast``, float16, bfloat16 and float32 operands are cast to its dtype, as those of
        ``torch.matmul`` are; not where ``out`` is given. A plan is made for fixed memory and casts nothing.
        Under ``torch.compile``, kernels are launched between two graphs, which ``fullgraph=True`` does not allow.
        Deterministic bit for bit.
        Each call builds the tables anew and sends them in one copy; for repeated calls on the same memory keep a
        ``GroupGemmPlan``. Interface: Triton's grouped GEMM tutorial.
    """
    return _multiply(group_A, group_B, Settings.checked(method, out_dtype, precision, config), out)


@runtime.outside_graphs("group_gemm builds tables of addresses between two graphs")
def _multiply(group_A: Matrices, group_B: Matrices, settings: Settings, out: Matrices | None) -> list[torch.Tensor]:
    """The products, in any of torch's contexts."""
    group_A, group_B = check_operands(group_A, group_B, settings.precision, autocasts=out is None)
    if out is not None:
        refuse_tangents("group_gemm with out", *group_A, *group_B, instead="call it without out")
        if functorch_level() is not None:
            raise RuntimeError("out must be None under torch.func, which does not notice writes to it")
    elif group_A:
        if wants_function():
            return list(_GroupGemm.apply(settings, *group_A, *group_B))
        if functorch_level() is not None or is_traced() or not all(map(has_memory, (*group_A, *group_B))):
            return _by_torch(group_A, group_B, settings)
        if is_profiling():
            with torch.profiler.record_function("course_kernels::group_gemm"):
                return _differentiable(group_A, group_B, settings, out)
    return _differentiable(group_A, group_B, settings, out)


def _differentiable(group_A, group_B, settings: Settings, out) -> list[torch.Tensor]:
    """The products of checked operands, with what their gradients need."""
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (*group_A, *group_B))
    if not needs_grad:
        return _compute(group_A, group_B, settings, out)
    if out is not None:
        raise ValueError("out cannot be given when an operand requires a gradient: detach the operands, or omit out")
    if group_A[0].dtype == FP8:
        raise TypeError("group_A and group_B of float8_e4m3fn have no gradient; multiply in a wider dtype, or detach")
    return list(_GroupGemm.apply(settings, *group_A, *group_B))


class GroupGemmPlan:
    """A grouped GEMM on fixed memory, prepared once: ``run`` launches and does nothing else.

    >>> a = torch.ones(2, 16)
    >>> plan = GroupGemmPlan([a], [torch.ones(16, 3)])
    >>> plan.run()
    [tensor([[16., 16., 16.],
            [16., 16., 16.]])]
    >>> a[0] = 2.0
    >>> plan.run()[0][0]  # reads the same memory again
    tensor([32., 32., 32.])

    The plan holds its operands and outputs and their memory. What the operands contain may change between runs; ``run``
    reads it afresh and overwrites the same outputs, recording no gradients. Their memory may not change: ``run``
    refuses operands and outputs that have been given another (by ``x.data = ...``, ``set_`` or ``resize_``). It does
    not notice other shapes or strides of the same memory, and a replay of a CUDA graph notices nothing.

    ``run`` can be captured in a CUDA graph. Runs of one plan must not overlap in time (on two streams, say): they share
    outputs and, for the dynamic schedule, a counter. Tables are sent on the stream that is current when the plan is
    made: another stream has to wait for that one before it runs the plan, as for any tensor, and the plan has to live
    until its last run has ended. A plan cannot be copied or pickled.

    Args:
        programs: number of programs of a grouped launch. Default: as many as the GPU's SMs hold.
        record: keep each tile's program, and on a GPU its SM, start and end, in each launch's ``records`` (see
            ``kernels.record``).

        The other arguments, and errors, are those of ``group_gemm``; ``out`` is allocated when not given. On CPU
        tensors, "auto" means the kernel that an H200 would run, in the interpreter.

    Attributes:
        out: list of G output matrices (M_i, N_i).
        launches: one ``Launch`` per kernel launch of ``run``, in order.
    """

    def __init__(
        self,
        group_A: Matrices,
        group_B: Matrices,
        *,
        method: Method = "auto",
        out_dtype: torch.dtype | None = None,
        precision: Precision = "ieee",
        out: Matrices | None = None,
        config: GemmConfig | None = None,
        programs: int | None = None,
        record: bool = False,
    ) -> None:
        check_flags(record=record)
        if programs is not None and (type(programs) is not int or programs < 1):
            raise ValueError(f"programs must be a positive integer, got {programs!r}")
        made = _plan(group_A, group_B, out, Settings.checked(method, out_dtype, precision, config), programs, record)
        self.out: list[torch.Tensor] = made[0]
        self._operands, self._prepared = made[1:]

    def run(self) -> list[torch.Tensor]:
        """Compute all products from the operands' present contents. Returns ``out``.

        Raises:
            RuntimeError: an operand or output has other memory than when the plan was made.
        """
        self._enqueue()
        return self.out

    @runtime.outside_graphs("a GroupGemmPlan launches its kernels between two graphs")
    def _enqueue(self) -> None:
        _launch(self._prepared, *self._operands, self.out)

    __call__ = run

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse ``copy.copy``, ``copy.deepcopy`` and ``pickle``.

        Raises:
            TypeError: always.
        """
        raise TypeError("a GroupGemmPlan cannot be copied or pickled, for it consists of addresses: make a new plan")

    @property
    def launches(self) -> list[Launch]:
        """One ``launch.Launch`` per kernel launch of ``run``, in order."""
        return self._prepared.launches

    def __repr__(self) -> str:
        lines = "".join(f"\n  {launch}" for launch in self.launches)
        problems = f"{len(self.out)} problem{'s' * (len(self.out) != 1)}"
        return f"GroupGemmPlan of {problems}, {len(self.launches)} launch{'es' * (len(self.launches) != 1)}:{lines}"


def _compute(group_A, group_B, settings: Settings, out) -> list[torch.Tensor]:
    out = prepare_out(group_A, group_B, settings, out)
    if not group_A:
        return out
    device = group_A[0].device
    if device.type == "cpu" and settings.method == "auto":
        with torch.autocast("cpu", enabled=False):  # it would round the widened operands again
            for a, b, c in zip(group_A, group_B, out):
                c.copy_(a.float() @ b.float())
        return out
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "group_gemm sends tables from the host, which a CUDA graph cannot replay: make a GroupGemmPlan before the "
            "capture and capture its run()"
        )
    _launch(_prepare(group_A, group_B, out, settings), group_A, group_B, out)
    return out


_library = torch.library.Library("course_kernels", "FRAGMENT")
_library.define("group_gemm_out(Tensor[] group_A, Tensor[] group_B, Tensor(a!)[] out, int prepared) -> ()")
_running: dict[int, Prepared] = {}


def _launch(prepared: Prepared, group_A, group_B, out) -> None:
    """Enqueue the launches: as an operator where modes want to see one."""
    if not has_modes():
        prepared.run()
        return
    flops.register()
    key = id(prepared)
    _running[key] = prepared
    try:
        torch.ops.course_kernels.group_gemm_out(list(group_A), list(group_B), list(out), key)
    finally:
        _running.pop(key, None)


_library.impl("group_gemm_out", lambda _A, _B, _out, key: _running[key].run(), "CompositeExplicitAutograd")


def _by_torch(group_A, group_B, settings: Settings) -> list[torch.Tensor]:
    """The products by torch's own operations, for tensors that have no memory for kernels to read."""
    if settings.method != "auto":
        raise TypeError(
            f"method must be 'auto' for meta tensors, subclasses (fake tensors among them), make_fx, torch.export, "
            f"jit.trace, functionalize and forward mode in forward mode, got {settings.method!r}: kernels cannot read "
            "such matrices"
        )
    sharded = list(map(is_sharded, (*group_A, *group_B)))
    if any(sharded) and not all(sharded):
        raise TypeError(
            "group_A and group_B must be DTensors or local tensors, got both: distribute the local ones, or pass those "
            "of to_local()"
        )
    dtype = settings.result_dtype(group_A[0].dtype)
    kind = "cpu" if group_A[0].is_meta else group_A[0].device.type
    with torch.autocast(kind, enabled=False):  # it would round the widened operands again
        return [(a.float() @ b.float()).to(dtype) for a, b in zip(group_A, group_B)]


@runtime.outside_graphs("a GroupGemmPlan is made between two graphs")
def _plan(group_A, group_B, out, settings: Settings, programs, record) -> tuple:
    """A plan's outputs, operands and launches."""
    if torch.compiler.is_exporting() or functorch_level() is not None or is_traced():
        raise RuntimeError(
            "a GroupGemmPlan consists of addresses, which torch.export, torch.func, make_fx and jit.trace do not "
            "have: use group_gemm there"
        )
    operands = check_operands(group_A, group_B, settings.precision)
    out = prepare_out(*operands, settings, out)
    return out, operands, _prepare(*operands, out, settings, programs, record, kept=True)


def _prepare(group_A, group_B, out, settings, programs=None, record=False, kept=False):
    """``launch.prepare``, imported when first needed."""
    if group_A:  # before triton is imported, which fails with less to say where numpy is missing
        if group_A[0].is_meta:
            raise ValueError("group_A must have memory that kernels can read, got meta tensors")
        runtime.check_can_launch(group_A[0].device)
    from course_kernels.lists import launch

    return launch.prepare(group_A, group_B, out, settings, programs, record, kept)


class _GroupGemm(torch.autograd.Function):
    """dA_i = dC_i @ B_iᵀ and dB_i = A_iᵀ @ dC_i, each again a grouped GEMM over views."""

    @staticmethod
    def forward(settings, *operands):
        half = len(operands) // 2
        return tuple(_compute(operands[:half], operands[half:], settings, None))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.settings, *operands = inputs
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)

    @staticmethod
    def backward(ctx, *grads):
        settings, operands = ctx.settings, ctx.saved_tensors
        half = len(operands) // 2
        group_A, group_B = operands[:half], operands[half:]
        dtype = group_A[0].dtype
        grads = [grad.to(dtype).resolve_neg() for grad in grads]
        # What sum() hands back is one element, expanded: worth a copy, since no descriptor reads strides of 0.
        grads = [grad.contiguous() if 0 in grad.stride() else grad for grad in grads]
        need_A, need_B = ctx.needs_input_grad[1 : half + 1], ctx.needs_input_grad[half + 1 :]

        plain = dataclasses.replace(settings, out_dtype=None)  # a gradient has its operand's dtype
        batched = any(map(is_batched_by_autograd, grads))  # is_grads_batched adds a dimension that kernels do not see

        def grouped(lefts, rights, needed):
            chosen = [i for i in range(half) if needed[i]]
            if not chosen:
                return [None] * half
            pairs = [*map(lefts, chosen)], [*map(rights, chosen)]
            if batched:
                results = _by_torch(*pairs, dataclasses.replace(plain, method="auto"))
            else:
                # apply, not group_gemm: operands are checked, and torch.func wants to see every Function.
                results = _GroupGemm.apply(plain, *pairs[0], *pairs[1])
            table = dict(zip(chosen, results))
            return [table.get(i) for i in range(half)]

        return (
            None,
            *grouped(lambda i: grads[i], lambda i: group_B[i].t(), need_A),
            *grouped(lambda i: group_A[i].t(), lambda i: grads[i], need_B),
        )

    @staticmethod
    def jvp(ctx, _, *tangents):
        """Each operand's tangent times the other operand, summed in float32 and rounded once."""
        operands, half = ctx.saved_tensors, len(tangents) // 2
        dtype = ctx.settings.result_dtype(operands[0].dtype)
        lefts, rights, places = [], [], []
        for i in range(half):
            for a, b in ((tangents[i], operands[half + i]), (operands[i], tangents[half + i])):
                if a is not None and b is not None:
                    lefts.append(a)
                    rights.append(b)
                    places.append(i)
        wide = dataclasses.replace(ctx.settings, out_dtype=torch.float32)
        if any(is_batched_by_autograd(tangent) for tangent in tangents if tangent is not None):
            terms = _by_torch(lefts, rights, dataclasses.replace(wide, method="auto"))
        else:
            terms = _GroupGemm.apply(wide, *lefts, *rights)
        found = [[term for term, place in zip(terms, places) if place == i] for i in range(half)]
        empty = [operands[i].new_zeros(operands[i].shape[0], operands[half + i].shape[1]) for i in range(half)]
        return tuple((sum(each) if each else zeros).to(dtype) for each, zeros in zip(found, empty))

    @staticmethod
    def vmap(info, in_dims, settings, *operands):
        """The elements of the batch become further problems of the same launch."""
        size = info.batch_size
        spread = [
            operand if dim is None else operand.select(dim, i)
            for operand, dim in zip(operands, in_dims[1:])
            for i in range(size)
        ]
        results = _GroupGemm.apply(settings, *spread)
        stacks = tuple(torch.stack(results[i : i + size]) for i in range(0, len(results), size))
        return stacks, (0,) * len(stacks)
