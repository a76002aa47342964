"""What the README shows: `python tools/make_pictures.py` writes docs/grouped_gemm.png, and the README's tables of what
was measured from their records."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from course_kernels import testing
from course_kernels.bench import record
from course_kernels.viz.overview import overview

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
    note = f"Measured {source['date'][:10]}, torch {source['torch']}, Triton {source['triton']}."
    return "\n".join([*lines, "", note])


def packed_table() -> str:
    """The packed API's rates as Markdown, from their record."""
    measured = record.load("grouped_mm")
    ours = {"triton": "`grouped_mm`", "cute": "the same by CuTe DSL"}
    ours = {name: label for name, label in ours.items() if "absent" not in measured["providers"].get(name, ["absent"])}
    columns = {
        **ours,
        "torch": "`torch`'s",
        "quack": "QuACK, best of 12",
        "loop": "cuBLAS loop",
        "dense": "dense, same size",
    }
    source = measured["provenance"]
    gpu = source["gpu"].removeprefix("NVIDIA ")
    lines = [
        f"| {gpu}, {measured['dtype']}: rows over groups, N, K | {' | '.join(columns.values())} | dA | dB |",
        "| --- |" + " ---: |" * (len(columns) + 2),
    ]
    for entry in measured["rows"].values():
        digits = 0 if entry["unit"] == "TFLOP/s" else 2
        rate = entry["rate"]
        cells = [f"{rate['forward'][p]:.{digits}f}" if p in rate["forward"] else "–" for p in columns]
        # Gradients against torch alone: what a user changes from.
        cells += [f"{max(rate[of][name] for name in ours) / rate[of]['torch']:.2f} ×" for of in ("dA", "dB")]
        unit = "" if entry["unit"] == "TFLOP/s" else " (TB/s)"
        lines.append(f"| {entry['title']}{unit} | {' | '.join(cells)} |")
    copy = f"a copy moves {measured['copy_tb_s']:.2f}"
    versions = f"Measured {source['date'][:10]}, torch {source['torch']}, Triton {source['triton']}."
    note = f"TFLOP/s, or TB/s where reading bounds ({copy}); dA and dB: times as fast as torch's. {versions}"
    return "\n".join([*lines, "", note])


TABLES = {"group_gemm": table, "grouped_mm": packed_table}


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
