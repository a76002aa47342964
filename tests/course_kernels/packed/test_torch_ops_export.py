"""grouped_mm in programs traced once: torch.export, fullgraph, AOTInductor, with sizes known only at run time."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F

from course_kernels import grouped_mm, runtime
from course_kernels.testing import integers
from packed_operands import DEVICE, call, operands

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

OPS = torch.ops.course_kernels
BACKENDS = ("torch", "triton")


class Layer(torch.nn.Module):
    """A module around grouped_mm."""

    def forward(self, a, b, offs):
        return grouped_mm(a, b, offs=offs)


class Experts(torch.nn.Module):
    """A layer whose group ends come from the ids of a router."""

    def __init__(self, multiply=grouped_mm, **options):
        super().__init__()
        self.multiply, self.options = multiply, options
        self.weight = torch.nn.Parameter(integers((4, 16, 8), torch.bfloat16, 1, device=DEVICE))

    def forward(self, x, ids):
        offs = torch.bincount(ids, minlength=4).cumsum(0).to(torch.int32)
        return self.multiply(x[ids.argsort(stable=True)], self.weight, offs=offs, **self.options)


def batch(total=32):
    ids = torch.arange(total, device=DEVICE) * 7 % 4
    return integers((total, 16), torch.bfloat16, 2, device=DEVICE), ids


@pytest.fixture
def unbacked():
    """A fresh compiler that traces sizes known only at run time."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield
    torch._dynamo.reset()


def test_exported_program_holds_the_operator():
    a, b, offs, _ = operands("m")
    dynamic = {"a": {0: torch.export.Dim.DYNAMIC}, "b": None, "offs": None}
    program = torch.export.export(Layer(), (a, b, offs), dynamic_shapes=dynamic)
    assert OPS.grouped_mm.default in [node.target for node in program.graph.nodes]
    longer = operands("m", total=31, ends=(2, 30, 31))[:3]
    assert torch.equal(program.module()(*longer), call(*longer, None))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_exported_with_ends_from_bincount(backend, strict):
    module, longer = Experts(backend=backend), batch(64)
    dynamic = ({0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC})
    program = torch.export.export(module, batch(), dynamic_shapes=dynamic, strict=strict)
    for arguments in (batch(), longer):
        assert torch.equal(program.module()(*arguments), Experts(F.grouped_mm)(*arguments))


@pytest.mark.usefixtures("unbacked")
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_with_ends_from_bincount(backend):
    """Forward and backward in one graph each, as torch's."""
    found = []
    for module in (Experts(F.grouped_mm), torch.compile(Experts(backend=backend), fullgraph=True, backend="aot_eager")):
        x, ids = batch()
        out = module(x.requires_grad_(), ids)
        out.backward(torch.ones_like(out))
        found.append([out.detach(), x.grad, next(module.parameters()).grad])
    assert all(torch.equal(theirs, ours) for theirs, ours in zip(*found, strict=True))


@pytest.mark.usefixtures("unbacked")
def test_compiled_with_other_sizes_known_only_at_run_time():
    """Rows chosen by a mask; in mode "k", two extents that can be compared only at run time; a slice to item()."""

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x, y, one, other, offs):
        rows = grouped_mm(x[one], y.mT.expand(2, *y.mT.shape), offs=offs)
        cut = int(offs[-1])
        return rows, grouped_mm(x[one].mT, y[other], offs=offs), grouped_mm(x[:cut], y.mT[None], offs=offs[-1:])

    x, y = (integers((16, 8), torch.bfloat16, seed, device=DEVICE) for seed in (0, 1))
    one, other = (torch.arange(16, device=DEVICE) % 3 == which for which in (0, 1))
    one[15] = False  # so both masks choose equally many rows
    offs = torch.tensor([2, 5], dtype=torch.int32, device=DEVICE)
    wanted = (
        grouped_mm(x[one], y.mT.expand(2, 8, 16), offs=offs),
        grouped_mm(x[one].mT, y[other], offs=offs),
        grouped_mm(x[:5], y.mT[None], offs=offs[-1:]),
    )
    got = layer(x, y, one, other, offs)
    assert all(torch.equal(ours, other) for ours, other in zip(got, wanted, strict=True))


@pytest.mark.usefixtures("unbacked")
def test_a_rule_broken_at_run_time_raises_an_error():
    """The number of groups is known when the program runs, and checked then."""

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x, weight, ids):
        return grouped_mm(x, weight, offs=torch.bincount(ids).cumsum(0).to(torch.int32))

    x, ids = batch()
    weight = integers((4, 16, 8), torch.bfloat16, 1, device=DEVICE)
    assert torch.equal(layer(x, weight, ids), F.grouped_mm(x, weight, offs=ids.bincount().cumsum(0).to(torch.int32)))
    with pytest.raises((RuntimeError, ValueError), match=r"Runtime assertion|must have one end for each"):
        layer(x, weight, ids.clamp(max=2))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_ahead_of_time(tmp_path):
    """AOTInductor: a package that loads without the module, and finds the operator."""
    layer = Layer()
    arguments, longer = operands("m")[:3], operands("m", total=31, ends=(2, 30, 31))[:3]
    with torch.no_grad():
        program = torch.export.export(layer, arguments, dynamic_shapes=({0: torch.export.Dim("rows")}, None, None))
        package = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(tmp_path / "layer.pt2"),
            # A header compiled in advance serves many kernels; here it would serve one, for 8 s of C++ more.
            inductor_configs={
                "aot_inductor.compile_wrapper_opt_level": "O0",
                "aot_inductor.precompile_headers": False,
                "cpp_cache_precompile_headers": False,
            },
        )
    loaded = torch._inductor.aoti_load_package(package)
    for each in (arguments, longer):
        assert torch.equal(loaded(*each), layer(*each))


# Saved exports hold calls of these. Another schema needs a new minor version, and a line in the changelog.
SCHEMAS = {
    "(Tensor mat_a, Tensor mat_b, Tensor? offs, Tensor? bias, ScalarType? out_dtype, bool check, str backend, "
    "str config) -> Tensor": "grouped_mm",
    "(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, Tensor? offs, Tensor? bias, "
    "ScalarType? output_dtype, bool check, str backend, str config, str scaling) -> Tensor": "scaled_grouped_mm",
    "(Tensor matrix, Tensor offs, str backend) -> Tensor": "group_sums",
    "(Tensor x, Tensor? offs, bool power_of_two, str backend) -> (Tensor, Tensor)": "quantize_1x128",
    "(Tensor w, bool power_of_two, str backend) -> (Tensor, Tensor)": "quantize_128x128",
}


@pytest.mark.parametrize(("schema", "name"), SCHEMAS.items(), ids=SCHEMAS.values())
def test_schemas_stay(schema, name):
    assert str(getattr(OPS, name).default._schema) == f"course_kernels::{name}{schema}"
