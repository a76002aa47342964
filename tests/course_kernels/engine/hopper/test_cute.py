"""The kernel in CuTe DSL behind grouped_mm: what it takes, what is said where it cannot run; on Hopper, its results."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib

import pytest
import torch

import fuzz
from course_kernels import grouped_mm, runtime, scaled_grouped_mm
from course_kernels.engine import backend_choice
from course_kernels.engine import plans as kept
from course_kernels.engine.hopper import compiled_cache, cute
from course_kernels.engine.options import Options
from course_kernels.engine.product import Product, typical_rows
from course_kernels.engine.signature import signature
from course_kernels.engine.tuning import Extents, Gpu, Kind, time_model
from course_kernels.engine.tuning.configs_by_kind import form_of as form_of_kind
from course_kernels.engine.tuning.kinds import KINDS_OF_LAYER
from course_kernels.kernels.codes import Activation, Function
from course_kernels.kernels.cute_sm90.config import CONFIGS_8_BIT, LARGE_BLOCK_SCALED, configs_for
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.packed import checks
from course_kernels.testing import assert_grouped_exact, integers, reference
from course_kernels.testing.grouped_cases import GroupedCase, build, check
from cute_calls import call, call_scaled, cute_alone, form_of
from hopper_gpu import hopper_gpu
from packed_operands import Operands

GPU = Gpu("sm_90", 132, 4.8)
PLAIN, ROW_MAJOR, ALONG_K = Form(), Form("m", "n"), Form("k", "n")
OF_LINES, OF_BLOCKS = (Form("m", "k", 1, scaling=scaling) for scaling in ("lines", "blocks"))
DEEP_LINES, DEEP_BLOCKS = (each._replace(along="k") for each in (OF_LINES, OF_BLOCKS))
ADDED = ALONG_K._replace(epilogue="add")
FORMS = [PLAIN, ROW_MAJOR, ALONG_K, OF_LINES, OF_BLOCKS, DEEP_LINES, DEEP_BLOCKS, *map(form_of_kind, KINDS_OF_LAYER)]

hopper = pytest.mark.gpu
SIZES = (0, 300, 1, 128, 0, 513, 77, 0)
FP8 = torch.float8_e4m3fn
ROW = torch.nn.functional.ScalingType.RowWise


@pytest.fixture
def device():
    return hopper_gpu()


def operands(total=20, K=24, N=40, G=3, dtype=torch.bfloat16, device="cpu"):
    """mat_a, mat_b, offs and out as the kernel takes them."""
    a = torch.zeros(total, K, dtype=dtype, device=device)
    b = torch.zeros(G, N, K, dtype=dtype, device=device).mT
    offs = torch.zeros(G, dtype=torch.int32, device=device)
    return a, b, offs, torch.zeros(total, N, dtype=dtype, device=device)


def pitched(tensor, pitch, first=0):
    """The tensor with rows ``pitch`` apart, its first element at ``first``."""
    rows, cols = tensor.shape
    return torch.zeros(first + rows * pitch, dtype=tensor.dtype)[first:].as_strided((rows, cols), (pitch, 1), first)


def changed(position, change):
    made = list(operands())
    made[position] = change(made[position])
    return made


def along_k(total=20, M=24, N=40, G=3):
    """The same for the gradient of a weight."""
    a, b = torch.zeros(total, M).bfloat16().mT, torch.zeros(total, N).bfloat16()
    return [a, b, torch.zeros(G, dtype=torch.int32), torch.zeros(G, M, N).bfloat16()]


TAKEN = {
    "as they are": operands(),
    "float16": operands(dtype=torch.float16),
    "one row": operands(total=1),
    "one group": operands(G=1),
    "more extents": operands(total=1000, K=8, N=8, G=70),
    "int64 ends": changed(2, lambda offs: offs.long()),
    "a float32 result": changed(3, lambda out: out.float()),
    "rows of A 16 bytes longer": changed(0, lambda a: pitched(a, 32)),
    "rows of the result 16 bytes longer": changed(3, lambda out: pitched(out, 48)),
    "A at a multiple of 16 bytes": changed(0, lambda a: pitched(a, 24, 8)),
}
NOT_TAKEN = {
    "float32": operands(dtype=torch.float32),
    "K no multiple of 8": operands(K=20),
    "N no multiple of 8": operands(N=36),
    "no rows": operands(total=0),
    "no depth": operands(K=0),
    "no columns": operands(N=0),
    "no groups": operands(G=0),
    "A column-major": changed(0, lambda a: a.mT.contiguous().mT),
    "one B for all groups": changed(1, lambda b: b[:1].expand(3, 24, 40)),
    "one row of A for all": changed(0, lambda a: a[:1].expand(20, 24)),
    "one column of B for all": changed(1, lambda b: b[:, :, :1].expand(3, 24, 40)),
    "groups of B 1 TiB apart": changed(1, lambda b: b[:1].as_strided((1, 24, 40), (2**39, 1, 24))),
    "rows of A off 16 bytes": changed(0, lambda a: pitched(a, 28)),
    "A off 16 bytes": changed(0, lambda a: pitched(a, 24, 4)),
    "rows of the result off 16 bytes": changed(3, lambda out: pitched(out, 44)),
    "result column-major": changed(3, lambda out: out.mT.contiguous().mT),
    "mode n": [torch.zeros(3, 8, 16), torch.zeros(16, 8), operands()[2], torch.zeros(8, 8)],
    "mode k, A row-major": [along_k()[0].contiguous(), *along_k()[1:]],
    "mode k, B column-major": [along_k()[0], along_k()[1].mT.contiguous().mT, *along_k()[2:]],
    "mode k, one line of A for all": [along_k()[0][:, :1].expand(along_k()[0].shape), *along_k()[1:]],
    "mode k, one line of B for all": [along_k()[0], along_k()[1][:1].expand(along_k()[1].shape), *along_k()[2:]],
    "mode k, M no multiple of 8": along_k(M=20),
    "mode k, N no multiple of 8": along_k(N=20),
    "mode k, no depth": along_k(total=0),
}
TAKEN_ALONG_K = {"as they are": along_k(), "one row": along_k(total=1), "one group": along_k(G=1)}


def scaled(**changes):
    """mat_a, mat_b, offs, out, scale_a and scale_b with 8-bit operands, by name; each may be changed by a function."""
    a, b, offs, _ = operands(K=32, dtype=FP8)
    made = dict(mat_a=a, mat_b=b, offs=offs, out=torch.zeros(20, 40).bfloat16())
    made |= dict(scale_a=torch.ones(20), scale_b=torch.ones(3, 40))
    return made | {name: change(made[name]) for name, change in changes.items()}


def lines_of(depth):
    """Changes to a depth whose lines stay 32 elements apart."""
    return dict(mat_a=lambda a: a[:, :depth], mat_b=lambda b: b[:, :depth])


TAKEN_OF_8_BITS = {
    "as they are": scaled(),
    "a float16 result": scaled(out=lambda out: out.half()),
    "a float32 result": scaled(out=lambda out: out.float()),
    "K a multiple of 8": scaled(**lines_of(24)),
    "rows of A 16 bytes longer": scaled(mat_a=lambda a: pitched(a, 48)),
    "scale_a anywhere": scaled(scale_a=lambda scale: torch.ones(21)[1:]),
}
NOT_TAKEN_OF_8_BITS = {
    "no scales": scaled(scale_a=lambda scale: None, scale_b=lambda scale: None),
    "a bias": scaled() | dict(bias=torch.zeros(3, 40)),
    "a kept tail": scaled() | dict(keep_tail=True),
    "float8_e5m2": scaled(mat_a=lambda a: a.to(torch.float8_e5m2), mat_b=lambda b: b.to(torch.float8_e5m2)),
    "B row-major": scaled(mat_b=lambda b: torch.zeros(3, 32, 48, dtype=FP8)[:, :, :40]),
    "K no multiple of 8": scaled(**lines_of(20)),
    "one row of A for all": scaled(mat_a=lambda a: a[:1].expand(20, 32)),
    "one column of B for all": scaled(mat_b=lambda b: b[:, :, :1].expand(3, 32, 40)),
    "rows of A off 16 bytes": scaled(mat_a=lambda a: pitched(a, 40)),
    "columns of B off 16 bytes": scaled(mat_b=lambda b: torch.zeros(3, 40, 40, dtype=FP8).mT[:, :32]),
    "A off 16 bytes": scaled(mat_a=lambda a: pitched(a, 32, 8)),
    "scale_b off 16 bytes": scaled(scale_b=lambda scale: torch.ones(121)[1:].view(3, 40)),
    "groups along K": scaled(
        mat_a=lambda a: torch.zeros(20, 32, dtype=FP8).mT,
        mat_b=lambda b: torch.zeros(20, 48, dtype=FP8),
        out=lambda out: torch.zeros(3, 32, 48).bfloat16(),
        scale_a=lambda scale: torch.ones(3, 32),
        scale_b=lambda scale: torch.ones(3, 48),
    ),
}


def block_scaled(scale_a=None, scale_b=None, **changes):
    """The same with scales of blocks of 128 along K: here one."""
    scale_a = torch.ones(20, 1) if scale_a is None else scale_a
    scale_b = torch.ones(3, 1, 1) if scale_b is None else scale_b
    return scaled(**changes) | dict(scale_a=scale_a, scale_b=scale_b, scaling=cute.BLOCKS)


TAKEN_OF_BLOCKS = {
    "as they are": block_scaled(),
    "a float32 result": block_scaled(out=lambda out: out.float()),
    "scales anywhere": block_scaled(torch.ones(21)[1:, None], torch.ones(4)[1:, None, None]),
    "scales of any strides": block_scaled(torch.ones(20, 3)[:, 1:2], torch.ones(3, 5, 7)[:, 3:4, 2:3]),
    "one scale for all": block_scaled(torch.ones(1, 1).expand(20, 1), torch.ones(1, 1, 1).expand(3, 1, 1)),
}


def deep(**changes):
    """The same with groups along K, which are whole blocks; each may be changed by a function."""
    made = dict(mat_a=torch.zeros(20, 272, dtype=FP8)[:, :260], mat_b=torch.zeros(40, 272, dtype=FP8).mT[:260])
    made |= dict(offs=torch.zeros(3, dtype=torch.int32), out=torch.zeros(3, 20, 40).bfloat16())
    made |= dict(scale_a=torch.ones(20, 3), scale_b=torch.ones(40, 3), scaling=cute.LINES)
    return made | {name: change(made[name]) for name, change in changes.items()}


def restarting(scale):
    """As many columns as blocks that restart at three groups have."""
    return torch.ones(scale.shape[0], 260 // 128 + 3)


# Whether the operands are read as they are. In all cases the kernel computes the product, maybe of copies.
DEEP = {
    "as they are": (deep(), True),
    "scales of any strides": (deep(scale_a=lambda scale: torch.ones(3, 20).mT), True),
    "19 rows": (deep(mat_a=lambda a: a[:19], out=lambda out: out[:, :19], scale_a=lambda s: s[:19]), True),
    "blocks that restart": (deep(scale_a=restarting, scale_b=restarting), False),
    "lines contiguous": (deep(mat_a=lambda a: a.mT.contiguous().mT), False),
    "lines off 16 bytes": (deep(mat_b=lambda b: b.mT.contiguous().mT), False),
    "rows and columns": (
        deep(scale_a=lambda s: torch.ones(3, 20), scale_b=lambda s: torch.ones(3, 40)) | dict(scaling="row"), False
    ),
}  # fmt: skip
NOT_TAKEN_DEEP = {
    "N no multiple of 8": deep(
        mat_b=lambda b: b[:, :36], out=lambda out: torch.zeros(3, 20, 36).bfloat16(), scale_b=lambda s: s[:36]
    ),
    "a bias": deep() | dict(bias=torch.zeros(3, 40).bfloat16()),
    "float8_e5m2": deep(mat_a=lambda a: a.to(torch.float8_e5m2)),
}


def problem_of(made):
    given = Product.packed(*(made.get(name) for name in Operands._fields), scaling=made["scaling"])
    return checks.problem_of(given, Options(torch.bfloat16, backend="torch")), given, made["out"]


def plan_of(problem, given, out):
    return cute.offer(problem, given, out).plan()


def is_offered(*product):
    return cute.offer(*product) is not None


def is_sooner(problem, given, out):
    """Whether ``backend="auto"`` takes it."""
    offer = cute.offer(problem, given, out)
    return offer is not None and backend_choice.is_sooner(offer, given.a.element_size())


@pytest.mark.parametrize(("made", "as_it_is"), DEEP.values(), ids=DEEP)
def test_groups_of_8_bits_along_k(monkeypatch, made, as_it_is):
    assert (form_of(**made) is not None) == as_it_is
    product = problem_of(made)
    assert is_sooner(*product)
    launched = []
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    monkeypatch.setattr(cute, "compiled", lambda config, form, *rest: launched.append(form))
    plan = plan_of(*product)
    assert launched == [DEEP_LINES if made["scaling"] == "row" else DEEP_BLOCKS]
    assert type(plan) is (cute.Plan if as_it_is else cute.PackingPlan)


@pytest.mark.parametrize("made", NOT_TAKEN_DEEP.values(), ids=NOT_TAKEN_DEEP)
def test_what_is_not_taken_along_k(made):
    assert form_of(**made) is None
    assert cute.offer(*problem_of(made)) is None


@pytest.mark.parametrize("restart", [True, False])
def test_a_plan_packs_groups_into_whole_blocks(monkeypatch, restart):
    """What is launched is the same product: of whole blocks, their factors and their ends."""
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    ends = (37, 37, 260) if restart else (128, 128, 256)
    made = deep(offs=lambda offs: torch.tensor(ends, dtype=torch.int64), mat_a=lambda a: a.mT.contiguous().mT)
    a, b = (integers((lines, 260), torch.float32, lines) for lines in (20, 40))
    made |= dict(mat_a=a.to(FP8).mT.contiguous().mT, mat_b=b.to(FP8).mT)
    columns = 5 if restart else 3
    scales = [2.0 ** integers((lines, columns), torch.float32, lines + 1) for lines in (20, 40)]
    made |= dict(scale_a=scales[0], scale_b=scales[1])
    device = runtime.device()  # copies are made by a kernel
    made = {name: each.to(device) if isinstance(each, torch.Tensor) else each for name, each in made.items()}
    a, b, launched = a.to(device), b.to(device), []
    monkeypatch.setattr(cute, "compiled", lambda *arguments: lambda *tensors: launched.extend(tensors))
    product = problem_of(made)
    plan_of(*product).run(*product[1:])
    left, right, out, offs, clusters, scale_a, scale_b, counter = launched
    assert clusters == 66
    assert form_of(left, right, offs, out, None, scale_a, scale_b, scaling=cute.LINES)
    assert (offs.dtype, offs.tolist(), counter) == (torch.int32, [128, 128, 384 if restart else 256], None)
    used = int(offs[-1])
    packed = [reference.dequantize(each[:, :used], scale[:, : used // 128]) for each, scale in
              ((left, scale_a), (right.mT, scale_b))]  # fmt: skip
    plain = [reference.dequantize(each, made[name], 1, made["offs"] if restart else None) for each, name in
             ((a, "scale_a"), (b, "scale_b"))]  # fmt: skip
    wanted = reference.grouped_mm(plain[0], plain[1].mT, made["offs"])
    assert torch.equal(reference.grouped_mm(packed[0], packed[1].mT, offs), wanted)


@pytest.mark.parametrize("made", TAKEN_OF_BLOCKS.values(), ids=TAKEN_OF_BLOCKS)
def test_taken_of_blocks(made):
    assert form_of(**made) == OF_BLOCKS


def test_other_blocks_are_not_taken():
    assert form_of(**block_scaled() | dict(scaling=cute.LINES)) is None
    assert form_of(**deep() | dict(scaling=cute.BLOCKS)) is None
    assert form_of(**block_scaled(mat_b=lambda b: torch.zeros(3, 32, 48, dtype=FP8)[:, :, :40])) is None


@pytest.mark.parametrize("made", TAKEN.values(), ids=TAKEN)
def test_taken(made):
    assert form_of(*made) == PLAIN._replace(index_bytes=made[2].element_size())


@pytest.mark.parametrize("made", TAKEN_ALONG_K.values(), ids=TAKEN_ALONG_K)
def test_taken_along_k(made):
    assert form_of(*made) == ALONG_K


@pytest.mark.parametrize("made", TAKEN_OF_8_BITS.values(), ids=TAKEN_OF_8_BITS)
def test_taken_of_8_bits(made):
    assert form_of(**made) == OF_LINES


@pytest.mark.parametrize("made", NOT_TAKEN_OF_8_BITS.values(), ids=NOT_TAKEN_OF_8_BITS)
def test_not_taken_of_8_bits(made):
    assert form_of(**made) is None


def large(rows, K=40, how=lambda b: b.contiguous(), **scales):
    """A product of 8 bits whose three groups have so many rows on average, and what a plan is made from."""
    b = how(integers((3, 32, K), torch.float32, 1).to(FP8).mT)
    a = torch.zeros(3 * rows, -(-K // 16) * 16, dtype=FP8)[:, :K]
    scales = scales or dict(scale_a=torch.ones(3 * rows), scale_b=torch.ones(3, 32))
    scaling = cute.BLOCKS if scales["scale_b"].dim() == 3 else "row"
    made = Product.packed(a, b, torch.zeros(3, dtype=torch.int32), **scales, scaling=scaling)
    options = Options(torch.bfloat16, backend="torch")
    return checks.problem_of(made, options), made, torch.zeros(3 * rows, 32).bfloat16()


@pytest.mark.parametrize(
    "how", [lambda b: b.contiguous(), lambda b: torch.stack([b, b], -1)[..., 0]], ids=["row", "odd"]
)
@pytest.mark.parametrize("blocks", [False, True])
def test_8_bit_weights_of_another_layout_are_copied_for_many_rows(monkeypatch, how, blocks):
    rows = cute.COPIED_ROWS

    def made(rows):
        scales = dict(scale_a=torch.ones(3 * rows, 1), scale_b=torch.ones(3, 1, 1)) if blocks else {}
        return large(rows, how=how, **scales)

    assert not is_offered(*made(rows * 4 // 5))
    product = made(rows)
    assert is_offered(*product)
    asked, launched = [], []
    monkeypatch.setattr(cute, "_processors", lambda device: 132)

    def compiled(config, form, *rest):
        asked.append(form)
        return lambda *tensors: launched.append(tensors)

    monkeypatch.setattr(cute, "compiled", compiled)
    plan = plan_of(*product)
    plan.run(product[1], product[2])
    assert asked == [(OF_BLOCKS if blocks else OF_LINES)]
    ((_, copy, *_),) = launched
    assert torch.equal(copy.float(), product[1].b.float())
    assert copy.stride() == (32 * 48, 1, 48)


def test_8_bit_weights_that_can_be_read_are_not_copied(monkeypatch):
    product = large(cute.COPIED_ROWS, K=48, how=lambda b: b)
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    monkeypatch.setattr(cute, "compiled", lambda *arguments: None)
    assert type(plan_of(*product)) is cute.Plan


def test_row_major_weights_are_taken():
    assert form_of(*changed(1, lambda b: b.contiguous())) == ROW_MAJOR


@pytest.mark.parametrize("made", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_not_taken(made):
    assert form_of(*made) is None


def test_a_bias_is_taken_and_has_a_form_of_its_own():
    made = operands()
    for dtype in (torch.bfloat16, torch.float32):
        assert form_of(*made, bias=torch.zeros(3, 40, dtype=dtype)) == PLAIN._replace(bias_bytes=dtype.itemsize)
        assert form_of(*along_k(), bias=torch.zeros(3, 40, dtype=dtype)) is None
    product = Product.packed(*made[:3], torch.zeros(3, 40))
    assert is_offered(checks.problem_of(product, Options(backend="torch")), product, made[3])


def test_scales_and_a_kept_tail_are_not_taken():
    made = operands()
    assert form_of(*made)
    assert form_of(*made, scale_a=torch.zeros(20), scale_b=torch.zeros(3, 40)) is None
    assert form_of(*made, keep_tail=True) is None


def test_float32_results_along_k_alone_are_added_to():
    """To others the hardware would add rounded products."""
    made = along_k()
    taken = {
        (along, dtype): cute.match_form(Product.packed(*each[:3], accumulate=True), each[3].to(dtype))
        for along, each in (("k", made), ("m", operands()))
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert taken.pop(("k", torch.float32)) == ADDED
    assert set(taken.values()) == {None}
    out = made[3].float()
    for accumulate, given, taken in ((True, out, True), (True, made[3], False), (False, made[3], True)):
        product = Product.packed(*made[:3], accumulate=accumulate)
        assert is_offered(checks.problem_of(product, Options(given.dtype)), product, given) == taken


def test_a_plan_that_adds_has_a_kernel_of_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    monkeypatch.setattr(compiled_cache, "compiled", lambda config, form, *dtypes: asked.append(form.epilogue))
    cute.compiled.cache_clear()
    a, b, offs, out = along_k()
    for accumulate in (False, True):
        given = Product.packed(a, b, offs, accumulate=accumulate)
        plan_of(checks.problem_of(given, Options(torch.float32)), given, out.float())
    cute.compiled.cache_clear()
    assert asked == ["store", "add"]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_launch_gets_ends_as_they_are(dtype):
    """The kernel reads both: its form says which."""
    a, b, offs, out = operands()
    offs, seen = torch.tensor([3, 3, 20], dtype=dtype), []
    cute.Plan(lambda *tensors: seen.append(tensors), 66).run(Product.packed(a, b, offs), out)
    ((*_, ends, clusters, scale_a, scale_b, counter),) = seen
    assert ends is offs
    assert clusters == 66
    assert scale_a is scale_b is counter is None
    assert form_of(a, b, offs, out).index_bytes == dtype.itemsize


@pytest.mark.parametrize(("num_sms", "clusters"), [(None, 66), (132, 66), (500, 66), (80, 40), (3, 1), (1, 1)])
def test_sms_that_others_have_are_left_alone(monkeypatch, num_sms, clusters):
    """One compiled kernel, in the configuration for all SMs, serves any number of them."""
    compiled, launched, asked = [], [], []
    config = next(config for config in configs_for(PLAIN) if config.cluster == 2)
    monkeypatch.setattr(cute, "choose", lambda form, *extents: asked.append(extents[-1]) or config)
    monkeypatch.setattr(cute, "gpu_of", lambda device: GPU)
    monkeypatch.setattr(
        cute, "compiled", lambda *key: compiled.append(key) or (lambda *given: launched.append(given[4]))
    )
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    a, b, offs, out = operands()
    given = Product.packed(a, b, offs)
    problem = checks.problem_of(given, Options(torch.bfloat16, num_sms=num_sms))
    offer = cute.offer(problem, given, out)
    offer.plan().run(given, out)
    cute.multiply(given, out, PLAIN, config, num_sms)
    assert launched == [clusters] * 2
    assert asked == [offer.asked[-1]] == [GPU]
    assert set(compiled) == {(config, PLAIN, torch.bfloat16, torch.bfloat16, out.device)}


def test_a_product_takes_at_least_one_sm():
    with pytest.raises(ValueError, match="num_sms must be at least 1, got 0"):
        cute.clusters_of(configs_for(PLAIN)[0], torch.device("cuda", 0), 0)


@pytest.fixture
def counters(monkeypatch):
    """The counters that launches take, in a list."""
    found = []
    monkeypatch.setattr(cute.counters, "take", lambda device: found.append(device) or f"no. {len(found)}")
    return found


def test_every_launch_in_a_dynamic_order_takes_a_counter(counters):
    a, b, offs, out = operands()
    seen = []
    plan = cute.Plan(lambda *tensors: seen.append(tensors[-1]), 66, dynamic=True)
    for _ in range(2):
        plan.run(Product.packed(a, b, offs), out)
    assert seen == ["no. 1", "no. 2"]
    assert counters == [out.device] * 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_plan_knows_its_configurations_order(monkeypatch, counters, dynamic):
    seen = []
    config = dataclasses.replace(configs_for(ALONG_K)[0], dynamic=dynamic)
    monkeypatch.setattr(cute, "choose", lambda *arguments: config)
    monkeypatch.setattr(cute, "compiled", lambda *arguments: lambda *tensors: seen.append(tensors[-1]))
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    a, b = torch.zeros(20, 32, dtype=torch.bfloat16).mT, torch.zeros(20, 40, dtype=torch.bfloat16)
    given, out = Product.packed(a, b, torch.tensor([20], dtype=torch.int32)), torch.zeros(1, 32, 40).bfloat16()
    plan_of(checks.problem_of(given, Options(torch.bfloat16)), given, out).run(given, out)
    cute.multiply(given, out, ALONG_K, config)
    assert [counter is not None for counter in seen] == [dynamic] * 2


def test_fuzzing_draws_what_is_taken():
    forms = set()
    for case in map(fuzz.for_cute, fuzz.cases(0, 300, 64, 8)):
        made = build(case)
        offs, (rows, columns) = made.arguments["offs"].contiguous(), (made.mat_a.shape[0], made.mat_b.shape[-1])
        shape = (rows, columns) if case.mode == "m" else (offs.shape[0], rows, columns)
        out = torch.empty(shape, dtype=case.out_dtype or (torch.bfloat16 if case.scaled else case.dtype))
        scales = {name: made.arguments[name] for name in ("scale_a", "scale_b") if case.scaled}
        forms.add(form_of(made.mat_a, made.mat_b, offs.int(), out, **scales))
    assert forms == {PLAIN, ROW_MAJOR, ALONG_K, OF_LINES}


@pytest.mark.parametrize("form", FORMS)
def test_fuzzing_takes_every_configuration(form):
    drawn = set()
    plain = {dataclasses.replace(config, split_last_wave=False) for config in configs_for(form)}
    for kind in range(2 * len(plain | set(configs_for(form)))):
        config = fuzz.choose_for(fuzz.case_of(kind * fuzz.ALIKE + 3))(form, 100, (300, 64), 136, 3, GPU)
        if kind % 2:
            drawn.add(config)
        else:
            assert config == cute.choose(form, 100, (300, 64), 136, 3, GPU)
    assert drawn == plain | set(configs_for(form))


@pytest.mark.parametrize("form", FORMS)
def test_choices_can_be_built(form):
    for rows in (0.1, 1, 100, 2048, 2**30):
        for columns in (8, 768, 1536, 2048, 14336):
            for depth in (8, 2048):
                config = cute.choose(form, rows, (1536, columns), depth, 8, GPU)
                assert config.why_not(form) is None
                assert config in configs_for(form)


@pytest.mark.parametrize("form", [PLAIN, ROW_MAJOR, OF_LINES, OF_BLOCKS])
def test_a_choice_is_the_same_for_all_totals_of_a_signature(form):
    """A kept plan serves every total of a size class, whichever came first."""
    chosen = {}
    for total in range(8, 8 * 6000, 8 * 7):
        for size in ((total, 2048), (total, 1536)):
            config = cute.choose(form, typical_rows(total, 8), size, 1024, 8, GPU)
            made = operands(total, K=16, N=8, G=8)
            key = signature(Product.packed(*made[:3]), Options()), size[1]
            assert chosen.setdefault(key, config) == config, total


def test_groups_of_16_bits_take_what_the_time_model_expects_to_be_the_fastest():
    for form, kind in ((PLAIN, Kind("m", "k")), (ROW_MAJOR, Kind("m", "n"))):
        expected = time_model.fastest(kind, Extents(100, 2048, 1024, 8), GPU, "cute").config
        assert cute.choose(form, 100, (800, 2048), 1024, 8, GPU) == expected
    expected = time_model.fastest(Kind("k", "n"), Extents(1536, 2048, 100, 8), GPU, "cute").config
    assert cute.choose(ALONG_K, 100, (1536, 2048), 0, 8, GPU) == expected


def test_a_layer_takes_what_was_measured_of_its_own_products():
    """Gathered rows cost more the narrower a tile is. Another activation, or rows in pieces, change no choice."""
    differ = 0
    for kind in KINDS_OF_LAYER:
        form = form_of_kind(kind)
        for extents in (Extents(800, 1024, 1536, 40), Extents(100, 2048, 1024, 8)):
            rows, size = (extents.K, extents[:2]) if kind.along == "k" else (extents.M, (0, extents.N))
            chosen = cute.choose(form, rows, size, extents.K, extents.G, GPU)
            assert chosen == time_model.fastest(kind, extents, GPU, "cute").config
            plain = time_model.fastest(kind.stand_in, extents, GPU, "cute").config
            differ += chosen != plain.fitted(form)
    assert differ >= 4
    gated = form_of_kind(KINDS_OF_LAYER[0])
    for other in (gated._replace(rows="pieces"), gated._replace(activation=Activation(Function.GELU), bias_bytes=4)):
        assert cute.choose(other, 800, (0, 1024), 1536, 40, GPU) == cute.choose(gated, 800, (0, 1024), 1536, 40, GPU)


def test_without_constants_for_a_gpu_there_is_a_choice_all_the_same():
    other = Gpu("sm_99", 132, 4.8)
    assert cute.choose(PLAIN, 100, (800, 2048), 1024, 8, other).why_not(PLAIN) is None


def preferred(mat_a, mat_b, offs):
    rows, columns = mat_a.shape[-2], mat_b.shape[-1]
    scales = (torch.ones(rows), torch.ones(mat_b.shape[0], columns)) if mat_a.dtype == FP8 else ()
    made = Product.packed(mat_a, mat_b, offs, None, *scales)
    problem = checks.problem_of(made, Options())
    return is_sooner(problem, made, torch.empty(problem.out_shape, dtype=problem.out_dtype))


def test_auto_takes_it_where_it_is_expected_to_be_faster(monkeypatch):
    large, b, offs, _ = operands(total=300)
    few, *_ = operands(total=100)
    deep, d_out, *_ = along_k(total=300)
    sooner = {"m,k": "cute", "k,n": "cute"}

    def fastest(kind, extents, gpu, backend):
        if str(kind) not in sooner:
            return None
        ragged = extents.K if kind.along == "k" else extents.M
        best = sooner[str(kind)] if ragged > 50 else "triton"
        return time_model.Estimate(1.0 if backend == best else 2.0, backend, None)

    monkeypatch.setattr(time_model, "fastest", fastest)
    assert preferred(large, b, offs)
    assert preferred(deep, d_out, offs), "rows are counted along the extent that groups share out"
    assert not preferred(few, b, offs), "Triton's is expected to be faster"
    sooner["m,k"] = "triton"
    assert not preferred(large, b, offs)
    del sooner["m,k"]
    assert not preferred(large, b, offs), "without constants, no 16-bit product is expected to be faster"
    assert not preferred(torch.zeros(3, 4, 5), torch.zeros(3, 5, 6), None)
    (large, b, *_), (few, *_) = (operands(total=total, K=32, dtype=FP8) for total in (300, 100))
    assert preferred(large, b, offs)
    assert preferred(few, b, offs), "without constants, all 8-bit products are expected to be faster"
    sooner["m,k fp8"] = "cute"
    assert preferred(large, b, offs)
    assert not preferred(few, b, offs), "Triton's is expected to be faster"
    sooner["m,k fp8"] = "triton"
    assert not preferred(large, b, offs)


def test_auto_takes_the_only_kernel_that_the_time_model_knows(monkeypatch):
    large, b, offs, _ = operands(total=300, K=32, dtype=FP8)
    estimates = {}
    monkeypatch.setattr(time_model, "fastest", lambda *asked: estimates.get(asked[-1]))
    for backend in ("cute", "triton"):
        estimates[backend] = time_model.Estimate(1.0, backend, None)
        assert preferred(large, b, offs) == (backend == "cute")
        estimates.clear()


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("backend", ["cute", "triton"])
def test_the_time_model_says_whether_a_copy_pays(monkeypatch, blocks, backend):
    asked = []

    def fastest(*arguments):
        asked.append(arguments)
        named = arguments[6:]
        return time_model.Estimate(1.0 if named in ((), (backend,)) else 2.0, *named or (backend,), None)

    monkeypatch.setattr(time_model, "fastest", fastest)
    for rows in (64, 2 * cute.COPIED_ROWS):
        scales = dict(scale_a=torch.ones(3 * rows, 1), scale_b=torch.ones(3, 1, 1)) if blocks else {}
        product = large(rows, **scales)
        assert is_offered(*product) == is_sooner(*product) == (backend == "cute")
        copied = Kind.parse("m,n fp8" + " blocks" * blocks), Extents(rows, 32, 40, 3), None
        assert asked[0] == copied
        assert {each[:3] for each in asked} <= {copied, (copied[0]._replace(b_major="k"), *copied[1:])}
        if backend == "cute":
            assert cute.offer(*product).asked == copied, "a copy and the kernel take the place of Triton's kernel"
        asked.clear()


@pytest.mark.parametrize("blocks", [False, True])
def test_8_bit_products_take_what_the_time_model_expects_to_be_the_fastest(monkeypatch, blocks):
    form = OF_BLOCKS if blocks else OF_LINES
    usual = cute.choose(form, 100, (800, 2048), 1024, 8, GPU)
    config = next(config for config in configs_for(form) if config != usual)
    asked = []

    def fastest(*arguments):
        asked.append(arguments)
        return time_model.Estimate(1.0, "cute", config)

    monkeypatch.setattr(time_model, "fastest", fastest)
    assert cute.choose(form, 100, (800, 2048), 1024, 8, GPU) == config
    assert asked == [(Kind.parse("m,k fp8" + " blocks" * blocks), Extents(100, 2048, 1024, 8), GPU, "cute")]


def test_a_machine_without_the_gpu_is_told_so():
    a, b, offs, _ = operands()
    with pytest.raises(
        ValueError, match=r"backend='cute' needs a GPU of compute capability 9.0 .* operands are on cpu"
    ):
        grouped_mm(a, b, offs=offs, backend="cute")


def test_scaled_products_say_the_same():
    made = scaled()
    with pytest.raises(
        ValueError, match=r"backend='cute' needs a GPU of compute capability 9.0 .* operands are on cpu"
    ):
        call_scaled(made["mat_a"], made["mat_b"], made["scale_a"], made["scale_b"], offs=made["offs"])


@pytest.mark.parametrize("given_out", [False, True])
def test_scales_arrive_where_the_kernel_is_asked(monkeypatch, given_out):
    """Everything but the kernel: a stand-in takes its place, called as it would be."""
    asked = []

    def compiled(config, form, dtype, out_dtype, device):
        asked.append((config, form, dtype, out_dtype))

        def function(a, b, out, offs, clusters, scale_a, scale_b, counter):
            out.copy_((a.float() @ b[0].float()) * scale_a[:, None] * scale_b[0])

        return function

    monkeypatch.setattr(kept, "plans", kept.PlanCache())
    monkeypatch.setattr(cute, "check_available", lambda *asked: None)
    monkeypatch.setattr(cute, "compiled", compiled)
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    cute_alone(monkeypatch)
    a, b = integers((20, 32), FP8, 1), integers((1, 40, 32), FP8, 2).mT
    scale_a, scale_b = torch.arange(1.0, 21.0), torch.arange(1.0, 41.0)[None]
    out = torch.zeros(20, 40) if given_out else None
    offs = torch.tensor([20], dtype=torch.int32)
    arguments = dict(offs=offs, out_dtype=torch.float32, out=out)
    result = call_scaled(a, b, scale_a, scale_b, **arguments)
    assert torch.equal(result, (a.float() @ b[0].float()) * scale_a[:, None] * scale_b)
    assert (result is out) == given_out
    form = OF_LINES
    assert asked == [(cute.choose(form, 20, (20, 40), 32, 1, GPU), form, FP8, torch.float32)]


@pytest.mark.parametrize(("K", "whole"), [(512, True), (504, True), (640, False)])
def test_sums_over_whole_rounds_of_stages_have_a_kernel_of_their_own(monkeypatch, K, whole):
    asked = []
    monkeypatch.setattr(cute, "compiled", lambda config, form, *_: asked.append(form.whole_rounds) or (lambda *_: None))
    monkeypatch.setattr(cute, "_processors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    a, b = integers((20, K), FP8, 1), integers((1, 40, K), FP8, 2).mT
    given = Product.packed(a, b, torch.tensor([20], dtype=torch.int32))
    for blocks in (True, False):
        cute.multiply(given, torch.empty(20, 40), (OF_BLOCKS if blocks else OF_LINES), LARGE_BLOCK_SCALED)
    assert asked == [whole, False]


class AsOnGpu:
    """A tensor of the CPU that passes for a GPU's where only its form is looked at."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **options):
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        capsule = self.tensor.__dlpack__()
        ctypes.c_int.from_address(pointer_of(capsule, b"dltensor") + 8).value = 2
        return capsule


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would read the tensors, which are the CPU's")
def test_a_kernel_of_8_bits_accepts_what_is_taken_and_refuses_the_rest(monkeypatch, tmp_path):
    pytest.importorskip("cutlass", reason="needs the cutlass extra")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # One that comes from its file looks at its arguments before it looks for a GPU.
    functions = {}
    for blocks in (False, True, False, True):
        form = OF_BLOCKS if blocks else OF_LINES
        functions[blocks] = compiled_cache.compiled(CONFIGS_8_BIT[-1], form, "float8_e4m3fn", "bfloat16")

    def said(mat_a, mat_b, offs, out, scale_a, scale_b, scaling="row"):
        function = functions[scaling != "row"]
        with pytest.raises(Exception) as caught:
            function(*map(AsOnGpu, (mat_a, mat_b, out, offs)), 132, *map(AsOnGpu, (scale_a, scale_b)), None)
        return str(caught.value)

    one_row = dict(mat_a=lambda a: a[:1], out=lambda out: out[:1], scale_a=lambda scale: scale[:1])
    one_group = {name: lambda value: value[:1] for name in ("mat_b", "offs", "scale_b")}
    taken = dict(TAKEN_OF_8_BITS) | {"one row": scaled(**one_row), "one group": scaled(**one_group)}
    for what, made in taken.items():
        assert form_of(**made) == OF_LINES, what
        if made["out"].dtype == torch.bfloat16:
            assert "on argument" not in said(**made), what
    for what, made in TAKEN_OF_BLOCKS.items():
        if made["out"].dtype == torch.bfloat16:
            assert "on argument" not in said(**made), what
    for what in ("K no multiple of 8", "rows of A off 16 bytes", "A off 16 bytes", "scale_b off 16 bytes"):
        assert "on argument" in said(**NOT_TAKEN_OF_8_BITS[what]), what


