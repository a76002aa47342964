"""Targets: their names, and what each has."""

from __future__ import annotations

import pytest

from course_kernels import targets
from course_kernels.targets import TARGETS, find_target


def test_names_say_the_backend():
    assert {name.partition("_")[0].rstrip("0123456789")[:3] for name in TARGETS} == {"sm", "gfx"}
    for name, target in TARGETS.items():
        assert find_target(name) is target
        assert target.backend == ("cuda" if name.startswith("sm_") else "hip")


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(ValueError, match=r"target must be one of sm_75.*gfx942.*, got 'sm_13'"):
        find_target("sm_13")


def test_what_compute_capabilities_have():
    """CUDA C++ Programming Guide: shared memory of a block, in KiB."""
    kib = {name: target.shared_limit // 1024 for name, target in TARGETS.items() if target.capability}
    assert kib == {
        "sm_75": 64, "sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_103": 227,
        "sm_120": 99, "sm_121": 99,
    }  # fmt: skip
    assert [TARGETS[name].capability for name in ("sm_89", "sm_103", "sm_121")] == [(8, 9), (10, 3), (12, 1)]


def test_forms_of_an_architecture():
    for arch in ((9, 0), 90, "sm_90", "sm_90a", "sm90", "90"):
        assert targets.canonical_arch(arch) == "sm_90"
    assert (targets.canonical_arch("gfx942"), targets.canonical_arch(None)) == ("gfx942", None)


NO_ARCHS = [9, "hopper", (9,), (9, 0, 0), (9, 12), 9.0, "sm_9", "", True, (9.0, 0), 942, "sm_942", "gfx000", "gfx9"]


@pytest.mark.parametrize("arch", NO_ARCHS)
def test_unknown_architectures(arch):
    with pytest.raises(ValueError, match="arch must be"):
        targets.canonical_arch(arch)


def test_what_an_architecture_has():
    assert [targets.shared_limit(arch) for arch in (None, "sm_87", "sm_86", "sm_72", "gfx950", "gfx90a")] == [
        None, 163 * 1024, 99 * 1024, 64 * 1024, 160 * 1024, 64 * 1024,
    ]  # fmt: skip
    assert [targets.num_sms(arch) for arch in ("gfx942", "gfx950", "sm_90", "sm_75", None)] == [
        304,
        256,
        132,
        None,
        None,
    ]
    assert [targets.has_descriptors(arch) for arch in ("sm_89", "sm_90", "gfx942", None)] == [False, True, False, False]
