"""The Hopper kernel in CuTe DSL: its configurations, and what the compiler makes of each, without a GPU."""

from __future__ import annotations

import dataclasses
import re

import pytest

from course_kernels.kernels.cute_sm90.config import CONFIGS, COOPERATIVE, PINGPONG, CuteConfig

NAMES = [config.name for config in CONFIGS]


def test_every_shipped_configuration_can_be_built():
    assert {config.name: config.why_not() for config in CONFIGS if config.why_not()} == {}


def test_names_tell_configurations_apart():
    assert len(set(NAMES)) == len(CONFIGS)


@pytest.mark.parametrize(
    "changes, said",
    [
        (dict(schedule="both"), "schedule"),
        (dict(tile_m=64), "tile_m is a multiple of 128 where cooperative, got 64"),
        (dict(tile_m=96, schedule=PINGPONG), "tile_m is a multiple of 64 where pingpong, got 96"),
        (dict(tile_n=160), "tile_n"),
        (dict(tile_n=320), "tile_n"),
        (dict(tile_k=32), "tile_k is a multiple of 64"),
        (dict(tile_m=256, stages=2), "at most 208 accumulators"),
        (dict(schedule=PINGPONG), "at most 208 accumulators"),
        (dict(cluster_m=2, cluster_n=2), "cluster"),
        (dict(cluster_m=0), "cluster"),
        (dict(stages=1), "at least two"),
        (dict(stages=5), "shared memory"),
    ],
)
def test_what_cannot_be_built_is_said(changes, said):
    assert said in CuteConfig(**changes).why_not()


def test_accumulators_of_the_largest_tiles_fit():
    assert CuteConfig(128, 192, schedule=PINGPONG).why_not() is None
    assert CuteConfig(256, 192, stages=3, schedule=COOPERATIVE).why_not() is None


@pytest.fixture(scope="module")
def kernel():
    pytest.importorskip("cutlass", reason="needs the cutlass extra")
    from course_kernels.kernels.cute_sm90 import kernel

    return kernel


def ptx_of(kernel, config, *dtypes) -> str:
    from cutlass import cute

    return kernel.compile_for(config, *dtypes, options=(cute.KeepPTX(True),)).__ptx__


def test_what_cannot_be_built_is_refused(kernel):
    with pytest.raises(ValueError, match="config: at most 208 accumulators"):
        kernel.HopperGroupedGemm(CuteConfig(256, 256, stages=2))


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_shipped_configurations_compile_to_what_they_say(kernel, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the compiler leaves the PTX
    ptx = ptx_of(kernel, config, "bfloat16")
    assert ".target sm_90a" in ptx

    # One set of products for a tile's first stage and one for the others, each of as many as a stage takes.
    products = 2 * (config.tile_m // 64 // config.sharing_groups) * (config.tile_k // 16)
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n{config.tile_n}k16.f32.bf16.bf16") == products
    assert ptx.count("wgmma.mma_async") == products

    loads = re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\.shared::\S*global\.tile\S*", ptx)
    boxes = config.tile_k // 64  # of 128 bytes: what a swizzled row holds
    assert sorted(loads) == ["2"] * boxes + ["3"] * boxes, "A in two dimensions, B with the group as its third"
    assert ptx.count("multicast::cluster") == config.cluster_size - 1
    # A's blocks go to those beside this CTA, B's to those below it.
    shared = re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\S*multicast::cluster", ptx)
    assert shared == {(1, 1): [], (2, 1): ["3"], (1, 2): ["2"]}[config.cluster_m, config.cluster_n]

    stores = (config.tile_m // 64 // config.sharing_groups) * (config.tile_n // 64)
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.4d\.global\.shared", ptx)) == stores
    assert "setmaxnreg.dec" in ptx
    assert "setmaxnreg.inc" in ptx
    # Nothing but the tail's zeros is stored without TMA.
    assert set(re.findall(r"st\.global\S*", ptx)) == {"st.global.v4.b32"}
    assert ".local" not in ptx


@pytest.mark.parametrize("dtypes", [("float16",), ("float16", "float32"), ("bfloat16", "float32")])
@pytest.mark.parametrize("schedule", [COOPERATIVE, PINGPONG])
def test_other_types_compile(kernel, dtypes, schedule, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = next(config for config in CONFIGS if config.schedule == schedule)
    ptx = ptx_of(kernel, config, *dtypes)
    kind = {"float16": "f16", "bfloat16": "bf16"}[dtypes[0]]
    assert f"f32.{kind}.{kind}" in ptx
    assert ("stmatrix" in ptx) == (dtypes[-1] != "float32")


def test_strips_are_part_of_the_kernel(kernel, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, other = (ptx_of(kernel, dataclasses.replace(CONFIGS[0], strip=strip), "bfloat16") for strip in (4, 8))
    assert one != other
