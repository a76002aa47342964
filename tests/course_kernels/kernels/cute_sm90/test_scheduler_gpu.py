"""The Hopper kernel where a cluster's tiles lie one below the other and side by side in one product, with empty groups
between, and more groups than a warp has lanes. ``test_scheduler`` looks at the scheduler's source without a GPU.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Product
from course_kernels.kernels.cute_sm90.config import CONFIGS, configs_for
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.testing.grouped_cases import GroupedCase, check
from cute_calls import call, call_scaled, cute_alone
from cute_tiles import check_walk
from hopper_gpu import hopper_gpu

pytestmark = pytest.mark.gpu
FP8 = torch.float8_e4m3fn
TILE_M = 128  # of most configurations
ALONG_M = (Form(), Form("m", "n"), Form("m", "k", 1, scaling="lines"))
ALONG_K = Form("k", "n")
SQUARE = next(config for config in CONFIGS if config.cluster == 2 and config.tile_n == config.tile_m)
WHOLE = replace(SQUARE, split_last_wave=False)
FITTED = next(config for config in CONFIGS if config.tail_tile_n)
NARROW = replace(FITTED, stages=4, tail_tile_n=0)
TALL = next(config for config in configs_for(ALONG_K) if config.tile_m == 256)
# The last row of tiles of one row, of half a tile and around it; some groups have no other.
ENDS = (1, 63, 64, 65, 0, 127, 192, 193, 320, 449, 0, 7)
DEPTHS = (0, 40, 0, 0, 130, 1, 64, 0, 65, 300, 0)
# Rows and columns of tiles of each group's result, along K.
GRIDS = ((1, 1), (1, 2), (1, 3), (2, 5), (3, 1), (3, 2), (3, 5), (4, 3), (5, 3), (17, 2), (33, 1), (35, 3))
EMPTY = {
    "all": (0,) * 70,
    "all but the first": (300,) + (0,) * 69,
    "all but one of another 32": (0,) * 40 + (300,) + (0,) * 29,
    "all but the last": (0,) * 69 + (300,),
}


@pytest.fixture
def device():
    return hopper_gpu()


def id_of(value):
    return "-".join(map(str, value)) if isinstance(value, Form) else value.name


def pairs_for(*forms):
    """Forms, with each configuration that has clusters of two."""
    found = [(form, config) for form in forms for config in configs_for(form) if config.cluster == 2]
    return pytest.mark.parametrize(("form", "config"), found, ids=id_of)


def case_of(form, sizes, N, M=TILE_M):
    """Whole numbers, a result over NaN in memory that is watched, and a tail of NaN. K is several blocks and a part."""
    along, b_major, operand_bytes, *_ = form
    return GroupedCase(
        along, sizes, M, N, K=136 if operand_bytes == 2 else 272, dtype=torch.bfloat16 if operand_bytes == 2 else FP8,
        layout_a="col" if along == "k" else "row", layout_b="col" if b_major == "k" else "row", layout_out="pitched",
        tail_size=61,
    )  # fmt: skip


def sizes_of(tile_m):
    """1, 2, 3, 4, 5, 17, 33 and 35 rows of tiles, the last of them full, of one row, or in between; a strip has 16."""
    full = {1: 0, 2: 1, 3: 0, 4: 1, 5: 40, 17: 1, 33: 0, 35: 1}  # more than whole rows of tiles
    one, two, three, four, five, *rest = (tile_m * (tiles - (more > 0)) + more for tiles, more in full.items())
    return 0, one, two, 0, 0, three, four, five, 0, rest[0], 0, rest[1], rest[2], 0


SIZES = sizes_of(TILE_M)


def extent(tiles, size):
    """An extent of that many tiles: the last is full where they are odd in number, and has the least where even."""
    return tiles * size if tiles % 2 else (tiles - 1) * size + 8


class Tile(NamedTuple):
    """What of a tile is noted."""

    shape: int
    beside: bool
    group: int
    row: int
    col: int
    start: int
    end: int
    blocks: int


def by(form, config, num_sms=None):
    """The kernel in one configuration as `check` calls it, on so many SMs."""

    def function(mat_a, mat_b, offs, out, **scales):
        assert cute.match_form(Product.packed(mat_a, mat_b, offs, **scales), out) == form
        cute.multiply(Product.packed(mat_a, mat_b, offs, **scales), out, form, config, num_sms)
        return out

    return function


@pairs_for(*ALONG_M)
def test_rows_and_columns_of_tiles_along_m(device, form, config):
    for cols in (1, 2, 3, 5):
        check(case_of(form, sizes_of(config.tile_m), extent(cols, config.tile_n)), by(form, config), device=device)


@pytest.mark.parametrize("more", [-1, 0, 1], ids=["one short", "whole", "one more"])
@pytest.mark.parametrize("form", ALONG_M[:2], ids=id_of)
@pytest.mark.parametrize(
    "config", [config for config in CONFIGS if config.split_last_wave], ids=lambda config: config.name
)
def test_the_last_wave(device, config, form, more):
    """One pair of tiles less than two waves, none and one more, with the group's last rows in any part of a tile."""
    pairs = 2 * torch.cuda.get_device_properties(device).multi_processor_count // config.cluster + more
    for last in (1, 64, 65, 128, 129, 192, 193, 256):
        sizes = (2 * TILE_M * (pairs - 1), 0, last)
        check(case_of(form, sizes, config.tile_n), by(form, config), device=device)


