"""AITER's configurations: dicts become ours, and ours become dicts."""

from __future__ import annotations

import json
import sys
import warnings

import pytest
import torch

import course_kernels
from course_kernels import GemmConfig, runtime, targets
from course_kernels.codegen import TARGETS, compile_many
from course_kernels.codegen.masked import build_masked
from course_kernels.codegen.packed import build_packed
from course_kernels.config import LaunchOptions
from course_kernels.engine.tuning import Extents, Gpu, Kind, choose
from course_kernels.engine.tuning.gpu_distance import UNKNOWN_BANDWIDTH
from course_kernels.gmm import configs, get_config
from course_kernels.gmm.configs import FUNCTIONS, ONE_PROGRAM_PER_TILE, as_config, launch_of
from course_kernels.testing import integers

DOCUMENTED = dict(BLOCK_SIZE_M=128, BLOCK_SIZE_K=64, BLOCK_SIZE_N=32, GROUP_SIZE=8, GRID_DIM=256)


def test_keys_are_the_extents_that_they_tile():
    assert as_config("gmm", DOCUMENTED) == GemmConfig(128, 32, 64, num_stages=2, group_m=8, programs=256)
    # The transposed functions: the result is (K, N), and M is summed over.
    assert as_config("ptgmm", DOCUMENTED) == GemmConfig(64, 32, 128, num_stages=2, group_m=8, programs=256)
    full = DOCUMENTED | dict(num_warps=8, num_stages=1, NUM_XCDS=8, STORE_PARTS=2)
    assert as_config("gmm", full) == GemmConfig(128, 32, 64, 8, 1, 8, store_parts=2, programs=256, num_xcds=8)
    ours = GemmConfig(64, 32, 16)
    assert as_config("gmm", ours) is ours


def test_what_a_launch_is_asked_for():
    assert launch_of("gmm", None) is None
    assert launch_of("ptgmm", None) is None
    assert launch_of("gmm", None, 7) == LaunchOptions(7)
    assert launch_of("gmm", None, None, True) == LaunchOptions(None, "dynamic")
    assert launch_of("nptgmm", None) == LaunchOptions(ONE_PROGRAM_PER_TILE)
    config = dict(DOCUMENTED, NUM_XCDS=8)
    assert launch_of("gmm", config, 7) == GemmConfig(128, 32, 64, num_stages=2, programs=7, num_xcds=8)
    stolen = launch_of("gmm", config, work_stealing=True)
    assert (stolen.schedule, stolen.num_xcds, stolen.programs) == ("dynamic", 1, 256)
    assert launch_of("nptgmm", GemmConfig()).programs == ONE_PROGRAM_PER_TILE


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("arch", [None, 80, 90, 100, "gfx942", "gfx950"])
def test_what_is_looked_up_comes_back(function, arch):
    found = get_config(function, 32768, 2048, 1536, 64, arch=arch)
    needed = {"BLOCK_SIZE_M", "BLOCK_SIZE_K", "BLOCK_SIZE_N", "GROUP_SIZE", "num_warps", "num_stages"}
    assert needed <= set(found) <= needed | {"GRID_DIM", "NUM_XCDS", "STORE_PARTS"}
    assert all(type(value) is int and value > 0 for value in found.values())
    config = as_config(function, found)
    kind, extents = Kind("m", "k"), Extents(512, 1536, 2048, 64)
    if function != "gmm":
        kind, extents = Kind("k", "n"), Extents(2048, 1536, 512, 64)
    name, gpu = targets.canonical_arch(arch), Gpu.of(runtime.Device.of(runtime.device()))
    if arch and not (gpu and gpu.arch == name):
        gpu = Gpu(name, targets.num_sms(name) or 100, UNKNOWN_BANDWIDTH)
    programs = ONE_PROGRAM_PER_TILE if function == "nptgmm" else None
    chosen = choose(kind, extents, gpu, programs=programs).config  # as the launch chooses
    for name in ("block", "num_warps", "num_stages", "group_m", "store_parts", "num_xcds"):
        assert getattr(config, name) == getattr(chosen, name)


def test_the_number_of_programs_is_that_of_the_gpu():
    for arch, units in (("gfx942", 304), ("gfx950", 256)):
        config = choose(Kind("m"), Extents(512, 1536, 2048, 64), Gpu(arch, units, UNKNOWN_BANDWIDTH)).config
        assert get_config("gmm", 32768, 2048, 1536, 64, arch=arch)["GRID_DIM"] == units * config.programs_per_sm
    assert get_config("gmm", 32768, 2048, 1536, 64, arch=90)["GRID_DIM"] % 132 == 0
    assert "GRID_DIM" not in get_config("nptgmm", 32768, 2048, 1536, 64, arch=90)
    assert "GRID_DIM" not in get_config("gmm", 32768, 2048, 1536, 64, arch=75), "of an unknown GPU"


@pytest.mark.parametrize("arch", [90, "gfx942", "gfx950"])
def test_the_shape_matters_and_a_change_stays_with_the_caller(arch):
    few, many = (get_config("gmm", rows * 64, 2048, 1536, 64, arch=arch) for rows in (2, 4096))
    low = few["BLOCK_SIZE_M"]
    assert low <= 32 < many["BLOCK_SIZE_M"]
    few["BLOCK_SIZE_M"] = 999
    assert get_config("gmm", 2 * 64, 2048, 1536, 64, arch=arch)["BLOCK_SIZE_M"] == low


