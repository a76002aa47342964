"""grouped_mm and torch's own: the same where torch accepts the input; each row of the table of differences, both sides.

Every test of a difference begins with torch's half: when torch catches up, it fails there, and the table is due.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from course_kernels import grouped_mm, runtime, scaled_grouped_mm
from course_kernels.testing import integers

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
MODES = ("m", "n", "k", "batch")
# On a GPU torch takes these to its kernels, and to a loop on others; on a CPU it takes all three.
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
DEVICE = runtime.device()
NAN = float("nan")
ROW = F.ScalingType.RowWise
NEWEST = torch.__version__ >= (2, 15)  # where it differs from the versions that the table is of


def id_of(value):
    return str(value).removeprefix("torch.")


def ends(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def shapes(mode, total=32, G=3, M=16, N=24, K=40):
    """Extents that are multiples of 8: what torch wants of 16-bit operands."""
    return {
        "m": ((total, K), (G, K, N)),
        "n": ((G, M, K), (K, total)),
        "k": ((M, total), (total, N)),
        "batch": ((G, M, K), (G, K, N)),
    }[mode]


def operands(mode, dtype=torch.bfloat16, group_ends=(5, 5, 32), layouts=("row", "row")):
    """Whole numbers, so that any order of summation gives the same result, rounded once."""
    if runtime.mode() == "gpu":
        # torch's kernels fault where the ragged extent is the innermost and a group does not start at a multiple of 16
        # bytes: a row of the table.
        group_ends = [-(-end // 8) * 8 for end in group_ends]
    made = []
    for i, (shape, layout) in enumerate(zip(shapes(mode), layouts)):
        values = integers(shape, dtype, i, device=DEVICE)
        if layout == "col":
            values = values.mT.contiguous().mT
        if layout == "padded":
            buffer = torch.full((*shape[:-1], shape[-1] + 16), NAN, dtype=dtype, device=DEVICE)
            buffer[..., : shape[-1]] = values
            values = buffer[..., : shape[-1]]
        made.append(values)
    return (*made, None if mode == "batch" else ends(*group_ends))


# ---- what torch accepts


@pytest.mark.parametrize("layouts", list(itertools.product(("row", "col", "padded"), repeat=2)), ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_same_result(backend, mode, dtype, layouts):
    a, b, offs = operands(mode, dtype, layouts=layouts)
    theirs = F.grouped_mm(a, b, offs=offs)
    ours = grouped_mm(a, b, offs=offs, backend=backend)
    assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16], ids=id_of)
@pytest.mark.parametrize("group_ends", [(0, 0, 32), (32, 32, 32), (1, 2, 32), (0, 32, 32)], ids=str)
@pytest.mark.parametrize("mode", ["m", "n", "k"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_same_result_of_groups(backend, mode, group_ends, out_dtype):
    a, b, offs = operands(mode, group_ends=group_ends)
    theirs = F.grouped_mm(a, b, offs=offs, out_dtype=out_dtype)
    assert torch.equal(grouped_mm(a, b, offs=offs, out_dtype=out_dtype, backend=backend), theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_same_gradients(backend, mode, dtype):
    a, b, offs = operands(mode, dtype)
    results = []
    for function in (F.grouped_mm, lambda *args, **options: grouped_mm(*args, **options, backend=backend)):
        leaves = [t.clone().requires_grad_() for t in (a, b)]
        out = function(*leaves, offs=offs)
        out.backward(integers(out.shape, dtype, 9, device=DEVICE))
        results.append([out.detach(), *(t.grad for t in leaves)])
    for theirs, ours in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def pytorchs_operand(shape, seed, dtype, strided, row_major):
    """Like operands in PyTorch's own tests: every other matrix of a stack and the first half of K, in either order."""
    step = 1 + strided
    *stack, lines, depth = shape
    values = integers(shape, dtype, seed, device=DEVICE)
    buffer = torch.full((*(count * step for count in stack), depth * step, lines), 1.0, device=DEVICE).to(dtype)
    buffer = buffer.mT.contiguous() if row_major else buffer.mT
    view = buffer[..., :depth][::step] if stack else buffer[..., :depth]
    assert view.shape == values.shape
    view.copy_(values)
    return view


