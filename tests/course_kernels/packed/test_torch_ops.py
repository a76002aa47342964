"""grouped_mm amid torch's own machinery: operators, compiled callers, autocast, odd tensors."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import forked
from course_kernels import GemmConfig, grouped_mm, runtime, scaled_grouped_mm
from course_kernels.engine import plans as execute
from course_kernels.engine import triton_launch as triton
from course_kernels.engine.options import Options
from course_kernels.engine.product import Product
from course_kernels.packed import torch_ops
from course_kernels.packed.checks import problem_of
from course_kernels.testing import assert_exact, integers, reference
from packed_operands import DEVICE, FP8, MODES, ROW, call, operands, scales, shapes

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SMALL = GemmConfig(16, 16, 16)
OPS = torch.ops.course_kernels


def id_of(value):
    return str(value).removeprefix("torch.")


# ---- operators


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_opcheck(mode, backend):
    a, b, offs, bias = operands(mode, grad=True, bias=True)
    torch.library.opcheck(OPS.grouped_mm, (a, b, offs, bias, None, False, backend, ""))


@pytest.mark.parametrize("dtype, out_dtype", [(torch.float16, torch.float32), (torch.bfloat16, None)], ids=id_of)
def test_opcheck_of_dtypes(dtype, out_dtype):
    a, b, offs, _ = operands("m", dtype, grad=True)
    bias = torch.ones(3, 10, device=DEVICE, requires_grad=True)
    torch.library.opcheck(OPS.grouped_mm, (a, b, offs, bias, out_dtype, True, "torch", ""), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("keep_tail", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_opcheck_of_out(mode, keep_tail):
    a, b, offs, bias = operands(mode, bias=True)
    out = torch.zeros_like(call(a, b, offs, bias))
    arguments = (a, b, offs, bias, None, None, None, out, keep_tail, False, "auto", "", False, "row")
    torch.library.opcheck(OPS.grouped_mm_out, arguments)


@pytest.mark.parametrize("mode", MODES)
def test_opcheck_of_scaled(mode):
    if not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    a, b, offs, bias = operands(mode, FP8, bias=True)
    bias = None if bias is None else bias.bfloat16()
    arguments = (a, b, *scales(mode), offs, bias, torch.bfloat16, False, "auto", "", "row")
    # The check of the schema itself multiplies its copies of the operands, which torch cannot do in float8.
    utilities = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(OPS.scaled_grouped_mm, arguments, test_utils=utilities)
    before = [t.clone() for t in (a, b)]
    OPS.scaled_grouped_mm(*arguments)
    assert all(torch.equal(t.float(), kept.float()) for t, kept in zip((a, b), before))


def test_the_operator_hands_its_configuration_on(monkeypatch):
    seen = []
    genuine = triton.plan
    monkeypatch.setattr(execute, "plans", execute.PlanCache())

    def spy(problem, *rest):
        seen.append(problem.options.config)
        return genuine(problem, *rest)

    monkeypatch.setattr(triton, "plan", spy)
    a, b, offs, _ = operands("m")
    with FlopCounterMode(display=False):
        grouped_mm(a, b, offs=offs, backend="triton", config=SMALL)
    grouped_mm(a, b, offs=offs, backend="triton", config=SMALL)
    assert seen == [SMALL], "one plan serves both"


# ---- torch.compile


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_without_a_graph_break(mode, backend):
    def layer(a, b, offs, bias):
        return call(a * 2, b, offs, bias, backend=backend, config=SMALL).square().sum()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (layer, compiled):
        tensors = operands(mode, grad=True, bias=True)
        total = function(*tensors)
        total.backward()
        grads.append([total.detach(), *(t.grad for t in tensors if t is not None and t.requires_grad)])
    for eager, other in zip(*grads, strict=True):
        assert torch.equal(eager, other)


@pytest.mark.parametrize("mode", ["m", "n", "k"])
@pytest.mark.usefixtures("fresh_compiler")
def test_new_totals_compile_nothing_anew(mode):
    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def layer(a, b, offs):
        return grouped_mm(a, b, offs=offs) + 1

    def run(total, ends):
        a, b, offs, _ = operands(mode, total=total, ends=ends, grad=True)
        got = layer(a, b, offs)
        assert torch.equal(got, call(a, b, offs, None) + 1)
        got.sum().backward()
        first = a.grad
        a.grad = None
        call(a, b, offs, None).sum().backward()
        assert torch.equal(a.grad, first)

    run(20, (5, 5, 17))
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for total, ends in ((21, (1, 9, 21)), (64, (0, 0, 0)), (129, (129, 129, 129)), (33, (11, 22, 33))):
            run(total, ends)
    assert not torch._dynamo.utils.counters["stats"], "a batch was compiled anew"
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_with_numbers_that_change():
    """Of SMs, and of a configuration: Dynamo has symbols for them from the second value on."""
    a, b, offs, _ = operands("m")

    @torch.compile(fullgraph=True, backend="eager")
    def limited(num_sms, block_m):
        config = GemmConfig(block_m=block_m, block_n=16, block_k=16, num_stages=1)
        return grouped_mm(a, b, offs=offs, num_sms=num_sms, config=config, backend="triton")

    for num_sms, block_m in ((2, 16), (3, 32), (4, 64)):
        assert torch.equal(limited(num_sms, block_m), grouped_mm(a, b, offs=offs, backend="triton", config=SMALL))


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_with_out():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(a, b, offs, out):
        return grouped_mm(a * 2, b, offs=offs, out=out, tail="keep") + 1

    a, b, offs, _ = operands("m")
    out = torch.full((20, 10), 7.0, device=DEVICE)
    plus_one = layer(a, b, offs, out)
    wanted = call(a * 2, b, offs, None)
    wanted[17:] = 7
    assert torch.equal(out, wanted)
    assert torch.equal(plus_one, wanted + 1)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_scaled_and_autocast():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def both(a, b, scale_a, scale_b, offs):
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            wide = grouped_mm(a.float(), b.float(), offs=offs)
        return wide, scaled_grouped_mm(a, b, scale_a, ROW, scale_b, ROW, offs=offs)

    if not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    a, b, offs, _ = operands("m", FP8)
    wide, scaled = both(a, b, *scales("m"), offs)
    assert wide.dtype == scaled.dtype == torch.bfloat16
    assert torch.equal(wide, call(a.bfloat16(), b.bfloat16(), offs, None))
    assert torch.equal(scaled, scaled_grouped_mm(a, b, *scales("m")[:1], ROW, *scales("m")[1:], ROW, offs=offs))


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_module():
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(integers((3, 7, 10), torch.float32, 1, device=DEVICE))
            self.bias = torch.nn.Parameter(integers((3, 10), torch.float32, 2, device=DEVICE))

        def forward(self, x, offs):
            return grouped_mm(x, self.weight, offs=offs, bias=self.bias)

    x, _, offs, _ = operands("m")
    module = Experts()
    eager = module(x, offs)
    eager.square().sum().backward()
    grads = [p.grad for p in module.parameters()]
    module.zero_grad()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")(x, offs)
    compiled.square().sum().backward()
    assert torch.equal(eager, compiled)
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), grads))
    with torch.no_grad():  # parameters are tensors like others where nobody asks for gradients
        assert torch.equal(module(x, offs), eager)


@pytest.mark.filterwarnings("ignore")  # torch says that tracing is deprecated, and what it cannot see
def test_traced_program_holds_the_operator():
    a, b, offs, _ = operands("m")
    traced = torch.jit.trace(lambda a, b, offs: grouped_mm(a, b, offs=offs), (a, b, offs))
    assert "course_kernels::grouped_mm" in str(traced.graph)


# ---- what the plain way must not swallow


def test_the_plain_way_is_taken_by_plain_tensors_alone():
    a, b, offs, _ = operands("m")
    assert torch_ops.is_plain(a, b, offs, None)
    assert torch_ops.is_plain(a, torch.nn.Parameter(b), offs, None)
    assert not torch_ops.is_plain(a.to("meta"), b, offs, None)
    with FlopCounterMode(display=False):
        assert not torch_ops.is_plain(a, b, offs, None)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(a)
    assert not torch_ops.is_plain(fake, b, offs, None)
    torch.func.vmap(lambda row: (torch_ops.is_plain(a, b, offs, None), row)[1])(a)
    seen = []
    torch.func.grad(lambda x: (seen.append(torch_ops.is_plain(x, b, offs, None)), x.sum())[1])(a)
    assert seen == [False]


def test_importing_the_library_imports_neither_triton_nor_the_compiler():
    program = (
        "import sys, course_kernels\n"
        "assert not {'triton', 'torch._dynamo', 'torch.utils.flop_counter'} & set(sys.modules)\n"
        "import torch\n"
        "a, b = torch.ones(4, 4, requires_grad=True), torch.ones(1, 4, 4)\n"
        "offs = torch.tensor([4], dtype=torch.int32)\n"
        "course_kernels.grouped_mm(a, b, offs=offs, backend='torch').sum().backward()\n"
        "assert not {'triton', 'torch._dynamo'} & set(sys.modules)\n"
        "import importlib.util\n"
        "importlib.util.find_spec('torch.utils.flop_counter')\n"  # removes our hook, which waits for this import
        "from torch.utils.flop_counter import FlopCounterMode\n"
        "assert not [f for f in sys.meta_path if type(f).__module__.startswith('course_kernels')]\n"
        "with FlopCounterMode(display=False) as counter:\n"
        "    course_kernels.grouped_mm(a, b, offs=offs, backend='torch')\n"
        "assert counter.get_total_flops() == 128, counter.get_total_flops()\n"
    )
    done = forked.run(program)
    assert done.returncode == 0, done.stderr


# ---- autocast


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_casts_operands_and_gradients_come_back_in_their_dtype(backend):
    a, b, offs, bias = operands("m", grad=True, bias=True)
    b = b.detach().half().requires_grad_()  # a mixture, as layers under autocast leave it
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        out = call(a, b, offs, bias, backend=backend)
        assert out.dtype == torch.matmul(a, b[0]).dtype == torch.bfloat16
        assert call(a, b, offs, bias, backend=backend, out_dtype=torch.float32).dtype == torch.float32
    wide = call(a.detach(), b.detach().float(), offs, bias.detach())
    assert torch.equal(out, wide.bfloat16())
    out.sum().backward()
    assert (a.grad.dtype, b.grad.dtype, bias.grad.dtype) == (torch.float32, torch.float16, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
def test_autocast_and_the_dtype_of_a_bias(dtype):
    a, b, offs, _ = operands("m")
    bias = torch.ones(3, 10, dtype=dtype, device=DEVICE)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert torch.equal(call(a, b, offs, bias), call(a.bfloat16(), b.bfloat16(), offs, bias.float()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_rounds_nothing_that_it_does_not_cast(backend):
    # 257 needs 9 bits: bfloat16 would make it 256.
    a, b = torch.full((1, 16, 16), 257.0, device=DEVICE), torch.eye(16, device=DEVICE)[None]
    out = torch.empty_like(a)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        grouped_mm(a, b, out=out, backend=backend)
        assert (grouped_mm(a, b, backend=backend) == 256).all()
    assert torch.equal(out, a)
    a.requires_grad_()
    product = grouped_mm(a, b * 257, backend=backend)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):  # the backward follows the forward outside
        product.backward(torch.ones_like(product))
    assert (a.grad == 257).all()


def test_autocast_leaves_scaled_alone():
    if not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    a, b, offs, _ = operands("m", FP8)
    scale_a, scale_b = scales("m")
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        out = scaled_grouped_mm(a, b, scale_a, ROW, scale_b, ROW, offs=offs)
    assert torch.equal(out, scaled_grouped_mm(a, b, scale_a, ROW, scale_b, ROW, offs=offs))
    assert out.dtype == torch.bfloat16


# ---- tensors without memory


@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=id_of)
@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
@pytest.mark.parametrize("mode", MODES)
def test_meta_and_fake_results_are_like_real_ones(mode, dtype, out_dtype):
    tensors = operands(mode, dtype, bias=True)
    a, b = tensors[0].mT.contiguous().mT, tensors[1]  # strides that the result must not inherit
    real = call(a, b, *tensors[2:], out_dtype=out_dtype)
    meta = [None if t is None else t.to("meta") for t in (a, b, *tensors[2:])]
    with FakeTensorMode() as fake_mode:
        fake = [None if t is None else fake_mode.from_tensor(t) for t in (a, b, *tensors[2:])]
        results = [call(*fake, out_dtype=out_dtype)]
    results.append(call(*meta, out_dtype=out_dtype))
    for result, device in zip(results, (real.device.type, "meta")):
        assert (result.shape, result.stride(), result.dtype) == (real.shape, real.stride(), real.dtype)
        assert result.device.type == device


@pytest.mark.parametrize("mode", MODES)
def test_meta_results_of_scaled(mode):
    a, b, offs, _ = operands(mode, FP8)
    a, b, offs, *both = [None if t is None else t.to("meta") for t in (a, b, offs, *scales(mode))]
    out = scaled_grouped_mm(a, b, both[0], ROW, both[1], ROW, offs=offs)
    assert (out.dtype, out.device.type) == (torch.bfloat16, "meta")
    assert out.shape == problem_of(Product.packed(a, b, offs, None, *both), Options()).out_shape


def test_fake_tensors_reach_no_kernel(monkeypatch):
    monkeypatch.setattr(torch_ops, "execute", lambda *args, **options: pytest.fail("a kernel was called"))
    a, b, offs, _ = operands("m", grad=True)
    with FakeTensorMode() as mode:
        a, b, offs = (mode.from_tensor(t) for t in (a, b, offs))
        grouped_mm(a, b, offs=offs, check=True, backend="triton").sum().backward()
        assert a.grad.shape == a.shape
        grouped_mm(a.detach(), b.detach(), offs=offs, out=torch.empty(20, 10, device=DEVICE))


# ---- lazily negated views


@pytest.mark.parametrize("backend", BACKENDS)
def test_lazily_negated_views(backend):
    """The imaginary part of a conjugate: its memory holds the values with the other sign."""
    a, b, offs, bias = operands("m", bias=True)
    hidden = [torch.complex(t, -t).conj().imag for t in (a, b, bias)]
    assert all(t.is_neg() for t in hidden)
    wanted = call(a, b, offs, bias)
    for pick in itertools.product((False, True), repeat=3):
        one, two, three = (lazy if p else t for p, lazy, t in zip(pick, hidden, (a, b, bias)))
        assert torch.equal(call(one, two, offs, three, backend=backend), wanted)
    a.requires_grad_()
    out = call(a, b, offs, None, backend=backend)
    upstream = integers(out.shape, torch.float32, 9, device=DEVICE)
    (got,) = torch.autograd.grad(out, a, torch.complex(upstream, -upstream).conj().imag, retain_graph=True)
    assert torch.equal(got, torch.autograd.grad(out, a, upstream)[0])


# ---- state and settings around the call


@pytest.mark.parametrize("backend", BACKENDS)
def test_out_is_handed_back_and_its_version_counted(backend):
    a, b, offs, _ = operands("m")
    saved = torch.zeros(20, 10, device=DEVICE)
    assert grouped_mm(a, b, offs=offs, out=saved, backend=backend) is saved
    assert torch.equal(saved, call(a, b, offs, None))
    other = torch.ones(20, 10, device=DEVICE, requires_grad=True)
    loss = (other * saved).sum()  # backward wants what saved holds now
    grouped_mm(a * 2, b, offs=offs, out=saved, backend=backend)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_out_as_torchs_own_products_take_it(backend):
    """A parameter is accepted with gradients off, an inference tensor only in inference mode."""
    a, b, offs, _ = operands("m")
    wanted, parameter = call(a, b, offs, None), torch.nn.Parameter(torch.zeros(20, 10, device=DEVICE))
    with pytest.raises(ValueError, match="out requires a gradient"):
        grouped_mm(a, b, offs=offs, out=parameter, backend=backend)
    with torch.no_grad():
        grouped_mm(a, b, offs=offs, out=parameter, backend=backend)
    assert torch.equal(parameter, wanted)
    with torch.inference_mode():
        out = torch.zeros(20, 10, device=DEVICE)
        grouped_mm(a, b, offs=offs, out=out, backend=backend)
    assert torch.equal(out, wanted)
    with pytest.raises(ValueError, match="out was made in torch"):
        grouped_mm(2 * a, b, offs=offs, out=out, backend=backend)
    assert torch.equal(out, wanted)


def test_inference_mode_and_default_device():
    a, b, offs, _ = operands("m", grad=True)
    with torch.inference_mode():
        out = grouped_mm(a, b, offs=offs)
    assert out.is_inference()
    with torch.device("meta"):
        assert grouped_mm(a, b, offs=offs).device.type == DEVICE.type


def test_gradients_keep_what_they_need_alone():
    a, b, offs, _ = operands("m")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.data_ptr()), t)[1], lambda t: t):
        grouped_mm(a.requires_grad_(), b, offs=offs)
    assert b.data_ptr() in kept
    assert a.data_ptr() not in kept


def test_result_is_the_same_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, generator=generator).to(DEVICE) for s in shapes("m"))
    offs = operands("m")[2]
    first = grouped_mm(a, b, offs=offs)
    assert all(torch.equal(grouped_mm(a, b, offs=offs), first) for _ in range(3))


def test_scaled_is_the_scaled_product():
    if not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    for backend, mode in itertools.product(BACKENDS, MODES):
        a, b, offs, bias = operands(mode, FP8)
        scale_a, scale_b = scales(mode)
        bias = None if mode == "n" else integers((3, 10), torch.float32, 5, device=DEVICE)
        out = scaled_grouped_mm(
            a, b, [scale_a], [ROW], scale_b, ROW, bias=bias, offs=offs, output_dtype=torch.float32, backend=backend,
            contraction_dim=(-1, -2), use_fast_accum=True,
        )  # fmt: skip
        plain = grouped_mm(a.float(), b.float(), offs=offs)
        if mode == "m":
            group = torch.tensor([0] * 5 + [2] * 12 + [0] * 3, device=DEVICE)
            wanted = plain * scale_a[:, None] * scale_b[group] + bias[group]
            wanted[17:] = 0
        elif mode == "n":
            group = torch.tensor([0] * 5 + [2] * 12 + [0] * 3, device=DEVICE)
            wanted = plain * scale_a[group].t() * scale_b
        else:
            wanted = plain * scale_a.view(3, 6, 1) * scale_b.view(3, 1, 10) + bias[:, None]
        assert torch.equal(out, wanted), (backend, mode)
        into = torch.full_like(out, 7)
        same = scaled_grouped_mm(
            a, b, scale_a, ROW, scale_b, ROW, None, None, bias, offs, torch.float32, out=into, backend=backend
        )
        assert same is into
        assert torch.equal(into, out)


def test_exact_against_the_plain_products():
    a, b, _, _ = operands("batch", torch.float16)
    assert_exact(grouped_mm(a, b), a, b)


# ---- torch's settings


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_either_way_to_allow_tf32_is_understood(precision):
    """torch refuses to say by the older setting what the newer one has set."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    a, b = (integers(shape, torch.float32, i, device=DEVICE) for i, shape in enumerate(((10, 16), (2, 16, 8))))
    offs = torch.tensor([4, 10], device=DEVICE)
    matmul.fp32_precision = precision
    try:
        assert runtime.allows_tf32() == (precision == "tf32")
        for backend in ("torch", "triton"):
            out = grouped_mm(a, b, offs=offs, backend=backend)
            assert torch.equal(out.double(), reference.grouped_mm(a, b, offs))
        assert matmul.fp32_precision == precision
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize("out_dtype", [[], {}, "float32", 3])
def test_out_dtype_that_is_none_is_named(out_dtype):
    a, b = (integers(shape, torch.float32, i, device=DEVICE) for i, shape in enumerate(((10, 16), (2, 16, 8))))
    with pytest.raises((TypeError, ValueError), match="out_dtype"):
        grouped_mm(a, b, offs=torch.tensor([4, 10], device=DEVICE), out_dtype=out_dtype)
