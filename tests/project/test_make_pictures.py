"""Pictures and tables in README and site equal those that the tool makes from the code and the records."""

from __future__ import annotations

import importlib.util
import io
import re

import pytest

from places import ROOT

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[course]'")
np = pytest.importorskip("numpy", reason="needs numpy: pip install '.[course]'")
Image = pytest.importorskip("PIL.Image", reason="needs matplotlib: pip install '.[course]'")


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "tools" / "make_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stored_pictures_equal_those_that_the_tool_draws(tool):
    assert len(tool.PICTURES) == 3
    for target, draw in tool.PICTURES.items():
        data = target.read_bytes()
        assert len(data) < 200_000
        stored = Image.open(io.BytesIO(data)).convert("RGB")
        drawn = Image.open(io.BytesIO(tool.png(draw()))).convert("RGB")
        assert stored.size == drawn.size
        assert stored.width == tool.PIXELS_WIDE
        # Another version of matplotlib may draw the edges of letters differently.
        difference = np.abs(np.asarray(stored, dtype=int) - np.asarray(drawn, dtype=int))
        assert difference.mean() < 2, target.name


def test_the_first_picture_has_the_times_that_its_description_says(tool):
    """The record's, rounded; lesson 03 prints them, too."""
    names = ["one launch per problem", "one launch per problem, CUDA graph", "one launch"]
    bars = tool.timelines.launch_panels(tool.record.load("launches"), names)
    ends = [f"{max(bar.end for bar in bars[name]):,.0f} µs" for name in names]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r'<img src="docs/launches.png"[^>]* alt="([^"]*)"', readme)[1]
    assert re.findall(r"[\d,]+ µs", first) == ends
    assert "The course teaches Triton" in readme


def test_readme_is_a_screen_and_a_half():
    """It is 1,340 pixels high in a column of 830 (GitHub's), both pictures 640 wide. The rest is on the site."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.sub(r"\]\([^)]*\)|<img .*>|<!--.*-->", "", readme).split()) <= 370
    shown = re.findall(r'<img src="([^"]+)" width="(\d+)"', readme)
    sizes = [(int(width), Image.open(ROOT / path).size) for path, width in shown]
    assert len(sizes) == 2
    assert sum(width * high / wide for width, (wide, high) in sizes) <= 420


def test_tables_and_sentences_are_the_records(tool):
    for path, tables in tool.TABLES.items():
        page = path.read_text(encoding="utf-8")
        assert tool.with_tables(page, tables) == page, path.name
    page = tool.PAGE.read_text(encoding="utf-8")
    for right, wrong in (
        ("| 4 × 1024³ |", "| 4 × 1025³ |"),
        ("256 experts, 1,024", "256 experts, 1,025"),
    ):
        assert right in page
        assert tool.with_tables(page.replace(right, wrong)) == page


def layer_row(tokens, *peers, **us):
    """A row of a record of the layer; transformers' time and memory are twice ours, Liger's three times."""
    factors = {"products": 0.5, "graph": 0.8, "ours": 1, "transformers": 2, "liger": 3}
    ways = ("products", "graph", "ours", *peers)
    times = {f"{way} {part}": 2e3 * factors[way] for part in ("forward", "step") for way in ways}
    memory = {way: dict(kept=tokens * 1e3 * factors[way]) for way in ("ours", *peers)}
    return dict(model="m", tokens=tokens, routing="zipf", k=1, H=1000, I=1000, us=times | us, memory=memory)


@pytest.fixture
def made_up(tool, monkeypatch):
    """Give the tool's functions a record."""

    def give(**content):
        source = dict(gpu="NVIDIA H7", date="2030-01-02", commit="abcdef123", torch="9", triton="8")
        monkeypatch.setattr(tool.record, "load", lambda name: dict(content, provenance=source))
        monkeypatch.setattr(tool.layer_tables, "recorded", lambda name: True)
        return tool.layer_tables

    return give


def test_a_layer_is_set_beside_its_products_and_peers(made_up):
    tables = made_up(rows=[layer_row(100), layer_row(1000, "transformers", "liger", **{"liger step": 9e3})])
    head, _, one, many = tables.layer_table().split("\n\n")[0].splitlines()
    assert head.count("|") == one.count("|") == many.count("|")
    assert [cell.strip() for cell in one.split("|")[1:9]] == [
        "m, 100 tokens (Zipf)", "0.30", "0.62 ×", "–", "–", "0.90", "0.62 ×", "–",
    ]  # fmt: skip
    assert [cell.strip() for cell in many.split("|")[2:-1]] == [
        "3.00", "0.62 ×", "2.00 ×", "3.00 ×", "9.00", "0.62 ×", "2.00 ×", "4.50 ×", "1.00", "2.00", "3.00",
    ]  # fmt: skip


def test_a_forward_is_set_beside_its_peers_by_model_and_tokens(made_up):
    us = {"products": 9.0, "ours": 10.0, "transformers": 30.0, "batched": 20.0, "flashinfer": 9.5}
    alone = {"products": 1.0, "ours": 2.0, "transformers": 3.0}
    rows = [dict(model="m", tokens=1, us=us), *(dict(model=each, tokens=64, us=alone) for each in "mn")]
    head, _, *lines = made_up(rows=rows).forward_table().split("\n\n")[0].splitlines()
    assert [cell.strip() for cell in head.split("|")[2:-1]] == ["1 token", "64 tokens"]
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines] == [
        ["m, over its products", "0.90 ×", "0.50 ×"], ["m, over transformers", "2.00 ×", "1.50 ×"],
        ["m, over FlashInfer", "0.95 ×", "–"],
        ["n, over its products", "–", "0.50 ×"], ["n, over transformers", "–", "1.50 ×"],
    ]  # fmt: skip


