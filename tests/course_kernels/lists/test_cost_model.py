"""The cost model: candidates that fit, and the choice for the shapes that the benchmarks run."""

from __future__ import annotations

import itertools

import pytest

from course_kernels import GemmConfig
from course_kernels.lists.cost_model import SWITCH_US, Candidate, candidates, choose, estimate_us
from shapes import group_gemm_rows

KERNELS = ("naive", "round_robin", "tma")
# (itemsize, precision) of every type of operand.
KINDS = [(1, "ieee"), (2, "ieee"), (4, "ieee"), (4, "tf32")]
H200 = dict(num_sms=132, shared_limit=232_448, capability=(9, 0))
# Bytes that one program may have: H100/H200, A100, L40S/RTX 4090/RTX 50, T4.
LIMITS = {(9, 0): 232_448, (8, 0): 166_912, (8, 9): 101_376, (12, 0): 101_376, (7, 5): 65_536}


# ---- candidates


@pytest.mark.parametrize("capability", LIMITS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_candidates_fit_and_there_is_always_one(kernel, kind, capability):
    itemsize, precision = kind
    for out_itemsize, aligned in itertools.product((2, 4), (True, False)):
        found = candidates(
            kernel, itemsize, precision, out_itemsize=out_itemsize, shared_limit=LIMITS[capability], aligned=aligned,
            capability=capability,
        )  # fmt: skip
        assert found
        for candidate in found:
            need = candidate.config.shared_memory(kernel, itemsize, out_itemsize, capability)
            assert need <= LIMITS[capability], candidate


@pytest.mark.parametrize("kernel", KERNELS)
def test_programs_that_share_an_sm_fit_on_it_together(kernel):
    """An SM of sm_90 has 228 KiB, of which each program costs 1 KiB more than it asks for."""
    for itemsize, precision in KINDS:
        for candidate in candidates(kernel, itemsize, precision, shared_limit=232_448, capability=(9, 0)):
            config = candidate.config
            need = config.shared_memory(kernel, itemsize, max(2, itemsize), (9, 0)) + 1024
            assert config.programs_per_sm * need <= 228 * 1024, config


def test_without_tensor_cores_or_alignment_the_narrow_tile_remains():
    old = candidates("round_robin", 2, "ieee", capability=(7, 5))
    assert candidates("round_robin", 2, "ieee", aligned=False) == old
    assert old != candidates("round_robin", 2, "ieee")
    assert candidates("tma", 2, "ieee", aligned=False) == candidates("tma", 2, "ieee"), "descriptors are always aligned"


def test_fp8_blocks_of_k_hold_at_least_one_instruction():
    assert all(c.config.block_k >= 32 for kernel in KERNELS for c in candidates(kernel, 1, "ieee"))


# ---- choose


@pytest.mark.parametrize("row", group_gemm_rows())
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("kernels", [("tma", "round_robin"), ("round_robin",), ("naive",)], ids="+".join)
def test_choice_is_what_the_estimate_ranks_first(kernels, kind, row):
    itemsize, precision = kind
    problems = tuple(group_gemm_rows()[row])
    kernel, config = choose(problems, kernels=kernels, itemsize=itemsize, precision=precision, **H200)
    limits = dict(shared_limit=H200["shared_limit"], capability=H200["capability"])
    ranked = [
        (estimate_us(problems, name, candidate, H200["num_sms"]), name, candidate.config)
        for name in kernels
        for candidate in candidates(name, itemsize, precision, **limits)
    ]
    chosen = next(time for time, name, c in ranked if (name, c) == (kernel, config))
    assert chosen == min(time for time, *_ in ranked) < float("inf")


# fp16 on an H200, as (kernel, block, schedule). A change here is a change of speed: measure the row before and after.
PINNED = {
    # One tile a problem would leave 128 of 132 SMs idle, and a program lives too short to pay for descriptors.
    "4 x 128^3": ("round_robin", (16, 32, 128), "round_robin"),
    "4 x 256^3": ("round_robin", (32, 32, 128), "round_robin"),
    # 256 tiles of 64 × 64 for 264 programs: one round.
    "4 x 512^3": ("round_robin", (64, 64, 64), "round_robin"),
    # 128 tiles for 132 programs: one round of the tile with the most arithmetic for each byte. One tile each, so
    # nothing to overlap.
    "4 x 1024^3": ("tma", (128, 256, 64), "round_robin"),
    # Equal tiles, four a program: chunks keep a program in one problem, and its stores overlap the next tile's loads.
    "4 x 2048^3": ("tma", (128, 256, 64), "chunks"),
    # Tiles of unequal K: smaller ones, two programs to an SM, even out; chunks would be equal in count, not in work.
    "64 random 64-2048": ("tma", (128, 128, 64), "round_robin"),
}


@pytest.mark.parametrize("row", group_gemm_rows())
def test_choices_for_the_benchmarks(row):
    problems = tuple(group_gemm_rows()[row])
    kernel, config = choose(problems, kernels=("tma", "round_robin"), itemsize=2, precision="ieee", **H200)
    assert (kernel, config.block, config.schedule) == PINNED[row]


@pytest.mark.parametrize(
    "itemsize, precision, n, choice",
    [
        # As `dtypes.json` was measured with; the pointer kernel was nearly three times slower at 2048³ in fp8.
        (1, "ieee", 256, ("round_robin", (64, 64, 128))),
        (1, "ieee", 2048, ("tma", (128, 256, 128))),
        (4, "tf32", 2048, ("tma", (128, 256, 32))),
        # No tensor cores: a descriptor brings nothing that the scalar products could use.
        (4, "ieee", 2048, ("round_robin", (128, 128, 16))),
    ],
)
def test_choices_for_other_types(itemsize, precision, n, choice):
    kernels = ("tma", "round_robin")
    kernel, config = choose(((n, n, n),) * 4, kernels=kernels, itemsize=itemsize, precision=precision, **H200)
    assert (kernel, config.block) == choice


def test_every_row_of_the_benchmarks_is_pinned():
    assert list(PINNED) == list(group_gemm_rows())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_chunks_only_where_all_tiles_cost_the_same(kind):
    itemsize, precision = kind
    for extents in itertools.product((128, 1000, 4096), (64, 512, 5000)):
        problems = tuple((2048, 2048, k) for k in extents)
        _, config = choose(problems, kernels=("tma", "round_robin"), itemsize=itemsize, precision=precision, **H200)
        assert config.schedule != "chunks" or len(set(extents)) == 1


def test_estimate_by_hand():
    candidate = Candidate(GemmConfig(64, 64, 32), block_us=2.0, tile_us=10.0)
    # Six tiles of 10 + 3 * 2 µs for 4 programs: two rounds.
    assert estimate_us([(128, 192, 96)], "round_robin", candidate, 4) == 2 * 16.0
    # The walk meets one problem.
    assert estimate_us([(128, 192, 96)], "tma", candidate, 4) == 2 * 16.0 + SWITCH_US
    # One tile each of 12 and 50 µs: the longest decides.
    assert estimate_us([(64, 64, 32), (64, 64, 640)], "round_robin", candidate, 4) == 50.0
    assert estimate_us([(0, 64, 64), (64, 0, 1)], "tma", candidate, 4) == 0.0
    assert estimate_us([(64, 64, 0)], "naive", candidate, 4) == 10.0


def test_estimate_excludes_chunks_of_unequal_work():
    chunks = Candidate(GemmConfig(64, 64, 32, schedule="chunks"), 1.0, 1.0)
    assert estimate_us([(64, 64, 32), (64, 64, 64)], "tma", chunks, 132) == float("inf")
    assert estimate_us([(64, 64, 32), (128, 64, 32)], "tma", chunks, 132) < float("inf")
    assert estimate_us([(64 * 1000, 64, 32)], "tma", chunks, 1) == float("inf"), "too many tiles a program"


def test_nothing_to_compute_has_a_choice():
    kernel, _ = choose(((0, 0, 0),), kernels=("tma", "round_robin"), itemsize=2, precision="ieee", **H200)
    assert kernel in ("tma", "round_robin")


def test_interpreter_takes_the_preferred_kernel():
    kernel, config = choose(
        ((512, 512, 512),), kernels=("tma", "round_robin"), itemsize=2, precision="ieee", num_sms=None
    )
    assert kernel == "tma"
    assert config.block == (64, 64, 64)


def test_no_room_at_all_says_what_to_do():
    with pytest.raises(ValueError, match=r"fits into 1000 bytes of shared memory: pass a smaller config"):
        choose(((64, 64, 64),), kernels=("tma",), itemsize=2, precision="ieee", num_sms=10, shared_limit=1000)
