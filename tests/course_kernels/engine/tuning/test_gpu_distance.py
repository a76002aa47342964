"""GPUs by their rates, and which are alike."""

from __future__ import annotations

from course_kernels.engine.tuning import Gpu
from course_kernels.engine.tuning.gpu_distance import UNKNOWN_BANDWIDTH
from course_kernels.runtime import Device

H200, H100 = Gpu("sm_90", 132, 4.81, 1.98, 232448), Gpu("sm_90", 132, 3.35, 1.98, 232448)


def test_a_gpu_has_the_properties_that_torch_reports():
    device = Device((9, 0), (9, 0), 132, 232448, True, 4.8, 1.98)
    assert Gpu.of(device) == Gpu("sm_90", 132, 4.8, 1.98, 232448)
    assert Gpu.of(device._replace(bandwidth=None)).bandwidth == UNKNOWN_BANDWIDTH
    assert Gpu.of(Device(None, None, None, None, True)) is None
    assert Gpu.of(Device("gfx942", None, 304, 65536, False)).family == "amd"
    assert Gpu("sm_90", 132, 4.8).shared_limit == 232448


def test_families_read_operands_alike():
    families = {arch: Gpu(arch, 100, 2.0).family for arch in ("sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "gfx942")}
    assert list(families.values()) == ["scalar", "pointers", "pointers", "descriptors", "descriptors", "amd"]


def test_likeness_is_of_the_architecture_first_then_of_all_rates():
    pcie = Gpu("sm_90", 114, 2.04, 1.755, 232448)
    assert min((H200, H100), key=pcie.distance) == H100
    assert H100.distance(H100) == (False, 0.0)
    assert H100.distance(H200) == H200.distance(H100)
    assert Gpu("sm_90", 66, 3.35).distance(H100) == (False, 1.0), "half the SMs; the clock is not known"
    assert Gpu("sm_90", 132, 3.35, 0.99).distance(H100) == (False, 1.0)
    blackwell = Gpu("sm_100", 148, 8.0, 1.9, 232448)
    assert blackwell.distance(H200) > Gpu("sm_90", 16, 0.5).distance(H200), "of another architecture"
    assert min((H200, H100), key=blackwell.distance) == H200
