"""The lookup of configurations: buckets and their edges, tables and what stands in for them, and the reasons given."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random

import pytest
import torch

from course_kernels import GemmConfig
from course_kernels.codegen import TARGETS
from course_kernels.dtypes import TYPE_BYTES
from course_kernels.engine.tuning import lookup as tuned
from course_kernels.engine.tuning.defaults import Bucket
from course_kernels.engine.tuning.lookup import OPS, get_config
from tuning_shapes import SHAPES

MARKED = GemmConfig(64, 64, 64, 4, 2, 7, 1, 1)  # strips of 7: in no default
OTHER = GemmConfig(64, 64, 64, 4, 2, 5, 1, 1)
# dtype and precision of every type.
KINDS = [(torch.float16, "ieee"), (torch.bfloat16, "ieee"), (torch.float32, "ieee"), (torch.float32, "tf32"),
         (torch.float8_e4m3fn, "ieee")]  # fmt: skip


# ---- buckets


# ---- lookup


def random_shapes(count, seed):
    draw = random.Random(seed)
    return [tuple(round(2 ** draw.uniform(0, limit)) for limit in (18, 14, 14, 10)) for _ in range(count)]


@pytest.mark.parametrize("op", OPS)
def test_the_choice_is_the_same_for_all_shapes_of_a_bucket(op):
    by_bucket = {}
    for M, K, N, G in random_shapes(600, 2):
        config = get_config(op, M, K, N, G, arch=90)
        assert by_bucket.setdefault(Bucket.of(op, M, K, N, G), config) is config


def test_a_changing_total_adds_nothing_to_the_cache():
    get_config("grouped_mm", 32768, 4096, 4096, 8, arch=90)
    before = tuned._choose.cache_info().currsize
    for total in range(28000, 37000, 7):
        get_config("grouped_mm", total, 4096, 4096, 8, arch=90)
    assert tuned._choose.cache_info().currsize == before


def test_what_is_returned_cannot_be_changed():
    config = get_config("grouped_mm", 32768, 4096, 4096, 8, arch=90)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.block_m = 32
    choice = get_config("grouped_mm", 32768, 4096, 4096, 8, arch=90, explain=True)
    assert choice.config is config
    with pytest.raises(dataclasses.FrozenInstanceError):
        choice.config = None


ARCHS = [*TARGETS, "gfx", "sm_87", "sm_110"]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", OPS)
def test_every_shape_and_type_has_a_valid_configuration_everywhere(op, arch):
    limits = dict(capability=tuned.capability_of(arch), shared_limit=tuned.shared_limit(arch))
    for (dtype, precision), shape, uses_tma in itertools.product(KINDS, SHAPES[::5], (None, False)):
        m, n, k, g = shape
        total = (m, k * g) if op == "grouped_mm_k" else (m * (1 if op == "grouped_mm_batch" else g), k)
        config = get_config(op, *total, n, g, dtype=dtype, precision=precision, arch=arch, uses_tma=uses_tma)
        there = tuned.has_descriptors(arch) if uses_tma is None else uses_tma
        reason = config.valid_for(tuned.kernel_of(op), dtype.itemsize, uses_tma=there, **limits)
        assert reason is None, (reason, shape, dtype)
        assert config.num_stages > 1
    target = TARGETS.get(arch)
    assert target is None or tuned.shared_limit(arch) <= target.shared_limit


def test_the_interpreter_takes_small_blocks():
    choice = get_config("grouped_mm", 2**20, 8192, 8192, 8, explain=True)
    assert choice.config.block == (32, 32, 32)
    assert "interpreter" in str(choice)


@pytest.mark.parametrize("arch", [(9, 0), 90, "sm_90", "sm_90a", "sm90", "90"])
def test_forms_of_an_architecture(arch):
    assert tuned.canonical_arch(arch) == "sm_90"
    assert get_config("grouped_mm", 512, 512, 512, 2, arch=arch) is get_config("grouped_mm", 512, 512, 512, 2, arch=90)


NO_ARCHS = [9, "hopper", (9,), (9, 0, 0), (9, 12), 9.0, "sm_9", "", True, (9.0, 0), 942, "sm_942", "gfx000", "gfx9"]


@pytest.mark.parametrize("arch", NO_ARCHS)
def test_unknown_architectures(arch):
    with pytest.raises(ValueError, match="arch must be"):
        get_config("grouped_mm", 512, 512, 512, 2, arch=arch)


def test_other_arguments_are_named():
    with pytest.raises(ValueError, match=r"op must be one of .* got 'gemm'"):
        get_config("gemm", 1, 1, 1, 1)
    with pytest.raises(ValueError, match="dtype must be one of"):
        get_config("grouped_mm", 1, 1, 1, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="precision must be"):
        get_config("grouped_mm", 1, 1, 1, 1, precision="tf19")
    with pytest.raises(ValueError, match="G must not be negative, got -1"):
        get_config("grouped_mm", 1, 1, 1, -1)
    for value in (1.0, "1", None, True):
        with pytest.raises(TypeError, match="K must be an integer"):
            get_config("grouped_mm", 1, value, 1, 1)


# ---- tables, and what stands in where they end

SHAPE = (4096, 512, 1024, 8)  # M, K, N, G
BUCKET = (512, 1024, 512, 8)  # M of a group, N, K, G


def near(**changes):
    return Bucket(*BUCKET)._replace(**changes)


def test_a_measured_bucket_overrides_the_default(tables):
    default = get_config("grouped_mm", *SHAPE, arch=90, explain=True)
    assert default.entry is None
    assert "nothing was measured" in str(default)
    tables("sm_90", ("grouped_mm", "bfloat16", BUCKET, MARKED))
    found = get_config("grouped_mm", *SHAPE, arch=90, explain=True)
    assert (found.config, found.entry, found.distance, found.us) == (MARKED, BUCKET, 0, 12.5)
    for part in ("some GPU", "12.5 µs", "this bucket", str(Bucket(*BUCKET)), "64×64×64, 4 warps, 2 stages"):
        assert part in str(found)


def test_the_nearest_entry_stands_in_and_ties_are_decided(tables):
    tables(
        "sm_90",
        ("grouped_mm", "bfloat16", near(N=8192), OTHER),
        ("grouped_mm", "bfloat16", near(K=1024, G=16), MARKED),
    )
    found = get_config("grouped_mm", *SHAPE, arch=90, explain=True)
    assert (found.config, found.distance) == (MARKED, 2)
    assert "a factor of 4 away" in str(found)
    for order in (1, -1):  # two octaves away both: the smaller bucket, however they are listed
        entries = [("grouped_mm", "bfloat16", near(N=4096), OTHER), ("grouped_mm", "bfloat16", near(N=256), MARKED)]
        tables("sm_90", *entries[::order])
        assert get_config("grouped_mm", *SHAPE, arch=90) == MARKED


def test_an_entry_too_far_away_or_for_other_few_rows_does_not_serve(tables):
    tables("sm_90", ("grouped_mm", "bfloat16", near(N=2 ** (10 + tuned.MAX_DISTANCE)), MARKED))
    assert get_config("grouped_mm", *SHAPE, arch=90) == MARKED
    tables("sm_90", ("grouped_mm", "bfloat16", near(N=2 ** (11 + tuned.MAX_DISTANCE)), MARKED))
    found = get_config("grouped_mm", *SHAPE, arch=90, explain=True)
    assert found.config != MARKED
    assert f"within a factor of {2**tuned.MAX_DISTANCE}: defaults" in str(found)
    tables("sm_90", ("grouped_mm", "bfloat16", near(M=32), MARKED), ("grouped_mm_k", "bfloat16", near(M=32), MARKED))
    assert get_config("grouped_mm", *SHAPE, arch=90) != MARKED
    assert get_config("grouped_mm", 20 * 8, *SHAPE[1:], arch=90) == MARKED
    assert get_config("grouped_mm", 10 * 8, *SHAPE[1:], arch=90) != MARKED
    # Of a ragged depth, M is an extent like the others.
    assert get_config("grouped_mm_k", 64, 4096, 1024, 8, arch=90) == MARKED


def test_types_and_ops_that_serve_each_other(tables):
    tables("sm_90", ("grouped_mm", "bfloat16", BUCKET, MARKED))
    half = get_config("grouped_mm", *SHAPE, arch=90, dtype=torch.float16, explain=True)
    assert half.config == MARKED
    assert "float16 as bfloat16" in str(half)
    batch = get_config("grouped_mm_batch", 512, *SHAPE[1:], arch=90, explain=True)
    assert batch.config == MARKED
    assert "grouped_mm_batch as grouped_mm" in str(batch)
    assert get_config("grouped_mm_k", 512, 4096, 1024, 8, arch=90) != MARKED
    for dtype, precision in KINDS[2:]:
        assert get_config("grouped_mm", *SHAPE, arch=90, dtype=dtype, precision=precision) != MARKED
    assert get_config("grouped_mm", *SHAPE, arch=90, uses_tma=False) != MARKED
    tables("sm_90", ("grouped_mm", "float16", near(G=64), OTHER), ("grouped_mm", "bfloat16", BUCKET, MARKED),
           ("grouped_mm", "tf32", BUCKET, GemmConfig(64, 64, 32)))  # fmt: skip
    assert get_config("grouped_mm", *SHAPE, arch=90, dtype=torch.float16) == OTHER  # its own, though further away
    tf32 = get_config("grouped_mm", *SHAPE, arch=90, dtype=torch.float32, precision="tf32")
    assert tf32 == GemmConfig(64, 64, 32)


def test_an_architecture_without_a_table_takes_the_nearest(tables):
    tables("sm_90", ("grouped_mm", "bfloat16", BUCKET, MARKED))
    found = get_config("grouped_mm", *SHAPE, arch=100, explain=True)
    assert found.config == MARKED
    assert "no table for sm_100: the nearest is that of sm_90" in str(found)
    tables("sm_120", ("grouped_mm", "bfloat16", BUCKET, OTHER))
    assert get_config("grouped_mm", *SHAPE, arch=103) == MARKED
    assert get_config("grouped_mm", *SHAPE, arch=121) == OTHER
    # Without descriptors another tile is right.
    for arch in (80, 89, "gfx942"):
        assert get_config("grouped_mm", *SHAPE, arch=arch) not in (MARKED, OTHER)


def test_an_amd_gpu_has_its_own_table_or_none(tables):
    tables("gfx942", ("grouped_mm", "bfloat16", BUCKET, MARKED))
    found = get_config("grouped_mm", *SHAPE, arch="gfx942", explain=True)
    assert (found.config, found.us) == (MARKED, 12.5), "without descriptors"
    assert get_config("grouped_mm", *SHAPE, arch="gfx950") != MARKED
    assert get_config("grouped_mm", *SHAPE, arch=90) != MARKED


def test_starting_values_say_that_they_were_not_measured(tables):
    path = tables("gfx942", ("grouped_mm", "bfloat16", BUCKET, MARKED))
    content = json.loads(path.read_text())
    content["provenance"]["sms"] = 304
    content["entries"][0] |= {"measured": False, "us": None}
    path.write_text(json.dumps(content))
    tuned.forget_tables()
    found = get_config("grouped_mm", *SHAPE, arch="gfx942", explain=True)
    assert (found.config, found.us) == (MARKED, None)
    assert "not measured, a starting value for this bucket" in str(found)
    assert (tuned.num_sms("gfx942"), tuned.num_sms("gfx950"), tuned.num_sms(None)) == (304, None, None)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_every_product_that_is_added_has_a_configuration_on_an_amd_gpu(arch):
    limits = dict(capability=None, shared_limit=TARGETS[arch].shared_limit, uses_tma=False, accumulate=True)
    for m, n, k, g in SHAPES[::3]:
        config = get_config("grouped_mm_k", m, k * g, n, g, arch=arch, accumulate=True)
        assert config.valid_for("transposed", 2, **limits) is None
    found = get_config("grouped_mm_k", 4096, 512 * 64, 4096, 64, arch="gfx942", accumulate=True, explain=True)
    assert "×128 tiles and 2 of 2 stages, for shared memory" in str(found)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_starting_values_of_amd_gpus_suit_the_shape(arch):
    table = tuned.read_table(tuned.TABLES / f"{arch}.json")
    assert all(entry.us is None for entry in table.entries)
    assert all(entry.config.num_xcds == 8 for entry in table.entries)
    limits = dict(capability=None, shared_limit=TARGETS[arch].shared_limit, uses_tma=False)
    assert all(entry.config.valid_for(tuned.kernel_of(entry.op), 2, **limits) is None for entry in table.entries)
    chosen = [get_config("grouped_mm", rows * 64, 4096, 4096, 64, arch=arch) for rows in (16, 32, 64, 4096)]
    assert [config.block_m for config in chosen[:3]] == [16, 32, 64]
    assert chosen[3].block_m >= 128
    few = get_config("grouped_mm", 1024 * 8, 512, 512, 8, arch=arch)
    assert few.block_m * few.block_n < chosen[3].block_m * chosen[3].block_n, "few tiles of a small layer: smaller ones"
    depth = get_config("grouped_mm_k", 2048, 512 * 64, 2048, 64, arch=arch)
    assert depth.schedule == "round_robin"


def test_an_entry_that_does_not_fit_loses_stages_or_its_place(tables):
    tables("sm_90", ("grouped_mm", "bfloat16", BUCKET, GemmConfig(64, 128, 64, 4, 4)))
    fewer = get_config("grouped_mm", *SHAPE, arch=120, explain=True)
    assert fewer.config == GemmConfig(64, 128, 64, 4, 3)
    assert "3 of 4 stages" in str(fewer)
    tables("sm_90", ("grouped_mm", "bfloat16", BUCKET, GemmConfig(128, 256, 64, 8, 4, 7)))
    smaller = get_config("grouped_mm", *SHAPE, arch=120, explain=True)
    assert smaller.config.block_n < 256
    assert "does not fit" in str(smaller)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "no table"), ("[]", "no table"), ('{"entries": []}', "provenance"),
        ('{"provenance": {"gpu": "x"}, "entries": [{}]}', "entry 0.*op"),
        ('{"provenance": {"gpu": "x"}, "entries": [{"op": "grouped_mm", "dtype": "bfloat16", "bucket": [1, 2, 3, 4], '
         '"config": [48], "us": 1}]}', "entry 0.*block_m"),
        ('{"provenance": {"gpu": "x"}, "entries": [{"op": "gemm", "dtype": "bfloat16", "bucket": [1, 2, 3, 4], '
         '"config": [64], "us": 1}]}', "entry 0.*gemm"),
    ],
)  # fmt: skip
def test_a_damaged_table_says_where(tables, text, message):
    path = tables("sm_90")
    path.write_text(text)
    tuned.forget_tables()
    with pytest.raises(ValueError, match=f"(?s)sm_90.json.*{message}"):
        get_config("grouped_mm", *SHAPE, arch=90)


def test_the_tables_that_ship_are_valid_for_their_architecture():
    for path in sorted(tuned.TABLES.glob("*.json")):
        table = tuned.read_table(path)
        limits = dict(capability=tuned.capability_of(table.arch), shared_limit=tuned.shared_limit(table.arch))
        for entry in table.entries:
            there = tuned.has_descriptors(table.arch)
            reason = entry.config.valid_for(
                tuned.kernel_of(entry.op), TYPE_BYTES[entry.dtype], uses_tma=there, **limits
            )
            assert reason is None, (path, entry, reason)
        assert len({(entry.op, entry.dtype, entry.bucket) for entry in table.entries}) == len(table.entries)


# ---- defaults and candidates
