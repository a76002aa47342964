"""Operators are found by their operands and target, filtered, and named where a choice leaves none."""

from __future__ import annotations

import cutlass.operators as ops
import pytest
import torch

from course_kernels import cutlass_ops
from course_kernels.cutlass_ops import NoOperator
from course_kernels.cutlass_ops.discovery import find_target
from cutlass_cases import described, meta


def test_operators_for_blackwell_and_what_tells_them_apart():
    found = cutlass_ops.discover(described(), "100f")
    assert len(found) == len(ops.get_operators(described(), target_sm="100f")) > 10
    assert len(set(found.designs)) == len(found), "no two look alike"
    assert {row.ctas for row in found.designs} == {1, 2}
    assert {row.source for row in found.designs} == {"cutlass"}
    two = found.where(ctas=2)
    assert 0 < len(two) < len(found)
    assert all(operator.metadata.design.use_2cta_mma for operator in two)
    large = found.where(tile=(256, 256, 64), cluster=lambda cluster: cluster[1] == 1)
    assert {row.cluster[1] for row in large.designs} == {1}
    lines = str(large).splitlines()
    assert lines[0].split() == ["tile", "cluster", "CTAs", "stages", "targets", "source"]
    assert lines[1].split() == ["0", "256×256×64", "2×1", "2", "auto", "100f,", "110f", "cutlass"]
    assert isinstance(found[1:3], cutlass_ops.Operators)
    with pytest.raises(TypeError, match=r"a design has tile, others, cluster, .* and no colour"):
        found.where(colour="red")


def test_members_of_a_family_find_its_operators():
    names = [[each.metadata.operator_name for each in cutlass_ops.discover(described(), target)]
             for target in ("100f", "100a", "sm_103a")]  # fmt: skip
    assert names[0] == names[1] == names[2]


def test_a_filter_of_metadata_that_nothing_passes_says_so():
    only = cutlass_ops.discover(described(), "100f", where=lambda metadata: metadata.design.cluster_shape == (1, 1, 1))
    assert {row.cluster for row in only.designs} == {(1, 1)}
    with pytest.raises(NoOperator, match=r"where says no to each of the \d+ that"):
        cutlass_ops.discover(described(), "100f", where=lambda metadata: False)


@pytest.mark.parametrize("target", ["hopper", "", "sm90", "100b", 3.5])
def test_targets_that_do_not_exist(target):
    with pytest.raises(ValueError, match='target must be like "90a", "100f"'):
        cutlass_ops.discover(described(), target)


def test_targets_by_their_names():
    assert str(find_target("sm_90a")) == str(find_target("90A")) == str(find_target(ops.TargetSm("90a"))) == "90a"
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="target must be given where there is no GPU"):
            find_target(None)


def test_what_is_nothing_of_arguments_or_compile_is_told():
    args = described()
    found = cutlass_ops.discover(args, "100f")
    with pytest.raises(TypeError, match="args must be what arguments returned, got Tensor"):
        cutlass_ops.discover(meta(64, 32), "100f")
    with pytest.raises(TypeError, match="compiled must be what compile returned, got "):
        cutlass_ops.report(found[0])
    with pytest.raises(ValueError, match="args must have a result to compare, got tensors on the device 'meta'"):
        cutlass_ops.compare(args)
    with pytest.raises(IndexError, match=f"there are {len(found)} operators, none at index 999"):
        found[999]
    with pytest.raises(TypeError, match="compiled must be what compile returned, got "):
        cutlass_ops.run(found[0], args)
    with pytest.raises(TypeError, match="args must be what arguments returned, got tuple"):
        cutlass_ops.compile(found[0], (meta(64, 32), meta(3, 32, 16)), "100f")
    with pytest.raises(TypeError, match="args must be what arguments returned, got "):
        cutlass_ops.compare(found[0])
    with pytest.raises(TypeError, match=r"reports\[0\] must be what report returned, got "):
        cutlass_ops.side_by_side([found[0]])


def test_a_choice_that_leaves_none_says_what_there_is():
    found = cutlass_ops.discover(described(), "90a")
    none = found.where(schedule="ping-pong")
    assert (len(none), str(none)) == (0, "no operators: schedule is one of 'cooperative', 'pingpong', not 'ping-pong'")
    assert str(none.where(ctas=1)) == str(none)
    with pytest.raises(IndexError, match=r"none at index 0 \(tile is one of \(128, 128, 64\), .*, not \(128, 256\)\)"):
        found.where(tile=(128, 256))[0]
    assert str(found.where(stages=lambda stages: stages > 99)).endswith("not what was asked")
    assert str(found.where(tile=(128, 256, 64), schedule="pingpong")).endswith(
        "none has all of tile, schedule as asked"
    )
    assert str(cutlass_ops.Operators([])) == "no operators"
