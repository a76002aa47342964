"""A layer of few tokens, without routing: the layer's results, whatever ids, strides and options are given."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_kernels import quantize_128x128, runtime
from course_kernels.dtypes import FP8
from course_kernels.fp8.lines import quantize_lines
from course_kernels.moe import api, few_tokens
from course_kernels.moe.activations import activation_of, encode
from course_kernels.moe.form import Form, Operands
from moe_layers import DEVICE, NAMES, assert_near, make, oracle

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
OPTIONS = [
    {},
    dict(bias=True, concatenated=False, activation="swiglu_oai"),
    dict(weights_on="input", bias=True),
    dict(activation="relu2", bias=True),
    dict(activation="geglu_tanh"),
]
# Extents on both sides of the blocks' sizes: 512 and 256 deep, and lines that the last block has not got.
SIZES = [(1, 3, 9, 24, 40), (1, 5, 16, 530, 17), (2, 1, 17, 16, 530), (3, 2, 48, 16, 16)]


@pytest.fixture
def few(monkeypatch):
    """The calls that were computed here, cold and warm."""
    made, genuine = [], few_tokens.FewTokens.forward
    monkeypatch.setattr(few_tokens.FewTokens, "forward", lambda *given: made.append(given) or genuine(*given))
    return made


def layer_of(tokens, top_k, experts, hidden, inner, **options):
    made = make(tokens, hidden, inner, experts, top_k, backend="triton", **options)
    made.ids.copy_(torch.randint(-1, experts + 1, made.ids.shape, generator=torch.Generator().manual_seed(3)))
    made.ids[0, 0] = experts - 1
    if top_k > 1:
        made.ids[0, -1] = experts - 1  # an expert twice
    return made


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "sizes, dtype", [*((each, torch.float32) for each in SIZES), (SIZES[0], torch.float16), (SIZES[0], torch.bfloat16)]
)
def test_the_result(options, sizes, dtype, few):
    made = layer_of(*sizes, dtype=dtype, **options)
    found = made()
    assert_near(found, oracle(made.exact()), dtype)
    assert torch.equal(made(), found)
    assert len(few) == 2


@pytest.mark.parametrize("name", NAMES)
def test_strides(name, few):
    """Weights that are stored transposed, slices of wider tensors, weights of choices in another dtype."""
    made = layer_of(2, 3, 48, 24, 40, bias=True)
    wanted, given = made(), made.tensors[name]
    wide = torch.full((*given.shape[:-1], 3 * given.shape[-1]), float("nan"), dtype=given.dtype, device=DEVICE)
    wide[..., 1::3] = given
    changes = [wide[..., 1::3], given.mT.contiguous().mT]
    for change in changes:
        made.tensors[name] = change
        assert_near(made(), wanted.double(), torch.float32, name)
    made.tensors[name] = given
    made.tensors["weights"] = made.tensors["weights"].bfloat16()
    made.ids = made.ids.int().repeat(2, 2)[::2, ::2] if made.ids.shape[1] == 1 else made.ids.int().mT.contiguous().mT
    assert_near(made(), oracle(made.exact()), torch.float32)
    assert len(few) == 4


def test_what_nobody_chose_is_not_read(few):
    made = layer_of(2, 3, 48, 24, 40, bias=True)
    made.ids[1] = torch.tensor([-1, 48, 7])
    wanted = made()
    others = torch.ones(48, dtype=torch.bool, device=DEVICE)
    others[made.ids[(made.ids >= 0) & (made.ids < 48)].long()] = False
    for name in ("gate_up", "down", "gate_up_bias", "down_bias"):
        made.tensors[name][others] = float("nan")
    made.tensors["weights"][1, :2] = float("nan")
    assert torch.equal(made(), wanted)
    made.ids[1] = 48
    made.tensors["x"][1] = float("nan")
    assert torch.equal(made()[1], torch.zeros(24, device=DEVICE))
    assert len(few) == 3


def test_when(few):
    """One token always; more while at most an eighth of the experts is chosen; never for a backward."""
    for tokens, top_k, experts, taken in ((1, 5, 5, 1), (2, 3, 48, 1), (2, 3, 47, 0), (0, 3, 48, 0), (1, 65, 5, 0)):
        few.clear()
        make(tokens, 16, 16, experts, top_k, backend="triton")()
        assert len(few) == taken, (tokens, top_k, experts)
    few.clear()
    made = make(1, backend="triton")
    made(num_sms=3), made(backend="torch")
    made.leaves("weights")()
    assert not few
    with torch.no_grad():
        made.leaves()()
    assert len(few) == 1


def test_gradients_are_those_of_a_layer_that_keeps_its_argument(few):
    mine, exact = make(1, backend="triton").leaves(), make(1, backend="triton").exact()
    mine().sum().backward()
    oracle(exact).sum().backward()
    for name, grad in mine.gradients().items():
        assert_near(grad, exact.tensors[name].grad, torch.float32, name)
    assert not few


def test_a_warm_call_checks_nothing(few, monkeypatch):
    made = make(1, bias=True, backend="triton")
    wanted = made()
    monkeypatch.setattr(api.checks, "check_operands", None)
    assert torch.equal(made(), wanted)
    assert len(few) == 2


# ---- float8 weights


def in_float8(made, how: str, transposed: bool = False):
    """The layer with float8 weights and their factors, and the same weights in float64."""
    wide, options = made.exact(), {}
    for name in ("gate_up", "down"):
        weight = made.tensors[name].cpu()
        values, scale = quantize_lines(weight, FP8) if how == "rows" else quantize_128x128(weight, backend="torch")
        spread = scale[:, :, None] if how == "rows" else scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
        wide.tensors[name] = (values.double() * spread[:, : weight.shape[1], : weight.shape[2]]).to(DEVICE)
        values = values.mT.contiguous().mT if transposed else values
        made.tensors[name], options[f"{name}_scale"] = values.to(DEVICE), scale.to(DEVICE)
    made.options |= options
    return made, wide


@pytest.mark.parametrize("how", ["rows", "blocks"])
@pytest.mark.parametrize(
    "options, sizes, transposed",
    [
        ({}, (1, 3, 9, 300, 140), False), (dict(bias=True, concatenated=False), (2, 1, 17, 136, 264), False),
        (dict(activation="relu2", weights_on="input"), (1, 2, 4, 40, 300), True),
    ],
)  # fmt: skip
def test_float8_weights_and_tokens_that_are_not_rounded(how, options, sizes, transposed, few):
    made, exact = in_float8(layer_of(*sizes, **options), how, transposed)
    wanted = oracle(exact)
    for _ in range(2):
        assert_near(made(), wanted, torch.float32)
    assert len(few) == 2


def test_factors_of_another_form_have_no_stale_plan(few):
    """Wide ones; and those that ask for a gradient are refused in a warm call, too."""
    made, exact = in_float8(layer_of(1, 3, 9, 300, 140), "blocks")
    made()
    scale = made.options["gate_up_scale"]
    made.options["gate_up_scale"] = scale.repeat_interleave(2, dim=2)[:, :, ::2]
    assert_near(made(), oracle(exact), torch.float32)
    made.options["gate_up_scale"] = scale.clone().requires_grad_()
    with torch.no_grad(), pytest.raises(TypeError, match="gate_up_scale requires a gradient"):
        made()


# ---- as torch sees it


def operator(bias: bool) -> tuple:
    made = make(1, bias=bias)
    form = Form(activation_of("swiglu"), backend="triton")
    return *(made.tensors.get(name) for name in NAMES), made.ids, None, None, encode(form.activation), *form[1:]


@pytest.mark.parametrize("bias", [False, True])
def test_opcheck(bias):
    torch.library.opcheck(torch.ops.course_kernels.moe_feed_forward_few, operator(bias))


def test_compiled(few):
    torch._dynamo.reset()
    made = make(1, backend="triton")
    x, gate_up, down, weights = (made.tensors[name] for name in NAMES[:4])
    compiled = torch.compile(
        lambda x, weights: api.moe_feed_forward(x, gate_up, down, made.ids, weights, backend="triton"),
        fullgraph=True, backend="aot_eager",
    )  # fmt: skip
    assert torch.equal(compiled(x, weights), made())
    assert len(few) == 2
    torch._dynamo.reset()


@pytest.mark.parametrize("strict", [False, True])
def test_a_graph_for_any_number_of_tokens_routes(few, strict):
    class Layer(torch.nn.Module):
        def forward(self, x, gate_up, down, ids, weights):
            return api.moe_feed_forward(x, gate_up, down, ids, weights, backend="triton")

    made = make(4, experts=48)
    x, gate_up, down, weights = (made.tensors[name] for name in NAMES[:4])
    tokens = {0: torch.export.Dim("tokens", min=2, max=64)}
    exported = torch.export.export(
        Layer(), (x, gate_up, down, made.ids, weights), dynamic_shapes=(tokens, None, None, tokens, tokens),
        strict=strict,
    ).module()  # fmt: skip
    found = exported(x[:1].repeat(2, 1), gate_up, down, made.ids[:1].repeat(2, 1), weights[:1].repeat(2, 1))
    assert_near(found[:1], made(backend="triton")[:1].double(), torch.float32)
    assert not few


def test_flops():
    tokens, top_k, hidden, inner = 1, 3, 24, 40
    made = make(tokens, hidden, inner, 5, top_k, backend="triton")
    with FlopCounterMode(display=False) as counter:
        made()
    assert counter.get_total_flops() == 2 * tokens * top_k * hidden * inner * 3


def test_another_gpu_is_the_current_one():
    if runtime.mode() != "gpu" or torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    made = make(1, device="cuda:1", backend="triton")
    wanted = oracle(made.exact())
    for _ in range(2):
        assert_near(made(), wanted, torch.float32)


def test_operands_are_those_of_the_plan():
    """A plan for one stride of ids does not serve another."""
    made = make(1, top_k=2, backend="triton")
    form = Form(activation_of("swiglu"), backend="triton")
    operands = Operands(*(made.tensors[name] for name in NAMES[:4]))
    assert few_tokens.fits(operands, made.ids, form)
    wanted, wide = made(), made.ids.repeat_interleave(2, dim=1)
    wide[:, 1::2] = 99
    made.ids = wide[:, ::2]
    assert torch.equal(made(), wanted)