def pytorchs_cases(mode, backend, dtype=torch.bfloat16):
    """Operands of test_grouped_gemm_2d_2d and its like: both strides, both orders of either operand."""
    M, N, K, G = 16, 32, 16, 4
    total = {"m": G * M, "n": G * N, "k": G * K, "batch": None}[mode]
    left = {"m": (total, K), "n": (G, M, K), "k": (M, total), "batch": (G, M, K)}[mode]
    right = {"m": (G, N, K), "n": (total, K), "k": (N, total), "batch": (G, N, K)}[mode]
    size = {"m": M, "n": N, "k": K, "batch": 0}[mode]
    offs = None if mode == "batch" else ends(*(size * (g + 1) for g in range(G)))
    interpreted = backend == "triton" and runtime.mode() != "gpu"  # a case of it takes as long as ten of torch's
    for strided, *orders in itertools.product((True,) if interpreted else (False, True), *[(False, True)] * 2):
        a, b = (
            pytorchs_operand(shape, seed, dtype, strided, row_major)
            for seed, (shape, row_major) in enumerate(zip((left, right), orders))
        )
        yield (strided, *orders), a, b, offs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_cases_of_pytorchs_own_tests(backend, mode):
    """The product and both gradients, the second operand handed over transposed."""
    count = 0
    for case, a, b, offs in pytorchs_cases(mode, backend):
        results = []
        for function in (F.grouped_mm, lambda *args, **options: grouped_mm(*args, **options, backend=backend)):
            left, right = (t.detach().requires_grad_() for t in (a, b))
            out = function(left, right.mT, offs=offs, out_dtype=torch.bfloat16)
            out.backward(integers(out.shape, out.dtype, 9, device=DEVICE))
            results.append([out.detach(), left.grad, right.grad])
        assert all(torch.equal(ours, theirs) for theirs, ours in zip(*results, strict=True)), case
        count += 1
    assert count >= 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_scaled_cases_of_pytorchs_own_tests(backend, mode):
    """test_scaled_grouped_gemm_2d_2d and its like: torch itself multiplies float8 on GPUs alone, and the float32
    product of the same views is exact."""
    if not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    for case, a, b, offs in pytorchs_cases(mode, backend, torch.float8_e4m3fn):
        wide = grouped_mm(a.float(), b.float().mT, offs=offs, backend="torch")
        groups = 4
        rows = {"m": (a.shape[0],), "k": (groups * a.shape[0],)}.get(mode, (groups, a.shape[-2]))
        columns = {"n": (b.shape[0],), "k": (groups * b.shape[0],)}.get(mode, (groups, b.shape[-2]))
        factors = torch.full(rows, 2.0, device=DEVICE), torch.full(columns, 0.25, device=DEVICE)
        for fast in (False, True):
            scaled = scaled_grouped_mm(
                a, b.mT, factors[0], ROW, factors[1], ROW, offs=offs, use_fast_accum=fast, backend=backend
            )
            assert torch.equal(scaled, (wide * 0.5).bfloat16()), case


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_result_of_shared_weights_strided_ends_and_negated_views(backend):
    a, b, offs = operands("m")
    shared = b[:1].expand(3, 40, 24)
    strided = ends(5, -1, 5, -1, 32, -1)[::2]
    theirs = F.grouped_mm(a, shared, offs=strided.contiguous())  # a row of the table
    assert torch.equal(grouped_mm(a, shared, offs=strided, backend=backend), theirs)
    negated = torch.complex(*(integers((32, 40), torch.float32, i, device=DEVICE) for i in (0, 1))).conj().imag
    wide = b.float()
    assert negated.is_neg()
    assert torch.equal(grouped_mm(negated, wide, offs=offs, backend=backend), F.grouped_mm(negated, wide, offs=offs))


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_result_of_unaligned_base_addresses(backend):
    if runtime.mode() == "gpu":
        pytest.skip("torch's kernels on a GPU do not check the base address, and fault")
    a, b, offs = operands("m")
    moved = torch.empty(32 * 40 + 1, dtype=a.dtype, device=DEVICE)[1:].view(32, 40).copy_(a)
    assert torch.equal(grouped_mm(moved, b, offs=offs, backend=backend), F.grouped_mm(moved, b, offs=offs))


