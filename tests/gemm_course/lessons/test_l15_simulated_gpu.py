"""The simulated GPU: each of its effects is there, alone, and the same every time."""

from __future__ import annotations

import statistics

import pytest

from gemm_course.lessons import l15_simulated_gpu as simulated
from gemm_course.lessons.l15_simulated_gpu import SimulatedGpu


def gemm(gpu, n=4096, fill="randn", **options):
    a, b, c = (getattr(gpu, fill)(n, n) for _ in range(3))
    return lambda: gpu.launch(f"gemm {n}", flops=2 * n**3, reads=[a, b], writes=[c], **options)


def times(gpu, function, repeats=20, flush=False):
    pairs = []
    for _ in range(repeats):
        if flush:
            gpu.flush_l2()
        start = gpu.event()
        function()
        pairs.append((start, gpu.event()))
    gpu.synchronize()
    return [start.until(end) for start, end in pairs]


def median(gpu, function, **options):
    function()
    return statistics.median(times(gpu, function, **options))


def test_the_host_goes_on_while_the_device_works():
    gpu = SimulatedGpu()
    run = gemm(gpu)
    run()
    gpu.synchronize()
    before = gpu.now
    run()
    run()
    assert gpu.now - before == pytest.approx(2 * simulated.LAUNCH_US)
    gpu.synchronize()
    (first, second), wait = [span for span in gpu.spans if span.lane == "device"][-2:], gpu.spans[-1]
    assert second.start == pytest.approx(first.end + simulated.START_US), "one after the other"
    assert wait.name == "wait"
    assert wait.end == pytest.approx(second.end + simulated.SYNC_US)


def test_the_first_launch_of_a_kernel_loads_it():
    gpu = SimulatedGpu()
    run = gemm(gpu, 64)
    run()
    assert gpu.now == pytest.approx(simulated.LOAD_US + simulated.LAUNCH_US)
    run()
    assert gpu.now == pytest.approx(simulated.LOAD_US + 2 * simulated.LAUNCH_US)


def test_an_event_has_no_time_before_the_host_waited():
    gpu = SimulatedGpu()
    start = gpu.event()
    gemm(gpu)()
    end = gpu.event()
    with pytest.raises(RuntimeError, match="synchronize"):
        start.until(end)
    gpu.synchronize()
    device = next(span for span in gpu.spans if span.lane == "device")
    assert start.until(end) == pytest.approx(device.end - start.at)


def test_time_is_the_longer_of_arithmetic_and_traffic_and_part_of_the_other():
    gpu = SimulatedGpu()
    x, y = gpu.zeros(1000, 50_000), gpu.zeros(1000, 1000)  # zeros: nothing lowers the clock
    flops = 80e9
    lasts = median(gpu, lambda: gpu.launch("k", flops=flops, reads=[x], writes=[y], efficiency=0.5, streaming=0.5))
    arithmetic = flops / (0.5 * simulated.PEAK_TFLOPS) / 1e6
    traffic = (x.nbytes / 0.5 + y.nbytes) / simulated.MEMORY_TB_S / 1e6
    expected = simulated.START_US + max(arithmetic, traffic) + simulated.OVERLAP_LOST * min(arithmetic, traffic)
    assert expected <= lasts <= expected * (1 + simulated.NOISE)


def test_zeros_are_faster_only_where_power_is_the_limit():
    def ratio(**options):
        both = []
        for fill in ("randn", "zeros"):
            gpu = SimulatedGpu()
            both.append(median(gpu, gemm(gpu, fill=fill, **options), repeats=100))
        return both[0] / both[1]

    busy, relaxed = ratio(efficiency=0.9), ratio(efficiency=0.5)
    assert busy > 1.15
    assert relaxed < 1.1
    assert busy > relaxed > 1.0, "heat is left"


def test_the_clock_sinks_while_the_chip_heats_up_and_recovers():
    gpu = SimulatedGpu()
    run = gemm(gpu)
    run()
    early = statistics.median(times(gpu, run, 15))
    times(gpu, run, 200)
    late = statistics.median(times(gpu, run, 15))
    assert late > 1.03 * early
    gpu.now += 10 * simulated.HEAT_US  # nobody asks for anything
    assert statistics.median(times(gpu, run, 15)) == pytest.approx(early, rel=0.02)


def read(gpu, megabytes):
    x, y = gpu.randn(1000, megabytes * 500), gpu.randn(8, 8)
    return lambda: gpu.launch("read", reads=[x], writes=[y])


def test_what_fits_into_the_cache_is_faster_the_second_time_unless_flushed():
    small, large = 40, 80
    assert small * 1e6 < simulated.L2_BYTES < large * 1e6
    warm, flushed = (median(g := SimulatedGpu(), read(g, small), flush=flush) for flush in (False, True))
    assert flushed > 2 * warm
    warm, flushed = (median(g := SimulatedGpu(), read(g, large), flush=flush) for flush in (False, True))
    assert flushed == pytest.approx(warm, rel=0.02), "what is larger than the cache pushes itself out"


def test_the_cache_drops_what_was_used_longest_ago():
    gpu = SimulatedGpu()
    first, second, third = (gpu.randn(1000, 12_500) for _ in range(3))
    for array in (first, second, first, third):
        gpu.launch("read", reads=[array])
    assert gpu._missed([first]) == (0, first.nbytes)
    assert gpu._missed([second])[0] > 0


def test_results_go_to_memory_and_stay_in_the_cache():
    gpu = SimulatedGpu()
    x = gpu.randn(1000, 20_000)
    written = median(gpu, lambda: gpu.launch("write", writes=[x]))
    assert written > simulated.START_US + x.nbytes / simulated.MEMORY_TB_S / 1e6
    gpu.launch("write", writes=[x])
    assert gpu._missed([x]) == (0, x.nbytes)


def test_a_graph_costs_the_host_one_launch_and_the_device_shorter_gaps():
    gpu = SimulatedGpu()
    run = gemm(gpu, 256)

    def five():
        for _ in range(5):
            run()

    five()
    called = median(gpu, five, flush=True)
    now, work = gpu.now, len(gpu.spans)
    replay = gpu.graph(five)
    assert (gpu.now, len(gpu.spans)) == (now, work), "capturing runs nothing"
    replay()
    assert gpu.now - now == pytest.approx(simulated.LAUNCH_US)
    assert [span.lane for span in gpu.spans[work:]].count("device") == 5
    saved = 4 * (simulated.START_US - simulated.GRAPH_START_US)
    assert median(gpu, replay, flush=True) == pytest.approx(called - saved, rel=0.05)


def test_a_capture_that_fails_leaves_no_trace():
    gpu = SimulatedGpu()
    with pytest.raises(ZeroDivisionError):
        gpu.graph(lambda: 1 / 0)
    gemm(gpu)()
    assert [span.lane for span in gpu.spans] == ["host", "device"]


def test_the_same_seed_gives_the_same_times_and_another_seed_others():
    def run(seed):
        return times(g := SimulatedGpu(seed), gemm(g), 50)

    first, again, second, third = map(run, (1, 1, 2, 3))
    assert first == again
    assert first != second
    hiccups = [time for time in first + second + third if time > 3 * statistics.median(first[1:])]
    assert hiccups, "now and then something is in the way"


def test_arrays_know_their_size_and_nothing_else():
    gpu = SimulatedGpu()
    assert gpu.randn(8, 3, 5).nbytes == 2 * 8 * 3 * 5
    assert (gpu.zeros(2, 2).activity, gpu.randn(2, 2).activity) == (0.0, 1.0)
