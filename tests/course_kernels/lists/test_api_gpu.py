"""What only a GPU can show of the list API: real sizes, streams, graphs, copies, 64-bit addresses, accuracy."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch

from course_kernels import GemmConfig, GroupGemmPlan, group_gemm, runtime
from course_kernels.testing import (
    assert_close_to_oracle,
    assert_exact,
    assert_group_close,
    integers,
    make_operands,
    reference,
    strided_like,
)

pytestmark = pytest.mark.gpu

METHODS = ("naive", "round_robin", "tma")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn)
# Tails in each dimension and in none, one row, one column, nothing at all, more tiles than a GPU has SMs.
PROBLEMS = [
    (1000, 777, 513),
    (2048, 1536, 1024),
    (1, 4096, 2048),
    (300, 1, 2000),
    (129, 257, 2047),
    (0, 64, 64),
    (64, 72, 0),
    (512, 512, 512),
]
EQUAL = [(256, 384, 512)] * 6
GROUPED = [GemmConfig(64, 64, 64, schedule=s, group_m=4) for s in ("round_robin", "chunks", "dynamic")]


def id_of(value):
    return value.schedule if isinstance(value, GemmConfig) else str(value).removeprefix("torch.")


def operands(problems, dtype=torch.float16, seed=0, strides=("row", "row")):
    """Whole numbers on the GPU, A and B laid out as said."""
    pairs = make_operands(problems, dtype, seed, device=runtime.device())
    return [[strided_like(t, how) for t in group] for group, how in zip(pairs, strides)]


def normal(problems, dtype, seed=0):
    """Normal random numbers on the GPU."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(rows, cols):
        return torch.randn(rows, cols, generator=generator, device="cuda").to(dtype)

    return [draw(m, k) for m, n, k in problems], [draw(k, n) for m, n, k in problems]


def check(outs, group_A, group_B):
    for i, (c, a, b) in enumerate(zip(outs, group_A, group_B)):
        assert_exact(c, a, b, what=f"problem {i}")


@pytest.mark.parametrize("strides", [("row", "row"), ("row", "col"), ("col", "row"), ("unaligned", "padded")], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
def test_chosen_configuration_is_exact_at_real_sizes(dtype, strides):
    group_A, group_B = operands(PROBLEMS, dtype, strides=strides)
    check(group_gemm(group_A, group_B), group_A, group_B)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=id_of)
def test_each_method_is_exact_at_real_sizes(method, dtype):
    group_A, group_B = operands(PROBLEMS, dtype)
    check(group_gemm(group_A, group_B, method=method), group_A, group_B)


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float32], ids=id_of)
@pytest.mark.parametrize("dtype", DTYPES, ids=id_of)
def test_random_data_stay_within_the_error_bound(dtype, out_dtype):
    group_A, group_B = normal([(500, 333, 1000), (512, 512, 1024)], dtype)
    assert_group_close(group_gemm(group_A, group_B, out_dtype=out_dtype), group_A, group_B)


def test_tf32_is_within_its_bound_and_ieee_is_far_better():
    group_A, group_B = normal([(500, 336, 1024)], torch.float32)
    exact = reference.group_gemm(group_A, group_B)[0]
    error = {}
    for precision in ("ieee", "tf32"):
        outs = group_gemm(group_A, group_B, precision=precision)
        assert_group_close(outs, group_A, group_B, accumulation=precision)
        error[precision] = (outs[0].double() - exact).abs().max().item()
    assert error["ieee"] * 100 < error["tf32"], error


@pytest.mark.parametrize("method", METHODS)
def test_fp8_sums_leave_the_narrow_accumulator_once_per_block(method):
    """Hopper sums fp8 products in 13 bits after the largest. Were the whole of K summed so, its error would be that of
    4096 additions; kept to a block of K it is that of 128."""
    group_A, group_B = normal([(256, 256, 4096)], torch.float8_e4m3fn)
    (out,) = group_gemm(group_A, group_B, method=method, out_dtype=torch.float32)
    (a,), (b,) = group_A, group_B
    error = (out.double() - reference.gemm(a, b)).abs()
    magnitude = reference.gemm(a.float().abs(), b.float().abs())
    assert (error <= 128 * 2.0**-13 * magnitude).all(), (error / magnitude).max()


@pytest.mark.parametrize("config", GROUPED, ids=id_of)
@pytest.mark.parametrize("method", METHODS)
def test_five_runs_agree_bit_for_bit(method, config):
    group_A, group_B = normal([(500, 333, 1000), (512, 512, 1024), (64, 2048, 4096)], torch.float16)
    plan = GroupGemmPlan(group_A, group_B, method=method, config=config)
    first = [c.clone() for c in plan.run()]
    for _ in range(4):
        for c in plan.out:
            c.fill_(float("nan"))
        assert all(torch.equal(c, f) for c, f in zip(plan.run(), first))