@pytest.mark.parametrize("surplus", [(8, 0), (0, 8), (16, 8)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_same_result_of_operands_that_differ_in_total_k(backend, surplus):
    a, b, offs = operands("k")
    longer_a = F.pad(a, (0, surplus[0]), value=NAN)
    longer_b = F.pad(b, (0, 0, 0, surplus[1]), value=NAN)
    assert torch.equal(
        grouped_mm(longer_a, longer_b, offs=offs, backend=backend), F.grouped_mm(longer_a, longer_b, offs=offs)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_lies_past_the_last_group_of_mode_k_is_ignored_by_both(backend):
    a, b, offs = operands("k", group_ends=(5, 9, 19))
    last = int(offs[-1])
    a[:, last:] = b[last:] = NAN
    ours = grouped_mm(a, b, offs=offs, backend=backend)
    assert torch.equal(ours, F.grouped_mm(a, b, offs=offs))
    assert not ours.isnan().any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_same_result_of_empty_extents(backend, mode):
    a, b, offs = operands(mode)
    for cut in (
        (a[..., :0], b[..., :0, :], "K"),
        (a, b[..., :0], "N"),
        (a[..., :0, :], b, "M"),
    ):
        if (mode, cut[2]) in (("m", "M"), ("n", "N"), ("k", "K")):  # the shared extent has its ends at 0 then
            offs = ends(0, 0, 0)
        theirs = F.grouped_mm(*cut[:2], offs=offs)
        ours = grouped_mm(*cut[:2], offs=offs, backend=backend)
        assert ours.shape == theirs.shape
        assert torch.equal(ours, theirs)
        offs = operands(mode)[2]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_same_result_under_vmap_and_second_derivatives():
    a, b, offs = operands("m", torch.float32)
    stack = torch.stack([a, -a])
    theirs, ours = (torch.func.vmap(lambda a: f(a, b, offs=offs))(stack) for f in (F.grouped_mm, grouped_mm))  # noqa: B023
    assert torch.equal(ours, theirs)
    results = []
    for function in (F.grouped_mm, grouped_mm):
        leaves = [t.clone().requires_grad_() for t in (a, b)]
        (first,) = torch.autograd.grad(function(*leaves, offs=offs).square().sum(), leaves[:1], create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), leaves))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * theirs.abs().max().item())


def test_both_refuse_positional_offsets():
    a, b, offs = operands("m", torch.float32)
    for function in (F.grouped_mm, grouped_mm):
        with pytest.raises(TypeError, match="positional"):
            function(a, b, offs)


def test_the_arguments_begin_with_torchs():
    for theirs, ours in ((F.grouped_mm, grouped_mm), (F.scaled_grouped_mm, scaled_grouped_mm)):
        wanted = inspect.signature(theirs).parameters
        got = inspect.signature(ours).parameters
        assert list(got)[: len(wanted)] == list(wanted)
        for name, parameter in wanted.items():
            assert (got[name].kind, got[name].default) == (parameter.kind, parameter.default), name
        assert all(p.kind is p.KEYWORD_ONLY for p in list(got.values())[len(wanted) :])


# ---- where they differ: the table in grouped_mm's docstring, row by row


