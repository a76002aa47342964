"""Float8 values with factors of blocks: the same bit for bit as block by block, whatever the form of the tensor."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from course_kernels import quantize_1x128, quantize_128x128, runtime
from course_kernels.fp8.quantize import quantize_squares
from course_kernels.testing import reference

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
DEVICE = runtime.device()
BACKENDS = ("torch", "triton")
FP8 = torch.float8_e4m3fn
OPS = torch.ops.course_kernels
CPP = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def draw(*shape, dtype=torch.float32, seed=0):
    """Normal values, blocks of different magnitudes, some zeros, values that end in a tie."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-9, 9, shape[:-1] + (1,), generator=generator)
    x[..., ::7] = (x[..., ::7] * 4).round() / 4
    return x.to(dtype).to(DEVICE)


def ends(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def same(found, wanted):
    """Bit for bit, with NaN where there is NaN."""
    for each, want in zip(found, wanted, strict=True):
        assert (each.shape, each.dtype) == (want.shape, want.dtype)
        assert torch.equal(each.float().nan_to_num(7e7), want.float().nan_to_num(7e7))


FORMS = {
    "odd": lambda: draw(5, 300),
    "one row": lambda: draw(1, 128),
    "a column": lambda: draw(3, 1),
    "transposed": lambda: draw(260, 70).mT,
    "a slice": lambda: draw(9, 400)[::2, 3:290],
    "bfloat16": lambda: draw(3, 200, dtype=torch.bfloat16),
    "float16": lambda: draw(3, 200).clamp(-6e4, 6e4).half(),
    "a batch": lambda: draw(2, 3, 150),
    "a transposed batch": lambda: draw(2, 150, 3).mT,
    "four dimensions": lambda: draw(2, 2, 3, 130).transpose(0, 1),
    "no rows": lambda: draw(0, 150),
    "no depth": lambda: draw(3, 0),
    "zeros": lambda: torch.zeros(2, 130, device=DEVICE),
    "one for all": lambda: draw(1, 140).expand(3, 140),
}


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks(backend, form, power_of_two):
    x = FORMS[form]()
    kept = x.clone()
    for function, lines in ((quantize_1x128, 1), (quantize_128x128, 128)):
        q, scale = function(x, power_of_two=power_of_two, backend=backend)
        same((q, scale), reference.quantize(x, lines, power_of_two=power_of_two))
        assert q.stride() == torch.empty_like(x if x.dim() < 4 else x.contiguous()).stride(), (
            "laid out like the operand"
        )
        if lines == 1 and x.shape[-2] > 1 and scale.shape[-1] > 1:
            assert scale.stride(-2) == 1
            assert scale.flatten(0, -2).data_ptr() == scale.data_ptr(), "lines of all groups follow each other"
        assert scale.isfinite().all()
        if q.numel():
            least = q.float().abs().amax() if form == "zeros" else 448 if not power_of_two else 224
            assert q.float().abs().amax() >= least
    assert torch.equal(x, kept)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_squares_with_the_depth_contiguous(monkeypatch, backend, form):
    """The same bits whatever the layout, without a copy where nothing traces."""
    x = FORMS[form]()
    found = quantize_squares(x, backend=backend)
    same(found, quantize_128x128(x, backend=backend))
    assert found[0].is_contiguous()
    if form in ("transposed", "a transposed batch"):
        monkeypatch.setattr(torch.Tensor, "contiguous", lambda *_: pytest.fail("a copy"))
        quantize_squares(x, backend=backend)
        monkeypatch.undo()
    with FakeTensorMode() as mode:
        faked = quantize_squares(mode.from_tensor(x), backend=backend)
    assert [(each.shape, each.stride()) for each in faked] == [(each.shape, each.stride()) for each in found]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "groups",
    [(0, 5, 5, 140, 400), (128, 256, 384), (300,), (127, 128, 129, 130), (), (0, 0), (420,)],
    ids=str,
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_restart_at_groups(backend, groups, dtype):
    x = draw(420, 6).mT
    x[:, groups[-1] if groups else 0 :] = torch.nan  # the tail
    offs = ends(*groups, dtype=dtype)
    q, scale = quantize_1x128(x, offs=offs, backend=backend)
    same((q, scale), reference.quantize(x, offs=offs))
    assert scale.shape == (6, 420 // 128 + len(groups))
    assert q.isnan().sum() == 0
    strided = torch.stack([offs, offs], 1)[:, 0]
    same(quantize_1x128(x, offs=strided, backend=backend, power_of_two=True),
         reference.quantize(x, offs=offs, power_of_two=True))  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_at_the_edges(backend):
    largest = torch.finfo(torch.float32).max
    x = torch.zeros(6, 128, device=DEVICE)
    x[0, 3], x[0, 4] = torch.nan, 2.0
    x[1, 3], x[1, 4], x[1, 5] = torch.inf, -torch.inf, -3.0
    x[2], x[2, 7] = 1.0, largest
    x[3, :2] = torch.tensor([1e-44, -1e-38])
    x[4] = torch.nan
    q, scale = quantize_1x128(x, backend=backend)
    same((q, scale), reference.quantize(x))
    assert scale.isfinite().all()
    assert (scale > 0).all()
    assert q[0].isnan().nonzero().flatten().tolist() == [3]
    assert (q[0, 4].item(), q[1, 5].item(), q[2, 7].item()) == (448, -448, 448)
    assert q[1].isnan().nonzero().flatten().tolist() == [3, 4]
    assert not q[3].float().any(), "too small for a factor of their own"
    assert not q[5].float().any()
    assert q[4].isnan().all()
    same(quantize_128x128(x, backend=backend), reference.quantize(x, 128))


def test_rounding_is_to_nearest_with_ties_to_even():
    """All float8 values, what is between them, and their neighbours in float32."""
    values = torch.arange(256, dtype=torch.uint8).view(FP8).float()
    values = values[values.isfinite()].unique()
    between = (values[1:] + values[:-1]) / 2
    x = torch.cat([values, between, between.nextafter(torch.tensor(torch.inf)),
                   between.nextafter(torch.tensor(-torch.inf))])  # fmt: skip
    x = torch.nn.functional.pad(x, (0, -x.numel() % 127)).view(-1, 127)
    x = torch.nn.functional.pad(x, (0, 1), value=448.0).to(DEVICE)
    for backend in BACKENDS:
        q, scale = quantize_1x128(x, backend=backend)
        assert (scale == 1).all()
        assert torch.equal(q.float(), x.to(FP8).float())


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_around_is_not_touched(backend):
    x = draw(8, 320)[:7, :300]
    x_copy = x.clone()
    q, scale = quantize_1x128(x, backend=backend)
    assert q.is_contiguous()
    same((q, scale), reference.quantize(x_copy))


COMPILERS = ["aot_eager", pytest.param("inductor", marks=CPP)]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_with_sizes_known_only_at_run_time(compiler):
    """With remainders: torch's compiler got some of them wrong on a CPU when it saw the formulas."""

    def layer(x, offs):
        x = x * 2  # the compiler chooses how this one is stored
        calls = quantize_1x128(x), quantize_128x128(x), quantize_128x128(x.mT), quantize_1x128(x, offs=offs)
        return sum(calls, ())

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=compiler)
    offs = ends(3, 130)
    for shape in ((40, 200), (130, 320)):
        found, wanted = compiled(draw(*shape), offs), layer(draw(*shape), offs)
        same(found, wanted)
        assert [each.stride() for each in found] == [each.stride() for each in wanted]
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(draw(260, 131), offs)


@pytest.mark.parametrize("form", ["odd", "transposed", "a batch", "four dimensions", "no rows"])
def test_opcheck(form):
    x = FORMS[form]()
    # The check of the schema itself compares copies of the results, which torch cannot do in float8.
    options = dict(test_utils=("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"))
    torch.library.opcheck(OPS.quantize_128x128, (x, False, "auto"), **options)
    for offs in (None, ends(1, 140) if x.dim() == 2 else None):
        torch.library.opcheck(OPS.quantize_1x128, (x, offs, False, "auto"), **options)


@pytest.mark.parametrize("function", [quantize_1x128, quantize_128x128])
def test_in_torch_func(function):
    x = draw(3, 5, 140)
    same(torch.func.vmap(function)(x), function(x))
    same(torch.func.vmap(function, in_dims=1)(x), function(x.transpose(0, 1)))
    assert not torch.func.grad(lambda x: sum(each.float().sum() for each in function(x)) + x[0, 0, 0])(x)[1:].any()


def test_traced_and_faked_tensors():
    x, offs = draw(4, 200), ends(3, 130)
    traced = make_fx(lambda x, offs: (*quantize_1x128(x, offs=offs), *quantize_128x128(x)))(x, offs)
    targets = {node.target for node in traced.graph.nodes}
    assert {OPS.quantize_1x128.default, OPS.quantize_128x128.default} <= targets
    same(traced(x, offs), (*quantize_1x128(x, offs=offs), *quantize_128x128(x)))
    q, scale = quantize_1x128(x.to("meta"))
    assert (q.shape, q.dtype, scale.shape) == (x.shape, FP8, (4, 2))


def test_no_gradient_is_promised():
    q, scale = quantize_1x128(draw(2, 130).requires_grad_())
    assert not q.requires_grad
    assert not scale.requires_grad


X = draw(4, 140)
ERRORS = {
    "no tensor": (quantize_1x128, dict(x=3), TypeError, ["x", "torch.Tensor", "int"]),
    "integers": (quantize_1x128, dict(x=X.int()), TypeError, ["x", "float16", "int32"]),
    "float8": (quantize_128x128, dict(w=X.to(FP8)), TypeError, ["w", "float16", "float8_e4m3fn"]),
    "a number": (quantize_1x128, dict(x=X[0, 0]), ValueError, ["x", "at least 1", "()"]),
    "a vector": (quantize_128x128, dict(w=X[0]), ValueError, ["w", "at least 2", "(140,)"]),
    "dtype": (quantize_1x128, dict(x=X, dtype=torch.float8_e5m2), TypeError, ["dtype", "e4m3fn", "e5m2"]),
    "backend": (quantize_1x128, dict(x=X, backend="cute"), ValueError, ["backend", "'triton'", "'cute'"]),
    "offs of a batch": (quantize_1x128, dict(x=X[None], offs=ends(3)), ValueError, ["x", "2-D", "(1, 4, 140)"]),
    "offs dtype": (quantize_1x128, dict(x=X, offs=ends(3).float()), TypeError, ["offs", "int32", "float32"]),
    "offs shape": (quantize_1x128, dict(x=X, offs=ends(3)[None]), ValueError, ["offs", "1-D", "(1, 1)"]),
    "offs device": (quantize_1x128, dict(x=X, offs=ends(3).to("meta")), ValueError, ["offs", "device", "meta"]),
}


@pytest.mark.parametrize("what", ERRORS)
def test_bad_input(what):
    function, arguments, error, words = ERRORS[what]
    with pytest.raises(error) as caught:
        function(**arguments)
    assert str(caught.value).startswith(words[0])
    assert all(word in str(caught.value) for word in words)
