"""The time model counts tiles and bytes, and its choices hold on models that it was not fitted to."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch

from course_kernels.config import GemmConfig
from course_kernels.engine.tuning import time_model
from course_kernels.engine.tuning.defaults import ONE_TILE, ONE_TILE_DEPTH
from course_kernels.engine.tuning.time_model import Gpu, Work
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, CuteConfig, configs_for
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.runtime import Device

H200, H100 = Gpu("sm_90", 132, 4.81), Gpu("sm_90", 132, 3.35)
SQUARE = GemmConfig(128, 128, 64)
FILES = sorted(time_model.CONSTANTS.glob("*.json"))


EVEN, SKEWED = time_model.SPREADS


def total(config, kind, *extents, spread=SKEWED):
    parts = time_model.work(config, kind, *extents, spread)
    return tuple(sum(getattr(part, name) for part in parts) for name in ("tiles", "bytes"))


def test_tiles_of_a_gradient_of_weights_are_counted_exactly():
    tiles, moved = total(SQUARE, "k,n", 1536, 2000, 256.0, 8)
    assert tiles == pytest.approx(8 * 12 * 16)
    assert moved == pytest.approx(8 * 2 * (1536 * 2000 + 256 * (1536 + 2000)), rel=1e-3)
    pairs, _ = total(CuteConfig(128, 128, 64, 2, 6, PINGPONG), "k,n", 3 * 128, 3 * 128, 256.0, 1)
    assert pairs == pytest.approx(2 * 3 + 4), "two rows of pairs, and a last row of two columns each"


def test_tiles_of_ragged_rows_include_the_ends_of_groups():
    tiles, _ = total(SQUARE, "m,k", 4096.0, 1024, 512, 4)
    assert 4 * 32 * 8 < tiles < 4 * 34 * 8
    flat = CuteConfig(128, 192, 64, 2, 5, PINGPONG, last_tile_n=128, tail_tile_n=256)
    plain = CuteConfig(128, 192, 64, 2, 5, PINGPONG, last_tile_n=128)
    assert total(flat, "m,k", 300.0, 1536, 512, 4)[0] < total(plain, "m,k", 300.0, 1536, 512, 4)[0]
    # Groups of a few rows have flat tiles alone: of 768 columns two pairs, the fourth tile outside.
    assert total(flat, "m,k", 16.0, 768, 512, 6)[0] == pytest.approx(6 * 2 * 2)


def test_groups_are_even_or_not_and_one_group_is_what_it_is():
    """128 rows on average: where groups are even, half of them need a second row of tiles."""
    assert total(SQUARE, "m,k", 128.0, 1024, 512, 16, spread=EVEN)[0] == pytest.approx(16 * 8 * 1.5)
    assert total(SQUARE, "m,k", 100.0, 1024, 512, 16, spread=EVEN)[0] == pytest.approx(16 * 8)
    assert total(SQUARE, "m,k", 100.0, 1024, 512, 16, spread=SKEWED)[0] > 16 * 8 * 1.2
    for spread in time_model.SPREADS:
        assert sum(spread) / len(spread) == pytest.approx(1, abs=0.001)
        assert total(SQUARE, "m,k", 256.0, 1024, 512, 1, spread=spread)[0] == pytest.approx(2 * 8)


def test_a_time_is_the_mean_over_both_spreads():
    candidate = time_model.Candidate("triton", SQUARE, (1.0, 0.1, 0.5, 0.9, 4.0, 5.0), (0.0,) * 15)
    extents = (100.0, 1024, 512, 16)
    even, skewed = (
        time_model.seconds(candidate.constants, time_model.work(SQUARE, "m,k", *extents, spread), 132, H200.bandwidth)
        for spread in time_model.SPREADS
    )
    assert even < 0.9 * skewed
    assert time_model.estimate(candidate, "m,k", *extents, H200) == pytest.approx((even + skewed) / 2)


def test_groups_without_rows_read_no_weights():
    few, many = (total(SQUARE, "m,k", rows, 1024, 1024, 256)[1] for rows in (0.5, 100.0))
    assert few < 0.5 * 256 * 2 * 1024 * 1024 < 256 * 2 * 1024 * 1024 < many


def test_time_is_of_what_takes_longer_and_of_whole_turns():
    constants = (1.0, 0.0, 1.0, 1.0, 50.0, 5.0)  # a µs for each block, whole waves, all of the memory's rate
    busy, idle = [Work(264.0, 10.0, 0.0)], [Work(1.0, 0.0, 48.1e6)]
    assert time_model.seconds(constants, busy, 132, 4.81) == pytest.approx(20 + 5)
    assert time_model.seconds(constants, [Work(265.0, 10.0, 0.0)], 132, 4.81) == pytest.approx(30 + 5)
    assert time_model.seconds(constants, [Work(1.0, 10.0, 0.0)], 132, 4.81) == pytest.approx(10 + 5)
    assert time_model.seconds(constants, idle, 132, 4.81) == pytest.approx(10 + 5, rel=0.01)
    assert time_model.seconds(constants, idle, 132, 2.405) == pytest.approx(20 + 5, rel=0.01)


@pytest.mark.parametrize("kind", time_model.KINDS)
@pytest.mark.parametrize("gpu", [H200, H100, Gpu("sm_90", 78, 4.0)])
def test_every_product_has_a_choice_that_can_be_built(kind, gpu):
    shipped = {config for along in "mk" for config in configs_for(Form(along, "n"))}
    for rows in (0.01, 1.0, 7.3, 64.0, 1000.0, 2.0**28):
        for N, K, G in ((8, 8, 1), (1536, 2048, 128), (16384, 8192, 4096)):
            extents = (N, K, rows, G) if kind == "k,n" else (rows, N, K, G)
            found = time_model.ranking(kind, *extents, gpu)
            assert found
            assert {estimate.backend for estimate in found} == {"cute", "triton"} or rows < 64 or rows > 1500
            assert all(math.isfinite(estimate.us) and estimate.us > 0 for estimate in found)
            assert list(found) == sorted(found, key=lambda estimate: estimate.us)
            for estimate in found:
                if estimate.backend == "cute":
                    assert estimate.config.why_not(Form(kind[0], kind[2])) is None
                    assert estimate.config in shipped


def test_few_rows_take_low_tiles_and_many_rows_tall_ones():
    def height(rows):
        return time_model.height(time_model.fastest("m,k", rows, 4096, 4096, 32, H200).config)

    assert height(1.0) <= 32
    assert height(4096.0) >= 128


def test_a_gpu_takes_the_constants_of_the_one_whose_memory_is_like_its_own():
    measured = {gpu.bandwidth: found["m,k"] for gpu, found in map(time_model.read, FILES)}
    assert len(measured) == 2
    fast, slow = max(measured), min(measured)
    assert time_model.constants_for(H200, "m,k") == measured[fast]
    assert time_model.constants_for(H100, "m,k") == measured[slow]
    assert time_model.constants_for(Gpu("sm_90", 114, 2.0), "m,k") == measured[slow]
    assert time_model.constants_for(Gpu("sm_100", 148, 8.0), "m,k") == ()
    assert time_model.ranking("m,k", 100.0, 1024, 1024, 8, Gpu("sm_100", 148, 8.0)) == ()


# Groups of 106 to 148 rows, 128 on average. The host knows the average alone: nine of the sixteen groups need a second
# row of tiles of 128, and the ninth begins a wave that is nearly empty.
CANNOT_BE_KNOWN = {("h200", "phi-3.5-moe-1024-random-up dA"): 1.25}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_choices_hold_on_models_that_they_were_not_fitted_to(path):
    """Recorded by the program that fits: each model judged by constants that were fitted to the others."""
    content = json.loads(path.read_text())
    assert content["provenance"]["gpu"]
    assert content["provenance"]["date"]
    left_out = content["regret"]["left out"]
    assert len({name.rsplit("-", 2)[0] for name in left_out}) >= 10
    for kind in time_model.KINDS:
        times = {name: row[1] for name, row in left_out.items() if row[0] == kind}
        assert len(times) >= 50
        assert math.exp(sum(map(math.log, times.values())) / len(times)) < 1.02
        assert {name: each for name, each in times.items() if each > CANNOT_BE_KNOWN.get((path.stem, name), 1.15)} == {}


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "h300.json"
    for text in (
        "{",
        '{"gpu": {"arch": "sm_90"}}',
        '{"gpu": {"arch": "sm_90", "sms": 1, "bandwidth": 1}, "candidates": {}}',
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"h300\.json holds no constants of the time model"):
            time_model.read(path)


@pytest.mark.parametrize(
    "spoil, said",
    [
        (
            lambda content: content["candidates"]["m,k"][0]["constants"].pop(),
            "constants must be 6 finite numbers from 0 on",
        ),
        (
            lambda content: content["candidates"]["m,k"][0]["constants"].__setitem__(0, -1.0),
            "constants must be 6 finite numbers from 0 on",
        ),
        (
            lambda content: content["candidates"]["k,n"][0]["correction"].__setitem__(3, math.nan),
            "correction must be 15 finite numbers, got",
        ),
        (lambda content: content["gpu"].update(bandwidth=0), "its GPU has 132 SMs and 0 TB/s"),
        (lambda content: content["gpu"].update(sms="many"), "TypeError"),
    ],
    ids=["five", "negative", "nan", "bandwidth", "SMs"],
)
def test_numbers_that_would_spoil_choices_are_refused(tmp_path, spoil, said):
    content, path = json.loads(FILES[0].read_text()), tmp_path / "h300.json"
    spoil(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"h300\.json holds no constants of the time model: .*{said}"):
        time_model.read(path)


@pytest.mark.parametrize("extents", [dict(M=-5), dict(N=math.nan), dict(K="512"), dict(G=math.inf)], ids=str)
def test_extents_that_are_none_are_refused(extents):
    (name,) = extents
    with pytest.raises(ValueError, match=f"{name} must be a number from 0 on, got"):
        time_model.explain("m,k", **dict(M=256, N=2048, K=2048, G=64) | extents, gpu=H200)


def test_constants_are_read_again_after_forgetting(monkeypatch, tmp_path):
    monkeypatch.setattr(time_model, "CONSTANTS", tmp_path)
    time_model.forget()
    try:
        assert time_model.fastest("m,k", 100.0, 1024, 1024, 8, H200) is None
    finally:
        monkeypatch.undo()
        time_model.forget()
    assert time_model.fastest("m,k", 100.0, 1024, 1024, 8, H200, "cute").config.schedule in (COOPERATIVE, PINGPONG)


@pytest.mark.parametrize("kind, extents", [("m,k", (256.0, 2048, 2048, 64)), ("k,n", (2048, 2048, 256.0, 64))])
def test_an_explanation_names_the_choice_what_it_does_and_who_comes_next(kind, extents):
    found = time_model.ranking(kind, *extents, H200)
    head, choice, waves, moved, *others = time_model.explain(kind, *extents, H200, others=3).splitlines()
    assert (
        head
        == {
            "m,k": "forward, 64 × (M 256, N 2,048, K 2,048) on average; sm_90, 132 SMs, 4.81 TB/s",
            "k,n": "gradient of the weights, 64 × (M 2,048, N 2,048, K 256) on average; sm_90, 132 SMs, 4.81 TB/s",
        }[kind]
    )
    tile = "×".join(map(str, (found[0].config.tile_m, found[0].config.tile_n, found[0].config.tile_k)))
    assert choice.startswith(f"  {found[0].us:,.0f} µs expected: cute {tile}, {found[0].config.schedule}, ")
    both = [total(found[0].config, kind, *extents, spread=spread) for spread in time_model.SPREADS]
    tiles, bytes_ = (sum(each) / 2 for each in zip(*both))
    assert waves.startswith(f"    {tiles:,.0f} tiles, 132 at a time: {tiles / 132:.1f} waves of ")
    if kind == "m,k":
        assert waves.endswith(" 32.0 blocks of K")
    assert moved == f"    {bytes_ / 1e6:,.0f} MB, which the memory moves in {bytes_ / 4.81e6:,.0f} µs at best"
    assert [line.split()[0] for line in others] == [f"{each.us / found[0].us - 1:+.1%}:" for each in found[1:4]]


def test_an_explanation_of_few_rows_describes_a_configuration_of_triton():
    text = time_model.explain("m,k", 1.0, 2816, 4096, 128, H200, others=0)
    assert len(text.splitlines()) == 4
    assert re.search(r" µs expected: triton 16×\d+×128, 4 warps, \d stages, strips of 1, \d per SM", text)


def test_an_explanation_says_what_chooses_where_the_model_has_no_answer():
    assert time_model.explain("m,k", 0.0, 64, 64, 8, H200).endswith("an empty product: nothing is multiplied")
    elsewhere = time_model.explain("m,k", 64.0, 64, 64, 8, Gpu("sm_100", 148, 8.0))
    assert elsewhere.endswith("no GPU of sm_100 was measured with such products: see lookup.get_config")
    with pytest.raises(ValueError, match=r"kind must be one of .*, got 'forward'"):
        time_model.explain("forward", 64.0, 64, 64, 8, H200)


def test_words_tell_configurations_apart():
    """No two candidates of a file read alike."""
    for kind in time_model.KINDS:
        text = time_model.explain(kind, 300.0, 2048, 300.0, 8, H200, others=99).splitlines()
        ranked = [line.split(": ", 1)[1] for line in (text[1], *text[4:])]
        assert len(set(ranked)) == len(ranked) == len(time_model.ranking(kind, 300.0, 2048, 300.0, 8, H200))
        assert any(line.endswith("3 small blocks for stores") for line in ranked) == (kind == "k,n")


def test_a_triton_configuration_is_chosen_only_for_measured_products():
    wanted = time_model.fastest("m,n", 128.0, 1536, 2048, 64, H200, "triton").config
    bfloat16 = torch.bfloat16
    assert time_model.for_triton("grouped_mm", 64 * 128, 2048, 1536, 64, bfloat16, H200, "n") == wanted
    wanted = time_model.fastest("k,n", 1536, 2048, 128.0, 64, H200, "triton").config
    assert time_model.for_triton("grouped_mm_k", 1536, 64 * 128, 2048, 64, bfloat16, H200) == wanted
    for op, dtype, gpu in (
        ("grouped_mm_batch", bfloat16, H200), ("grouped_mm", torch.float32, H200), ("grouped_mm", bfloat16, None),
        ("grouped_mm", bfloat16, Gpu("sm_100", 148, 8.0)),
    ):  # fmt: skip
        assert time_model.for_triton(op, 8192, 2048, 1536, 64, dtype, gpu) is None


def test_programs_of_one_tile_have_a_configuration_of_their_own_along_k():
    """It is chosen if there are as many programs as it has tiles, and an average group has fewer than 1,024 rows."""
    tiles = 64 * ONE_TILE.tiles(1536, 2048)

    def chosen(gpu=H200, dtype=torch.bfloat16, depth=128, programs=tiles):
        return time_model.for_triton("grouped_mm_k", 1536, 64 * depth, 2048, 64, dtype, gpu, programs=programs)

    stays = chosen(programs=None)
    assert chosen() == chosen(programs=2**31 - 1) == chosen(depth=0) == ONE_TILE != stays
    assert chosen(programs=tiles - 1) == stays
    assert chosen(depth=ONE_TILE_DEPTH - 1) == ONE_TILE != chosen(depth=ONE_TILE_DEPTH)
    assert chosen(dtype=torch.float32) is None
    assert chosen(Gpu("sm_100", 148, 8.0)) is None
    rows = ("grouped_mm", 64 * 128, 2048, 1536, 64, torch.bfloat16, H200)
    assert time_model.for_triton(*rows, programs=2**31 - 1) == time_model.for_triton(*rows)


@pytest.fixture
def of_8_bits(tmp_path, monkeypatch):
    """Constants with which a tile's block of K takes a µs in CuTe DSL, and ten in Triton; they say where they are."""
    monkeypatch.setattr(time_model, "CONSTANTS", tmp_path)
    time_model.forget()
    yield write_8_bit_constants
    monkeypatch.undo()
    time_model.forget()