# ---- more than 2**31 elements


@pytest.mark.parametrize("how", ["row", "col"])
@pytest.mark.parametrize("method", METHODS)
def test_operand_of_more_than_2_to_the_31_elements(method, how):
    rows, cols, n = 2**16 + 1, 2**15 + 8, 16
    a = torch.empty(rows, cols, dtype=torch.float16, device="cuda").random_(-2, 3)
    a = a if how == "row" else a.t()
    b = integers((a.shape[1], n), device="cuda")
    (c,) = group_gemm([a], [b], method=method)
    for some in (slice(0, 64), slice(-64, None)):
        assert_exact(c[some], a[some], b, what=f"rows {some}")


@pytest.mark.parametrize("method", METHODS)
def test_output_of_more_than_2_to_the_31_elements(method):
    m, n, k = 2**16 + 1, 2**15 + 8, 16
    a, b = integers((m, k), device="cuda"), integers((k, n), device="cuda")
    out = torch.full((m, n), float("nan"), dtype=torch.float16, device="cuda")
    group_gemm([a], [b], method=method, out=[out])
    assert not out.isnan().any()
    for rows in (slice(0, 64), slice(-64, None)):
        for cols in (slice(0, 64), slice(-64, None)):
            assert_exact(out[rows, cols], a[rows], b[:, cols], what=f"rows {rows}, columns {cols}")


# ---- graphs, copies, memory


@pytest.mark.parametrize("config", [None, *GROUPED], ids=id_of)
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_graph_replays_with_changed_contents(method, config):
    group_A, group_B = operands(EQUAL)
    plan = GroupGemmPlan(group_A, group_B, method=method, config=config)
    plan.run()  # compiles, which a capture does not allow
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run()
    for seed in (1, 2, 3):
        for old, new in zip(group_A + group_B, itertools.chain(*operands(EQUAL, seed=seed))):
            old.copy_(new)
        for c in plan.out:
            c.fill_(float("nan"))
        graph.replay()
        check(plan.out, group_A, group_B)


def test_group_gemm_refuses_to_be_captured():
    group_A, group_B = operands(EQUAL)
    outs = group_gemm(group_A, group_B)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="GroupGemmPlan"), torch.cuda.graph(graph):
        group_gemm(group_A, group_B, out=outs)
    check(group_gemm(group_A, group_B), group_A, group_B)


def copies(function) -> list[str]:
    """Names of the copies between host and device that a call makes."""
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        function()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert any("kernel" in name for name in names), f"the profiler saw no kernel: {sorted(set(names))}"
    return [name for name in names if "Memcpy HtoD" in name or "Memcpy DtoH" in name]


@pytest.mark.parametrize("method", ["auto", "round_robin", "tma"])
def test_call_sends_all_tables_in_one_copy_from_pinned_memory(method):
    group_A, group_B = operands([*EQUAL, *PROBLEMS])
    group_gemm(group_A, group_B, method=method)
    found = copies(lambda: group_gemm(group_A, group_B, method=method))
    assert len(found) == 1, found
    assert "Pinned" in found[0]


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_plan_runs_without_copies_and_without_more_memory(method):
    group_A, group_B = operands([*EQUAL, *PROBLEMS])
    plan = GroupGemmPlan(group_A, group_B, method=method)
    plan.run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    assert copies(plan.run) == []
    for _ in range(5):
        plan.run()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_call_does_not_wait_for_the_device():
    group_A, group_B = operands(EQUAL)
    plan = GroupGemmPlan(group_A, group_B)
    plan.run()
    group_gemm(group_A, group_B)
    torch.cuda.set_sync_debug_mode("error")
    try:
        group_gemm(group_A, group_B)
        plan.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---- streams, threads, devices


def test_two_streams_with_a_plan_each():
    cases = [operands(EQUAL, seed=seed) for seed in (1, 2)]
    plans = [GroupGemmPlan(*case, config=GROUPED[2]) for case in cases]
    streams = [torch.cuda.Stream() for _ in plans]
    torch.cuda.synchronize()
    for _ in range(50):
        for plan, stream in zip(plans, streams):
            with torch.cuda.stream(stream):
                plan.run()
    torch.cuda.synchronize()
    for plan, case in zip(plans, cases):
        check(plan.out, *case)


