"""Sums over the rows of groups: exact, of any strides, whatever the sizes; with gradients, under torch's modes."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_kernels import runtime
from course_kernels.packed.group_sums import CHUNK, group_sums, prepare
from course_kernels.testing import integers, poisoned, strided_like

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

DEVICE = runtime.device()
BACKENDS = ("torch", "triton")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
OPS = torch.ops.course_kernels
# Totals of less than a chunk, of a chunk, and of more. Ends at the chunks' ends and beside them; empty groups at both
# ends and between, also where a chunk ends; a tail of less than a chunk and of whole chunks; no rows in any group.
CASES = {
    "one chunk": (20, (0, 5, 5, 17)),
    "a whole chunk": (CHUNK, (CHUNK,)),
    "a row more": (CHUNK + 1, (CHUNK, CHUNK + 1)),
    "ends of chunks": (3 * CHUNK, (0, CHUNK, CHUNK, CHUNK, 2 * CHUNK, 3 * CHUNK)),
    "beside them": (3 * CHUNK, (CHUNK - 1, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK)),
    "one group": (5 * CHUNK + 3, (0, 5 * CHUNK + 3, 5 * CHUNK + 3)),
    "small groups": (CHUNK + 44, tuple(range(7, CHUNK + 44, 11))),
    "a tail of chunks": (4 * CHUNK, (3, 9)),
    "nothing but a tail": (2 * CHUNK, (0, 0)),
    "no rows": (0, (0, 0)),
}


def ends(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def slices(values):
    return [slice(start, end) for start, end in zip((0, *values), values)]


def wanted(matrix, values):
    """Exact sums, in float64."""
    rows = [matrix[part].double().sum(0) for part in slices(values)]
    return torch.stack(rows).float() if rows else torch.zeros(0, matrix.shape[1], device=matrix.device)


def matrix_of(total, N=19, dtype=torch.float32, tail=None):
    made = integers((total, N), dtype, 1, device=DEVICE)
    if tail is not None:
        made[tail:] = float("nan")
    return made


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_are_exact_and_tails_are_not_read(backend, case):
    total, values = case
    matrix = matrix_of(total, tail=values[-1])
    got = group_sums(matrix, ends(values), backend=backend)
    assert got.dtype == torch.float32
    assert got.is_contiguous()
    assert torch.equal(got, wanted(matrix, values))


@pytest.mark.parametrize("strides", ["col", "unaligned", "every_other", "expanded"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_types_and_strides(backend, dtype, strides):
    total, values = CHUNK + 30, (9, 9, CHUNK + 20)
    matrix = strided_like(matrix_of(total, 35, dtype), strides)
    got = group_sums(matrix, ends(values, torch.int64)[:, None].expand(3, 2)[:, 0], backend=backend)
    assert torch.equal(got, wanted(matrix, values))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    "total, values", [(40, (0, 5, 5, 33)), (CHUNK + 40, (0, 5, 5, CHUNK + 33))], ids=["one", "more"]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_out_is_written_once_and_nothing_around_it(backend, total, values, accumulate):
    matrix = matrix_of(total)
    for shape, transposed in (((4, 19), False), ((19, 4), True)):
        out, verify = poisoned(shape, torch.float32, device=DEVICE)
        out = out.mT if transposed else out
        if accumulate:
            out[1::2] = 3.0  # the groups with rows
            out[::2, ::2] = -0.0  # the others' other half is NaN
        version, before = out._version, out.clone()
        assert group_sums(matrix, ends(values), out=out, accumulate=accumulate, backend=backend) is out
        assert out._version > version
        verify(all_written=not accumulate)
        sums = wanted(matrix, values)
        assert torch.equal(out[1::2], sums[1::2] + 3.0 * accumulate)
        if accumulate:
            assert torch.equal(out[::2].view(torch.int32), before[::2].view(torch.int32)), "bits of empty groups"
        else:
            assert not out[::2].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_are_float32(backend):
    """2048 and ones: float16 sums would stay at 2048."""
    matrix = torch.ones(CHUNK + 9, 3, dtype=torch.float16, device=DEVICE)
    matrix[0] = 2048
    assert (group_sums(matrix, ends((CHUNK + 9,)), backend=backend) == 2048 + CHUNK + 8).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_sum(backend):
    assert group_sums(matrix_of(5), ends(()), backend=backend).shape == (0, 19)
    assert group_sums(matrix_of(5, 0), ends((2, 5)), backend=backend).shape == (2, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_ends_lead_nowhere(backend):
    matrix, verify = poisoned((CHUNK + 50, 16), torch.float32, device=DEVICE)
    matrix.zero_()
    for values in ((900, -7, 3), (-5, 2**31 - 1, 10), (3, 1, 0)):
        out, verify_out = poisoned((3, 16), torch.float32, device=DEVICE)
        group_sums(matrix, ends(values), out=out, backend=backend)
        verify_out()
    verify()


def test_every_item_is_one_piece_of_one_group():
    """The numbering of items, on the host: no piece is missing, none is there twice, all are in order."""
    for total, values in CASES.values():
        items, chunks = [], max(1, -(-total // CHUNK))
        last = [max(-(-end // CHUNK) - 1, 0) for end in values]
        for item in range(chunks + len(values) - 1):
            g = sum(p + j < item for j, p in enumerate(last))
            if g < len(values):
                start, end = ((0, *values)[g], values[g])
                p = item - g
                items.append((g, max(start, p * CHUNK), min(end, (p + 1) * CHUNK)))
        covered = [(g, row) for g, start, end in items for row in range(start, end)]
        assert covered == [(g, row) for g, part in enumerate(slices(values)) for row in range(part.start, part.stop)]


def test_launches_are_divided_by_rows_not_by_groups():
    big, ends_of = torch.empty(100 * CHUNK, 256), torch.empty(8, dtype=torch.int32)
    of_items, of_groups = prepare(big, ends_of, torch.empty(8, 256), True)
    assert (of_items.programs, of_groups.programs) == (2 * 107, 2 * 8)
    assert (of_items.arguments["ACCUMULATE"], of_groups.arguments["ACCUMULATE"]) == (False, True)
    assert of_items.arguments["sums_ptr"].shape == (107, 256)
    (alone,) = prepare(big[:CHUNK], ends_of, torch.empty(8, 256), True)
    assert (alone.programs, alone.arguments["ACCUMULATE"]) == (2 * 8, True)


# ---- gradients and torch's modes


@pytest.mark.parametrize("values", [(5, 5, 17), ()], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_to_second_order(backend, values):
    matrix = matrix_of(20, 3, torch.float16).requires_grad_()
    weights = integers((len(values), 3), torch.float32, 5, device=DEVICE)
    first, = torch.autograd.grad((group_sums(matrix, ends(values), backend=backend) ** 2 * weights).sum(), matrix,
                                 create_graph=True)  # fmt: skip
    sums = wanted(matrix.detach(), values)
    for g, part in enumerate(slices(values)):
        assert (first[part] == (2 * weights * sums)[g].half()).all()
    assert first.dtype == torch.float16
    assert not first[values[-1] if values else 0 :].any(), "the tail"
    (second,) = torch.autograd.grad(first.float().sum(), matrix)
    sizes = [part.stop - part.start for part in slices(values)]
    for g, part in enumerate(slices(values)):
        assert (second[part] == (2 * sizes[g] * weights)[g].half()).all()


def test_under_torch_func():
    matrix, offs = matrix_of(20, 3), ends((5, 5, 17))
    batch = torch.stack([matrix, 2 * matrix])
    got = torch.func.vmap(lambda m: group_sums(m, offs))(batch)
    assert torch.equal(got, torch.stack([group_sums(m, offs) for m in batch]))
    grads = torch.func.vmap(torch.func.grad(lambda m: (group_sums(m, offs) ** 2).sum()))(batch)
    assert torch.equal(grads[1], 2 * grads[0])
    assert torch.equal(grads[0, 5:17], (2 * group_sums(matrix, offs))[2].expand(12, 3))


def test_opchecks():
    matrix, offs = matrix_of(20, 3).requires_grad_(), ends((5, 5, 17))
    torch.library.opcheck(OPS.group_sums, (matrix, offs, "auto"))
    out = torch.zeros(3, 3, device=DEVICE)
    torch.library.opcheck(OPS.group_sums_out, (matrix.detach(), offs, out, True, "auto"))


def test_compiled_without_a_graph_break():
    torch._dynamo.reset()

    def both(matrix, offs, out):
        group_sums(matrix.detach(), offs, out=out, accumulate=True)
        return group_sums(matrix, offs).square().sum() + out.sum()

    results = []
    for function in (both, torch.compile(both, fullgraph=True, backend="aot_eager")):
        matrix, out = matrix_of(20, 3).requires_grad_(), torch.ones(3, 3, device=DEVICE)
        total = function(matrix, ends((5, 5, 17)), out)
        total.backward()
        results.append((total.detach(), matrix.grad, out))
    assert all(torch.equal(x, y) for x, y in zip(*results))
    torch._dynamo.reset()


def test_meta_tensors_have_results():
    got = group_sums(torch.empty(20, 3, device="meta"), torch.empty(4, dtype=torch.int32, device="meta"))
    assert (got.shape, got.dtype, got.device.type) == ((4, 3), torch.float32, "meta")


# ---- what is refused


@pytest.mark.parametrize(
    "change, error, message",
    [
        (dict(matrix=[1]), TypeError, "matrix must be a torch.Tensor, got list"),
        (dict(matrix=torch.zeros(20, 3, dtype=torch.float64)), TypeError, "matrix must have a dtype of"),
        (dict(matrix=torch.zeros(20)), ValueError, r"matrix must be 2-D, got shape \(20,\)"),
        (dict(matrix=torch.zeros(1, 1).expand(2**31, 1)), ValueError, "matrix must have extents below"),
        (dict(offs=torch.zeros(3)), TypeError, "offs must be torch.int32 or torch.int64"),
        (dict(offs=torch.zeros(3, 1).int()), ValueError, "offs must be 1-D"),
        (dict(offs=torch.zeros(3, device="meta").int()), ValueError, "offs must be on the device of matrix"),
        (dict(backend="cuda"), ValueError, "backend must be one of"),
        (dict(accumulate=True), ValueError, "accumulate must be False where out is not given"),
        (dict(out=torch.zeros(3, 4)), ValueError, r"out must have shape \(3, 3\), got \(3, 4\)"),
        (dict(out=torch.zeros(3, 3).half()), TypeError, "out must have dtype torch.float32"),
        (dict(out=torch.zeros(3, 3, device="meta")), ValueError, "out must be on the device of matrix"),
    ],
    ids=str,
)
def test_refused(change, error, message):
    arguments = dict(matrix=torch.zeros(20, 3), offs=torch.tensor([5, 5, 17])) | change
    with pytest.raises(error, match=message):
        group_sums(**arguments)


def test_out_is_refused_before_it_is_written_to():
    matrix, offs = torch.zeros(20, 3), torch.tensor([5, 5, 17])
    with pytest.raises(ValueError, match="out shares memory with matrix"):
        group_sums(matrix, offs, out=matrix[:3])
    with pytest.raises(ValueError, match="out has elements that share memory"):
        group_sums(matrix, offs, out=torch.zeros(3).expand(3, 3))
    with pytest.raises(ValueError, match="out cannot be given when matrix requires a gradient"):
        group_sums(matrix.clone().requires_grad_(), offs, out=torch.zeros(3, 3))


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "sizes",
    [(30_000, 0, 1, 7, 2_000), (0,) * 7 + (32_768,), tuple(i % 9 for i in range(4096)), (256,) * 128],
    ids=["skewed", "one hot", "many", "equal"],
)
def test_skewed_groups(sizes, dtype, layout):
    values = list(itertools.accumulate(sizes))
    matrix = torch.empty(values[-1] + 300, 1000, dtype=dtype, device="cuda").random_(-2, 3)
    matrix = matrix.mT.contiguous().mT if layout == "col" else matrix
    matrix[values[-1] :] = float("nan")
    offs = torch.tensor(values, device="cuda")
    assert torch.equal(group_sums(matrix, offs), wanted(matrix, values))
    matrix.normal_()
    first = group_sums(matrix, offs)
    out = torch.ones_like(first)
    group_sums(matrix, offs, out=out, accumulate=True)
    filled = torch.tensor(sizes, device="cuda") > 0
    assert torch.equal(out, torch.where(filled[:, None], first + 1, 1.0))
    assert all(torch.equal(group_sums(matrix, offs), first) for _ in range(3))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["row", "col"])
def test_more_than_2_to_the_31_elements(layout):
    rows, N = 2**21 + 300, 1032
    matrix = torch.zeros((rows, N) if layout == "row" else (N, rows), dtype=torch.bfloat16, device="cuda")
    matrix = matrix if layout == "row" else matrix.mT
    assert matrix.numel() > 2**31
    matrix[-200:-100] = 1
    matrix[-1] = 5
    got = group_sums(matrix, torch.tensor([7, rows - 150, rows - 1], device="cuda"))
    assert torch.equal(got, torch.tensor([0.0, 50.0, 50.0], device="cuda")[:, None].expand(3, N))


@pytest.mark.gpu
def test_nothing_waits_and_a_graph_replays():
    matrix, offs = torch.ones(3000, 64, device="cuda"), torch.tensor([100, 100, 2000], device="cuda")
    out = torch.empty(3, 64, device="cuda")
    group_sums(matrix, offs, out=out)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        group_sums(matrix, offs, out=out, accumulate=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        group_sums(matrix, offs, out=out)
    offs.copy_(torch.tensor([0, 2500, 2600]))
    graph.replay()
    assert out[:, 0].tolist() == [0, 2500, 100]


def test_the_module_runs_the_kernels_that_prepare_names():
    from course_kernels.kernels import group_sums as kernels

    assert {
        launch.kernel for launch in prepare(torch.empty(600, 3), torch.empty(2).int(), torch.empty(2, 3), False)
    } == {name for name in vars(kernels) if name.endswith("_kernel")}