@pytest.mark.parametrize("cols", [0, 1, 2, 3], ids=lambda cols: f"{cols} wide")
@pytest.mark.parametrize(("form", "config"), [(ALONG_M[0], FITTED), (ALONG_M[1], FITTED), (ALONG_K, NARROW)], ids=id_of)
def test_tiles_are_cut_to_fit(device, form, config, cols):
    """Two narrow columns and some wide ones, one, or none; flat tiles one, two and more beside each other."""
    for more in (8, 64, 72, 128, 136, 192):
        N = cols * config.tile_n + more
        M = 3 * TILE_M if cols % 2 else 2 * TILE_M
        check(case_of(form, DEPTHS if form == ALONG_K else ENDS, N, M=M), by(form, config), device=device)


@pairs_for(ALONG_K)
def test_rows_and_columns_of_tiles_along_k(device, form, config):
    for rows, cols in GRIDS:
        N = extent(cols, config.tile_n)
        check(case_of(form, DEPTHS, N, M=extent(rows, config.tile_m)), by(form, config), device=device)


@pytest.mark.parametrize("form", [*ALONG_M, ALONG_K], ids=id_of)
def test_by_its_name(device, monkeypatch, form):
    cute_alone(monkeypatch)
    for N, K in ((128, 136), (264, 136), (384, 144), (648, 592)):
        case = case_of(form, DEPTHS if form == ALONG_K else SIZES, N, M=3 * TILE_M)
        case = replace(case, K=K if form.operand_bytes == 2 else 2 * K)
        check(case, call if form.operand_bytes == 2 else call_scaled, device=device)


@pytest.mark.parametrize("sizes", EMPTY.values(), ids=EMPTY)
@pairs_for(*ALONG_M, ALONG_K)
def test_groups_that_are_all_empty_or_nearly(device, form, config, sizes):
    check(case_of(form, sizes, extent(3, config.tile_n), M=3 * TILE_M), by(form, config), device=device)


@pytest.mark.parametrize("form", [*ALONG_M, ALONG_K], ids=id_of)
def test_a_thousand_groups_of_which_two_in_five_are_empty(device, form):
    config = next(config for config in configs_for(form) if config.tile_n == 128)
    assert config.cluster == 2
    sizes = tuple(i * 37 % 301 * (i % 5 > 1) for i in range(1000))
    check(case_of(form, sizes, N=136, M=72), by(form, config), device=device)


