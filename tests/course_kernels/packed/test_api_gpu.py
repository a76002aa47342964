"""What only a GPU can show of grouped_mm: real sizes, 64-bit addresses, graphs, streams, determinism."""

from __future__ import annotations

import threading

import pytest
import torch

import fuzz
from course_kernels import GemmConfig, grouped_mm
from course_kernels.bench.rows import rows
from course_kernels.testing import assert_exact, assert_grouped_close, assert_grouped_exact, integers, reference
from course_kernels.testing.grouped_cases import MODES, GroupedCase, build, check

pytestmark = pytest.mark.gpu

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Empty groups at both ends and between, one row, whole tiles, a tail; extents that are multiples of 16 and none.
SIZES = (0, 300, 1, 128, 0, 513, 77, 0)
CASES = {mode: GroupedCase(mode, SIZES, 320, 272, 208, tail_size=0 if mode == "batch" else 61) for mode in MODES}
ODD = {mode: GroupedCase(mode, SIZES, 257, 131, 201, tail_size=0 if mode == "batch" else 61) for mode in MODES}


def id_of(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


def ends(sizes, dtype=torch.int32):
    return torch.tensor(sizes, device="cuda").cumsum(0).to(dtype)


def whole(*shape, dtype=torch.bfloat16):
    """Whole numbers from -2 to 2, drawn on the GPU."""
    return torch.empty(shape, dtype=dtype, device="cuda").random_(-2, 3)


# ---- real sizes


@pytest.mark.parametrize("cases", [CASES, ODD], ids=["aligned", "odd"])
@pytest.mark.parametrize("values", ["integers", "normal"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn], ids=id_of)
@pytest.mark.parametrize("mode", MODES)
def test_chosen_configuration(mode, dtype, values, cases):
    changes = dict(dtype=dtype, values=values, bias=None if mode == "n" or dtype.itemsize == 1 else dtype)
    case = GroupedCase(**{**vars(cases[mode]), **changes})
    check(case, fuzz.compute(GroupedCase(**{**vars(case), "seed": fuzz.ALIKE})), device="cuda")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_rows_of_the_benchmark_shrunk(row):
    """Forward and both gradients' products, B transposed as a weight is. A quarter of every extent."""
    sizes = [max(1, size // 4) if size else 0 for size in row.sizes]
    compare_row(sizes, row.N // 4, row.K // 4)


@pytest.mark.parametrize("name", ["equal12", rows()[8].name])
def test_rows_of_the_benchmark_in_full(name):
    row = next(row for row in rows() if row.name == name)
    compare_row(row.sizes, row.N, row.K)


def compare_row(sizes, n, k):
    offs, total = ends(sizes), sum(sizes)
    a, weight, grad = whole(total, k), whole(len(sizes), n, k), whole(total, n)
    for x, y in ((a, weight.mT), (grad, weight), (a.mT, grad), (weight, a.mT)):
        assert_grouped_exact(grouped_mm(x, y, offs=offs), x, y, offs)


@pytest.mark.parametrize("count", [1024, 4096])
@pytest.mark.parametrize("mode", ["m", "n", "k"])
def test_thousands_of_groups(mode, count):
    sizes = [g % 5 if g % 7 else 0 for g in range(count)]
    for found in (sizes, [1] * count):
        check(GroupedCase(mode, tuple(found), 32, 48, 16, tail_size=3), fuzz.compute(CASES["m"]), device="cuda")


def test_thousands_of_matrices():
    check(GroupedCase("batch", (1,) * 4096, 5, 24, 16), fuzz.compute(CASES["m"]), device="cuda")


def test_tf32_is_within_its_bound_and_ieee_is_far_better():
    a, b = torch.randn(500, 1024, device="cuda"), torch.randn(3, 1024, 336, device="cuda")
    offs = ends((200, 0, 300))
    exact, error = reference.grouped_mm(a, b, offs), {}
    saved = torch.backends.cuda.matmul.allow_tf32
    try:
        for precision in ("ieee", "tf32"):
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            out = grouped_mm(a, b, offs=offs)
            assert_grouped_close(out, a, b, offs, accumulation=precision)
            error[precision] = (out.double() - exact).abs().max().item()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = saved
    assert error["ieee"] * 100 < error["tf32"], error


@pytest.mark.parametrize("first", range(0, 30 * fuzz.ALIKE, fuzz.ALIKE))
def test_random_cases(first):
    """Three hundred: ten of each of thirty kinds, so that each kind is compiled for once."""
    fuzz.judge(first, 10, fuzz.LARGEST, fuzz.MOST_GROUPS)


@pytest.mark.parametrize("rows_of", [1, 5, 200])
@pytest.mark.parametrize("N", [9, 361, 364, 367])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_written_between_rows_that_end_within_16_bytes(mode, N, rows_of):
    """A descriptor's store writes whole 16 bytes in hardware, and in the interpreter it does not."""
    sizes = (rows_of, 2) if mode == "m" else (N, 0) if mode == "n" else (40, 3)
    case = GroupedCase(mode, sizes, rows_of, N, 48, layout_out="pitched")
    check(case, fuzz.compute(GroupedCase("m", (), seed=fuzz.ALIKE)), device="cuda")


# ---- more than 2**31 elements


@pytest.mark.parametrize("how", ["row", "col"])
@pytest.mark.parametrize("mode", ["m", "k"])
def test_operand_of_more_than_2_to_the_31_elements(mode, how):
    lines, depth = 2**16 + 1, 2**15 + 8
    a = whole(lines, depth) if how == "row" else whole(depth, lines).t()
    if mode == "m":
        offs = ends((10, lines - 74, 0, 64))
        b = whole(4, depth, 16)
        out = grouped_mm(a, b, offs=offs)
        for g, part in (
            (0, slice(0, 10)),
            (1, slice(10, 74)),
            (1, slice(lines - 128, lines - 64)),
            (3, slice(-64, None)),
        ):
            assert_exact(out[part], a[part], b[g], what=f"rows {part}")
    else:
        sizes = (10, depth - 74, 0, 64)
        offs = ends(sizes)
        b = whole(depth, 16)
        out = grouped_mm(a, b, offs=offs)
        for part in (slice(0, 64), slice(-64, None)):
            assert_grouped_exact(out[:, part], a[part], b, offs)


def test_weights_of_more_than_2_to_the_31_elements():
    sizes = [16] * 129
    a, b, offs = whole(sum(sizes), 4096), whole(129, 4096, 4104), ends(sizes)
    out = grouped_mm(a, b, offs=offs)
    for g in (0, 64, 127, 128):
        part = slice(16 * g, 16 * g + 16)
        assert_exact(out[part], a[part], b[g], what=f"group {g}")


@pytest.mark.parametrize("mode", MODES)
def test_result_of_more_than_2_to_the_31_elements(mode):
    long, wide, groups = 2**16 + 1, 2**15 + 8, 130
    shapes = {
        "m": ((long, 16), (3, 16, wide)),
        "n": ((3, wide, 16), (16, long)),
        "k": ((4096, 16 * groups), (16 * groups, 4104)),
        "batch": ((groups, 4096, 16), (groups, 16, 4104)),
    }[mode]
    a, b = (whole(*shape) for shape in shapes)
    sizes = [16] * groups if mode == "k" else (100, long - 1000, 0)
    offs = None if mode == "batch" else ends(sizes)
    out = grouped_mm(a, b, offs=offs)
    assert out.numel() > 2**31
    if mode in ("m", "n"):
        out, a, b = (out, a, b[1]) if mode == "m" else (out.mT, b.mT, a[1].mT)
        for part in (slice(100, 164), slice(long - 964, long - 900)):
            for cols in (slice(0, 64), slice(-64, None)):
                assert_exact(out[part, cols], a[part], b[:, cols], what=f"rows {part}, columns {cols}")
        assert not out[-900:].any(), "the tail"
    else:
        for g in (0, 127, 128, 129):
            pair = (a[:, 16 * g : 16 * g + 16], b[16 * g : 16 * g + 16]) if mode == "k" else (a[g], b[g])
            assert_exact(out[g], *pair, what=f"group {g}")


@pytest.mark.parametrize("num_sms", [2, 3, 100])
@pytest.mark.parametrize("backend", ["auto", "triton"])
@pytest.mark.parametrize("mode", MODES)
def test_a_limit_on_sms(mode, backend, num_sms):
    check(CASES[mode], lambda a, b, **given: grouped_mm(a, b, **given, backend=backend, num_sms=num_sms), device="cuda")


# ---- determinism


@pytest.mark.parametrize("cases", [CASES, ODD], ids=["aligned", "odd"])
@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
@pytest.mark.parametrize("mode", MODES)
def test_five_runs_agree_bit_for_bit(mode, dtype, cases):
    case = GroupedCase(**{**vars(cases[mode]), "dtype": dtype, "values": "normal"})
    operands = build(case, "cuda")
    first = grouped_mm(operands.mat_a, operands.mat_b, **operands.arguments)
    for _ in range(4):
        noise = torch.full_like(first, float("nan"))  # what the next result may be allocated over
        del noise
        assert torch.equal(grouped_mm(operands.mat_a, operands.mat_b, **operands.arguments), first)


def test_the_dynamic_schedule_agrees_bit_for_bit():
    case = GroupedCase(**{**vars(CASES["m"]), "values": "normal"})
    operands = build(case, "cuda")
    results = [
        grouped_mm(operands.mat_a, operands.mat_b, **operands.arguments, config=GemmConfig(64, 64, 64, schedule=s))
        for s in ("round_robin", "dynamic", "dynamic", "dynamic")
    ]
    assert all(torch.equal(result, results[0]) for result in results)


# ---- graphs, memory, streams


@pytest.mark.parametrize("config", [None, GemmConfig(64, 64, 64, schedule="dynamic")], ids=["chosen", "dynamic"])
@pytest.mark.parametrize("mode", MODES)
def test_graph_replays_with_other_ends_and_values(mode, config):
    if mode == "k" and config is not None:
        config = GemmConfig(64, 64, 64, store_parts=2)  # which has no dynamic schedule
    case = CASES[mode]
    operands = build(case, "cuda")
    a, b, offs = operands.mat_a, operands.mat_b, operands.arguments.get("offs")
    a.nan_to_num_(0.0), b.nan_to_num_(0.0)  # what is tail now may be a group's later
    grouped_mm(a, b, offs=offs, config=config)  # compiles, which a capture does not allow
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = grouped_mm(a, b, offs=offs, config=config)
    total = sum(SIZES) + 61
    for sizes in (SIZES, (total,) + (0,) * 7, (0,) * 8, (0,) * 7 + (total - 1,), (100,) * 8, (1,) * 8):
        if offs is not None:
            offs.copy_(ends(sizes))
        a.random_(-2, 3), b.random_(-2, 3)
        out.fill_(float("nan"))
        graph.replay()
        assert_grouped_exact(out, a, b, offs)


@pytest.mark.parametrize("mode", MODES)
def test_call_waits_for_nothing_and_allocates_its_result_only(mode):
    operands = build(CASES[mode], "cuda")

    def call():
        return grouped_mm(operands.mat_a, operands.mat_b, **operands.arguments)

    call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        results = [call() for _ in range(3)]
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before + len(results)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", ["m", "n", "k"])
def test_totals_that_change_from_call_to_call(mode):
    """Growing, shrinking, tiny, and the same again, at the same addresses."""
    K, N, G = 96, 80, 4
    most = 700
    shapes = {"m": ((most, K), (G, K, N)), "n": ((G, N, K), (K, most)), "k": ((N, most), (most, K))}[mode]
    buffers = [whole(*shape) for shape in shapes]
    for total in (512, 513, 700, 17, 1, 0, 300, 512):
        a, b = buffers
        if mode in ("m", "k"):
            a = a[:total] if mode == "m" else a[:, :total]
        if mode in ("n", "k"):
            b = b[:total] if mode == "k" else b[:, :total]
        offs = ends((total // 3, 0, total // 2, total // 8))
        assert_grouped_exact(grouped_mm(a, b, offs=offs), a, b, offs)


def test_a_launch_keeps_no_operand_and_no_result():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for mode in MODES:
        case = GroupedCase(mode, (100, 0, 30), 72, 40, 56, dtype=torch.float16, tail_size=0 if mode == "batch" else 9)
        for layout in ("row", "odd"):
            operands = build(case, "cuda")
            a = operands.mat_a if layout == "row" else torch.nn.functional.pad(operands.mat_a, (0, 1))[..., :-1]
            grouped_mm(a, operands.mat_b, **operands.arguments)
            del operands, a
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("mode", MODES)
def test_call_on_a_side_stream_uses_that_stream(mode):
    operands = build(CASES[mode], "cuda")
    a, b, arguments = operands.mat_a, operands.mat_b, operands.arguments
    late = torch.zeros_like(a)
    grouped_mm(late, b, **arguments)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # about 30 ms: a launch on another stream would read zeros
        late.copy_(a)
        out = grouped_mm(late, b, **arguments)
    stream.synchronize()
    assert_grouped_exact(out, a, b, arguments.get("offs"))


def test_threads_with_their_own_calls():
    """What is kept from call to call is shared by threads that call at once, with operands of alike shapes."""
    failures = []
    drawn = [build(GroupedCase(**{**vars(CASES["m"]), "seed": seed}), "cuda") for seed in range(4)]

    def work(operands):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                outs = [grouped_mm(operands.mat_a, operands.mat_b, **operands.arguments) for _ in range(50)]
                torch.cuda.current_stream().synchronize()
                assert all(torch.equal(out, outs[0]) for out in outs)
                assert_grouped_exact(outs[0], operands.mat_a, operands.mat_b, operands.arguments["offs"])
        except BaseException as error:
            failures.append(error)

    grouped_mm(drawn[0].mat_a, drawn[0].mat_b, **drawn[0].arguments)
    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(operands,)) for operands in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_call_survives_operands_that_are_freed_at_once():
    """The launch is asynchronous; torch's cache must not hand a temporary's memory to something else first."""
    for seed in range(5):
        a, b = integers((600, 256), torch.bfloat16, seed, device="cuda"), whole(3, 256, 128)
        offs = ends((200, 100, 300))
        out = grouped_mm(a.clone(), b.clone(), offs=offs.clone())
        noise = [torch.full_like(t, float("nan")) for t in (a, b)]
        assert_grouped_exact(out, a, b, offs)
        del noise


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("mode", MODES)
def test_operands_on_another_device_than_the_current_one(mode):
    with torch.cuda.device(0):
        check(CASES[mode], fuzz.compute(CASES[mode]), device="cuda:1")
        assert torch.cuda.current_device() == 0