def uninitialised(function):
    """Whether a part of the result is what memory held before: torch can fill fresh memory with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return bool(function().isnan().any())
    finally:
        torch.use_deterministic_algorithms(False)


def tail_of_result():
    a, b, _ = operands("m", torch.float32)
    offs = ends(5, 5, 19)
    shape = (32, 24)
    assert uninitialised(lambda: F.grouped_mm(a, b, offs=offs)[19:])
    assert not uninitialised(lambda: grouped_mm(a, b, offs=offs)[19:])
    assert not grouped_mm(a, b, offs=offs)[19:].any()
    out = torch.full(shape, 7.0, device=DEVICE)
    grouped_mm(a, b, offs=offs, out=out, tail="keep")
    assert (out[19:] == 7).all()
    assert torch.equal(out[:19], F.grouped_mm(a, b, offs=offs)[:19])


def tail_of_gradients():
    a, b, _ = operands("m", torch.float32)
    offs, ones = ends(5, 5, 19), torch.ones(32, 24, device=DEVICE)

    def gradient(function):
        return torch.autograd.grad(function(a.requires_grad_(), b, offs=offs), a, ones)[0][19:]

    assert uninitialised(lambda: gradient(F.grouped_mm))
    assert not uninitialised(lambda: gradient(grouped_mm))
    assert not gradient(grouped_mm).any()


def no_groups():
    a, b, _ = operands("m", torch.float32)
    assert uninitialised(lambda: F.grouped_mm(a, b[:0], offs=ends()))
    assert not grouped_mm(a, b[:0], offs=ends()).any()


def int64_ends():
    a, b, offs = operands("m")
    with pytest.raises(RuntimeError, match="int32"):
        F.grouped_mm(a, b, offs=offs.long())
    assert torch.equal(grouped_mm(a, b, offs=offs.long()), F.grouped_mm(a, b, offs=offs))


def values_of_ends():
    a, b, _ = operands("m")
    if runtime.mode() != "gpu":  # there torch's kernels fault, and the process is done for
        F.grouped_mm(a, b, offs=ends(9, 4, 4))
    grouped_mm(a, b, offs=ends(9, 4, 4))
    with pytest.raises(ValueError, match=r"offs\[1\] = 4 is less than offs\[0\] = 9"):
        grouped_mm(a, b, offs=ends(9, 4, 4), check=True)


def strides():
    a, b, offs = operands("m")
    wide = torch.stack([a, a], dim=-1).flatten(1)[:, ::2]
    odd = F.pad(a, (0, 1))[:, :40]
    expanded = a[:1].expand(32, 40)
    narrow = b[..., :23].contiguous()
    for left, right in ((wide, b), (odd, b), (expanded, b), (a, narrow)):
        with pytest.raises(RuntimeError, match=r"[Ss]trides"):
            F.grouped_mm(left, right, offs=offs)
        copies = left.contiguous(), F.pad(right, (0, 24 - right.shape[-1]))
        wanted = F.grouped_mm(*copies, offs=offs)[:, : right.shape[-1]]
        for backend in BACKENDS:
            assert torch.equal(grouped_mm(left, right, offs=offs, backend=backend), wanted)


def expanded_gradients():
    a, b, offs = operands("m", torch.float32)
    leaf = a.requires_grad_()
    with pytest.raises(RuntimeError, match=r"[Ss]trides"):
        F.grouped_mm(leaf, b, offs=offs).sum().backward()
    grouped_mm(leaf, b, offs=offs).sum().backward()
    wanted = torch.autograd.grad(F.grouped_mm(leaf, b, offs=offs), leaf, torch.ones(32, 24, device=DEVICE))
    assert torch.equal(leaf.grad, wanted[0])


def bias():
    a, b, offs = operands("m")
    made = integers((3, 24), a.dtype, 5, device=DEVICE)
    with pytest.raises(RuntimeError, match="Bias not supported"):
        F.grouped_mm(a, b, offs=offs, bias=made)
    group = torch.searchsorted(offs, torch.arange(32, device=DEVICE), right=True)
    wide = F.grouped_mm(a.float(), b.float(), offs=offs) + made.float()[group]
    assert torch.equal(grouped_mm(a, b, offs=offs, bias=made), wide.bfloat16())


def out_dtype():
    a, b, offs = operands("m")
    for dtype in (torch.float32, torch.float16):
        with pytest.raises(RuntimeError, match="dtype must"):
            F.grouped_mm(a, b, offs=offs, out_dtype=dtype)
        wide = F.grouped_mm(a.float(), b.float(), offs=offs)
        assert torch.equal(grouped_mm(a, b, offs=offs, out_dtype=dtype), wide.to(dtype))


def out_and_tail():
    a, b, offs = operands("m")
    out = torch.empty(32, 24, dtype=a.dtype, device=DEVICE)
    with pytest.raises(TypeError, match="out"):
        F.grouped_mm(a, b, offs=offs, out=out)
    with pytest.raises(TypeError, match="tail"):
        F.grouped_mm(a, b, offs=offs, tail="zero")
    assert grouped_mm(a, b, offs=offs, out=out, tail="keep") is out
    assert torch.equal(out, F.grouped_mm(a, b, offs=offs))


def meta_and_fake_tensors():
    a, b, offs = operands("m", torch.float32)
    meta = a.to("meta"), b.to("meta")

    def refused():
        return nullcontext() if NEWEST else pytest.raises(RuntimeError, match="BF16")

    with refused():
        F.grouped_mm(*meta, offs=offs.to("meta"))
    assert grouped_mm(*meta, offs=offs.to("meta")).shape == (32, 24)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in (a, b, offs)]
        with refused():
            F.grouped_mm(*fake[:2], offs=fake[2])
        assert grouped_mm(*fake[:2], offs=fake[2]).shape == (32, 24)


def flop_counter():
    a, b, offs = operands("m")
    with FlopCounterMode(display=False) as counter:
        F.grouped_mm(a, b, offs=offs)
    assert counter.get_total_flops() == 0
    with FlopCounterMode(display=False) as counter:
        grouped_mm(a, b, offs=offs)
    assert counter.get_total_flops() == 2 * 32 * 40 * 24


def forward_mode():
    a, b, offs = operands("m", torch.float32)
    with pytest.raises(NotImplementedError):
        torch.func.jvp(lambda a: F.grouped_mm(a, b, offs=offs), (a,), (a,))
    _, tangent = torch.func.jvp(lambda a: grouped_mm(a, b, offs=offs), (a,), (a,))
    assert torch.equal(tangent, F.grouped_mm(a, b, offs=offs))
    with pytest.raises(NotImplementedError):
        torch.func.hessian(lambda x: F.grouped_mm(a * x, b, offs=offs).sum())(a[0])


def out_that_is_not_seen():
    """``test_sharding`` tests DTensors."""
    a, b, offs = operands("m", torch.float32)
    out = torch.empty(32, 24, device=DEVICE)
    with pytest.raises(TypeError, match="out"):
        F.grouped_mm(a, b, offs=offs, out=out)
    with pytest.raises(RuntimeError, match=r"out must be None under torch\.func"):
        torch.func.vmap(lambda a: grouped_mm(a, b, offs=offs, out=out))(a[None])


def autocast():
    a, b, offs = operands("m", torch.float32)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert F.grouped_mm(a, b, offs=offs).dtype == torch.float32
        assert (a @ b[0]).dtype == grouped_mm(a, b, offs=offs).dtype == torch.bfloat16


def other_bad_arguments():
    a, b, offs = operands("m")
    for arguments, error in (
        (dict(mat_a=a[0], mat_b=b, offs=offs), ValueError),
        (dict(mat_a=a[:, :32], mat_b=b, offs=offs), ValueError),
        (dict(mat_a=a, mat_b=b, offs=None), ValueError),
        (dict(mat_a=b, mat_b=b.mT, offs=offs), ValueError),
        (dict(mat_a=a, mat_b=b, offs=ends(0, 5, 5, 32)), ValueError),
        (dict(mat_a=a, mat_b=b, offs=offs[None]), ValueError),
        (dict(mat_a=a, mat_b=b, offs=offs.float()), TypeError),
        (dict(mat_a=a, mat_b=b.half(), offs=offs), TypeError),
        (dict(mat_a=a.double(), mat_b=b.double(), offs=offs), TypeError),
        (dict(mat_a=a.int(), mat_b=b.int(), offs=offs), TypeError),
    ):
        with pytest.raises(RuntimeError):
            F.grouped_mm(**arguments)
        with pytest.raises(error):
            grouped_mm(**arguments)
    for arguments in (dict(mat_a=[a], mat_b=b, offs=offs), dict(mat_a=a, mat_b=b, offs=[5, 5, 32])):
        for function in (F.grouped_mm, grouped_mm):
            with pytest.raises(TypeError):
                function(**arguments)


def operator():
    """What a list for selective activation checkpointing names."""
    a, b, offs = operands("m")
    seen = []

    def policy(context, called, *arguments, **options):
        seen.append(called)
        return CheckpointPolicy.MUST_SAVE

    saved = functools.partial(create_selective_checkpoint_contexts, policy)
    for function in (F.grouped_mm, grouped_mm):
        checkpoint(function, a.requires_grad_(), b, offs=offs, use_reentrant=False, context_fn=saved)
    assert seen == [torch.ops.aten._grouped_mm.default, torch.ops.course_kernels.grouped_mm.default]


def rows_on_a_gpu():
    if runtime.mode() != "gpu":
        pytest.skip("needs a GPU: torch pads the rows of a result there alone")
    a, b, offs = operands("m")
    b = b.mT.contiguous().mT[..., :20]
    assert F.grouped_mm(a, b, offs=offs).stride() == (24, 1)
    assert grouped_mm(a, b, offs=offs).stride() == (20, 1)


def torch_alone(code):
    """What torch's grouped_mm does in a process of its own, which a faulting kernel ends."""
    begin = "import torch, torch.nn.functional as F\n"
    begin += "a, b = torch.ones(32, 40, device='cuda').bfloat16(), torch.ones(3, 40, 24, device='cuda').bfloat16()\n"
    begin += "ends = torch.tensor([5, -1, 5, -1, 32, -1], dtype=torch.int32, device='cuda')[::2]\n"
    end = "\nprint('right', bool((out == 40).all()))"
    command = [sys.executable, "-c", begin + code + end]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def starts_on_a_gpu():
    if runtime.mode() != "gpu":
        pytest.skip("needs a GPU: torch's kernels there make descriptors of each group")
    assert torch_alone("out = F.grouped_mm(a, b, offs=ends.contiguous())") == "right True\n"
    assert torch_alone("out = F.grouped_mm(a.mT.contiguous().mT, b, offs=ends.contiguous())") == ""
    a = torch.ones(40, 32, device=DEVICE).bfloat16().mT
    assert (grouped_mm(a, torch.ones(3, 40, 24, device=DEVICE).bfloat16(), offs=ends(5, 5, 32)) == 40).all()


