"""Why a product gets its configuration, in words."""

from __future__ import annotations

import math
import re

import pytest

from course_kernels.engine.tuning import Extents, Gpu, Kind, explain, time_model
from course_kernels.engine.tuning.kinds import KINDS

H200 = Gpu("sm_90", 132, 4.81)


@pytest.mark.parametrize("extents", [dict(M=-5), dict(N=math.nan), dict(K="512"), dict(G=math.inf)], ids=str)
def test_extents_that_are_none_are_refused(extents):
    (name,) = extents
    with pytest.raises(ValueError, match=f"{name} must be a number from 0 on, got"):
        explain(Kind("m"), Extents(**dict(M=256, N=2048, K=2048, G=64) | extents), H200)


@pytest.mark.parametrize(
    "kind, extents", [("m,k", Extents(256.0, 2048, 2048, 64)), ("k,n", Extents(2048, 2048, 256.0, 64))]
)
def test_an_explanation_names_the_choice_what_it_does_and_who_comes_next(kind, extents):
    form = Kind.parse(kind)
    found = time_model.ranking(form, extents, H200)
    head, choice, waves, moved, source, *others = explain(form, extents, H200, others=3).splitlines()
    assert source == "    with constants of NVIDIA H200"
    assert (
        head
        == {
            "m,k": "forward, 64 × (M 256, N 2,048, K 2,048) on average; sm_90, 132 SMs, 4.81 TB/s",
            "k,n": "gradient of the weights, 64 × (M 2,048, N 2,048, K 256) on average; sm_90, 132 SMs, 4.81 TB/s",
        }[kind]
    )
    tile = "×".join(map(str, (found[0].config.tile_m, found[0].config.tile_n, found[0].config.tile_k)))
    assert choice.startswith(f"  {found[0].us:,.0f} µs expected: cute {tile}, {found[0].config.schedule}, ")
    parts = [part for spread in time_model.SPREADS for part in time_model.work(found[0].config, form, extents, spread)]
    tiles, bytes_ = (sum(getattr(part, name) for part in parts) / 2 for name in ("tiles", "bytes"))
    assert waves.startswith(f"    {tiles:,.0f} tiles, 132 at a time: {tiles / 132:.1f} waves of ")
    if kind == "m,k":
        assert waves.endswith(" 32.0 blocks of K")
    assert moved == f"    {bytes_ / 1e6:,.0f} MB, which the memory moves in {bytes_ / 4.81e6:,.0f} µs at best"
    assert [line.split()[0] for line in others] == [f"{each.us / found[0].us - 1:+.1%}:" for each in found[1:4]]


def test_an_explanation_of_few_rows_describes_a_configuration_of_triton():
    text = explain(Kind("m"), Extents(1.0, 2816, 4096, 128), H200, others=0)
    assert len(text.splitlines()) == 5
    assert re.search(r" µs expected: triton 16×\d+×128, 4 warps, \d stages, strips of 1, \d per SM", text)


def test_an_explanation_says_what_chooses_where_the_model_has_no_answer():
    def why(gpu, rows=64.0, kind="m", **launch):
        return explain(Kind(kind), Extents(rows, 2048, 2048, 8), gpu, **launch)

    assert why(H200, 0.0).endswith("an empty product: nothing is multiplied")
    assert why(Gpu("sm_80", 108, 1.9)).endswith(
        "no GPU like sm_80 was measured with such products; `course tune` measures this one"
    )
    assert why(None).endswith("the interpreter runs every product with small blocks")
    assert "not everything goes through a descriptor" in why(H200, uses_tma=False)
    assert "of m,k: none were measured for batch,k" in why(H200, kind="batch")
    blackwell = why(Gpu("sm_100", 148, 8.0, 1.9))
    assert "with constants of NVIDIA H200, the measured GPU most like this one (sm_90, 132 SMs, 4.814 TB/s" in blackwell
    assert "cute" not in blackwell
    assert " µs expected: triton " in why(H200, backend="triton")


def test_words_tell_configurations_apart():
    """No two candidates of a file read alike."""
    for kind in KINDS:
        text = explain(kind, Extents(300.0, 2048, 300.0, 8), H200, others=99).splitlines()
        ranked = [line.split(": ", 1)[1] for line in (text[1], *text[5:])]
        assert len(set(ranked)) == len(ranked) == len(time_model.ranking(kind, Extents(300.0, 2048, 300.0, 8), H200))
        assert any(line.endswith("3 small blocks for stores") for line in ranked) == (kind.along == "k")
