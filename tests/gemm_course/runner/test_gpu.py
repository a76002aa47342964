"""Steps on a GPU before an answer runs, where there may be none."""

from __future__ import annotations

import os
import signal
import time

from gemm_course.runner import gpu


def test_a_gpu_that_hangs_does_not_hang_who_waits_for_it(monkeypatch, tmp_path):
    forked = []

    def fork(original=os.fork):
        forked.append(original())
        return forked[-1]

    monkeypatch.setattr(gpu, "_CONTROL", str(tmp_path))
    monkeypatch.setattr(gpu, "_MEMORY", str(tmp_path / "nowhere"))
    monkeypatch.setattr(gpu, "_START_S", 0.1)
    monkeypatch.setattr(gpu, "_build_driver", lambda: None)
    monkeypatch.setattr(gpu, "start", lambda: time.sleep(8))
    monkeypatch.setattr(gpu.os, "fork", fork)
    gpu.prepare()
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == -signal.SIGKILL
