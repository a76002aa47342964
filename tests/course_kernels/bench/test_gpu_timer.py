"""The clocks of a measurement; what they do on a GPU is tested with what they measure."""

from __future__ import annotations

from course_kernels.bench import gpu_timer, timing


def test_a_timer_of_long_runs_differs_in_how_functions_take_turns():
    assert gpu_timer.GpuTimer().interleaved_us is timing.interleaved_us
    assert gpu_timer.SustainedTimer().interleaved_us is timing.sustained_us
    assert issubclass(gpu_timer.SustainedTimer, gpu_timer.GpuTimer)


def test_a_replay_returns_its_result_until_it_is_forgotten():
    replayed, kept = [], ["result"]

    class Graph:
        def replay(self):
            replayed.append(len(kept))

    replay = gpu_timer.Replay(Graph(), kept)
    assert replay() == "result"
    gpu_timer.GpuTimer().forget(replay)
    assert replay() is None
    assert replayed == [1, 0]
