"""The adapters under TritonBench's conventions: of a year ago, with a B for each group, and of today, with one."""

from __future__ import annotations

import pytest
import torch

from course_kernels.jagged import packing, tritonbench
from course_kernels.testing import integers
from jagged_cases import DEVICE

ADAPTERS = (tritonbench.grouped_gemm_jagged_tritonbench, tritonbench.grouped_gemm_jagged_persistent_tritonbench)


class Operator:
    """What of TritonBench's operator an implementation meets: inputs from a generator, a callable to be timed."""

    def __init__(self, shares_b, dtype, extra=False):
        self.shares_b, self.dtype, self.extra = shares_b, dtype, extra

    def get_input_iter(self):
        """Four groups of N³, for growing N."""
        for n in (16, 32):
            matrices = [integers((n, n), self.dtype, seed, device=DEVICE) for seed in range(8)]
            group_A, group_B = matrices[:4], matrices[4:5] * 4 if self.shares_b else matrices[4:]
            if self.extra:
                sizes = torch.tensor([n] * 4, dtype=torch.int32, device=DEVICE)
                yield group_A, group_B, torch.stack(group_B), sizes
            else:
                yield group_A, group_B

    def aten_grouped_mm(self, group_A, group_B, w=None, split=None):
        """The baseline of today."""

        def run():
            offs = torch.tensor([a.shape[0] for a in group_A], device=DEVICE).cumsum(0).to(torch.int32)
            return torch.nn.functional.grouped_mm(torch.cat(group_A), torch.stack(group_B), offs=offs)

        return run


@pytest.mark.parametrize("extra", [False, True], ids=["lists", "lists-and-tensors"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapters_agree_with_the_baseline_of_today(adapter, extra):
    operator = Operator(shares_b=True, dtype=torch.bfloat16, extra=extra)
    for inputs in operator.get_input_iter():
        result, baseline = adapter(operator, *inputs)(), operator.aten_grouped_mm(*inputs)()
        torch.testing.assert_close(result, baseline)
        assert torch.equal(result, packing.reference(*inputs[:2]))


@pytest.mark.parametrize("pack_in_timed_region", [False, True])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_inputs_of_a_year_ago_have_different_bs_and_a_clear_answer(adapter, pack_in_timed_region):
    operator = Operator(shares_b=False, dtype=torch.float16)
    inputs = next(operator.get_input_iter())
    with pytest.raises(ValueError, match=r"group_B\[1\] differs from group_B\[0\]: one B must be shared"):
        adapter(operator, *inputs, pack_in_timed_region=pack_in_timed_region)


@pytest.mark.parametrize(("pack_in_timed_region", "packs"), [(False, 1), (True, 3)])
def test_packing_is_timed_on_request_alone(monkeypatch, pack_in_timed_region, packs):
    calls = []

    def counted(*lists):
        calls.append(lists)
        return packing.pack_group_inputs(*lists)

    monkeypatch.setattr(tritonbench, "pack_group_inputs", counted)
    group_A, group_B = next(Operator(True, torch.float16).get_input_iter())
    for adapter in ADAPTERS:
        calls.clear()
        timed = adapter(None, group_A, group_B, pack_in_timed_region=pack_in_timed_region, implementation="triton")
        results = [timed(), timed()]
        assert len(calls) == packs
        assert torch.equal(*results)
