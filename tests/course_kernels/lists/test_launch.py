"""From matrices to launches: how a matrix is described, what shares a launch, and what the tables hold."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_kernels import GemmConfig, GroupGemmPlan, group_gemm, runtime
from course_kernels.lists import launch
from course_kernels.lists.launch import (
    ANY,
    COL_MAJOR,
    ROW_MAJOR,
    View,
    compile_time_arguments,
    satisfies_descriptor_rule,
)
from course_kernels.testing import make_operands

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


def strided(shape, strides, offset=0, dtype=torch.float16):
    pool = torch.zeros(4096, dtype=dtype, device=runtime.device())
    assert pool.data_ptr() % 16 == 0
    return pool.as_strided(shape, strides, offset)


# shape, strides, offset → layout, strides in the table, described, aligned; float16: 8 elements are 16 bytes.
VIEWS = {
    "row-major": ((16, 24), (24, 1), 0, ROW_MAJOR, (24, 1), True, True),
    "column-major": ((16, 24), (1, 16), 0, COL_MAJOR, (1, 16), True, True),
    "row-major with a gap": ((16, 20), (24, 1), 0, ROW_MAJOR, (24, 1), True, False),
    "odd leading dimension": ((16, 24), (25, 1), 0, ROW_MAJOR, (25, 1), False, False),
    "odd start": ((16, 24), (24, 1), 1, ROW_MAJOR, (24, 1), False, False),
    "start of 16 bytes": ((16, 24), (24, 1), 8, ROW_MAJOR, (24, 1), True, True),
    "column-major, odd leading": ((16, 24), (1, 17), 0, COL_MAJOR, (1, 17), False, False),
    "column-major, odd extent": ((15, 24), (1, 16), 0, COL_MAJOR, (1, 16), True, False),
    "every other column": ((16, 24), (48, 2), 0, ANY, (48, 2), False, False),
    "rows expanded": ((16, 24), (0, 1), 0, ROW_MAJOR, (0, 1), False, False),
    "columns expanded": ((16, 24), (1, 0), 0, COL_MAJOR, (1, 0), False, False),
    "all expanded": ((16, 24), (0, 0), 0, ANY, (0, 0), False, False),
    "one row": ((1, 24), (24, 1), 0, ROW_MAJOR, (24, 1), True, True),
    "one row of a wider matrix": ((1, 24), (99, 1), 0, ROW_MAJOR, (24, 1), True, True),
    "one row, strided": ((1, 24), (99, 16), 0, COL_MAJOR, (1, 16), True, False),
    "one row, oddly strided": ((1, 24), (99, 3), 0, COL_MAJOR, (1, 3), False, False),
    "one column": ((24, 1), (1, 1), 0, ROW_MAJOR, (1, 1), False, False),
    "one column of a wider matrix": ((24, 1), (32, 7), 0, ROW_MAJOR, (32, 1), True, False),
    "one element": ((1, 1), (5, 7), 0, ROW_MAJOR, (8, 1), True, False),
    "no columns": ((16, 0), (1, 1), 0, ROW_MAJOR, (8, 1), True, True),
    "no rows": ((0, 24), (24, 1), 0, ROW_MAJOR, (24, 1), True, True),
}


@pytest.mark.parametrize("what", VIEWS)
def test_view(what):
    shape, strides, offset, layout, table, described, aligned = VIEWS[what]
    matrix = strided(shape, strides, offset)
    view = View.of(matrix)
    assert (view.rows, view.cols, view.address) == (*shape, matrix.data_ptr())
    assert (view.layout, view.strides, view.described, view.aligned) == (layout, table, described, aligned)
    assert satisfies_descriptor_rule(matrix) is described


@pytest.mark.parametrize("what", VIEWS)
def test_strides_of_a_view_address_the_same_elements(what):
    """The table may hold other strides than torch does, but only where they are never used."""
    shape, strides, offset, *_ = VIEWS[what]
    table = View.of(strided(shape, strides, offset)).strides
    for extent, real, held in zip(shape, strides, table):
        assert real == held or extent <= 1 or 0 in shape


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.float32], ids=str)
def test_sixteen_bytes_are_counted_in_elements_of_the_type(dtype):
    unit = 16 // dtype.itemsize
    assert View.of(strided((4, 2 * unit), (2 * unit, 1), dtype=dtype)).aligned
    assert not View.of(strided((4, unit), (unit + unit // 2, 1), dtype=dtype)).described
    assert not View.of(strided((4, unit), (2 * unit, 1), unit // 2, dtype=dtype)).described
    shorter = View.of(strided((4, unit // 2), (unit, 1), dtype=dtype))
    assert shorter.described
    assert not shorter.aligned


def test_alignment_counts_the_output_too():
    (a,), (b,) = make_operands([(32, 32, 32)], device=runtime.device())
    config = GemmConfig(32, 32, 32)
    for out, aligned in (
        (strided((32, 32), (32, 1)), 8),
        (strided((32, 32), (33, 1)), 1),
        (strided((32, 32), (32, 1), 1), 1),
    ):
        plan = GroupGemmPlan([a], [b], method="round_robin", config=config, out=[out])
        ((_, _, _, options),) = plan._prepared._calls
        assert options["ALIGN"] == aligned
        plan = GroupGemmPlan([a], [b], method="tma", config=config, out=[out])
        ((_, _, _, options),) = plan._prepared._calls
        assert options["DESCRIBE_C"] is (aligned == 8)


def test_tables_hold_addresses_sizes_and_strides():
    group_A, group_B = make_operands([(16, 24, 8), (32, 8, 40), (8, 8, 16)], device=runtime.device())
    plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=GemmConfig(16, 16, 16))
    ((_, grid, arguments, _),) = plan._prepared._calls
    a, b, c, sizes, strides, count, tiles, counter, log = arguments
    assert a.tolist() == [t.data_ptr() for t in group_A]
    assert b.tolist() == [t.data_ptr() for t in group_B]
    assert c.tolist() == [t.data_ptr() for t in plan.out]
    assert sizes.tolist() == [[16, 24, 8], [32, 8, 40], [8, 8, 16]]
    assert sizes.dtype == counter.dtype == torch.int32
    assert strides.tolist() == [[8, 1, 24, 1, 24, 1], [40, 1, 8, 1, 8, 1], [16, 1, 8, 1, 8, 1]]
    assert strides.dtype == a.dtype == torch.int64
    assert (count, tiles, counter.tolist(), log) == (3, 2 + 2 + 1, [0], None)
    assert grid == (plan.launches[0].programs,)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_counter_lies_behind_the_sizes_whatever_their_number(count):
    group_A, group_B = make_operands([(16, 16, 16)] * count + [(17, 17, 17)] * count, device=runtime.device())
    plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=GemmConfig(16, 16, 16))
    assert len(plan.launches) == 2
    regions = []
    for _, _, arguments, _ in plan._prepared._calls:
        tables = [*arguments[:5], arguments[7]]
        regions += [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tables]
        assert all(start % 8 == 0 for t in arguments[:3] for start in [t.data_ptr()])
    regions.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(regions)), "tables overlap"
    base = plan._prepared._calls[0][2][0].untyped_storage()
    assert all(call[2][4].untyped_storage().data_ptr() == base.data_ptr() for call in plan._prepared._calls)


def test_compile_time_arguments_differ_by_kernel():
    options = dict(dtype=torch.float16, out_dtype=torch.float32, layouts=(ROW_MAJOR, COL_MAJOR, ANY), aligned=True)
    config = GemmConfig(32, 64, 128, group_m=4, schedule="chunks", store_parts=2)
    naive, pointer, descriptor = (compile_time_arguments(kernel, config, **options) for kernel in launch.KERNELS)
    for arguments in (naive, pointer, descriptor):
        assert [arguments[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")] == [32, 64, 128, 4]
        assert arguments["PRECISION"] == "ieee"
    for arguments in (pointer, descriptor):
        assert [arguments[f"{name}_LAYOUT"] for name in "ABC"] == [ROW_MAJOR, COL_MAJOR, ANY]
        assert str(arguments["A_DTYPE"]) == "fp16"
        assert str(arguments["C_DTYPE"]) == "fp32"
    assert pointer["ALIGN"] == 8
    assert descriptor["STORE_PARTS"] == 2
    assert compile_time_arguments("round_robin", config, **{**options, "aligned": False})["ALIGN"] == 1


@pytest.mark.parametrize("kernel", ["naive", "round_robin", "tma"])
def test_every_argument_of_a_kernel_is_given(kernel):
    """Triton would say so too, but only when the kernel is launched or compiled."""
    group_A, group_B = make_operands([(16, 16, 16)], device=runtime.device())
    plan = GroupGemmPlan(group_A, group_B, method=kernel, config=GemmConfig(16, 16, 16))
    ((function, _, arguments, options),) = plan._prepared._calls
    given = [*function.arg_names[: len(arguments)], *options]
    assert sorted(given) == sorted([*function.arg_names, "num_stages", "num_warps"])


@pytest.mark.skipif(runtime.mode() == "gpu", reason="bfloat16 is replaced in the interpreter only")
def test_interpreter_sees_float32_for_bfloat16():
    """The interpreter multiplies the bit patterns of bfloat16."""
    group_A, group_B = make_operands([(16, 16, 16)], torch.bfloat16)
    plan = GroupGemmPlan(group_A, group_B, method="round_robin", config=GemmConfig(16, 16, 16))
    ((_, _, _, options),) = plan._prepared._calls
    assert str(options["A_DTYPE"]) == str(options["C_DTYPE"]) == "fp32"
    assert plan.run()[0].dtype == torch.bfloat16


@pytest.mark.parametrize("method", ["naive", "round_robin", "tma"])
def test_a_configuration_that_does_not_fit_is_refused(method, monkeypatch):
    monkeypatch.setattr(runtime, "shared_memory_limit", lambda device: 1000)
    matrices, out = torch.ones(64, 64, device=runtime.device()), torch.zeros(64, 64, device=runtime.device())
    large = GemmConfig(128, 128, 64, num_stages=4)
    for call in (group_gemm, GroupGemmPlan):
        with pytest.raises(ValueError, match=r"config does not suit the 1000 bytes of shared memory .* it takes \d+"):
            call([matrices], [matrices], method=method, config=large, out=[out])
        with pytest.raises(ValueError, match=f"config does not suit the {method} kernel, which has neither programs"):
            call([matrices], [matrices], method=method, config=GemmConfig(16, 16, 16, programs=4), out=[out])
    assert not out.any()