def strided_ends_on_a_gpu():
    a, b = torch.ones(32, 40, device=DEVICE).bfloat16(), torch.ones(3, 40, 24, device=DEVICE).bfloat16()
    strided = ends(5, -1, 5, -1, 32, -1)[::2]
    if runtime.mode() == "gpu":
        assert torch_alone("out = F.grouped_mm(a, b, offs=ends)") != "right True\n"
    elif NEWEST:
        with pytest.raises(RuntimeError, match="stride"):
            F.grouped_mm(a, b, offs=strided)
    else:
        pytest.skip("needs a GPU: torch's kernels there take the ends to be contiguous")
    assert (grouped_mm(a, b, offs=strided) == 40).all()


ROWS = {
    "tail of the result": tail_of_result,
    "tail of the gradients": tail_of_gradients,
    "no groups at all": no_groups,
    "int64 ``offs``": int64_ends,
    "values of ``offs``": values_of_ends,
    "strides": strides,
    "gradient of ``sum()``, or expanded": expanded_gradients,
    "``bias``": bias,
    "``out_dtype`` not the operands'": out_dtype,
    "``out``, ``tail``": out_and_tail,
    "meta and fake tensors": meta_and_fake_tensors,
    "``FlopCounterMode``": flop_counter,
    "forward mode, ``torch.func.hessian``": forward_mode,
    "``out`` of DTensors, or in": out_that_is_not_seen,
    "``torch.autocast``": autocast,
    "other bad arguments": other_bad_arguments,
    "operator": operator,
    "rows of the result, on a GPU": rows_on_a_gpu,
    "groups start, on a GPU": starts_on_a_gpu,
    "strided ``offs``, on a GPU": strided_ends_on_a_gpu,
}


