"""Tables of Helion configurations: what is committed can be read, and the nearest entry is found."""

from __future__ import annotations

import json

import pytest
import torch

from course_kernels.jagged import tuned

H200 = (9, 0)


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Write a table for sm_90 in place of the committed ones."""
    monkeypatch.setattr(tuned, "TABLES", tmp_path)
    tuned.forget_tables()

    def write(entries):
        (tmp_path / "sm_90.json").write_text(entries if isinstance(entries, str) else json.dumps({"entries": entries}))
        tuned.forget_tables()

    yield write
    tuned.forget_tables()


def entry(shape, name, kernel="simple", dtype="bfloat16"):
    return dict(kernel=kernel, dtype=dtype, shape=shape, us=1.0, config={"block_sizes": [16, 16, 16], "name": name})


def test_the_committed_table_says_what_was_measured():
    content = json.loads((tuned.TABLES / "sm_90.json").read_text())
    entries = tuned.read_table("sm_90")
    assert {each.kernel for each in entries} >= {"persistent"}
    measured = [each.us is not None for each in entries]
    assert all(measured) if content["provenance"] else not any(measured)
    if content["provenance"]:
        assert content["provenance"]["capability"] == "9.0"
        assert content["helion"]


def test_the_nearest_shape_in_octaves_is_taken(tables):
    tables([entry([640, 128, 256, 4], "small"), entry([32768, 4096, 4096, 8], "large"),
            entry([32768, 4096, 4096, 8], "walk", kernel="persistent")])  # fmt: skip

    def name(kernel, *shape, dtype=torch.bfloat16, arch=H200):
        return tuned.find_config(kernel, *shape, dtype, arch).get("name")

    assert name("simple", 640, 128, 256, 4) == "small"
    assert name("simple", 16384, 2048, 4096, 8) == "large"
    assert name("simple", 16384, 256, 256, 128, dtype=torch.float16) == "small", "rows of a group count, not all rows"
    assert name("persistent", 1, 1, 1, 0) == "walk"
    for unknown in (dict(dtype=torch.float32), dict(arch=(10, 0)), dict(arch="gfx942"), dict(arch=None)):
        assert name("simple", 640, 128, 256, 4, **unknown) is None


@pytest.mark.parametrize("kernel", ["simple", "persistent"])
def test_where_nothing_was_tuned_a_start_fits_every_gpu(kernel):
    for dtype in (torch.float16, torch.float32):
        config = tuned.find_config(kernel, 640, 128, 256, 4, dtype, (7, 5))
        block_m, block_n, block_k = config["block_sizes"]
        assert (block_m + block_n) * block_k * dtype.itemsize * config["num_stages"] <= 48 * 1024
        assert config == tuned.starting_config(kernel, dtype, interpreted=False)
    assert tuned.find_config(kernel, 640, 128, 256, 4, torch.float32, None)["block_sizes"] == [32, 32, 32]
    assert tuned.table_dtype(torch.float16) == "bfloat16"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "sm_90.json is no table"),
        ("{}", "KeyError: 'entries'"),
        ([{"kernel": "simple"}], "KeyError: 'dtype'"),
        ([entry([1, 2, 3, 4], "x", kernel="dense")], "entry 0: unknown kernel"),
        ([entry([1, 2, 3], "x")], "wrong shape"),
        ([entry([1, 2, 3, 4], "x") | {"config": {}}], "no block_sizes"),
    ],
)
def test_damaged_tables_are_reported(tables, content, message):
    tables(content)
    with pytest.raises(ValueError, match=message):
        tuned.read_table("sm_90")
