"""A stand-in for measuring configurations, for tests of the tuner and its command."""

from __future__ import annotations

from course_kernels.bench.tune import Measured

PROVENANCE = {"gpu": "no GPU", "capability": "9.0", "date": "2026-01-01", "commit": "0"}


class Fake:
    """Times that make one candidate of each bucket the fastest, the one at a given place."""

    def __init__(self, place=1, failing=None):
        self.place, self.failing, self.measured = place, failing, []

    def __call__(self, case, configs):
        self.measured.append(case.name)
        us, failed = {}, {}
        for i, config in enumerate(configs):
            if self.failing is not None and self.failing(i):
                failed[config] = "wrong, on purpose"
            else:
                centre = 10.0 + abs(i - self.place)
                us[config] = [centre + 50, centre, centre - 0.1, centre + 0.1, centre]
        return Measured(us, failed)
