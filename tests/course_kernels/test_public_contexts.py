"""Every public function in every context of torch: it works, or refuses in our words; the library page says which."""

from __future__ import annotations

import pytest
import torch

import course_kernels
from course_kernels import runtime
from public_calls import Call
from torch_contexts import CONTEXTS, NOT_OURS, REFUSES, WORKS, chosen, outcome, rows_on_page

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

    def of_ours(mat_a):
        return course_kernels.grouped_mm(mat_a, "weights")

    for function, word in ((of_torch, NOT_OURS), (of_ours, REFUSES)):
        assert outcome(Call("mm", function, dict(mat_a=torch.ones(3, 3))), "meta")[0] == word