def test_call_on_a_side_stream_uses_that_stream():
    group_A, group_B = operands(EQUAL)
    late = [torch.zeros_like(a) for a in group_A]
    group_gemm(late, group_B)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # about 30 ms: a launch on another stream would read zeros
        for target, source in zip(late, group_A):
            target.copy_(source)
        outs = group_gemm(late, group_B)
    stream.synchronize()
    check(outs, group_A, group_B)


def test_threads_with_their_own_calls():
    """Triton's scratch allocator belongs to a thread: a new one starts without."""
    failures = []
    group_gemm(*operands(EQUAL), method="tma")  # compiles once, not in four threads at a time

    def work(seed):
        try:
            group_A, group_B = operands(EQUAL, seed=seed)
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(10):
                    outs = group_gemm(group_A, group_B, method="tma")
                torch.cuda.current_stream().synchronize()
            check(outs, group_A, group_B)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("method", METHODS)
def test_operands_on_another_device_than_the_current_one(method):
    with torch.cuda.device(0):
        group_A, group_B = ([t.to("cuda:1") for t in group] for group in operands(EQUAL))
        outs = group_gemm(group_A, group_B, method=method)
        assert torch.cuda.current_device() == 0
    assert all(c.device == torch.device("cuda", 1) for c in outs)
    check(outs, group_A, group_B)


def test_cpu_tensors_name_what_is_missing():
    a = torch.ones(16, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        group_gemm([a], [a], method="tma")
    assert torch.equal(group_gemm([a], [a])[0], a @ a)


def test_mixed_devices_name_the_operand():
    a = torch.ones(16, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"group_B\[0\] must be on the device"):
        group_gemm([a.cuda()], [a])


# ---- operands that die early, and gradients


def test_call_survives_operands_that_are_freed_at_once():
    """The launch is asynchronous; torch's cache must not hand the memory of a temporary to something else first."""
    for seed in range(5):
        keep = operands(EQUAL, seed=seed)
        outs = group_gemm([a.clone() for a in keep[0]], [b.clone() for b in keep[1]], method="tma")
        noise = [torch.full_like(a, float("nan")) for a in keep[0] * 2]
        check(outs, *keep)
        del noise


@pytest.mark.parametrize("method", ["auto", *METHODS])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=id_of)
def test_gradients_at_real_sizes(method, dtype):
    group_A, group_B = operands([(512, 256, 128), (300, 200, 100), (77, 33, 55)], dtype)
    for t in group_A + group_B:
        t.requires_grad_()
    upstream = [
        integers((a.shape[0], b.shape[1]), dtype, i, device="cuda") for i, (a, b) in enumerate(zip(group_A, group_B))
    ]
    torch.autograd.backward(group_gemm(group_A, group_B, method=method), upstream)
    for i, (a, b, g) in enumerate(zip(group_A, group_B, upstream)):
        assert_exact(a.grad, g, b.detach().t(), what=f"gradient of A[{i}]")
        assert_exact(b.grad, a.detach().t(), g, what=f"gradient of B[{i}]")


def test_recorded_times_name_sms_and_are_ordered():
    group_A, group_B = operands(EQUAL)
    plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=GROUPED[0], record=True)
    plan.run()
    (launch,) = plan.launches
    program, sm, start, end = launch.records.cpu().T
    assert program.tolist() == [i % launch.programs for i in range(launch.tiles)]
    assert sm.min() >= 0
    assert sm.max() < runtime.num_sms()
    assert (end > start).all()
    assert int(end.max() - start.min()) < 10**9, "more than a second"


def test_plan_reports_the_programs_of_this_gpu():
    group_A, group_B = operands([(2048, 2048, 512)] * 4)
    (launch,) = GroupGemmPlan(group_A, group_B, config=GemmConfig(64, 64, 64, programs_per_sm=2)).launches
    assert launch.programs == 2 * runtime.num_sms()
    assert_close_to_oracle(group_gemm(group_A, group_B)[0], group_A[0], group_B[0])


@pytest.mark.parametrize("rows", [1, 5, 130])
@pytest.mark.parametrize("N", [361, 100, 4])
def test_nothing_is_written_between_rows_of_c_that_end_within_16_bytes(rows, N):
    """A descriptor's store writes whole 16 bytes in hardware, and in the interpreter it does not."""
    a, b = make_operands([(rows, N, 64)], device="cuda")
    pitch = -(-N // 8) * 8 + 8
    buffer = torch.full((rows * pitch,), 77.0, dtype=torch.float16, device="cuda")
    c = buffer.as_strided((rows, N), (pitch, 1))
    group_gemm(a, b, out=[c], method="tma")
    assert_exact(c, a[0], b[0])
    assert (buffer.view(rows, pitch)[:, N:] == 77).all()