def write_8_bit_constants(path, us_of_triton=10.0, bandwidth=4.81, date="2026-01-01"):
    def row(backend, config, block):
        return {"backend": backend, "config": config, "constants": [block, 0, 0.5, 1, 8, 1], "correction": [0] * 15}

    large, few = dict(tile_k=128), dict(tile_m=64, tile_n=128, tile_k=128, cluster=1, stages=8, schedule=PINGPONG)
    of_cute = [row("cute", large, 1.0), row("cute", few, 0.9)]
    kinds = {kind: [] for kind in time_model.KINDS}
    for kind in time_model.KINDS_8_BIT:
        tile = dict(block_m=128, block_n=128, block_k=128, num_stages=3 if kind.endswith("blocks") else 4)
        kinds[kind] = [row("triton", tile, us_of_triton), *(of_cute if kind[2] == "k" else [])]
    content = {"gpu": {"arch": "sm_90", "sms": 132, "bandwidth": bandwidth}, "candidates": kinds}
    path.write_text(json.dumps(content | {"provenance": {"date": date}}))
    time_model.forget()


@pytest.mark.parametrize("blocks", [False, True])
def test_8_bit_products_are_estimated_where_they_were_measured(of_8_bits, tmp_path, blocks):
    kind = time_model.kind_of_8_bit("k", blocks)
    asked = (1024.0, 4096, 4096, 8)
    assert time_model.ranking(kind, *asked, H200) == ()
    of_8_bits(tmp_path / "h200.json")
    found = time_model.ranking(kind, *asked, H200)
    assert [each.backend for each in found] == ["cute", "cute", "triton"]
    op = ("grouped_mm", 8 * 1024, 4096, 4096, 8, torch.float8_e4m3fn)
    assert time_model.for_triton(*op, H200, "k", blocks) == found[-1].config
    assert time_model.for_triton(*op, H200, "k", not blocks) != found[-1].config
    assert time_model.for_triton("grouped_mm_k", *op[1:], H200) is None
    assert time_model.for_triton("grouped_mm", *op[1:5], torch.float32, H200) is None
    assert kind.partition(" ")[2] in time_model.explain(kind, *asked, H200).splitlines()[0]


