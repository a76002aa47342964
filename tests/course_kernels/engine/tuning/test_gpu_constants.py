"""Files of constants: which are refused, and whose constants serve a GPU."""

from __future__ import annotations

import json
import math

import pytest

from course_kernels.engine.tuning import Extents, Gpu, Kind, gpu_constants, time_model
from course_kernels.engine.tuning.kinds import KINDS, KINDS_8_BIT, KINDS_OF_LAYER
from course_kernels.kernels.cute_sm90.config import PINGPONG

H200, H100 = Gpu("sm_90", 132, 4.81, 1.98), Gpu("sm_90", 132, 3.35, 1.98)
FORWARD, EIGHT_BITS = Kind("m", "k"), Kind.parse("m,k fp8")
FILES = sorted(gpu_constants.CONSTANTS.glob("*.json"))


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "h300.json"
    for text in (
        "{",
        '{"gpu": {"arch": "sm_90"}}',
        '{"gpu": {"arch": "sm_90", "sms": 1, "bandwidth": 1}, "candidates": {}}',
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"h300\.json holds no constants of the time model"):
            gpu_constants.read(path)


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
        gpu_constants.read(path)


def source(gpu, kind=FORWARD):
    return gpu_constants.source_for(gpu, kind)


def test_a_gpu_takes_the_constants_of_the_one_most_like_it():
    names = {gpu: source(gpu).measured.name for gpu in (H200, H100, Gpu("sm_90", 114, 2.0), Gpu("sm_100", 148, 8.0))}
    assert list(names.values()) == ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    for gpu in (Gpu("sm_80", 108, 1.9), Gpu("gfx942", 304, 5.3), Gpu("sm_75", 40, 0.3)):
        assert source(gpu) == ((), None, None), "none of its family was measured"


def test_another_architecture_has_what_fits_there_and_no_kernel_in_cute_dsl():
    shipped = source(H200).candidates
    assert {each.backend for each in shipped} == {"cute", "triton"}
    for gpu in (Gpu("sm_100", 148, 8.0), Gpu("sm_120", 170, 1.8)):
        found = source(gpu).candidates
        assert found
        assert {each.backend for each in found} == {"triton"}
        assert all(
            each.config.valid_for("contiguous", 2, shared_limit=gpu.shared_limit, capability=gpu.capability) is None
            for each in found
        )
    assert len(found) < len(source(Gpu("sm_100", 148, 8.0)).candidates), "99 KiB hold fewer than 227"


def test_low_tiles_alone_serve_no_gpu():
    """Of the 8-bit configurations that were measured on Hopper, 99 KiB hold those of 16 and 32 rows only."""
    assert source(Gpu("sm_120", 170, 1.8), EIGHT_BITS).candidates == ()
    assert source(Gpu("sm_100", 148, 8.0), EIGHT_BITS).candidates


def test_arithmetic_is_scaled_by_the_clock_and_nothing_else():
    own, slower = source(H200).candidates[0], source(H200._replace(clock=0.99)).candidates[0]
    assert slower.constants == own.constants._replace(
        block_us=2 * own.constants.block_us, tile_us=2 * own.constants.tile_us
    )
    assert source(H200._replace(clock=None)).candidates[0] == own


def test_products_of_a_layer_have_constants_of_their_own_or_those_of_a_kin():
    for kind in KINDS_OF_LAYER:
        assert all(source(gpu, kind).kind == kind for gpu in (H200, H100))
        assert {each.backend for each in source(H200, kind).candidates} == {"cute"}
        assert source(Gpu("sm_100", 148, 8.0), kind).kind == kind.stand_in, "the kernel in CuTe DSL is for Hopper"


def test_batches_and_masked_groups_take_the_constants_of_ragged_rows():
    for along in ("batch", "masked"):
        found = source(H200, Kind(along))
        assert found.kind == FORWARD
        assert [each for each in found.candidates if each.backend == "triton"] == [
            each for each in source(H200).candidates if each.backend == "triton"
        ]
    assert all(each.backend == "triton" for each in source(H200, Kind("batch")).candidates)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of constants."""
    monkeypatch.setattr(gpu_constants, "CONSTANTS", tmp_path)
    time_model.forget()
    yield tmp_path
    monkeypatch.undo()
    time_model.forget()


def write(path, us_of_triton=10.0, bandwidth=4.81, date="2026-01-01"):
    """Constants with which a tile's block of K takes a µs in CuTe DSL, and ten in Triton."""

    def row(backend, config, block):
        return {"backend": backend, "config": config, "constants": [block, 0, 0.5, 1, 8, 1], "correction": [0] * 15}

    large, few = dict(tile_k=128), dict(tile_m=64, tile_n=128, tile_k=128, cluster=1, stages=8, schedule=PINGPONG)
    of_cute = [row("cute", large, 1.0), row("cute", few, 0.9)]
    kinds = {str(kind): [] for kind in KINDS}
    for kind in KINDS_8_BIT:
        tile = dict(block_m=128, block_n=128, block_k=128, num_stages=3)
        kinds[str(kind)] = [row("triton", tile, us_of_triton), *(of_cute if kind.b_major == "k" else [])]
    content = {"gpu": {"arch": "sm_90", "sms": 132, "bandwidth": bandwidth}, "candidates": kinds}
    path.write_text(json.dumps(content | {"provenance": {"date": date}}))
    time_model.forget()


def test_weights_are_copied_where_that_is_expected_to_be_faster(folder):
    write(folder / "h200.json", us_of_triton=3.0)
    kind = Kind.parse("m,n fp8")
    few, many = (time_model.ranking(kind, Extents(rows, 4096, 4096, 8), H200) for rows in (200.0, 8192.0))
    assert (few[0].backend, many[0].backend) == ("triton", "cute")
    read = time_model.fastest(Kind.parse("m,k fp8"), Extents(8192.0, 4096, 4096, 8), H200)
    assert many[0].us == pytest.approx(read.us + 2 * 8 * 4096 * 4096 / 0.34e6)


def test_constants_of_a_gpu_that_was_measured_again_are_the_newest(folder):
    """A file of a user's own is beside those that are shipped; what it lacks, they have."""
    write(folder / "h200.json", date="2026-01-01")
    write(gpu_constants.file_of("NVIDIA H200 NVL"), 30.0, date="2026-02-01")
    assert (folder / "h200-nvl.json").exists()

    def constants(gpu, kind=EIGHT_BITS):
        return [each.constants.block_us for each in source(gpu, kind).candidates]

    assert constants(H200) == [30.0, 1.0, 0.9]
    write(folder / "h200.json", date="2026-03-01")
    assert constants(H200) == [10.0, 1.0, 0.9]
    write(folder / "h100.json", 50.0, 3.35)
    assert constants(H100) == [50.0, 1.0, 0.9]
    content = json.loads((folder / "h100.json").read_text())
    content["candidates"]["m,k fp8"] = []
    (folder / "h100.json").write_text(json.dumps(content))
    time_model.forget()
    assert constants(H100) == [10.0, 1.0, 0.9]
