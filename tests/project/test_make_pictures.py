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
    assert len(re.sub(r"\]\([^)]*\)|<img .*>", "", readme).split()) <= 370
    shown = re.findall(r'<img src="([^"]+)" width="(\d+)"', readme)
    sizes = [(int(width), Image.open(ROOT / path).size) for path, width in shown]
    assert len(sizes) == 2
    assert sum(width * high / wide for width, (wide, high) in sizes) <= 420


def test_tables_are_the_records(tool):
    page = tool.PAGE.read_text(encoding="utf-8")
    assert tool.with_tables(page) == page
    for right, wrong in (
        ("| 4 × 1024³ |", "| 4 × 1025³ |"),
        ("256 experts, 1,024", "256 experts, 1,025"),
    ):
        assert right in page
        assert tool.with_tables(page.replace(right, wrong)) == page


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