@pytest.mark.parametrize("row", ROWS)
def test_difference(row):
    ROWS[row]()


def test_every_row_of_the_table_is_tested():
    *_, table, _ = re.split(r"^ *=+ +=+ +=+$", inspect.getdoc(grouped_mm), flags=re.MULTILINE)
    lines = inspect.cleandoc(table).splitlines()
    named = [re.split(r"  +", line)[0].split(" (modes")[0] for line in lines if line[:1].strip()]
    assert [name for name in named if name != "``torch.func``"] == list(ROWS)


def test_scaled_needs_a_gpu_there_and_none_here():
    a = integers((32, 48), torch.float8_e4m3fn, 0, device=DEVICE)
    b = integers((3, 32, 48), torch.float8_e4m3fn, 1, device=DEVICE).mT
    scale_a, scale_b, offs = torch.ones(32, device=DEVICE), torch.ones(3, 32, device=DEVICE), ends(5, 5, 32)
    if runtime.mode() != "gpu":
        with pytest.raises(NotImplementedError):
            F.scaled_grouped_mm(a, b, scale_a, ROW, scale_b, ROW, offs=offs)
    elif not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    ours = scaled_grouped_mm(a, b, scale_a, ROW, scale_b, ROW, offs=offs)
    assert torch.equal(ours, grouped_mm(a.bfloat16(), b.bfloat16(), offs=offs))