@pytest.mark.parametrize(
    ("form", "config"),
    [(ALONG_M[0], SQUARE), (ALONG_M[1], SQUARE), (ALONG_M[0], FITTED), (ALONG_M[1], FITTED), (ALONG_K, WHOLE),
     (ALONG_K, NARROW),
     *((form, replace(config, dynamic=True)) for form, config in
       ((ALONG_M[0], WHOLE), (ALONG_M[1], FITTED), (ALONG_K, WHOLE), (ALONG_K, NARROW),
        (ALONG_K, replace(NARROW, cluster=1)), (ALONG_K, TALL), (ALONG_M[0], TALL)))],
    ids=id_of,
)  # fmt: skip
def test_few_clusters_take_all_tiles(device, form, config):
    """Each many in a row, of every kind, of groups in several windows; along K of one block and of several."""
    # Behind three times as many of each kind one more, so that the last wave is not full.
    sizes = DEPTHS * 10 if form == ALONG_K else (*SIZES, *ENDS) * 3 + (1,)
    for cols in (1, 2, 3):
        for N in (extent(cols, config.tile_n), cols * config.tile_n - 64):
            check(case_of(form, sizes, N, M=3 * TILE_M), by(form, config, num_sms=3 * config.cluster), device=device)


def walked(walk, config, problem, clusters, device):
    """What each cluster's CTAs found, as ``check_walk`` takes it."""
    from cute_walk import FIELDS

    offs = torch.tensor(problem.offs, dtype=torch.int32, device=device)
    extents = torch.tensor([problem.total, problem.M, problem.N, problem.K], dtype=torch.int32, device=device)
    most = 1500 // clusters + 1
    noted = torch.full((clusters, config.cluster, most, FIELDS), -1, dtype=torch.int32, device=device)
    walk(offs, extents, noted)

    def tile_of(shape, beside, group, row, col, start, end, blocks, blocks_at):
        assert blocks == blocks_at
        place = dict(group=group, row=row, col=col, start=start, end=end)
        return Tile(shape=shape, beside=bool(beside), blocks=blocks, **place)

    found = []
    for notes in noted.tolist():
        ranks = [[tile_of(*note) for note in of_one if note[0] >= 0] for of_one in notes]
        assert len({len(tiles) for tiles in ranks}) == 1, "the CTAs of a cluster part ways"
        found.append(list(zip(*ranks)))
    return found


@pytest.mark.parametrize(
    ("along", "config"),
    [*((along, next(c for c in CONFIGS if (c.cluster, c.tile_n) == (1, 128))) for along in "mk"),
     ("m", SQUARE), ("m", FITTED), ("k", WHOLE), ("k", NARROW), ("k", replace(WHOLE, dynamic=True))],
    ids=lambda value: value if isinstance(value, str) else value.name,
)  # fmt: skip
def test_the_scheduler_as_it_was_compiled(device, along, config):
    from cute_walk import compile_walk

    walk = compile_walk(config, along)
    sizes = (SIZES, (0,) * 5) if along == "m" else (DEPTHS, DEPTHS * 4, (0,) * 70)
    ends = [tuple(itertools.accumulate(each)) for each in sizes]
    totals = [61 + sum(each) for each in sizes]
    # Ends that are none, too.
    for offs, total in [*zip(ends, totals), ((-5, 700, 300, 2**31 - 1, 400, -(2**31)), 1200)]:
        extents = (1, 3, 0), (7, 2, 0), (66, 1, 0), (66, 5, 0), (5, 3, 64)
        for clusters, cols, less in extents:
            rows, N = 2 * cols - 1, extent(cols, config.tile_n) - less
            problem = SimpleNamespace(offs=offs, total=total, M=extent(rows, config.tile_m), N=N, K=136)
            check_walk(config, along, problem, walked(walk, config, problem, clusters, device))