def test_bytes_of_8_bit_operands_count_once_and_results_twice():
    for kind in time_model.KINDS_8_BIT:
        _, moved = total(SQUARE, kind, 256.0, 2000, 1536, 8)
        assert moved == pytest.approx(8 * (2000 * 1536 + 256 * 1536 + 2 * 256 * 2000), rel=1e-3)


def test_weights_are_copied_where_that_is_expected_to_be_faster(of_8_bits, tmp_path):
    of_8_bits(tmp_path / "h200.json", us_of_triton=3.0)
    few, many = (time_model.ranking("m,n fp8", rows, 4096, 4096, 8, H200) for rows in (200.0, 8192.0))
    assert (few[0].backend, many[0].backend) == ("triton", "cute")
    read = time_model.fastest("m,k fp8", 8192.0, 4096, 4096, 8, H200)
    assert many[0].us == pytest.approx(read.us + 2 * 8 * 4096 * 4096 / 0.34e6)
    lines = time_model.explain("m,n fp8", 8192.0, 4096, 4096, 8, H200).splitlines()
    assert lines[0].startswith("gradient of the rows fp8, ")
    assert lines[4] == "    B is copied first, which takes 790 µs"
    assert "copied" not in time_model.explain("m,n fp8", 200.0, 4096, 4096, 8, H200)