def test_a_record_of_two_runs_says_when_the_first_was(tool):
    source = dict(date="2030-01-02T03", commit="abcdef1234", torch="9", triton="8")
    sentence = "Measured 2030-01-02 at commit abcdef12{}, torch 9, Triton 8."
    assert tool.provenance_of({"provenance": source}) == sentence.format("")
    earlier = dict(begun="2029-12-31T23", begun_at="1234567890")
    told = tool.provenance_of({"provenance": source | earlier})
    assert told == sentence.format(" (begun 2029-12-31 at 12345678)")


def test_the_gain_of_a_layer_has_its_extent_and_peers_that_were_measured(made_up):
    peers = [layer_row(n, "transformers", **{"transformers step": 2e3 * n}) for n in (3, 5)]
    gain = made_up(rows=[layer_row(1), *peers]).layer_gain()
    assert "| transformers' operations | 2.0 times as fast | 3.0 to 5.0 times as fast | 50% of its bytes |" in gain
    assert "Liger" not in gain
    assert "2 layers of 1 models with 3 and 5 tokens, bfloat16, on an H7" in gain


def test_without_records_tables_say_so_and_readme_shows_products(tool, monkeypatch):
    tables = tool.layer_tables
    for name, image in ((False, "docs/zoo.png"), (True, "docs/layer.png")):
        monkeypatch.setattr(tables, "recorded", lambda each, name=name: name)
        assert image in tables.picture()
    monkeypatch.setattr(tables, "recorded", lambda each: False)
    monkeypatch.setattr(tables.layer_records, "parallel_records", list)
    assert tables.layer_table() == tables.forward_table() == tables.parallel_table() == tables.NOT_RECORDED
    assert tables.layer_gain() == tables.training_gain() == tables.parallel_gain() == ""


def test_words_are_listed(tool):
    assert [tool.layer_tables.listing(each) for each in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]


def test_the_gain_of_a_model_is_of_its_tokens_a_second(made_up):
    rows = [
        dict(sequences=n, length=50, tokens_per_second=dict(ours=3.0 * n, transformers=2.0), us={}) for n in (1, 2)
    ]  # fmt: skip
    words = made_up(rows=rows, extents=dict(num_hidden_layers=7)).training_gain()
    assert "7 layers" in words
    assert "1.50 times as fast with 50 tokens and 3.00 times as fast with 100 tokens" in " ".join(words.split())
    assert "one H7" in words


def test_the_gain_on_several_gpus_is_of_a_step_over_the_same_by_hand(made_up):
    us = {"by hand, torch's products": 10.0, "by hand, our products": 9.0, "all_to_all": 5.0, "symmetric": 4.0}
    rows = [
        dict(ranks=ranks, model="qwen3-30b-a3b", tokens=tokens, routing=routing, way=way, forward_us=1e3 * time,
             both_us=time / ranks**(way[0] == "a"))
        for ranks in (4, 2) for way, time in us.items() for tokens in (8, 16384) for routing in ("uniform", "zipf")
    ]  # fmt: skip
    tables = made_up(rows=rows)
    words = " ".join(tables.parallel_gain().split())
    assert words.startswith(
        "On 2 and 4 H7s, a qwen3-30b-a3b layer (16,384 tokens each) trains 4.0 and 8.0 times as fast"
    )
    assert words.endswith(', 2.5 and 2.5 over `"symmetric"`.')
    assert [f"{n} GPUs: Measured" in tables.parallel_table() for n in (2, 4)] == [False, True]  # its first rows
    row = tables.parallel_table().splitlines()[2]
    assert [cell.strip() for cell in row.split("|")[1:5]] == [
        "qwen3-30b-a3b, 4 × 8 tokens", "10.0 / 0.01", "9.00 / 0.01", "5.00 / 0.00",
    ]  # fmt: skip


def test_a_row_shows_what_auto_reaches_or_the_faster_of_the_two_kernels_and_says_so(tool, monkeypatch):
    measured = tool.record.load("grouped_mm")
    measured["providers"].pop("auto", None)
    for i, entry in enumerate(measured["rows"].values()):
        for rates in entry["rate"].values():
            rates.pop("auto", None)
            rates["triton"], rates["cute"] = (3 if i % 2 else 1) * rates["torch"], 2 * rates["torch"]
    monkeypatch.setattr(tool.record, "load", lambda name: measured)

    def times() -> list[str]:
        head, _, *rows = tool.packed_table().split("\n\n")[0].splitlines()
        assert all(len(row.split("|")) == len(head.split("|")) for row in rows)
        return [row.rsplit("| ", 2)[1] for row in rows]

    says_so = "`grouped_mm`: the faster of its two kernels"
    assert times() == ["3.00 × " if i % 2 else "2.00 × " for i in range(len(measured["rows"]))]
    assert says_so in tool.packed_table()
    for entry in measured["rows"].values():
        for rates in entry["rate"].values():
            rates["auto"] = 1.5 * rates["torch"]
    measured["providers"]["auto"] = {"label": "the choice", "role": "ours"}
    assert set(times()) == {"1.50 × "}
    assert says_so not in tool.packed_table()
