"""The layer in float8, against float64 and bit for bit against the library's own functions, one after another."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import ScalingType

from course_kernels import quantize_1x128, quantize_128x128, runtime, scaled_grouped_mm, to_fp8_then_scaled_grouped_mm
from course_kernels.engine.torch_activations import activate
from course_kernels.fp8.lines import quantize_lines
from course_kernels.moe import ACTIVATIONS, Routing, fp8_layer
from moe_layers import DEVICE, NAMES, Layer, kept_bytes, make, oracle, routing_bytes

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
if not runtime.supports_fp8():
    pytest.skip("this GPU does not multiply float8_e4m3fn", allow_module_level=True)

BACKENDS = ("torch", "triton")
backends = pytest.mark.parametrize("backend", BACKENDS)
RECIPES = ("rowwise", "blockwise")
recipes = pytest.mark.parametrize("recipe", RECIPES)
FP8 = torch.float8_e4m3fn
# The interpreter takes seconds for a step of training: there every pair of parameters, on a GPU every triple.
PAIRS = runtime.mode() == "interpreter"
# A value rounded to three bits of mantissa is off by at most 2**-4 of itself: a value between two powers of two lies
# at most half of 2**-3 of the lower power from a neighbour. Smaller ones than 2**-6 * 448**-1 of a factor's largest are
# off by 2**-10 / 448 of that, which is less than the sums of products feel.
OF_A_VALUE = 2.0**-4


def frozen(made: Layer, recipe: str) -> tuple[Layer, Layer]:
    """The layer with float8 weights, and the same with their values in x's dtype."""
    values, scales, wide = {}, {}, {}
    for name in ("gate_up", "down"):
        weight = made.tensors[name]
        values[name], scales[f"{name}_scale"] = (
            quantize_lines(weight, FP8, backend="torch")
            if recipe == "rowwise"
            else quantize_128x128(weight, backend="torch")
        )
        wide[name] = fp8_layer.dequantized(values[name], scales[f"{name}_scale"], torch.float32)
    return (
        Layer(made.tensors | values, made.ids, made.options | scales),
        Layer(made.tensors | wide, made.ids, made.options),
    )


def bound(layer: Layer, roundings: int) -> torch.Tensor:
    """For each element of the result, the most that roundings of each product's operands may put it off: the layer of
    magnitudes, times what one rounding may put off. Without an activation: relu changes no number by more than its
    argument is changed. What is off twice is less than the quarter that is added."""
    tensors = {name: each.abs() for name, each in layer.exact().tensors.items()}
    magnitudes = Layer(tensors, layer.ids, layer.options)
    return oracle(magnitudes).detach() * ((1 + OF_A_VALUE) ** roundings - 1) + 1e-6


@backends
@recipes
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("weights_on", ["output", "input"])
def test_float8_weights_are_within_what_rounding_allows(backend, recipe, bias, weights_on):
    """Two roundings: of the tokens, and of the activation. Every element is within the sum of its terms' errors."""
    made = make(9, 136, 72, 4, 3, bias=bias, activation="relu", weights_on=weights_on, backend=backend)
    quantized, wide = frozen(made, recipe)
    found, wanted = quantized(), oracle(wide.exact()).detach()
    error = (found.double() - wanted).abs()
    assert (error <= bound(wide, 2)).all()
    assert error.any(), "nothing was rounded"
    assert error.norm() < 0.05 * wanted.norm(), "rounding errors cancel"


@backends
@recipes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_float8_weights_are_the_composition(backend, recipe, dtype):
    """Tokens are rounded, multiplied, activated, rounded, multiplied and summed: with relu all of it is exact, and with
    weights that are powers of two the sum of two is rounded once, by a kernel that fuses as well."""
    made = make(8, 144, 80, 4, 2, dtype=dtype, activation="relu", backend=backend)
    made.tensors["weights"] = made.tensors["weights"].log2().round().exp2()
    quantized, _ = frozen(made, recipe)
    x, gate_up, down, weights = (quantized.tensors[name] for name in NAMES[:4])
    routing = Routing.of(made.ids, 4, backend="torch")
    kinds = (ScalingType.RowWise,) * 2
    if recipe == "blockwise":
        kinds = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128

    def product(rows, weight, scale):
        values, factors = (
            quantize_lines(rows, FP8, backend="torch") if recipe == "rowwise" else quantize_1x128(rows, backend="torch")
        )
        scale = scale if recipe == "rowwise" else scale.mT
        return scaled_grouped_mm(
            values, weight.mT, factors, kinds[0], scale, kinds[1], offs=routing.ends, output_dtype=dtype,
            backend=backend,
        )  # fmt: skip

    pre = product(x[routing.tokens.long()], gate_up, quantized.options["gate_up_scale"])
    result = product(activate(pre, ACTIVATIONS["relu"], False), down, quantized.options["down_scale"])
    wanted = torch.zeros(x.shape, device=DEVICE)
    for j in range(2):
        row = routing.rows[:, j]
        wanted += torch.where((row >= 0)[:, None], result[row.clamp(min=0).long()].float(), 0.0) * weights[:, j, None]
    assert torch.equal(quantized(), wanted.to(dtype))


