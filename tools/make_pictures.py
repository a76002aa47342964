"""What the README shows: `python tools/make_pictures.py` writes docs/grouped_gemm.png, and the README's tables of what
was measured from their records."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from course_kernels import testing
from course_kernels.bench import record
from course_kernels.packed.backends import cute as grouped_cute
from gemm_course.figures.overview import overview

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "grouped_gemm.png"
README = ROOT / "README.md"
END = "<!-- end -->"
PIXELS_WIDE = 1600
COLORS = 128  # the figure has a few flat colours and the edges of text: a palette takes a third of the bytes


def png(figure: Figure, pixels_wide: int = PIXELS_WIDE) -> bytes:
    """A figure as a PNG with a palette, without the software's name in it."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=pixels_wide / figure.get_figwidth())
    image = Image.open(drawn).convert("RGB")
    image.quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def hero() -> Figure:
    """64 tokens over 8 experts, as a skewed router spreads them."""
    return overview(testing.route("zipf", 64, s=1.2, seed=1))


def table() -> str:
    """The list API's times as Markdown, from their record."""
    measured = record.load("group_gemm")
    columns = {
        "auto": "`group_gemm`",
        "cublas loop": "cuBLAS loop",
        "tutorial": "the tutorial's kernel, tuned",
        "naive": "a Triton launch each",
    }
    source = measured["provenance"]
    lines = [
        f"| µs on an {source['gpu'].removeprefix('NVIDIA ')}, {measured['dtype']} | {' | '.join(columns.values())} |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for row, entry in measured["rows"].items():
        name = row.replace("^3", "³").replace(" x ", " × ").replace("64-2048", "sizes, 64 to 2048")
        cells = (f"{entry['us'][provider]['median_us']:.1f}" for provider in columns)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _provenance(measured)])


def _provenance(measured: dict) -> str:
    source = measured["provenance"]
    return f"Measured {source['date'][:10]}, torch {source['torch']}, Triton {source['triton']}."


def _taken(measured: dict, entry: dict) -> str:
    """Which of our kernels ``backend="auto"`` takes for a row, where all that was measured is installed."""
    few = sum(entry["sizes"]) <= grouped_cute.FEW_ROWS * len(entry["sizes"]) and measured["dtype"] != "float8_e4m3fn"
    there = "absent" not in measured["providers"].get("cute", ["absent"])
    return "cute" if there and not few else "triton"


def _rates(
    measured: dict, function: str, columns: dict[str, str], more: dict[str, Callable[[dict], str]] | None = None
) -> str:
    """A record's rows as Markdown: the rate of what the function takes, of providers by name, and more columns."""
    gpu, more = measured["provenance"]["gpu"].removeprefix("NVIDIA "), more or {}
    head = f"{gpu}, {measured['dtype']}: rows over groups, N, K"
    titles = [f"`{function}`", *columns.values(), *more]
    lines = [f"| {head} | {' | '.join(titles)} |", "| --- |" + " ---: |" * len(titles)]
    for entry in measured["rows"].values():
        digits, unit = (0, "") if entry["unit"] == "TFLOP/s" else (2, " (TB/s)")
        rate = entry["rate"]["forward"]
        shown = (_taken(measured, entry), *columns)
        cells = [f"{rate[name]:.{digits}f}" if name in rate else "–" for name in shown]
        cells += [cell(entry) for cell in more.values()]
        lines.append(f"| {entry['title']}{unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def packed_table() -> str:
    """The packed API's rates as Markdown, from their record."""
    measured = record.load("grouped_mm")
    columns = {
        "triton": "Triton alone",
        "torch": "`torch`'s",
        "quack": "QuACK, best of 12",
        "loop": "cuBLAS loop",
        "dense": "dense, same size",
    }

    def times(of: str) -> Callable[[dict], str]:
        # Against torch alone: what a user changes from.
        return lambda entry: f"{entry['rate'][of][_taken(measured, entry)] / entry['rate'][of]['torch']:.2f} ×"

    copy = f"a copy moves {measured['copy_tb_s']:.2f}"
    note = (
        f"TFLOP/s, or TB/s where reading bounds ({copy}); dA and dB: times as fast as torch's. {_provenance(measured)}"
    )
    rates = _rates(measured, "grouped_mm", columns, {"dA": times("dA"), "dB": times("dB")})
    return f"{rates}\n\n{note}"


def scaled_table() -> str:
    """The rates of scaled products as Markdown, from their record."""
    measured = record.load("scaled_grouped_mm")
    columns = {
        "triton": "Triton alone",
        "torch": "`torch`'s",
        "torch-fast": "the same, inexact",
        "dense": "dense, inexact",
    }
    lost = measured["losses"]
    fast, exact = -lost["torch-fast"]["mean"], abs(lost["cute"]["mean"])
    note = (
        f"TFLOP/s, or TB/s where reading bounds. Inexact: with `use_fast_accum`, which loses {fast:.0%} of a sum of "
        f"7168 positive numbers; the others are off by {exact:.2%} on average. {_provenance(measured)}"
    )
    return f"{_rates(measured, 'scaled_grouped_mm', columns)}\n\n{note}"


TABLES = {"group_gemm": table, "grouped_mm": packed_table, "scaled_grouped_mm": scaled_table}


def with_tables(readme: str) -> str:
    """The README's text with each table between its two marks."""
    for name, make in TABLES.items():
        start = f"<!-- {name}: written by tools/make_pictures.py -->"
        before, rest = readme.split(start)
        readme = f"{before}{start}\n{make()}\n{END}{rest.split(END, 1)[1]}"
    return readme


def main() -> int:
    README.write_text(with_tables(README.read_text()))
    TARGET.parent.mkdir(exist_ok=True)
    data = png(hero())
    TARGET.write_bytes(data)
    print(f"{TARGET.relative_to(ROOT)}: {len(data) / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
