"""Compiling for GPUs that are not here, and running where there is none."""

from __future__ import annotations

import dataclasses

import cutlass.operators as ops
import pytest
import torch
from cutlass.cutlass_dsl import CuTeDSL
from cutlass.operators.providers.cutedsl.integration_utils.mma import get_max_active_clusters
from cutlass.operators.providers.cutedsl.operator import CuteDslOperator
from cutlass.utils import HardwareInfo

from course_kernels import cutlass_ops
from course_kernels.codegen import CompileError
from cutlass_cases import described


def test_the_target_of_a_compilation_is_its_own_and_settings_are_put_back(blackwell):
    settings = CuTeDSL._get_dsl().envar
    before = settings.arch, settings.keep_ptx, settings.dump_dir, HardwareInfo.get_max_active_clusters
    compiled = cutlass_ops.compile(blackwell.operator, described(), "103a", clusters=74)
    assert ".target sm_103a" in compiled.ptx
    assert (str(compiled.target), compiled.clusters) == ("103a", 74)
    now = settings.arch, settings.keep_ptx, settings.dump_dir, HardwareInfo.get_max_active_clusters
    assert now == before


class Asks(CuteDslOperator):
    """An operator that asks how many clusters there are, and then does not compile."""

    supported_args_type = ops.RuntimeArguments  # found for no arguments: nothing else in this process meets it
    designed_for_min_cc = 90

    @classmethod
    def _generate_operators(cls, metadata_filter, epilogue_args=None, target_sm=None, args=None):
        like = cutlass_ops.discover(described(), "100f").where(cluster=(4, 2))[0].metadata
        return [cls(dataclasses.replace(like, operator_class=cls))]

    def _compile(self, args, target_sm=None):
        number = get_max_active_clusters(self.metadata.design.cluster_shape)
        raise RuntimeError(f"{number} clusters for {target_sm} on {CuTeDSL._get_dsl().envar.arch}")

    def _run(self, args, compiled_artifact, stream, workspace=None):
        raise NotImplementedError


@pytest.mark.parametrize(("target", "given", "told"), [("100f", None, 18), ("100a", 7, 7), ("110f", 3, 3)])
def test_the_number_of_clusters_is_given_and_no_driver_asked(target, given, told):
    (operator,) = Asks.generate_operators(lambda metadata: True)
    with pytest.raises(CompileError, match=f": {told} clusters for {target} on sm_{target}$"):
        cutlass_ops.compile(operator, described(), target, clusters=given)


def test_what_is_no_operator_is_told():
    with pytest.raises(TypeError, match=r"operator must be one that discover has found, got int"):
        cutlass_ops.compile(0, described(), "90a")


def test_a_number_of_clusters_that_is_not_known_or_none():
    operator = cutlass_ops.discover(described(), "110f")[0]
    with pytest.raises(ValueError, match=r"clusters must be given for sm_110f, got None: .* of 2 CTAs .* 90, 100 only"):
        cutlass_ops.compile(operator, described(), "110f")
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="clusters must be a positive integer"):
            cutlass_ops.compile(operator, described(), "110f", clusters=wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the message on a machine without a GPU")
def test_running_without_a_gpu_says_which_one_is_needed(blackwell):
    needs = r"sm_100f and needs an NVIDIA GPU of compute capability 10\.0 or of its family; torch sees"
    with pytest.raises(RuntimeError, match=needs):
        cutlass_ops.run(blackwell, described())