@pytest.mark.skipif(runtime.mode() == "gpu", reason="run it under compute-sanitizer there")
def test_what_sanitizers_run_are_cases_that_it_takes(monkeypatch):
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")  # it sets it, and no other test shall have it
    sanitize = importlib.import_module("sanitize")

    def multiply(given, out, form, config):
        assert config.why_not(form) is None
        others = dict(scale_a=given.scaling.a, scale_b=given.scaling.b, bias=given.epilogue.bias)
        out.copy_(reference.grouped_mm(given.a, given.b, given.offs, **others))

    monkeypatch.setattr(cute, "runs_on", lambda device: True)
    monkeypatch.setattr(cute, "installed", lambda: True)
    monkeypatch.setattr(cute, "multiply", multiply)
    cases = sanitize.cute_cases()
    assert len(set(map(str, cases))) == len(cases)
    for form in {case.form for case in cases}:
        chosen = cute.choose(form, 1, (1, 264), 136, 1, GPU)
        assert {*configs_for(form), chosen} <= {c.config for c in cases if c.form == form}
    for case in cases:
        assert {(rows, cols) for rows in ("one", "odd", "even") for cols in ("odd", "even")} <= grids(sanitize, case)
    first = {(case.form, case.dtype, case.out_dtype): case for case in cases}
    assert len(first) == 13
    for case in first.values():
        sanitize.run_cute(case)


