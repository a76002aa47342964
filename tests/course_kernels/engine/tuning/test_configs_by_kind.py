"""Which configurations are measured on a GPU."""

from __future__ import annotations

import pytest

from course_kernels.config import GemmConfig
from course_kernels.engine.tuning import Gpu
from course_kernels.engine.tuning.configs_by_kind import by_name, form_of, offered
from course_kernels.engine.tuning.kinds import KINDS, KINDS_8_BIT, KINDS_OF_LAYER
from course_kernels.kernels.cute_sm90.config import CuteConfig

GPUS = {
    "H200": Gpu("sm_90", 132, 4.8), "A100": Gpu("sm_80", 108, 1.9), "4090": Gpu("sm_89", 128, 1.0),
    "B200": Gpu("sm_100", 148, 8.0), "5090": Gpu("sm_120", 170, 1.8), "MI300X": Gpu("gfx942", 304, 5.3),
    "MI350X": Gpu("gfx950", 256, 8.0),
}  # fmt: skip


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_measures_what_runs_there(name):
    gpu = GPUS[name]
    for kind in (*KINDS, *(KINDS_8_BIT if gpu.family != "amd" else ())):
        found = offered(kind, gpu)
        of_triton = [each for each in found if isinstance(each, GemmConfig)]
        assert len(of_triton) >= 3
        assert set(found) <= set(by_name(kind).values())
        assert offered(kind, gpu, triton_only=True) == tuple(of_triton)
        has_cute = gpu.arch == "sm_90" and not (kind.b_major == "n" and kind.element_bytes == 1)
        assert any(isinstance(each, CuteConfig) for each in found) == has_cute
        limits = dict(capability=gpu.capability, shared_limit=gpu.shared_limit, uses_tma=gpu.uses_tma)
        assert [each.valid_for(kind.kernel, kind.element_bytes, **limits) for each in of_triton] == [None] * len(
            of_triton
        )
        heights = {each.block_m for each in of_triton}
        assert max(heights) >= 64
        assert kind.along == "k" or min(heights) == 16


def test_a_layer_is_measured_of_the_kernel_in_cute_dsl_alone():
    for kind in KINDS_OF_LAYER:
        found = offered(kind, GPUS["H200"])
        assert len(found) >= 6
        assert set(found) == set(by_name(kind).values())
        assert all(each.why_not(form_of(kind)) is None for each in found)
        assert form_of(kind).fused == kind.fused
        others = [gpu for name, gpu in GPUS.items() if name != "H200"]
        assert not any(offered(kind, gpu) for gpu in others)
        assert not offered(kind, GPUS["H200"], triton_only=True)


def test_names_tell_configurations_apart():
    for kind in (*KINDS, *KINDS_8_BIT):
        found = by_name(kind)
        assert len(found) == len(set(found.values()))
        assert {name.split()[0] for name in found} - {"cute"} == {"triton"}
