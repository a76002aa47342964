"""The zoo: shapes of published models, routings whose rows add up, sizes that never move."""

from __future__ import annotations

import zlib

import pytest

from course_kernels.bench import zoo

BY_NAME = {model.name: model for model in zoo.MODELS}


def checksum(sizes: tuple[int, ...]) -> int:
    return zlib.crc32(",".join(map(str, sizes)).encode())


def test_every_combination_is_a_row_of_its_own():
    every = zoo.rows()
    names = [row.name for row in every]
    assert len(set(names)) == len(names) == 15 * 6 * 3 * 2
    assert names[0] == "mixtral-8x7b-1-random-up"
    row = {row.name: row for row in every}["qwen3-30b-a3b-4096-zipf-up"]
    assert (row.groups, row.total_m, row.N, row.K) == (128, 4096 * 8, 1536, 2048)
    assert row.title == "qwen3-30b-a3b: 128 experts, 4,096 tokens (Zipf), N 1536, K 2048"
    down = {row.name: row for row in every}["qwen3-30b-a3b-4096-zipf-down"]
    assert (down.N, down.K, down.sizes) == (2048, 768, row.sizes), "both projections meet the same routing"


def test_rows_are_what_the_routers_send():
    for model in zoo.MODELS:
        for tokens in zoo.TOKENS:
            for routing in zoo.ROUTINGS:
                sizes = zoo.routed(model, tokens, routing)
                assert len(sizes) == model.experts
                assert sum(sizes) == tokens * model.top_k, (model.name, tokens, routing)
                assert min(sizes) >= 0
                assert max(sizes) <= tokens, "a token visits an expert at most once"
                if routing == "half-cold":
                    assert sum(size == 0 for size in sizes) >= model.experts // 2


def test_routings_have_the_shape_that_their_names_promise():
    v3 = BY_NAME["deepseek-v3"]
    even = zoo.routed(v3, 65536, "random")
    assert 0 < max(even) - min(even) < 12 * (65536 * 8 / 256) ** 0.5, "rows of an expert vary as a binomial does"
    largest_first = sorted(zoo.routed(v3, 65536, "zipf"), reverse=True)
    assert largest_first[0] / largest_first[9] == pytest.approx(10**0.8, rel=0.01)
    capped = sorted(zoo.routed(BY_NAME["olmoe-1b-7b"], 4096, "zipf"), reverse=True)
    assert capped[0] == 4096, "Zipf's law alone would send 4,632 rows of 4,096 tokens to one expert"
    assert capped[1] / capped[3] == pytest.approx(2**0.8, rel=0.01), "the others keep the law"
    warm = [size for size in zoo.routed(v3, 65536, "half-cold") if size]
    assert len(warm) == 128
    assert min(warm) > 0.9 * 4096


def test_every_pick_of_few_tokens_is_drawn():
    sizes = zoo.routed(BY_NAME["mixtral-8x7b"], 1, "random")
    assert sorted(sizes) == [0] * 6 + [1, 1]


def test_sizes_are_the_same_everywhere():
    """Records of two machines are compared row by row: these numbers must never move."""
    assert zoo.routed(BY_NAME["mixtral-8x7b"], 65536, "random") == (
        16424,
        16108,
        16522,
        16364,
        16438,
        16397,
        16354,
        16465,
    )
    assert zoo.routed(BY_NAME["llama-4-scout"], 512, "half-cold") == (
        65,
        73,
        0,
        0,
        51,
        0,
        0,
        67,
        0,
        0,
        0,
        72,
        0,
        60,
        48,
        76,
    )
    assert checksum(zoo.routed(BY_NAME["deepseek-v3"], 4096, "zipf")) == 1320877664


def test_what_bounds_a_row_follows_from_its_arithmetic_intensity():
    kinds = {row.name: row.kind for row in zoo.rows(["mixtral-8x7b"], routings=["zipf"], projections=["up"])}
    assert kinds["mixtral-8x7b-64-zipf-up"] == "memory"
    assert kinds["mixtral-8x7b-16384-zipf-up"] == "compute"
    for row in zoo.compact():
        assert (row.kind == "compute") == (row.flops / row.bytes_moved() >= zoo.COMPUTE_BOUND_FLOP_PER_BYTE)


def test_the_compact_set_has_few_and_many_rows_and_fits_on_80_gb():
    rows = zoo.compact()
    assert len({row.name for row in rows}) == 20
    assert {row.kind for row in rows} == {"compute", "memory"}
    for row in rows:
        weights, a, out = row.groups * row.N * row.K, row.total_m * row.K, row.total_m * row.N
        operands_and_results = 2 * (2 * weights + 2 * a + 2 * out)
        assert operands_and_results + 2 * (weights + a + out) < 60e9, "and the peer's own results"


def test_models_are_chosen_by_the_beginning_of_their_names():
    def names(chosen):
        return [model.name for model in zoo.select_models(chosen)]

    assert names(["gpt-oss"]) == ["gpt-oss-20b", "gpt-oss-120b"]
    assert names(["dbrx", "glm-4.5"]) == ["glm-4.5", "dbrx"], "a full name selects one, in the table's order"
    assert len(names(None)) == 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"models": ["mixtral-8x7"]}, None),
        ({"models": ["mixtral-7x8b"]}, "got 'mixtral-7x8b'; did you mean mixtral-8x7b"),
        ({"models": ["llama-9"]}, "models must be names"),
        ({"routings": ["zip"]}, "got 'zip'; did you mean zipf"),
        ({"projections": ["gate"]}, "there are: up, down"),
        ({"tokens": [0]}, "tokens must be at least 1, got 0"),
    ],
)
def test_what_does_not_exist_is_said(arguments, message):
    if message is None:
        assert zoo.rows(**arguments, tokens=[1])
        return
    with pytest.raises(ValueError, match=message):
        zoo.rows(**arguments)
