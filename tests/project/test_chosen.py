"""The comparison of choices for batches and masked groups runs, with what each kernel takes."""

from __future__ import annotations

import pytest

import chosen
import course_kernels as ck
from course_kernels.config import GemmConfig
from course_kernels.engine.tuning import Gpu


def test_rows_are_of_both_layouts_and_every_scaling():
    assert {(row.along, row.scaling) for row in chosen.ROWS} == {
        ("batch", 0), ("masked", 0), ("masked", 1), ("masked", 2)
    }  # fmt: skip
    gpu = Gpu("sm_90", 132, 4.8)
    assert any(GemmConfig(*row.before) != chosen.new_config(row, gpu) for row in chosen.ROWS)
    for row in chosen.ROWS:
        for config in (GemmConfig(*row.before), chosen.new_config(row, gpu)):
            assert (
                config.valid_for(row.kind.kernel, row.kind.element_bytes, capability=(9, 0), shared_limit=232448)
                is None
            )


@pytest.mark.parametrize(("along", "scaling"), [("batch", 0), ("masked", 0), ("masked", 1), ("masked", 2)])
def test_a_row_is_computed(along, scaling):
    call = chosen.product(chosen.Row(along, 3, 32, 64, 2, scaling, ()), ck.GemmConfig(16, 16, 32), "cpu")
    assert call().shape == (2, 3, 32)