def test_constants_of_a_gpu_that_was_measured_again_are_the_newest(of_8_bits, tmp_path):
    """A file of a user's own is beside those that are shipped; what it lacks, they have."""
    of_8_bits(tmp_path / "h200.json", date="2026-01-01")
    of_8_bits(time_model.file_of("NVIDIA H200 NVL"), 30.0, date="2026-02-01")
    assert (tmp_path / "h200-nvl.json").exists()

    def constants(gpu, kind="m,k fp8"):
        return [each.constants[0] for each in time_model.constants_for(gpu, kind)]

    assert constants(H200) == [30.0, 1.0, 0.9]
    of_8_bits(tmp_path / "h200.json", date="2026-03-01")
    assert constants(H200) == [10.0, 1.0, 0.9]
    of_8_bits(tmp_path / "h100.json", 50.0, 3.35)
    assert constants(H100) == [50.0, 1.0, 0.9]
    content = json.loads((tmp_path / "h100.json").read_text())
    content["candidates"]["m,k fp8"] = []
    (tmp_path / "h100.json").write_text(json.dumps(content))
    time_model.forget()
    assert constants(H100) == [10.0, 1.0, 0.9]


def test_a_gpu_has_the_properties_that_torch_reports():
    device = Device((9, 0), (9, 0), 132, 232448, True, 4.8)
    assert Gpu.of(device) == Gpu("sm_90", 132, 4.8)
    assert Gpu.of(device._replace(bandwidth=None)).bandwidth == time_model.UNKNOWN_BANDWIDTH
    assert Gpu.of(Device(None, None, None, None, True)) is None
    assert Gpu.of(Device("gfx942", None, 304, 65536, False)) is None
