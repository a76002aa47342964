"""Factors of whole lines, and of lines of groups: against their definition, and kernels bit for bit against torch."""

from __future__ import annotations

import contextlib
import functools
from unittest import mock

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_kernels import runtime, to_fp8_then_scaled_grouped_mm
from course_kernels.codegen import Build, compile_many
from course_kernels.codegen.packed import specialize
from course_kernels.fp8 import lines
from course_kernels.fp8.lines import quantize_group_lines, quantize_lines
from course_kernels.kernels import moe_float8
from course_kernels.testing import STRIDES, strided_like
from float8_bits import same

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
if not runtime.supports_fp8():
    pytest.skip("this GPU does not multiply float8_e4m3fn", allow_module_level=True)
DEVICE = runtime.device()
FP8, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OPS = torch.ops.course_kernels
KERNELS = "quantize_rows_kernel", "quantize_group_columns_kernel"  # of moe_float8
backends = pytest.mark.parametrize("backend", ["torch", "triton"])


def ends(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


@backends
def test_lines(backend):
    x = torch.randn(3, 5, 7, device=DEVICE)
    x[0, 0] = 0
    values, factors = quantize_lines(x, FP8, backend=backend)
    assert torch.equal(factors[0, 1:], x[0, 1:].abs().amax(-1) / torch.full((4,), 448.0, device=DEVICE))
    assert not values[0, 0].float().any()
    assert torch.equal(values[2].float(), (x[2] * factors[2].reciprocal()[:, None]).to(FP8).float())


@backends
def test_lines_of_groups(backend):
    x, offs = torch.randn(9, 4, device=DEVICE), ends(2, 2, 7)
    values, factors = quantize_group_lines(x, offs, FP8, backend=backend)
    assert values.shape == (4, 9)
    assert torch.equal(factors[2], x[2:7].abs().amax(0) / torch.full((4,), 448.0, device=DEVICE))
    assert torch.equal(values[:, 2:7].float(), (x[2:7] * factors[2].reciprocal()).to(FP8).float().mT)
    assert not values[:, 7:].float().any()


@pytest.mark.parametrize("dtype", [FP8, E5M2], ids=str)
def test_rounding_is_to_nearest_with_ties_to_even(dtype):
    """All float8 values, what is between them, and their neighbours in float32."""
    values = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    values = values[values.isfinite()].unique()
    between = (values[1:] + values[:-1]) / 2
    above, below = (between.nextafter(torch.tensor(limit)) for limit in (torch.inf, -torch.inf))
    x = torch.cat([values, between, above, below, torch.tensor([-0.0])]).to(DEVICE)
    wanted, one = x.to(dtype), torch.ones(1, device=DEVICE)
    same(quantize_lines(x[None], dtype, backend="triton"), (wanted[None], one))
    same(quantize_group_lines(x[:, None], ends(len(x)), dtype, backend="triton"), (wanted[None], one[None]))


# ---- kernels and torch


def draw(dtype, *shape):
    """Lines of different magnitudes, zeros, and one each of NaN and the infinities."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    x *= 2.0 ** torch.randint(-9, 9, (*shape[:-1], 1), generator=generator)
    x[..., ::7] = 0.0
    for i, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        x[..., i, 2 * i] = value
    return x.to(DEVICE, dtype)


@pytest.mark.parametrize("how", STRIDES)
@pytest.mark.parametrize("shape", [(3, 70, 136), (2, 64, 160), (5, 1100)], ids=str)
def test_kernels_give_the_bits_of_torch(shape, how):
    for source, dtype, power_of_two in (
        (torch.bfloat16, FP8, False), (torch.float16, E5M2, True), (torch.float32, FP8, True),
    ):  # fmt: skip
        x = strided_like(draw(source, *shape), how)
        same(*(quantize_lines(x, dtype, power_of_two, backend) for backend in ("triton", "torch")))
        x = x.flatten(0, -2)
        offs = ends(0, 3, 3, 68, 200, dtype=torch.int64 if power_of_two else torch.int32).clamp(max=len(x) - 1)
        same(*(quantize_group_lines(x, offs, dtype, power_of_two, backend) for backend in ("triton", "torch")))


@pytest.mark.parametrize(("total", "count", "groups"), [(0, 5, 2), (5, 0, 2), (5, 20, 0), (0, 0, 0)])
def test_extents_of_zero(total, count, groups):
    x, offs = torch.ones(total, count, device=DEVICE), ends(*[total] * groups)
    same(*(quantize_group_lines(x, offs, FP8, backend=backend) for backend in ("triton", "torch")))
    for each in (x, x.mT):
        same(*(quantize_lines(each, FP8, backend=backend) for backend in ("triton", "torch")))


def test_other_ranks():
    x = torch.randn(2, 3, 40, 5, device=DEVICE).mT
    for each in (x, x[0, 0, 0], x[:1].expand(4, 3, 5, 40)):
        same(*(quantize_lines(each, FP8, backend=backend) for backend in ("triton", "torch")))


class Made(TorchDispatchMode):
    """Counts the bytes of memory that operations allocate."""

    bytes = 0

    def __torch_dispatch__(self, function, _, args=(), kwargs=None):
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = function(*args, **(kwargs or {}))
        made = [t.untyped_storage() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.bytes += sum(each.nbytes() for each in made if each.data_ptr() not in known)
        return out


@pytest.mark.parametrize("function", [lines._lines, lines._group_lines])
def test_the_host_makes_nothing_but_the_result(function, monkeypatch):
    """No float32 copy of the matrix. Launches do nothing here: the interpreter copies what it is given."""
    for name in KERNELS:
        monkeypatch.setattr(moe_float8, name, mock.MagicMock())
    x = torch.randn(100, 72, device=DEVICE, dtype=torch.float16)
    given = () if function is lines._lines else (ends(3, 40),)
    for each in (x, x.mT, x[::2, ::3]):
        with Made() as made:
            found = function(each, *given, FP8, False, "triton")
        assert made.bytes == sum(t.nbytes for t in found)
        with Made() as made:
            function(each, *given, FP8, False, "torch")
        assert made.bytes > 4 * each.numel(), "torch's operations make float32 copies"


@backends
def test_a_call_rounds_where_it_multiplies(backend, monkeypatch):
    """The layer's backend is that of its four roundings."""
    called = []
    for name in ("_lines_by_torch", "_group_lines_by_torch", "_lines_by_triton", "_group_lines_by_triton"):

        def note(name, function, *given):
            called.append(name)
            return function(*given)

        monkeypatch.setattr(lines, name, functools.partial(note, name, getattr(lines, name)))
    a, b = torch.randn(8, 16, device=DEVICE, requires_grad=True), torch.randn(2, 16, 16, device=DEVICE)
    out = to_fp8_then_scaled_grouped_mm(a, b.requires_grad_(), offs=ends(3, 8), backend=backend)
    out.sum().backward()
    assert called == [f"{each}_by_{backend}" for each in ["_lines"] * 4 + ["_group_lines"] * 2]


# ---- operators


def test_opcheck():
    # The check of the schema itself compares copies of the results, which torch cannot do in float8.
    options = dict(test_utils=("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"))
    for x in (torch.randn(5, 20, device=DEVICE), torch.randn(2, 20, 5, device=DEVICE).mT):
        torch.library.opcheck(OPS.quantize_lines, (x, E5M2, False, "auto"), **options)
    torch.library.opcheck(OPS.quantize_group_lines, (x[0], ends(2, 4), FP8, True, "auto"), **options)


@backends
def test_traced_and_in_torch_func(backend):
    x, offs = torch.randn(2, 6, 20, device=DEVICE), ends(3, 5)

    def call(x):
        return *quantize_lines(x, FP8, True, backend), *quantize_group_lines(x, offs, E5M2, False, backend)

    traced = make_fx(call)(x[0])
    assert {OPS.quantize_lines.default, OPS.quantize_group_lines.default} <= {n.target for n in traced.graph.nodes}
    same(traced(x[0]), call(x[0]))
    batched = torch.func.vmap(call)(x)
    same([each[1] for each in batched], call(x[1]))


# ---- code


def test_what_is_launched_compiles_for_hopper_without_spills():
    """For activations and weights, by their rows and transposed, and for groups of rows; by 16 bits and 32."""
    builds = {}

    class Recorder:
        """Stands for a kernel, and keeps the build that its launch asks for."""

        def __init__(self, name):
            self.name, self.function = name, getattr(moe_float8, name)

        def __getitem__(self, grid):
            return self.launch

        def launch(self, num_warps=4, **arguments):
            given = specialize(self.function, arguments | dict(ROUND=False))
            build = Build(f"{moe_float8.__name__}:{self.name}", *given, num_warps)
            builds[str(build._key())] = build

    with contextlib.ExitStack() as stack:
        for name in KERNELS:
            stack.enter_context(mock.patch.object(moe_float8, name, Recorder(name)))
        stack.enter_context(mock.patch.object(lines, "uses_torch", return_value=False))
        stack.enter_context(mock.patch.object(lines, "readable", lambda x: x))
        for source, dtype, power_of_two in ((torch.bfloat16, FP8, False), (torch.float32, E5M2, True)):
            x = torch.empty(2, 256, 2048, dtype=source)
            for each in (x, x.mT, x[:, :1], x[:, :, 1:-1]):
                quantize_lines(each, dtype, power_of_two)
            quantize_group_lines(x[0], torch.empty(8, dtype=torch.int32), dtype, power_of_two)
    assert len(builds) == 10
    found = compile_many([(each, "sm_90") for each in builds.values()], workers=2)
    assert [each.spills.bytes for each in found] == [0] * 10