def grids(sanitize, case):
    """Whether the rows and columns of tiles of each group with depth are odd in number, or one row alone; the others
    make no entry, and there are some."""
    found = set()
    for problem in sanitize.cute_problems(case):
        assert 0 in problem.sizes
        heights = [size for size in problem.sizes if size] if problem.mode == "m" else [problem.M]
        cols = -(-problem.N // case.config.tile_n)
        for rows in (-(-height // case.config.tile_m) for height in heights):
            found.add(("one" if rows == 1 else "odd" if rows % 2 else "even", "odd" if cols % 2 else "even"))
    return found


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(cute, "runs_on", lambda device: True)
    monkeypatch.setattr(cute, "installed", lambda: False)
    with pytest.raises(ImportError, match=r"\[cutlass\]"):
        cute.check_available(torch.device("cpu"))


# ---- on Hopper


@hopper
@pytest.mark.parametrize("values", ["integers", "normal"])
@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("extents", [(272, 208), (8, 8), (2056, 1032)], ids=str)
def test_forward(device, monkeypatch, dtype, out_dtype, values, extents):
    cute_alone(monkeypatch)
    N, K = extents
    case = GroupedCase(
        "m", SIZES, N=N, K=K, dtype=dtype, out_dtype=out_dtype, layout_b="col", tail_size=61, values=values
    )  # fmt: skip
    check(case, call, device=device)


@hopper
@pytest.mark.parametrize("values", ["integers", "normal"])
@pytest.mark.parametrize("layouts", [("m", "row", "row"), ("k", "col", "row")], ids="-".join)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_gradients_are_made_of(device, monkeypatch, dtype, layouts, values):
    cute_alone(monkeypatch)
    mode, layout_a, layout_b = layouts
    extents = dict(M=208, N=272, K=144) if mode == "k" else dict(N=272, K=208)
    case = GroupedCase(
        mode, SIZES, **extents, dtype=dtype, layout_a=layout_a, layout_b=layout_b, tail_size=61, values=values
    )  # fmt: skip
    check(case, call, device=device)


@hopper
@pytest.mark.parametrize("values", ["integers", "normal"])
@pytest.mark.parametrize("out_dtype", [None, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("extents", [(272, 208), (8, 16), (2056, 1040)], ids=str)
@pytest.mark.parametrize("sizes", [SIZES, (3, 0, 40)], ids=["some rows", "few rows"])
def test_scaled(device, monkeypatch, sizes, extents, out_dtype, values):
    cute_alone(monkeypatch)
    N, K = extents
    case = GroupedCase(
        "m", sizes, N=N, K=K, dtype=FP8, out_dtype=out_dtype, layout_b="col", tail_size=61, values=values
    )  # fmt: skip
    check(case, call_scaled, device=device)


@hopper
@pytest.mark.parametrize("values", ["integers", "normal"])
@pytest.mark.parametrize("out_dtype", [None, torch.float32], ids=str)
@pytest.mark.parametrize("layouts", [("row", "col"), ("col", "row"), ("pitched", "col")], ids="-".join)
def test_scaled_along_k(device, monkeypatch, layouts, out_dtype, values):
    """Of copies whose groups are whole blocks."""
    cute_alone(monkeypatch)
    layout_a, layout_b = layouts
    case = GroupedCase(
        "k", (1, 127, *SIZES), M=205, N=272, K=144, dtype=FP8, out_dtype=out_dtype, layout_a=layout_a,
        layout_b=layout_b, tail_size=61, values=values,
    )  # fmt: skip
    check(case, call_scaled, device=device)


@hopper
@pytest.mark.parametrize("sizes", [(300, 300), (3, 40)], ids=["some rows", "few rows"])
def test_scaled_by_default(device, monkeypatch, sizes):
    cute_alone(monkeypatch)
    case = GroupedCase("m", sizes, N=64, K=64, dtype=FP8, layout_b="col")
    check(case, lambda a, b, scale_a, scale_b, offs: scaled_grouped_mm(a, b, scale_a, ROW, scale_b, ROW, offs=offs),
          device=device)  # fmt: skip


@hopper
@pytest.mark.parametrize("layout_bias", ["row", "col", "every_other"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_bias(device, monkeypatch, dtype, layout_bias):
    """A bias of 16 bits or of float32, with any strides. Groups may be empty, the last tile is not full, and the rows
    after the last group get zeros."""
    cute_alone(monkeypatch)
    for bias, out_dtype, layout_b in ((dtype, None, "col"), (torch.float32, torch.float32, "row")):
        for N in (8, 136, 264, 1032):
            case = GroupedCase(
                "m", SIZES, N=N, K=72, dtype=dtype, out_dtype=out_dtype, layout_b=layout_b, tail_size=61, bias=bias,
                layout_bias=layout_bias,
            )  # fmt: skip
            check(case, call, device=device)
            check(dataclasses.replace(case, values="normal", sizes=(3, 0, 700)), call, device=device)


@hopper
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_random_cases(device, first):
    record = fuzz.fuzz(60, first, workers=1, backend="cute")
    assert (record["count"], record["mismatches"]) == (60, 0)


@hopper
@pytest.mark.parametrize("groups", [31, 32, 33, 64, 65, 1000])
def test_many_groups(device, monkeypatch, groups):
    cute_alone(monkeypatch)
    sizes = [i % 7 * (i % 3) for i in range(groups)]
    case = GroupedCase("m", tuple(sizes), N=264, K=72, dtype=torch.bfloat16, layout_b="col", tail_size=5)
    check(case, call, device=device)


@hopper
def test_what_it_does_not_take_is_computed_all_the_same(device):
    ends = torch.tensor([5, 5, 32], dtype=torch.int32, device=device)
    a = integers((32, 41), torch.bfloat16, 1, device=device).requires_grad_()
    b = integers((3, 41, 23), torch.bfloat16, 2, device=device).requires_grad_()
    results = []
    for backend in ("cute", "triton"):
        out = grouped_mm(a, b, offs=ends, backend=backend)
        results.append((out, *torch.autograd.grad(out, (a, b), torch.ones_like(out))))
    assert all(torch.equal(x, y) for x, y in zip(*results))
    assert_grouped_exact(results[0][0], a, b, ends)


@hopper
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("backend", ["cute", "auto"])
def test_a_layer_and_its_gradients(device, monkeypatch, backend, biased):
    """All sums are exact, so both kernels give the same bits."""
    ends = torch.tensor([140, 140, 400], dtype=torch.int32, device=device)
    shapes = [(440, 64), (3, 96, 64), *([(3, 96)] if biased else [])]
    a, weight, *bias = (
        integers(shape, torch.bfloat16, seed, device=device).requires_grad_() for seed, shape in enumerate(shapes, 1)
    )
    results = []
    for each in ("triton", backend):
        out = grouped_mm(a, weight.mT, offs=ends, bias=bias[0] if biased else None, backend=each)
        grad = integers(out.shape, out.dtype, 4, device=device)
        results.append((out, *torch.autograd.grad(out, (a, weight, *bias), grad)))
        cute_alone(monkeypatch)  # from the second on
    assert all(torch.equal(x, y) for x, y in zip(*results))


@hopper
@pytest.mark.parametrize("config", [*configs_for(ALONG_K)], ids=lambda config: config.name)
def test_every_configuration_adds(device, config):
    """Tiles at the edges of a result that no tile divides; empty groups, whose NaN stay as they are; in every run the
    same."""
    sizes = (0, 300, 1, 128, 0, 513, 77, 0)
    offs = torch.tensor(sizes, dtype=torch.int32, device=device).cumsum(0).int()
    a = torch.empty(1100, 392, dtype=torch.bfloat16, device=device).random_(-2, 3).mT
    b = torch.empty(1100, 520, dtype=torch.bfloat16, device=device).random_(-2, 3)
    product = reference.grouped_mm(a, b, offs, torch.float32)
    held = torch.empty_like(product).random_(-9, 10)
    empty = torch.tensor(sizes, device=device) == 0
    held[empty] = float("nan")
    held[empty, 0] = -0.0
    out = held.clone()
    cute.multiply(Product.packed(a, b, offs), out, ADDED, config)
    assert torch.equal(out[~empty], (held + product)[~empty])
    assert torch.equal(out[empty].view(torch.int32), held[empty].view(torch.int32))
    a.normal_(), b.normal_()
    runs = []
    for _ in range(3):
        runs.append(held.nan_to_num())
        for _ in range(3):
            cute.multiply(Product.packed(a, b, offs), runs[-1], ADDED, config)
    assert all(torch.equal(each, runs[0]) for each in runs)


@hopper
@pytest.mark.parametrize("backend", ["cute", "auto"])
def test_added_behind_grouped_mm(device, monkeypatch, backend):
    cute_alone(monkeypatch)
    case = GroupedCase("k", SIZES, M=208, N=272, dtype=torch.bfloat16, layout_a="col", tail_size=61)
    made = build(case, device)
    offs = made.arguments["offs"]
    out = torch.ones(len(SIZES), 208, 272, device=device)
    grouped_mm(made.mat_a, made.mat_b, offs=offs, out=out, out_dtype=out.dtype, accumulate=True, backend=backend)
    assert_grouped_exact(out - 1, made.mat_a, made.mat_b, offs)
    made.verify_memory()


@hopper
def test_main_grad_of_a_layer(device, monkeypatch):
    cute_alone(monkeypatch)
    ends = torch.tensor([140, 140, 400], dtype=torch.int32, device=device)
    a = integers((440, 64), torch.bfloat16, 1, device=device)
    weight = integers((3, 96, 64), torch.bfloat16, 2, device=device).requires_grad_()
    main_grad = torch.ones(3, 96, 64, device=device)
    for _ in range(2):
        out = grouped_mm(a, weight.mT, offs=ends, main_grad=main_grad.mT)
        out.backward(torch.ones_like(out))
    assert weight.grad is None
    sums = torch.stack([a[:140].float().sum(0), torch.zeros(64, device=device), a[140:400].float().sum(0)])
    assert torch.equal(main_grad, 1 + 2 * sums[:, None, :].expand(3, 96, 64))


@hopper
def test_graph_replays_with_other_ends_and_values(device, monkeypatch):
    cute_alone(monkeypatch)
    a, b, offs, out = operands(total=500, K=72, N=136, G=4, device=device)
    call(a, b, offs=offs, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(a, b, offs=offs, out=out)
    for ends in ((0, 0, 0, 0), (500, 500, 500, 500), (1, 130, 300, 499), (0, 0, 0, 500)):
        offs.copy_(torch.tensor(ends))
        a.random_(-2, 3), b.random_(-2, 3)
        out.fill_(float("nan"))
        graph.replay()
        assert_grouped_exact(out, a, b, offs)


@hopper
def test_graph_of_a_scaled_product_replays_with_other_scales(device, monkeypatch):
    cute_alone(monkeypatch)
    a, b = integers((500, 80), FP8, 1, device=device), integers((4, 136, 80), FP8, 2, device=device).mT
    offs = torch.tensor([1, 130, 300, 499], dtype=torch.int32, device=device)
    scales = torch.ones(500, device=device), torch.ones(4, 136, device=device)
    out = torch.empty(500, 136, dtype=torch.float32, device=device)
    call_scaled(a, b, *scales, offs=offs, out=out, out_dtype=out.dtype)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call_scaled(a, b, *scales, offs=offs, out=out, out_dtype=out.dtype)
    for _ in range(3):
        for scale in scales:
            scale.random_(-3, 4).exp2_()
        out.fill_(float("nan"))
        graph.replay()
        assert_grouped_exact(out, a, b, offs, scale_a=scales[0], scale_b=scales[1])


@hopper
def test_calls_on_a_side_stream_agree_bit_for_bit(device, monkeypatch):
    cute_alone(monkeypatch)
    a, b, offs, _ = operands(total=3000, K=520, N=392, G=5, device=device)
    offs.copy_(torch.tensor([700, 701, 701, 2500, 2999]))
    a.normal_(), b.normal_()
    want = call(a, b, offs=offs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        again = [call(a, b, offs=offs) for _ in range(5)]
    stream.synchronize()
    assert all(torch.equal(want, each) for each in again)


@hopper
def test_more_than_2_to_the_31_elements(device, monkeypatch):
    cute_alone(monkeypatch)
    rows, K, N = 2**25 + 300, 72, 72
    a, b, offs, _ = operands(total=rows, K=K, N=N, G=2, device=device)
    offs.copy_(torch.tensor([rows - 200, rows - 100]))
    a.random_(-2, 3), b.random_(-2, 3)
    assert a.numel() > 2**31
    out = call(a, b, offs=offs)
    for start in (0, rows // 2, rows - 500):
        part = slice(start, min(start + 400, rows - 200))
        assert torch.equal(out[part], (a[part].float() @ b[0].float()).bfloat16())
    assert torch.equal(out[-200:-100], (a[-200:-100].float() @ b[1].float()).bfloat16())
    assert not out[-100:].any()


@hopper
def test_compiled_and_in_the_known_way(device, monkeypatch):
    a, b, offs, _ = operands(total=130, K=64, N=128, device=device)
    offs.copy_(torch.tensor([10, 100, 130]))
    a.random_(-2, 3), b.random_(-2, 3)
    compiled = torch.compile(lambda a, b, offs: call(a, b, offs=offs), fullgraph=True, backend="aot_eager")
    cute_alone(monkeypatch)
    for function in (lambda: compiled(a, b, offs), *[lambda: call(a, b, offs=offs)] * 3):
        assert_grouped_exact(function(), a, b, offs)