def test_a_product_that_is_added_has_no_descriptor_of_its_result():
    added, plain = (get_config("ptgmm", 32768, 2048, 2048, 8, arch=90, accumulate=each) for each in (True, False))
    assert added["BLOCK_SIZE_K"] * added["BLOCK_SIZE_N"] < plain["BLOCK_SIZE_K"] * plain["BLOCK_SIZE_N"]
    assert "STORE_PARTS" not in added
    assert get_config("nptgmm", 64, 64, 64, 2, accumulate=True) == get_config("nptgmm", 64, 64, 64, 2)
    added, plain = (get_config("ptgmm", 32768, 2048, 2048, 8, arch="gfx942", accumulate=each) for each in (True, False))
    assert added["BLOCK_SIZE_K"] * added["BLOCK_SIZE_N"] < plain["BLOCK_SIZE_K"] * plain["BLOCK_SIZE_N"]
    assert added["NUM_XCDS"] == plain["NUM_XCDS"] == 8


def test_bad_arguments_of_the_lookup():
    with pytest.raises(ValueError, match=r"gmm_type must be one of .* got 'tgmm'"):
        get_config("tgmm", 1, 1, 1, 1)
    with pytest.raises(ValueError, match="arch must be"):
        get_config("gmm", 1, 1, 1, 1, arch="mi300")
    with pytest.raises(TypeError, match="M must be an integer"):
        get_config("gmm", 1.0, 1, 1, 1)
    with pytest.raises(ValueError, match="dtype must be one of"):
        get_config("gmm", 1, 1, 1, 1, dtype=torch.float64)


@pytest.mark.parametrize(("function", "tile", "accumulate"), [
    ("gmm", (256, 64, 256), False), ("ptgmm", (64, 256, 256), False), ("nptgmm", (64, 256, 256), False),
    ("ptgmm", (64, 128, 128), True), ("nptgmm", (64, 128, 128), True),
])  # fmt: skip
def test_aiters_own_tiles_for_mi300_are_accepted_there(function, tile, accumulate):
    config = dict(zip(("BLOCK_SIZE_M", "BLOCK_SIZE_K", "BLOCK_SIZE_N"), tile), GROUP_SIZE=1, num_warps=8, num_stages=1)
    kernel = "contiguous" if function == "gmm" else "transposed"
    limits = dict(shared_limit=TARGETS["gfx942"].shared_limit, uses_tma=False, accumulate=accumulate)
    assert as_config(function, config).valid_for(kernel, 2, **limits) is None


def test_the_function_that_hides_its_package_has_the_packages_names():
    import course_kernels.gmm as bound

    package = sys.modules["course_kernels.gmm"]
    assert bound is package.gmm
    assert {name: getattr(bound, name) for name in package.__all__} == {
        name: getattr(package, name) for name in package.__all__
    }


# ---- AITER's tuning files

AMD = dict(waves_per_eu=2, matrix_instr_nonkdim=16, kpack=2)
FILE = {
    name: {"default": DOCUMENTED | AMD | dict(num_warps=8, num_stages=1, BLOCK_SIZE_N=width)}
    for name, width in (("gmm", 64), ("ptgmm", 128))
} | {"nptgmm": {"default": {key: value for key, value in (DOCUMENTED | AMD).items() if key != "GRID_DIM"}}}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_tuning_files_are_used_as_they_are(function, tmp_path):
    path = tmp_path / "gfx942-GMM.json"
    path.write_text(json.dumps(FILE))
    configs._convert.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = as_config(function, FILE[function]["default"])
        assert wanted.amd_options == AMD
        for given in (FILE, path, str(path), {function: FILE[function]["default"]}):
            assert as_config(function, given) == wanted
        tokens, weights = integers((7, 32), torch.float16), integers((2, 32, 16), torch.float16, 1)
        sizes, call = torch.tensor([3, 4]), getattr(course_kernels, function)
        arguments = (tokens, weights) if function == "gmm" else (tokens.mT, integers((7, 16), torch.float16, 1))
        found = call(*arguments, sizes, config=path, backend="triton")
        assert torch.equal(found, call(*arguments, sizes, backend="torch"))


@pytest.mark.skipif(torch.version.hip is not None, reason="AMD's GPUs have these options")
def test_options_without_effect_are_named():
    configs._convert.cache_clear()
    with pytest.warns(UserWarning, match="waves_per_eu, matrix_instr_nonkdim, kpack have no effect here"):
        as_config("gmm", FILE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_config("gmm", FILE)  # once for each configuration
        as_config("gmm", DOCUMENTED)


def test_options_of_amds_compiler_reach_it():
    tile = GemmConfig(32, 32, 32, num_stages=2, **AMD)
    launched = {target: build_packed("contiguous", config=tile, target=target) for target in ("gfx942", "sm_90")}
    assert {target: dict(spec.options) for target, spec in launched.items()} == {"gfx942": AMD, "sm_90": {}}
    assert build_masked(config=tile, target="gfx942").options == AMD
    plain = GemmConfig(32, 32, 32, num_stages=2)
    few = build_packed("contiguous", config=plain, target="gfx942")
    one, other = (each.asm["amdgcn"] for each in compile_many([(launched["gfx942"], "gfx942"), (few, "gfx942")]))
    assert one != other


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tgmm": {"default": DOCUMENTED}}, "config must have 'gmm' with 'default'.* got 'tgmm'"),
        ({"gmm": {"large": DOCUMENTED}}, "config must have 'gmm' with 'default'"),
        (DOCUMENTED | dict(waves_per_eu=-1), r"config\['waves_per_eu'\] must be None or one of"),
        (DOCUMENTED | dict(kpack=4), r"config\['kpack'\] must be None or one of \(1, 2\)"),
    ],
)
def test_wrong_files_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        as_config("gmm", given)


def test_a_file_that_is_not_json(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="config must be the path of a JSON file"):
        as_config("gmm", path)
    with pytest.raises(ValueError, match=r"config must be the path of a JSON file, got .*missing"):
        as_config("gmm", tmp_path / "missing.json")
