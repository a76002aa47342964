"""The Hopper kernel's parts for a layer of experts, against float64: gathered rows of A, activations of the sums, and
their gradients; a bias; and gathered lines along K, of either operand, for the gradients of weights.

What a kernel must not read is NaN, or an index far outside; what it must not write is a canary.
"""

from __future__ import annotations

import pytest
import torch

from course_kernels.engine.hopper import cute
from course_kernels.engine.product import ADD, STORE, Ends, Gated, GatedBackward, Pieces, Product, Store
from course_kernels.kernels.codes import Activation, Function
from course_kernels.kernels.cute_sm90.config import configs_for
from course_kernels.kernels.cute_sm90.form import Form
from hopper_gpu import hopper_gpu

pytestmark = pytest.mark.gpu
SWIGLU = Activation(Function.SILU)
CLAMPED = Activation(Function.SILU, alpha=1.702, limit=1.5, shift=1.0)
ACTIVATIONS = {
    "swiglu": SWIGLU, "clamped": CLAMPED, "geglu": Activation(Function.GELU), "reglu": Activation(Function.RELU),
    "geglu tanh": Activation(Function.GELU_TANH, limit=2.0), "relu2": Activation(Function.RELU2, gated=False),
    "silu": Activation(Function.SILU, gated=False), "gelu": Activation(Function.GELU, gated=False),
}  # fmt: skip
# Empty groups, one row, boundaries of tiles; more groups than a warp has lanes; most rows in one group.
SIZES = {
    "ragged": (0, 300, 1, 128, 0, 129, 77, 0, 64),
    "many": tuple(i % 7 * (i % 3) for i in range(70)),
    "one": (5,),
    "skewed": (1100, 3, 0, 40, 260, 1),
}
TAIL, CANARY = 61, 77.0
EPILOGUES = ("gated", "gated_pre", "gated_backward")


@pytest.fixture
def device():
    return hopper_gpu()


def some(form):
    """Of a form's configurations one with each kind of tiles, schedule and order."""
    found = configs_for(form)
    kinds = {(each.schedule, each.tile_m, each.tile_k, len(each.shapes), each.split_last_wave): each for each in found}
    return [*kinds.values()]


def pairs(*epilogues):
    """Forms with an epilogue and SwiGLU, each with some configurations."""
    forms = [Form(epilogue=each, activation=SWIGLU) for each in epilogues]
    return [pytest.param(form, each, id=f"{form.epilogue}-{each.name}") for form in forms for each in some(form)]