@pytest.mark.skipif(runtime.mode() != "gpu", reason="torch multiplies float8 on GPUs alone")
@pytest.mark.parametrize("mode", MODES)
def test_same_scaled_result(mode):
    if runtime.capability() not in ((9, 0), (10, 0)):
        pytest.skip("torch multiplies scaled groups on capability 9.0 and 10.0 alone")
    left, right = {
        "m": ((64, 64), (3, 64, 32)), "n": ((3, 32, 64), (64, 64)),
        "k": ((32, 64), (64, 48)), "batch": ((3, 32, 64), (3, 64, 48)),
    }[mode]  # fmt: skip
    a = integers(left, torch.float8_e4m3fn, 0, device=DEVICE)
    b = integers(tuple(right[:-2]) + (right[-1], right[-2]), torch.float8_e4m3fn, 1, device=DEVICE).mT
    count_a = {"m": (64,), "n": (3, 32), "k": (96,), "batch": (3, 32)}[mode]
    count_b = {"m": (3, 32), "n": (64,), "k": (144,), "batch": (3, 48)}[mode]
    scales = [2.0 ** integers(count, torch.float32, i, device=DEVICE) for i, count in enumerate((count_a, count_b))]
    offs = None if mode == "batch" else ends(16, 16, 64)
    arguments = (a, b, scales[0], ROW, scales[1], ROW)
    assert torch.equal(scaled_grouped_mm(*arguments, offs=offs), F.scaled_grouped_mm(*arguments, offs=offs))
