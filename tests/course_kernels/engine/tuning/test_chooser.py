"""One function chooses: by the time model where there are constants, else by rules; and what it has fits."""

from __future__ import annotations

import itertools

import pytest

from course_kernels import targets
from course_kernels.config import GemmConfig
from course_kernels.engine.tuning import Extents, Gpu, Kind, choose, time_model
from course_kernels.engine.tuning.chooser import all_configs
from course_kernels.engine.tuning.fallback_rules import ONE_TILE, ONE_TILE_DEPTH, with_block_scales
from course_kernels.kernels.codes import Scales
from course_kernels.targets import TARGETS
from tuning_shapes import SHAPES

H200 = Gpu("sm_90", 132, 4.81, 1.98)
KINDS = [
    Kind(along, "n", size, Scales.LINES if size == 1 else Scales.NONE, precision)
    for along in ("m", "k", "batch", "masked")
    for size, precision in ((2, "ieee"), (4, "ieee"), (4, "tf32"), (1, "ieee"))
]


@pytest.mark.parametrize("arch", [*TARGETS, "gfx", "sm_87", "sm_110"])
def test_every_product_has_a_configuration_that_fits_everywhere(arch):
    gpu = Gpu(arch, targets.num_sms(arch) or 100, 2.0)
    limits = dict(capability=gpu.capability, shared_limit=gpu.shared_limit)
    for kind, extents, uses_tma in itertools.product(KINDS, SHAPES[::9], (None, False)):
        found = choose(kind, extents, gpu, uses_tma=uses_tma)
        there = gpu.uses_tma if uses_tma is None else uses_tma
        assert found.config.valid_for(kind.kernel, kind.element_bytes, uses_tma=there, **limits) is None, (
            kind,
            extents,
        )
        assert found.config.num_stages > 1
        blocks = {each.block for each in all_configs(kind, gpu, there)}
        assert found.config.block in blocks or found.config.block in ((128, 128, 32), (64, 64, 32), (32, 32, 32))
    assert choose(Kind("m"), SHAPES[0], None).config.block == (32, 32, 32)


def test_the_model_chooses_what_was_measured_and_rules_the_rest():
    extents = Extents(128.0, 1536, 2048, 64)
    for kind in (Kind("m", "n"), Kind("m", "k"), Kind.parse("m,n fp8 blocks")):
        found, wanted = choose(kind, extents, H200), time_model.fastest(kind, extents, H200, "triton")
        assert (found.config, found.us) == (wanted.config, wanted.us)
        assert "by the time model, with constants of NVIDIA H200" in found.why
    for kind, launch in (
        (Kind("m", "k", 4), {}),
        (Kind("m"), dict(uses_tma=False)),
        (Kind("k", "k", 1, Scales.LINES), {}),
    ):
        found = choose(kind, extents, H200, **launch)
        assert found.us is None
        assert "a rule by hand" in found.why


def test_a_result_of_32_bits_takes_stages():
    """Of what is chosen, as many stages as fit."""
    kind, extents = Kind("m"), Extents(4096.0, 4096, 4096, 8)
    plain, wide = choose(kind, extents, H200), choose(kind, extents, H200, out_bytes=4)
    assert plain.config.block == wide.config.block == (128, 256, 64)
    assert wide.config.num_stages < plain.config.num_stages
    assert f"{wide.config.num_stages} of {plain.config.num_stages} stages, for shared memory" in wide.why


def test_few_rows_of_a_batch_have_the_tile_that_holds_them():
    for along, (rows, block_m) in itertools.product(("batch", "masked"), ((3, 16), (16, 16), (20, 32), (64, 64))):
        assert choose(Kind(along), Extents(rows, 8192, 4096, 32), H200).config.block_m == block_m


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_every_product_that_is_added_has_a_configuration_on_an_amd_gpu(arch):
    gpu = Gpu(arch, targets.num_sms(arch), 5.0)
    limits = dict(capability=None, shared_limit=gpu.shared_limit, uses_tma=False, accumulate=True)
    for extents in SHAPES[::3]:
        config = choose(Kind("k", "n"), extents, gpu, accumulate=True).config
        assert config.valid_for("transposed", 2, **limits) is None
        assert config.num_xcds == 8


def test_programs_of_one_tile_have_a_configuration_of_their_own_along_k():
    """It is chosen if there are as many programs as it has tiles, and an average group has fewer than 1,024 rows."""
    tiles = 64 * ONE_TILE.tiles(1536, 2048)

    def chosen(gpu=H200, size=2, depth=128.0, programs=tiles):
        return choose(Kind("k", "n", size), Extents(1536, 2048, depth, 64), gpu, programs=programs).config

    stays = chosen(programs=None)
    assert chosen() == chosen(programs=2**31 - 1) == chosen(depth=0.0) == ONE_TILE != stays
    assert chosen(programs=tiles - 1) == stays
    assert chosen(depth=ONE_TILE_DEPTH - 1.0) == ONE_TILE != chosen(depth=float(ONE_TILE_DEPTH))
    assert ONE_TILE not in (chosen(size=4), chosen(Gpu("sm_80", 108, 1.9)))


def test_a_program_that_is_alone_on_its_sm_fills_it():
    shared = [extents for extents in SHAPES if choose(Kind("k", "n"), extents, H200).config.programs_per_sm > 1]
    assert shared
    for extents in SHAPES:
        usual, alone = (choose(Kind("k", "n"), extents, H200, alone=each) for each in (False, True))
        assert alone.config.programs_per_sm == 1
        if extents in shared:
            assert alone.us >= usual.us
            assert alone.why.startswith("the fastest of those that fill an SM")
        else:
            assert alone.config == usual.config


def test_scales_of_blocks_change_what_does_not_suit_them():
    pointers = choose(Kind("m", "k", 1, Scales.BLOCKS), Extents(4096, 4096, 4096, 8), H200, uses_tma=False).config
    assert with_block_scales(pointers) == pointers
    assert with_block_scales(GemmConfig(128, 128, 256, 4, 3, 8, 2, 2)) == GemmConfig(128, 128, 128, 8, 3, 8, 1, 2)