class Made:
    """Operands of a product of a layer, fresh for each, in memory that is watched."""

    def __init__(self, device, sizes, columns, K, dtype=torch.bfloat16, *, gathered, b_major="k", seed=0, wide=True,
                 interleaved=False, bias=None):  # fmt: skip
        """``columns`` of the product; ``wide``: B's strides are larger than they must be; ``bias``: its dtype."""
        self.generator = torch.Generator(device).manual_seed(seed)
        self.device, self.dtype = device, dtype
        rows = sum(sizes)
        self.total, self.used, self.interleaved = rows + TAIL, rows, interleaved
        self.offs = torch.tensor(sizes, device=device).cumsum(0).int()
        tokens = max(rows // 3, 1) + 5 if gathered else self.total
        storage = self.normal(tokens, K + 8)
        storage[:, K:] = float("nan")
        self.a = storage[:, :K]
        self.index = None
        if gathered:
            index = torch.randint(0, tokens - 4, (self.total,), device=device, generator=self.generator).int()
            index[rows:] = 2**30  # nobody may read through it
            self.a[tokens - 4 :] = float("nan")  # nobody names these rows
            self.index = index
        else:
            self.a[rows:] = float("nan")
        shape = (len(sizes), columns, K + 8 * wide) if b_major == "k" else (len(sizes), K, columns + 8 * wide)
        b = self.normal(*shape) / K**0.5
        b[..., K if b_major == "k" else columns :] = float("nan")
        self.b = b[..., :K].mT if b_major == "k" else b[..., :columns]
        self.bias = None
        if bias is not None:
            # Between the columns, before the first group and after the last one there is NaN.
            storage = torch.full((len(sizes) + 2, 2 * columns), float("nan"), dtype=bias, device=device)
            self.bias = storage[1:-1, ::2].normal_(generator=self.generator)

    def normal(self, *shape):
        return torch.randn(shape, device=self.device, generator=self.generator).to(self.dtype)

    def result(self, columns, dtype=None):
        """A result full of canaries, inside of more of them."""
        whole = torch.full((self.total + 2, columns), CANARY, dtype=dtype or self.dtype, device=self.device)
        return whole[1:-1]

    def sums(self):
        """The product's sums in float64, of the rows before the last end."""
        rows = self.a[self.index[: self.used].long()] if self.index is not None else self.a[: self.used]
        found, start = [], 0
        for g, end in enumerate(self.offs.tolist()):
            found.append(rows[start:end].double() @ self.b[g].double())
            if self.bias is not None:
                found[-1] += self.bias[g].double()
            start = end
        return torch.cat(found)


def gate_and_up(sums, activation, interleaved=False):
    """The activation's argument in halves; without a gate it is the first."""
    if not activation.gated:
        return sums, torch.zeros_like(sums)
    return (sums[:, ::2], sums[:, 1::2]) if interleaved else sums.chunk(2, 1)


def activated(activation, gate, up):
    """An activation in float64."""
    if activation.limit is not None:
        gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
    function = {
        Function.SILU: lambda x: x * torch.sigmoid(activation.alpha * x),
        Function.GELU: torch.nn.functional.gelu,
        Function.GELU_TANH: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        Function.RELU: torch.relu,
        Function.RELU2: lambda x: torch.relu(x) ** 2,
    }[activation.function]
    return function(gate) * (up + activation.shift) if activation.gated else function(gate)


def assert_close(found, expected, what, scale=4.0):
    """Equal within a rounding to the result's dtype, and a bit of float32's; nothing after the rows was touched."""
    eps = torch.finfo(found.dtype).eps if found.dtype != torch.float32 else 2.0**-18
    rows = len(expected)
    off = (found[:rows].double() - expected).abs() - 0.5 * eps * expected.abs()
    worst = off.max().item() if off.numel() else 0.0
    assert not found[:rows].isnan().any(), f"{what}: NaN"
    assert worst <= scale * 2.0**-17, f"{what}: {worst:.3g} more than a rounding at {off.argmax().item()}"
    whole = found._base if found._base is not None else found
    assert (whole[0] == CANARY).all(), f"{what}: written before the first row"
    assert (whole[1 + rows :] == CANARY).all(), f"{what}: written after the last row"


def launch(product, out, config):
    form = cute.match_form(product, out)
    assert form is not None
    assert config.why_not(form) is None
    cute.multiply(product, out, form, config)
    return form


def check_forward(made, activation, config, with_pre, repeat=2):
    """The activation, and what it is computed from, against float64."""
    columns = made.b.shape[-1]
    results = []
    for _ in range(repeat):
        pre = made.result(columns) if with_pre else None
        out = made.result(columns // (1 + activation.gated))
        epilogue = Gated(activation, made.interleaved, pre, made.bias)
        launch(Product(made.a, made.b, Ends(made.offs, made.index), epilogue=epilogue), out, config)
        results.append(out.clone())
    assert torch.equal(results[0], results[-1]), "two runs differ"
    gate, up = gate_and_up(made.sums(), activation, made.interleaved)
    if with_pre:
        both = torch.cat((gate, up), 1) if activation.gated else gate
        assert_close(pre, both, "pre")
        gate, up = gate_and_up(pre[: made.used].double(), activation)
    assert_close(out, activated(activation, gate, up), "activation", scale=16.0)


def check_backward(made, activation, config):
    """All four results against autograd in float64."""
    columns, halves = made.b.shape[-1], 1 + activation.gated
    pre = made.normal(made.total, halves * columns)
    pre[made.used :] = float("nan")
    weights = torch.rand(made.total, device=made.device, generator=made.generator)
    weights[made.used :] = float("nan")
    results = []
    for _ in range(2):
        grad, act = made.result(halves * columns), made.result(columns)
        dots = made.result(-(-columns // 32), torch.float32)
        epilogue = GatedBackward(activation, False, pre, weights, act, dots)
        launch(Product(made.a, made.b, Ends(made.offs, made.index), epilogue=epilogue), grad, config)
        results.append([each.clone() for each in (grad, act, dots)])
    assert all(map(torch.equal, *results)), "two runs differ"

    sums, factor = made.sums(), weights[: made.used, None].double()
    argument = pre[: made.used].double().requires_grad_()
    value = activated(activation, *gate_and_up(argument, activation))
    value.backward(sums * factor)
    assert_close(grad, argument.grad, "gradient", scale=16.0)
    assert_close(act, (value * factor).detach(), "activation", scale=16.0)
    row = (sums * value).detach().sum(1)
    assert ((dots[: made.used].double().sum(1) - row).abs() <= 2e-4 + 1e-4 * row.abs()).all(), "dot products"
    whole = dots._base
    assert (whole[0] == CANARY).all(), "dots: written before the first row"
    assert (whole[1 + made.used :] == CANARY).all(), "dots: written after the last row"


def extents(config):
    """Columns of C: of one tile and less; a part of a tile more; several tiles."""
    return 8, 64, config.tile_n // 2 + 24, 3 * config.tile_n + 40


@pytest.mark.parametrize("gathered", [False, True], ids=["tma", "gathered"])
@pytest.mark.parametrize(("form", "config"), pairs("gated", "gated_pre"))
def test_forward(device, form, config, gathered):
    for seed, (name, sizes) in enumerate(SIZES.items()):
        for columns in extents(config):
            made = Made(device, sizes, 2 * columns, 200 if name != "one" else 16, gathered=gathered, seed=seed)
            check_forward(made, SWIGLU, config, form.epilogue == "gated_pre")


@pytest.mark.parametrize("gathered", [False, True], ids=["tma", "gathered"])
@pytest.mark.parametrize(("form", "config"), pairs("gated_backward"))
def test_backward(device, form, config, gathered):
    for seed, (name, sizes) in enumerate(SIZES.items()):
        for columns in extents(config):
            made = Made(device, sizes, columns, 200 if name != "one" else 16, gathered=gathered, seed=seed)
            check_backward(made, SWIGLU, config)


class Late:
    """Rows of A that arrive while a product runs: those of its second pieces, and then the word that they are there.
    Copy engines bring both, from the host's memory."""

    def __init__(self, made, generator):
        offs, rows = made.offs.cpu(), made.used
        begins = torch.cat((offs.new_zeros(1), offs[:-1]))
        middles = begins + ((offs - begins) * torch.rand(len(offs), generator=generator)).int()
        empty = torch.rand(len(offs), generator=generator)
        middles = torch.where(empty < 0.2, begins, torch.where(empty > 0.8, offs, middles))
        starts, ends = torch.cat((begins, middles)), torch.cat((middles, offs))
        tokens, early = len(made.a) - 4, (len(made.a) - 4) // 2
        for begin, middle, end in zip(begins.tolist(), middles.tolist(), offs.tolist()):
            made.index[begin:middle] %= early
            made.index[middle:end] = made.index[middle:end] % (tokens - early) + early
        assert made.index[:rows].max() < tokens
        self.rows, self.word = made.a[early:tokens].cpu().pin_memory(), torch.ones(1, dtype=torch.int32).pin_memory()
        self.goal, self.arrived = made.a[early:tokens], torch.zeros(2, dtype=torch.int32, device=made.device)
        self.pieces = Pieces(starts.to(made.device), ends.to(made.device), self.arrived, 5_000)
        self.stream = torch.cuda.Stream()

    def begin(self):
        self.goal.fill_(float("nan"))
        self.arrived.zero_()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(3_000_000)
            self.goal.copy_(self.rows, non_blocking=True)
            self.arrived[1:].copy_(self.word, non_blocking=True)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_late_rows_are_waited_for(device, epilogue, name):
    generator = torch.Generator().manual_seed(len(name))
    for config in some(Form(epilogue=epilogue, activation=SWIGLU)):
        made = Made(device, SIZES[name], 400, 200, gathered=True)
        made.a = made.a.contiguous()  # as copies bring it
        late, found = Late(made, generator), []
        pre = made.normal(made.total, 800)
        weights = torch.rand(made.total, device=device, generator=made.generator)
        for pieces in (late.pieces, None, late.pieces):
            outs = [made.result(each) for each in (800, 400, 200)]
            rows = Ends(made.offs, made.index, pieces=pieces)
            out, others = outs[2], outs[:1]
            epilogues = Gated(SWIGLU), Gated(SWIGLU, False, outs[1])
            how = dict(zip(EPILOGUES, epilogues)).get(epilogue)
            if how is None:
                dots = made.result(13, torch.float32)
                how, out, others = GatedBackward(SWIGLU, False, pre, weights, outs[1], dots), outs[0], [dots]
            if pieces is not None:
                late.begin()
            form = launch(Product(made.a, made.b, rows, epilogue=how), out, config)
            assert form.rows == ("ends" if pieces is None else "pieces")
            torch.cuda.synchronize()
            found.append([each.clone() for each in (out, outs[1], *others)])
        for each in found[::2]:
            assert all(map(torch.equal, each, found[1])), config.name


def smallest(form):
    """The configuration that compiles fastest."""
    return configs_for(form)[-1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_activations(device, activation, dtype):
    if dtype == torch.float16 and activation != SWIGLU:
        pytest.skip("the arithmetic is that of bfloat16")
    for epilogue in EPILOGUES:
        config = smallest(Form(epilogue=epilogue, activation=activation))
        if epilogue == "gated_backward":
            check_backward(Made(device, SIZES["ragged"], 136, 136, dtype, gathered=True), activation, config)
        else:
            made = Made(device, SIZES["ragged"], 136 * (1 + activation.gated), 136, dtype, gathered=True)
            check_forward(made, activation, config, epilogue == "gated_pre", repeat=1)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_columns_of_weights_contiguous(device, epilogue):
    for config in configs_for(Form("m", "n", epilogue=epilogue, activation=SWIGLU))[::3]:
        if epilogue == "gated_backward":
            check_backward(Made(device, SIZES["ragged"], 200, 200, gathered=True, b_major="n"), SWIGLU, config)
        else:
            made = Made(device, SIZES["ragged"], 400, 200, gathered=True, b_major="n")
            check_forward(made, SWIGLU, config, epilogue == "gated_pre")


BIASES = {"16 bits": torch.bfloat16, "float32": torch.float32}


@pytest.mark.parametrize("gathered", [False, True], ids=["tma", "gathered"])
@pytest.mark.parametrize("bias", [None, *BIASES.values()], ids=str)
def test_gate_and_up_take_turns(device, bias, gathered):
    for config in some(Form(epilogue="gated", activation=SWIGLU)):
        for name, sizes in SIZES.items():
            for columns in extents(config)[:3]:
                made = Made(
                    device, sizes, 2 * columns, 200 if name != "one" else 16, gathered=gathered, interleaved=True,
                    bias=bias,
                )  # fmt: skip
                check_forward(made, CLAMPED, config, False)
    made = Made(device, SIZES["ragged"], 400, 200, gathered=False, interleaved=True)
    pre, out = made.result(400), made.result(200)
    product = Product(made.a, made.b, Ends(made.offs), epilogue=Gated(SWIGLU, True, pre))
    assert cute.match_form(product, out) is None  # it would store pre with the gate's columns first


@pytest.mark.parametrize("gathered", [False, True], ids=["tma", "gathered"])
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize(("form", "config"), pairs("gated", "gated_pre"))
def test_a_bias_before_the_activation(device, form, config, bias, gathered):
    """The stored argument includes it."""
    for seed, (name, sizes) in enumerate(SIZES.items()):
        for columns in extents(config):
            K = 200 if name != "one" else 16
            made = Made(device, sizes, 2 * columns, K, gathered=gathered, seed=seed, bias=bias)
            check_forward(made, CLAMPED, config, form.epilogue == "gated_pre")


@pytest.mark.parametrize("gathered", [False, True], ids=["tma", "gathered"])
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("config", some(Form()), ids=lambda config: config.name)
def test_a_bias_without_an_activation(device, config, bias, gathered):
    """The tail becomes zeros, without the bias; empty groups have no rows to add theirs to."""
    for seed, (name, sizes) in enumerate(SIZES.items()):
        for columns in extents(config):
            made = Made(device, sizes, columns, 200 if name != "one" else 16, gathered=gathered, seed=seed, bias=bias)
            for dtype in (torch.bfloat16, torch.float32):
                out = made.result(columns, dtype)
                out.fill_(float("nan"))
                rows = Ends(made.offs, made.index)
                form = launch(Product(made.a, made.b, rows, epilogue=Store(made.bias)), out, config)
                assert (form.epilogue, form.bias_bytes) == ("store", bias.itemsize)
                assert not out[made.used :].any()
                out[made.used :] = CANARY
                assert_close(out, made.sums(), "product")


@pytest.mark.parametrize("strides", ["one row", "one number", "columns"])
def test_a_bias_of_other_strides(device, strides):
    """One row for all groups, one number for all columns of a group, groups next to each other; in float16, too."""
    for dtype in (torch.bfloat16, torch.float16):
        for epilogue in ("store", "gated_pre"):
            form = Form("m", "n", epilogue=epilogue, activation=SWIGLU if epilogue != "store" else None)
            for config in configs_for(form)[::3]:
                made = Made(device, SIZES["ragged"], 400, 200, dtype, gathered=True, b_major="n", bias=dtype)
                made.bias = {
                    "one row": made.bias[:1].expand(made.bias.shape), "columns": made.bias.mT.contiguous().mT,
                    "one number": made.bias[:, :1].expand(made.bias.shape),
                }[strides]  # fmt: skip
                if epilogue == "gated_pre":
                    check_forward(made, SWIGLU, config, True)
                    continue
                out = made.result(400)
                rows = Ends(made.offs, made.index)
                launch(Product(made.a, made.b, rows, epilogue=Store(made.bias)), out, config)
                out[made.used :] = CANARY
                assert_close(out, made.sums(), "product")


@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_a_bias_of_many_tiles_a_cta(device, bias):
    for epilogue in ("store", "gated", "gated_pre"):
        for config in some(Form(epilogue=epilogue, activation=SWIGLU if epilogue != "store" else None)):
            made = Made(device, SIZES["skewed"], 4096, 1544, gathered=True, bias=bias)
            if epilogue != "store":
                check_forward(made, SWIGLU, config, epilogue == "gated_pre")
                continue
            out = made.result(4096)
            launch(Product(made.a, made.b, Ends(made.offs, made.index), epilogue=Store(made.bias)), out, config)
            out[made.used :] = CANARY
            assert_close(out, made.sums(), "product")


def test_a_bias_is_added_in_float32_to_whole_sums(device):
    """A kernel that began its sum with a large bias would round away the small products that it adds to it."""
    for config in some(Form()):
        made = Made(device, SIZES["ragged"], 264, 2048, gathered=False, bias=torch.float32)
        made.bias.fill_(2.0**12)
        out = made.result(264, torch.float32)
        launch(Product(made.a, made.b, Ends(made.offs), epilogue=Store(made.bias)), out, config)
        difference = (out[: made.used].double() - made.sums()).abs()
        assert difference.max() <= 2.0**-11, config.name  # half of the last bit of 2**12, and the sums' own errors


@pytest.mark.parametrize("config", some(Form()), ids=lambda config: config.name)
def test_gathered_rows(device, config):
    """Without an activation: the tail becomes zeros."""
    for seed, (name, sizes) in enumerate(SIZES.items()):
        made = Made(device, sizes, 264, 520 if name == "skewed" else 72, gathered=True, seed=seed)
        out = made.result(264)
        out.fill_(float("nan"))
        form = launch(Product(made.a, made.b, Ends(made.offs, made.index), epilogue=Store()), out, config)
        assert form.load == "gather"
        assert not out[made.used :].any()
        out[made.used :] = CANARY
        assert_close(out, made.sums(), "product")


@pytest.mark.parametrize("load", ["tma", "gather"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_many_tiles_a_cta_and_many_blocks_a_tile(device, epilogue, load):
    for config in some(Form(epilogue=epilogue, load=load, activation=SWIGLU)):
        made = Made(device, SIZES["skewed"], 4096, 1544, gathered=load == "gather")
        if epilogue == "gated_backward":
            check_backward(made, SWIGLU, config)
        else:
            check_forward(made, SWIGLU, config, epilogue == "gated_pre")


def test_another_index_in_the_same_launch_form(device):
    """One captured graph serves every routing."""
    form = Form(epilogue="gated_pre", load="gather", activation=SWIGLU)
    config = cute.choose(form, 64, (512, 512), 256, 8, cute.gpu_of(device))
    made = Made(device, (64,) * 8, 512, 256, gathered=True)
    pre, out = made.result(512), made.result(256)
    product = Product(made.a, made.b, Ends(made.offs, made.index), epilogue=Gated(SWIGLU, pre=pre))
    launch(product, out, config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(product, out, config)
    made.index[: made.used] = made.index[: made.used].flip(0)
    made.offs.copy_(torch.tensor([0, 200, 200, 201, 300, 301, 500, 512], device=device))
    out.fill_(CANARY)
    pre.fill_(CANARY)
    graph.replay()
    gate, up = gate_and_up(made.sums(), SWIGLU)
    assert_close(pre, torch.cat((gate, up), 1), "pre")
    assert_close(out, activated(SWIGLU, *gate_and_up(pre[: made.used].double(), SWIGLU)), "activation", scale=16.0)


def test_dynamic_order_with_gathering_warps_ends(device):
    """With clusters that have no tile, and with no tiles at all."""
    form = Form(epilogue="gated_pre", load="gather", activation=SWIGLU)
    for config in some(form):
        for sizes in ((0, 0, 0), (1, 0), (0,) * 40 + (3,)):
            check_forward(Made(device, sizes, 64, 64, gathered=True), SWIGLU, config, True)


ALONG_K = {"a": Form("k", "n", load="gather"), "b": Form("k", "n", load="gather_b")}


def some_along_k():
    """Of the configurations along "k" one with each schedule, height, cluster and order."""
    found = configs_for(ALONG_K["a"])
    kinds = {(each.schedule, each.tile_m, each.cluster, each.dynamic): each for each in reversed(found)}
    return [*kinds.values()]


class MadeAlongK:
    """Operands of a weight's gradient: of each line along K, one operand's comes by an index."""

    def __init__(self, device, sizes, rows, columns, operand, dtype=torch.bfloat16, seed=0):
        self.generator = torch.Generator(device).manual_seed(seed)
        self.device, self.dtype, self.operand, self.shape = device, dtype, operand, (len(sizes), rows, columns)
        self.used, total = sum(sizes), sum(sizes) + TAIL
        self.offs = torch.tensor(sizes, device=device).cumsum(0).int()
        tokens = max(self.used // 3, 1) + 5
        gathered, other = (rows, columns) if operand == "a" else (columns, rows)
        self.source, self.other = self.padded(tokens, gathered), self.padded(total, other)
        self.source[tokens - 4 :] = float("nan")  # nobody names these rows
        self.other[self.used :] = float("nan")
        self.index = torch.randint(0, tokens - 4, (total,), device=device, generator=self.generator).int()
        self.index[self.used :] = 2**30  # nobody may read through it

    def padded(self, rows, columns):
        """Random numbers; between the rows there are NaN."""
        storage = torch.randn(rows, columns + 8, device=self.device, generator=self.generator).to(self.dtype)
        storage[:, columns:] = float("nan")
        return storage[:, :columns]

    def product(self, epilogue):
        """The product."""
        left, right = (self.source, self.other) if self.operand == "a" else (self.other, self.source)
        return Product(left.mT, right, Ends(self.offs, self.index, self.operand), epilogue=epilogue)

    def result(self, dtype, fill=None):
        """A result with canaries between its rows, full of random numbers or of ``fill``."""
        groups, rows, columns = self.shape
        out = torch.full((groups, rows, columns + 8), CANARY, dtype=dtype, device=self.device)[..., :columns]
        return out.normal_(generator=self.generator) if fill is None else out.fill_(fill)

    def sums(self):
        """The sums in float64, and those of the products' absolute values."""
        lines = self.source[self.index[: self.used].long()].double(), self.other[: self.used].double()
        left, right = lines if self.operand == "a" else lines[::-1]
        found, sizes, start = [], [], 0
        for end in self.offs.tolist():
            found.append(left[start:end].mT @ right[start:end])
            sizes.append(left[start:end].abs().mT @ right[start:end].abs())
            start = end
        return torch.stack(found), torch.stack(sizes)

    def check(self, config, epilogue, dtype=None):
        """Against float64. A group without lines gets zeros, or stays."""
        dtype = torch.float32 if epilogue is ADD else dtype or self.dtype
        fill = None if epilogue is ADD else float("nan")
        out = self.result(dtype, fill)
        before = out.double() if epilogue is ADD else torch.zeros_like(out, dtype=torch.float64)
        form = launch(self.product(epilogue), out, config)
        assert form.load == ALONG_K[self.operand].load
        self.compare(out, before)
        if epilogue is STORE:
            again = self.result(dtype, fill)
            launch(self.product(epilogue), again, config)
            assert torch.equal(out, again), "two runs differ"

    def compare(self, out, before):
        """Raise unless the sums were added to what was there before."""
        sums, sizes = self.sums()
        expected, eps = before + sums, torch.finfo(out.dtype).eps
        assert not out.isnan().any(), "NaN"
        off = (out.double() - expected).abs() - 0.51 * eps * expected.abs() - 2.0**-18 * sizes
        assert off.max().item() <= 1e-6, f"{off.max().item():.3g} too much at {off.argmax().item()}"
        empty = self.offs.diff(prepend=self.offs.new_zeros(1)) == 0
        assert torch.equal(out[empty].double(), before[empty])
        assert (out._base[..., self.shape[2] :] == CANARY).all(), "written after the last column"


@pytest.mark.parametrize("operand", ALONG_K)
@pytest.mark.parametrize("config", some_along_k(), ids=lambda config: config.name)
def test_gathered_lines_along_k(device, config, operand):
    tall, wide = config.tile_m, config.tile_n
    for seed, sizes in enumerate(SIZES.values()):
        # A tile and less; three rows of tiles, of which the last has no partner, and a part of a column.
        for extents in ((8, 8), (tall // 2 + 24, wide + 40), (2 * tall + 40, 2 * wide + 72)):
            made = MadeAlongK(device, sizes, *extents, operand, seed=seed)
            for epilogue in (STORE, ADD):
                made.check(config, epilogue)


@pytest.mark.parametrize("operand", ALONG_K)
def test_many_tiles_a_cta_and_lines_along_k_of_other_dtypes(device, operand):
    for config in configs_for(ALONG_K[operand])[::5]:
        MadeAlongK(device, SIZES["skewed"], 2056, 4104, operand).check(config, STORE)
    config = configs_for(ALONG_K[operand])[3]
    made = MadeAlongK(device, SIZES["ragged"], 200, 328, operand, torch.float16)
    made.check(config, STORE)
    made.check(config, STORE, torch.float32)


@pytest.mark.parametrize("operand", ALONG_K)
def test_no_lines_along_k_at_all(device, operand):
    """In every order: clusters that have no tile, and no tiles."""
    for config in some_along_k():
        for sizes in ((0, 0, 0), (1, 0), (0,) * 40 + (3,)):
            for epilogue in (STORE, ADD):
                MadeAlongK(device, sizes, 64, 64, operand).check(config, epilogue)


@pytest.mark.parametrize("operand", ALONG_K)
def test_another_index_along_k_in_the_same_launch(device, operand):
    """One captured graph serves every routing, also with ends that are out of range."""
    config = cute.choose(ALONG_K[operand], 64, (256, 512), 0, 8, cute.gpu_of(device))
    made = MadeAlongK(device, (64,) * 8, 256, 512, operand)
    out = made.result(torch.bfloat16, 0.0)
    launch(made.product(STORE), out, config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(made.product(STORE), out, config)
    made.index[: made.used] = made.index[: made.used].flip(0)
    made.offs.copy_(torch.tensor([0, 200, 200, 201, 300, 301, 500, 512], device=device))
    out.fill_(float("nan"))
    graph.replay()
    made.compare(out, torch.zeros_like(out, dtype=torch.float64))
    # The last end is beyond the index: it counts up to there.
    made.index[made.used :], made.other[made.used :] = 0, 0.0
    made.offs[-1] = 2**30
    graph.replay()
    torch.cuda.synchronize()
    made.offs[-1] = made.used
    made.compare(out, torch.zeros_like(out, dtype=torch.float64))