@pytest.mark.parametrize(
    ("backend", "recipe", "transposed"),
    [
        (backend, recipe, transposed)
        for backend, recipe, transposed in itertools.product(BACKENDS, RECIPES, [False, True])
        if backend == "torch" or not PAIRS or transposed == (recipe == "blockwise")
    ],
)
def test_training_is_the_composition(backend, recipe, transposed):
    """With one choice of weight 1 for each token, the layer is two products of ``to_fp8_then_scaled_grouped_mm``: the
    same bits, forward and backward."""
    made = make(150, 40, 136, 3, 1, dtype=torch.float32, activation="relu", backend=backend)
    made.ids = (torch.arange(150, device=DEVICE) % 4)[:, None]  # a quarter is elsewhere
    made.tensors["weights"] = torch.ones(150, 1, device=DEVICE)
    if transposed:
        for name in ("gate_up", "down"):
            made.tensors[name] = made.tensors[name].mT.contiguous().mT
    mine, other = made.leaves(), made.leaves()
    out = mine(fp8_recipe=recipe)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    out.backward(grad)
    routing = Routing.of(made.ids, 3, backend="torch")
    options = dict(offs=routing.ends, recipe=recipe, backend=backend)
    rows = other.tensors["x"][routing.tokens.long()]
    pre = to_fp8_then_scaled_grouped_mm(rows, other.tensors["gate_up"].mT, **options)
    result = to_fp8_then_scaled_grouped_mm(torch.relu(pre), other.tensors["down"].mT, **options)
    wanted = torch.zeros_like(out).index_add(0, routing.tokens.long(), result)
    wanted.backward(grad)
    assert torch.equal(out, wanted)
    for name in ("x", "gate_up", "down"):
        assert torch.equal(mine.tensors[name].grad, other.tensors[name].grad), name
        assert mine.tensors[name].grad.stride() == made.tensors[name].stride()


TRAINED = [
    ("rowwise", dict(bias=True)), ("blockwise", dict(activation="swiglu_oai", bias=True, concatenated=False)),
    ("rowwise", dict(activation="relu2")), ("blockwise", dict(weights_on="input", bias=True)),
    ("blockwise", dict(dtype=torch.bfloat16)), ("rowwise", dict(dtype=torch.float16)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "recipe", "options"),
    [
        (backend, recipe, options)
        for backend, recipe, (paired, options) in itertools.product(BACKENDS, RECIPES, TRAINED)
        if backend == "torch" or not PAIRS or recipe == paired
    ],
    ids=str,
)
def test_training_is_close_to_float64(backend, recipe, options):
    """Each operand is off by 2**-4 of a value at most, and by a third of that in the mean: of each product two."""
    made = make(21, 136, 72, 4, 3, backend=backend, **options)
    mine, exact = made.leaves(), made.exact()
    out, wanted = mine(fp8_recipe=recipe), oracle(exact)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
    out.backward(grad)
    wanted.backward(grad.double())
    limited = options.get("activation") == "swiglu_oai"  # whose gradient jumps at the limit
    pairs = {"result": (out, wanted)} | {n: (t.grad, exact.tensors[n].grad) for n, t in mine.tensors.items()}
    for name, (one, other) in pairs.items():
        assert one.dtype == made.tensors.get(name, out).dtype
        error = ((one.double() - other).norm() / other.norm()).item()
        assert error < (0.35 if limited and name != "result" else 6 * OF_A_VALUE / 3), f"{name}: {error:.3f}"


@backends
@recipes
def test_gradients_through_float8_weights(backend, recipe):
    """Those of the weights' values, at the argument that the forward computed."""
    quantized, wide = frozen(make(9, 136, 72, 4, 3, bias=True, backend=backend), recipe)
    mine, exact = quantized.leaves("x", "weights", "gate_up_bias", "down_bias"), wide.exact()
    out, wanted = mine(), oracle(exact)
    out.sum().backward()
    wanted.sum().backward()
    for name in ("x", "weights", "gate_up_bias", "down_bias"):
        one, other = mine.tensors[name].grad.double(), exact.tensors[name].grad
        assert (one - other).norm() < 2 * OF_A_VALUE * other.norm(), name
    assert mine.tensors["gate_up"].grad is None


@backends
@recipes
def test_main_grads_are_added_to(backend, recipe):
    made = make(21, 40, 72, 4, 3, backend=backend)
    plain, mine = made.leaves(), made.leaves()
    grads = [torch.full(made.tensors[name].shape, 4.0, device=DEVICE) for name in ("gate_up", "down")]
    plain(fp8_recipe=recipe).sum().backward()
    mine(fp8_recipe=recipe, main_grads=grads).sum().backward()
    for name, grad in zip(("gate_up", "down"), grads):
        assert mine.tensors[name].grad is None
        torch.testing.assert_close(grad, plain.tensors[name].grad + 4, rtol=1e-6, atol=1e-5)


# ---- ids, extents, numbers


