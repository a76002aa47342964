"""Every public function in every context of torch: it works, or refuses in our words; the library page says which."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import course_kernels
from course_kernels import runtime
from public_calls import Call
from torch_contexts import (
    CONTEXTS,
    MULTIPLY_NOTHING,
    NOT_OURS,
    REFUSES,
    WORKS,
    chosen,
    outcome,
    rows_on_page,
    tensors_of,
)

CALLS = chosen()
pytestmark = pytest.mark.skipif(runtime.mode() != "interpreter", reason="the table is made without a GPU")


def test_every_public_function_is_in_the_table():
    names = {call.name.split()[0] for call in CALLS.values()}
    assert names >= set(course_kernels.__all__) - {"GemmConfig", "runtime"}


@pytest.mark.parametrize("label", CALLS)
def test_it_works_or_refuses_as_the_page_says(label):
    found = {head: outcome(CALLS[label], head) for head in CONTEXTS}
    unclear = {head: error for head, (word, error) in found.items() if word not in (WORKS, REFUSES, "–")}
    assert not unclear
    assert [word for word, _ in found.values()] == rows_on_page()[label.strip()]


def test_an_error_of_torch_is_not_ours():
    def of_torch(mat_a):
        return mat_a.view(-1, 2)

    def of_another_argument(mat_a):
        return course_kernels.grouped_mm(mat_a, "weights")

    def of_meta_tensors(mat_a):
        return course_kernels.GroupGemmPlan([mat_a], [mat_a])

    for function, word in ((of_torch, NOT_OURS), (of_another_argument, NOT_OURS), (of_meta_tensors, REFUSES)):
        assert outcome(Call("mm", function, dict(mat_a=torch.ones(3, 3))), "meta")[0] == word


def test_what_multiplies_nothing_counts_nothing():
    """Names of functions decide about a dash in the table: none that counts FLOPs may be among them."""
    for call in CALLS.values():
        tensors, function = tensors_of(call)
        with FlopCounterMode(display=False) as counter:
            function(*tensors)
        assert (counter.get_total_flops() == 0) == (call.name.split()[0] in MULTIPLY_NOTHING), call.name
