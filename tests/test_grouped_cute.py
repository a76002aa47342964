"""The kernel in CuTe DSL behind grouped_mm: what it takes, what is said where it cannot run; on Hopper, its results."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

from course_kernels import grouped_cute, grouped_launch, grouped_mm, grouped_ops
from course_kernels.grouped_cases import GroupedCase, build, check
from course_kernels.kernels.cute_sm90.config import configs_for
from course_kernels.testing import assert_grouped_exact, integers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import fuzz

hopper = pytest.mark.gpu
SIZES = (0, 300, 1, 128, 0, 513, 77, 0)


@pytest.fixture
def device():
    if not grouped_cute.runs_on(torch.device("cuda", 0)):
        pytest.skip("needs a GPU of compute capability 9.0")
    if not grouped_cute.installed():
        pytest.skip("needs the packages of the extra cutlass")
    return torch.device("cuda", 0)


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
    "int64 ends": changed(2, lambda offs: offs.long()),
    "A column-major": changed(0, lambda a: a.mT.contiguous().mT),
    "one B for all groups": changed(1, lambda b: b[:1].expand(3, 24, 40)),
    "rows of A off 16 bytes": changed(0, lambda a: pitched(a, 28)),
    "A off 16 bytes": changed(0, lambda a: pitched(a, 24, 4)),
    "rows of the result off 16 bytes": changed(3, lambda out: pitched(out, 44)),
    "result column-major": changed(3, lambda out: out.mT.contiguous().mT),
    "mode n": [torch.zeros(3, 8, 16), torch.zeros(16, 8), operands()[2], torch.zeros(8, 8)],
    "mode k, A row-major": [along_k()[0].contiguous(), *along_k()[1:]],
    "mode k, B column-major": [along_k()[0], along_k()[1].mT.contiguous().mT, *along_k()[2:]],
    "mode k, M no multiple of 8": along_k(M=20),
    "mode k, N no multiple of 8": along_k(N=20),
    "mode k, no depth": along_k(total=0),
}
TAKEN_ALONG_K = {"as they are": along_k(), "one row": along_k(total=1), "one group": along_k(G=1)}


@pytest.mark.parametrize("made", TAKEN.values(), ids=TAKEN)
def test_taken(made):
    assert grouped_cute.form_of(*made) == ("m", "k")


@pytest.mark.parametrize("made", TAKEN_ALONG_K.values(), ids=TAKEN_ALONG_K)
def test_taken_along_k(made):
    assert grouped_cute.form_of(*made) == ("k", "n")


def test_row_major_weights_are_taken():
    assert grouped_cute.form_of(*changed(1, lambda b: b.contiguous())) == ("m", "n")


@pytest.mark.parametrize("made", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_not_taken(made):
    assert grouped_cute.form_of(*made) is None


def test_bias_scales_and_a_kept_tail_are_not_taken():
    made = operands()
    assert grouped_cute.form_of(*made)
    assert grouped_cute.form_of(*made, bias=torch.zeros(3, 40)) is None
    assert grouped_cute.form_of(*made, scale_a=torch.zeros(20)) is None
    assert grouped_cute.form_of(*made, keep_tail=True) is None


def test_fuzzing_draws_what_is_taken():
    forms = set()
    for case in map(fuzz.for_cute, fuzz.cases(0, 300, 64, 8)):
        made = build(case)
        offs, (rows, columns) = made.arguments["offs"].contiguous(), (made.mat_a.shape[0], made.mat_b.shape[-1])
        shape = (rows, columns) if case.mode == "m" else (offs.shape[0], rows, columns)
        out = torch.empty(shape, dtype=case.out_dtype or case.dtype)
        forms.add(grouped_cute.form_of(made.mat_a, made.mat_b, offs, out))
    assert forms == {("m", "k"), ("m", "n"), ("k", "n")}


@pytest.mark.parametrize("form", [("m", "k"), ("m", "n"), ("k", "n")])
def test_choices_can_be_built(form):
    for rows in (0.1, 1, 100, 2048, 2**30):
        for columns in (8, 768, 1536, 2048, 14336):
            config = grouped_cute.choose(grouped_cute.Form(*form), rows, columns)
            assert config.why_not() is None
            assert dataclasses.replace(config, window=True) in configs_for(*form) or config in configs_for(*form)


def test_rows_of_a_group_are_counted_along_what_is_shared_out():
    a, _, offs, _ = operands(total=21)
    assert grouped_cute.rows_of_a_group(a, offs) == 7
    a, _, offs, _ = along_k(total=21)
    assert grouped_cute.rows_of_a_group(a, offs) == 7


def test_auto_asks_it_first_where_it_runs_and_groups_are_large(monkeypatch):
    large, _, offs, _ = operands(total=300)
    few, *_ = operands(total=100)
    assert not grouped_cute.preferred(large, offs)
    monkeypatch.setattr(grouped_cute, "runs_on", lambda device: True)
    monkeypatch.setattr(grouped_cute, "installed", lambda: True)
    assert grouped_cute.preferred(large, offs)
    assert not grouped_cute.preferred(few, offs)
    assert not grouped_cute.preferred(torch.zeros(3, 4, 5), offs)


def test_a_machine_without_the_gpu_is_told_so():
    a, b, offs, _ = operands()
    with pytest.raises(ValueError, match=r"backend='cute' needs a GPU of compute capability 9.0 .* mat_a is on cpu"):
        grouped_mm(a, b, offs=offs, backend="cute")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(grouped_cute, "runs_on", lambda device: True)
    monkeypatch.setattr(grouped_cute, "installed", lambda: False)
    with pytest.raises(ImportError, match=r"\[cutlass\]"):
        grouped_cute.check_available(torch.device("cpu"))


# ---- on Hopper


def cute_alone(monkeypatch):
    """From here on an error where the Triton kernels are asked."""

    def refuse(*args, **options):
        raise AssertionError("the kernel in CuTe DSL was not used")

    monkeypatch.setattr(grouped_ops, "_known", {})
    monkeypatch.setattr(grouped_launch, "multiply", refuse)


def call(a, b, **arguments):
    return grouped_mm(a, b, backend="cute", **arguments)


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
@pytest.mark.parametrize("backend", ["cute", "auto"])
def test_a_layer_and_its_gradients(device, monkeypatch, backend):
    ends = torch.tensor([140, 140, 400], dtype=torch.int32, device=device)
    a = integers((440, 64), torch.bfloat16, 1, device=device).requires_grad_()
    weight = integers((3, 96, 64), torch.bfloat16, 2, device=device).requires_grad_()
    results = []
    for each in ("triton", backend):
        out = grouped_mm(a, weight.mT, offs=ends, backend=each)
        results.append((out, *torch.autograd.grad(out, (a, weight), integers(out.shape, out.dtype, 3, device=device))))
        cute_alone(monkeypatch)  # from the second on
    assert all(torch.equal(x, y) for x, y in zip(*results))


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
