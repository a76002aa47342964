from __future__ import annotations

import torch

from course_kernels.distributed.motion import combine, dispatch, settled


class Doubling:
    """A transport that notes what it is asked for."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def double(first, second, plan):
            given = [each for each in (first, second) if each is not None]
            self.calls.append((name, len(given), plan))
            return tuple(each if each is None else each * 2 for each in (first, second))

        return double


def test_each_half_is_the_derivative_of_the_other():
    way, x, weights = Doubling(), torch.ones(2, 3, requires_grad=True), torch.ones(2, 1, requires_grad=True)
    rows, sent = dispatch(x, weights, way, "plan")
    combine(rows * sent, way, "plan").sum().backward()
    assert [each[:2] for each in way.calls] == [("scatter", 2), ("collect", 1), ("scatter", 1), ("collect", 2)]
    assert {plan for *_, plan in way.calls} == {"plan"}
    assert x.grad.unique().item() == 2 * 2 * 2
    assert weights.grad.unique().item() == 3 * 2 * 2 * 2


def test_only_what_is_asked_for_travels_back():
    way, x = Doubling(), torch.ones(2, 3, requires_grad=True)
    dispatch(x, torch.ones(2, 1), way, None)[0].sum().backward()
    assert [each[:2] for each in way.calls] == [("scatter", 2), ("collect", 1)]


def test_a_pending_result_is_waited_for():
    class Pending:
        def trigger_wait(self):
            return "there"

    assert settled(Pending()) == "there"
    plain = torch.ones(1)
    assert settled(plain) is plain