@backends
@recipes
@pytest.mark.parametrize(
    "sizes", [(1, 128, 128, 2, 1), (5, 1, 1, 3, 2), (3, 130, 257, 2, 2), (2, 16, 5, 40, 2)], ids=str
)
def test_any_extents(backend, recipe, sizes):
    made = make(*sizes, activation="relu", backend=backend)
    made.ids = torch.arange(sizes[0] * sizes[4], device=DEVICE).reshape(sizes[0], sizes[4]) % sizes[3]
    quantized, wide = frozen(made, recipe)
    assert ((quantized().double() - oracle(wide.exact())).abs() <= bound(wide, 2)).all()
    mine, exact = made.leaves(), made.exact()
    mine(fp8_recipe=recipe).sum().backward()
    oracle(exact).sum().backward()
    # Beside the terms' magnitudes: those of a single number may cancel. No gradient is through more than six roundings.
    terms = Layer({name: each.abs() for name, each in made.tensors.items()}, made.ids, made.options).exact()
    oracle(terms).sum().backward()
    for name, each in mine.gradients().items():
        error = (each.double() - exact.tensors[name].grad).norm()
        assert error <= ((1 + OF_A_VALUE) ** 6 - 1) * terms.tensors[name].grad.norm() + 1e-6, name


@backends
@recipes
def test_no_tokens_no_choices_and_none_here(backend, recipe):
    for made in (make(0, backend=backend), make(4, top_k=1, backend=backend), make(4, backend=backend)):
        if made.ids.shape[0] == 4:
            made.ids[:] = -1
        if made.ids.shape == (4, 1):
            made.ids, made.tensors["weights"] = made.ids[:, :0], made.tensors["weights"][:, :0]
        mine = made.leaves()
        out = mine(fp8_recipe=recipe)
        assert out.shape == made.tensors["x"].shape
        assert not out.any()
        out.sum().backward()
        assert all(grad is not None and not grad.any() for grad in mine.gradients().values())
        assert not frozen(made, recipe)[0]().any()


@backends
@recipes
@pytest.mark.parametrize("weights_on", ["output", "input"])
def test_nothing_of_other_ranks_is_read(backend, recipe, weights_on):
    results = []
    for poison in (float("nan"), 0.0):
        made = make(8, bias=True, weights_on=weights_on, backend=backend)
        made.ids[:] = torch.tensor([0, 3, 0]).tile(8, 1).to(made.ids)
        made.ids[1::2, 1], made.ids[2], made.ids[5] = 5, -1, 2**31 - 1
        foreign = (made.ids < 0) | (made.ids >= 5)
        made.tensors["weights"][foreign] = poison
        made.tensors["x"][foreign.all(1)] = poison
        for name in ("gate_up", "down", "gate_up_bias", "down_bias"):
            made.tensors[name][[1, 2, 4]] = poison
        mine = made.leaves()
        out = mine(fp8_recipe=recipe)
        grad = torch.ones_like(out)
        grad[foreign.all(1)] = poison
        out.backward(grad)
        results.append([out, *mine.gradients().values(), frozen(made, recipe)[0]()])
        assert not results[0][4][foreign].any(), "weights of other ranks have a gradient of 0"
    for one, other in zip(*results):
        assert torch.equal(one, other)


@backends
@recipes
def test_zeros_stay_zeros_and_what_is_not_finite_becomes_nan(backend, recipe):
    made = make(5, 24, 40, 2, 1, backend=backend)
    made.ids[:] = torch.tensor([[0], [1], [0], [1], [0]])
    made.tensors["x"][0] = 0
    made.tensors["x"][1, 3], made.tensors["x"][2, 3] = float("inf"), float("nan")
    quantized, _ = frozen(made, recipe)
    for out in (quantized(), made(fp8_recipe=recipe)):
        assert not out[0].any()
        assert out[1:3].isnan().all()
        assert out[3:].isfinite().all()


def test_recomputation_and_a_routing_made_once():
    made = make(7, 40, 24, 4, 2)
    routing = Routing.of(made.ids, 4)
    plain, mine = made.leaves(), made.leaves()
    plain(fp8_recipe="blockwise").sum().backward()

    def block(*_):
        return mine(fp8_recipe="blockwise", routing=routing)

    torch.utils.checkpoint.checkpoint(block, mine.tensors["x"], use_reentrant=False).sum().backward()
    for one, other in zip(plain.gradients().values(), mine.gradients().values()):
        assert torch.equal(one, other)


def test_autocast_casts_what_is_not_float8():
    made = make(7, 40, 24, 4, 2)
    quantized, _ = frozen(made, "rowwise")
    with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
        found = quantized()
        trained = made(fp8_recipe="rowwise")
    assert found.dtype == trained.dtype == torch.bfloat16
    assert (found.float() - trained.float()).norm() < OF_A_VALUE * found.float().norm()  # weights are bfloat16 before


@recipes
def test_the_backward_keeps_the_argument_and_the_routing_and_no_float8_copy(recipe):
    made = make(dtype=torch.bfloat16, backend="triton", fp8_recipe=recipe).leaves()
    rows = made.ids.numel()
    assert kept_bytes(made) == rows * 80 * 2 + routing_bytes(made)
