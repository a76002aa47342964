"""Pictures and tables of README and site: `python tools/make_pictures.py` draws docs/*.png,
some of them from records, and writes tables and sentences of README.md and the site's pages from theirs."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

import layer_tables
import site_plots
from course_kernels import testing
from course_kernels.bench import record
from course_kernels.bench.rows import title_of
from gemm_course.figures import f15_layers, matrices, style, timeline
from gemm_course.figures.f00_overview import overview
from gemm_course.lessons import layer_records, timelines
from table_parts import gpu_of, markdown, number, provenance_of

ROOT = Path(__file__).resolve().parents[1]
PAGE, LIBRARY, README = ROOT / "site" / "benchmarks.md", ROOT / "site" / "library.md", ROOT / "README.md"
END = "<!-- end -->"
PIXELS_WIDE = 1600
HERO_INCHES = 4.5, 2.2, 2.25  # timelines, mistake, height: as large as the README shows them
COLORS = 128  # the figure has a few flat colours and the edges of text: a palette takes a third of the bytes


def drawn(figure: Figure, pixels_wide: int) -> Image.Image:
    """A figure as pixels."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=pixels_wide / figure.get_figwidth())
    return Image.open(data).convert("RGB")


def png(picture: Figure | Image.Image, pixels_wide: int = PIXELS_WIDE) -> bytes:
    """A figure or a picture as a PNG with a palette, without the software's name in it."""
    image, packed = picture if isinstance(picture, Image.Image) else drawn(picture, pixels_wide), io.BytesIO()
    image.quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def hero() -> Image.Image:
    """Lesson 03's timelines of 64 small products, from the record; beside them a mistake, as a check draws it."""
    recorded = record.load("launches")
    names = ["one launch per problem", "one launch per problem, CUDA graph", "one launch"]
    bars = timelines.launch_panels(recorded, names)
    titles = ["64 launches", "64 launches, CUDA graph", "one launch"]
    panels = {title: bars[name] for title, name in zip(titles, names, strict=True)}
    left = timeline.compare(panels, rows=132, row_name="SM", until=200)
    M, N, margin, block = 50, 80, 16, 32
    want = torch.ones((M, N), dtype=torch.float16, device="cpu")
    buffer = torch.full((M + 2 * margin, N + 2 * margin), -999, dtype=torch.float16, device="cpu")
    buffer[margin : margin + 2 * block, margin : margin + 3 * block] = 1  # whole tiles: no mask on the store
    right = matrices.written_map(buffer, (margin, margin), want, canary=-999, block=(block, block), title="no mask")
    for legend in [*right.legends, *filter(None, (axes.get_legend() for axes in right.axes))]:
        legend.remove()
    outside = 6 * block**2 - M * N
    right.axes[0].set_title(
        f"A check draws a mistake:\n{outside:,} elements are\nwritten outside of C", fontsize=10, loc="left"
    )
    left.set_size_inches(HERO_INCHES[0], HERO_INCHES[2])
    right.set_size_inches(HERO_INCHES[1], HERO_INCHES[2])
    wide = round(PIXELS_WIDE * HERO_INCHES[0] / sum(HERO_INCHES[:2]))
    parts = [drawn(left, wide), drawn(right, PIXELS_WIDE - wide)]
    whole = Image.new("RGB", (PIXELS_WIDE, max(part.height for part in parts)), "white")
    for part, at in zip(parts, (0, wide), strict=True):
        whole.paste(part, (at, 0))
    return whole


def overview_of_groups() -> Figure:
    """64 tokens over 8 experts, as a skewed router spreads them; flat, for the README is short."""
    return overview(testing.route("zipf", 64, s=1.2, seed=1), height=3.0)


@style.styled()
def zoo() -> Figure:
    """Draw how many times as fast as torch this library and QuACK are, on every layer of the record `zoo`.

    A line is a model, a colour a library. A circle is a layer's first product, a square its second; with few tokens it
    is hollow.
    """
    measured = record.load("zoo")
    gpu, dtype = gpu_and_dtype(measured)
    shown = {
        "auto": (style.BLUE, "this library", -0.17),
        "quack": (style.ORANGE, "QuACK, its best configuration", 0.17),
    }
    passes = {"forward": "forward", "step": "training step (autograd)"}
    models = list(dict.fromkeys(row["title"].partition(": ")[0] for row in measured["rows"].values()))
    figure = Figure(figsize=(7.5, 1.15 + 0.25 * len(models)))
    for axes, (each, title) in zip(figure.subplots(1, 2, sharey=True), passes.items()):
        for key, (color, _, beside) in shown.items():
            for name, row in measured["rows"].items():
                if (rate := row["rate"][each]).get(key) and rate.get("torch"):
                    place = rate[key] / rate["torch"], models.index(row["title"].partition(": ")[0]) + beside
                    axes.plot(*place, **_mark(name), color=color)
        axes.axvline(1, color=style.GREY, linewidth=1)
        axes.set(title=title, xlim=(0.95, None))
        axes.grid(axis="x", color=style.FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
    left = figure.axes[0]
    left.set_yticks(range(len(models)), models, fontsize=10, color=style.BLACK)
    left.invert_yaxis()
    figure.supxlabel(f"times as fast as torch's grouped_mm ({gpu}, {dtype})", fontsize=10)
    handles = [Line2D([], [], marker="o", lw=0, color=color, label=label) for color, label, _ in shown.values()]
    kinds = {"-4096-zipf-up": "4,096 tokens, first product", "-4096-zipf-down": "second product",
             "-512-zipf-up": "512 tokens, first product", "-512-zipf-down": "second product"}  # fmt: skip
    handles += [Line2D([], [], lw=0, color=style.BLACK, label=label, **_mark(name)) for name, label in kinds.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, fontsize=9)
    return figure


def _mark(row: str) -> dict:
    """The mark of a row of the record `zoo`: hollow with few tokens, a square for a layer's second product."""
    return {"marker": "s" if row.endswith("-down") else "o", "markersize": 6, "alpha": 0.8,
            "fillstyle": "none" if "-512-" in row else "full", "markeredgewidth": 1.2}  # fmt: skip


def layer() -> Figure:
    """How many times as fast as transformers' operations the layer of experts is, in this library and in Liger."""
    measured = record.load("moe")
    uniform = [row for row in measured["rows"] if row["routing"] == "uniform"]
    shown = measured | {"rows": [row for row in uniform if row["tokens"] == 1 or "transformers step" in row["us"]]}
    panels = {title: layer_records.beside_peers(shown, part) for title, part in layer_tables.PASSES.items()}
    return f15_layers.beside_peers(panels, f"({gpu_of(measured)}, bfloat16)", width=7.5, row=0.195)


PICTURES = {
    ROOT / "docs" / "launches.png": hero,
    ROOT / "docs" / "grouped_gemm.png": overview_of_groups,
    **({ROOT / "docs" / "layer.png": layer} if layer_tables.recorded("moe") else {ROOT / "docs" / "zoo.png": zoo}),
}


def gpu_and_dtype(measured: dict) -> tuple[str, str]:
    return gpu_of(measured), measured["dtype"]


def list_table() -> str:
    """The list API's times, from their record."""
    measured = record.load("group_gemm")
    columns = {
        "auto": "`group_gemm`",
        "cublas loop": "cuBLAS loop",
        "tutorial": "the tutorial's kernel, tuned",
        "naive": "a Triton launch each",
    }
    rows = []
    for row, entry in measured["rows"].items():
        name = row.replace("^3", "³").replace(" x ", " × ").replace("64-2048", "sizes, 64 to 2048")
        rows.append([name, *(f"{entry['us'][provider]['median_us']:.1f}" for provider in columns)])
    head = "µs on an {}, {}".format(*gpu_and_dtype(measured))
    return f"{markdown(head, columns.values(), rows)}\n\n{provenance_of(measured)}"


def _unit(entry: dict) -> str:
    return "" if entry["unit"] == "TFLOP/s" else f" ({entry['unit']})"


def _ours(rate: dict) -> float | None:
    """What `backend="auto"` reaches; in a record that does not have it, the faster of our two kernels."""
    return rate.get("auto") or max((rate[name] for name in ("triton", "cute") if name in rate), default=None)


def _note_on_ours(function: str, providers: Iterable[str]) -> str:
    return "" if "auto" in providers else f" `{function}`: the faster of its two kernels."


def _rates(measured: dict, function: str, columns: dict[str, str], gradients: Sequence[str] = ()) -> str:
    """A record's rows: the rates of the function and of providers, and each gradient's as a multiple of torch's."""
    rows = []
    for entry in measured["rows"].values():
        rate = entry["rate"]
        cells = [number(_ours(rate["forward"])), *(number(rate["forward"].get(name)) for name in columns)]
        cells += [f"{_ours(rate[gradient]) / rate[gradient]['torch']:.2f} ×" for gradient in gradients]
        rows.append([title_of(entry) + _unit(entry), *cells])
    head = "{}, {}".format(*gpu_and_dtype(measured))
    return markdown(head, [f"`{function}`", *columns.values(), *gradients], rows)


def packed_table() -> str:
    """The packed API's rates, from their record."""
    measured = record.load("grouped_mm")
    columns = {
        "triton": "Triton alone",
        "torch": "`torch`'s",
        "quack": "QuACK, best of 18",
        "loop": "cuBLAS loop",
        "dense": "dense, same size",
    }

    ours = _note_on_ours("grouped_mm", measured["providers"])
    note = (
        f"TFLOP/s, or TB/s where reading bounds (a copy moves {measured['copy_tb_s']:.2f}); "
        f"dA and dB: times as fast as torch's.{ours} {provenance_of(measured)}"
    )
    return f"{_rates(measured, 'grouped_mm', columns, ('dA', 'dB'))}\n\n{note}"


def scaled_table() -> str:
    """The rates of scaled products, from their record."""
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
        f"7168 positive numbers; the others are off by {exact:.2%} on average."
        f"{_note_on_ours('scaled_grouped_mm', measured['providers'])} {provenance_of(measured)}"
    )
    return f"{_rates(measured, 'scaled_grouped_mm', columns)}\n\n{note}"


def zoo_table(name: str = "zoo") -> str:
    """The rates of layers of published models, from their record on an H200 or another GPU."""
    measured = record.load(name)
    columns = {"quack": "QuACK, best", "torch": "`torch`'s"}
    rows = []
    for entry in measured["rows"].values():
        rate = entry["rate"]
        cells = [number(rate["forward"].get(name)) for name in ("auto", *columns)]
        ratios = [rate[each]["auto"] / rate[each]["torch"] for each in ("dA", "dB", "step")]
        rows.append([title_of(entry) + _unit(entry), *cells, *(f"{ratio:.2f} ×" for ratio in ratios)])
    head = "{}, {}".format(*gpu_and_dtype(measured))
    table = markdown(head, ["`grouped_mm`", *columns.values(), "dA", "dB", "training step"], rows)
    over_quack = ", ".join(
        f"{each} {found['quack']['times']:.2f} ({found['quack']['worst']:.2f})"
        for each, found in measured["speedups"]["auto"].items()
        if "quack" in found
    )
    return (
        f"{table}\n\ndA, dB and training step: times as fast as torch's. The rate over QuACK's best, mean (worst): "
        f"{over_quack}. {provenance_of(measured)}"
    )


def block_scaled_table() -> str:
    """The rates of products with scales of blocks, forward and backward, from their record."""
    measured = record.load("block_scaled")
    columns = {
        "cute": "`scaled_grouped_mm`, CuTe",
        "triton": "Triton",
        "dense row-wise": "dense, a factor for each row",
        "dA cute": "dA",
        "dB cute": "dB",
        "dB cute, whole blocks": "dB, whole blocks",
    }
    rows = [
        [title_of(entry), *(number(entry["rate"].get(name)) for name in columns)] for entry in measured["rows"].values()
    ]
    head = f"{gpu_of(measured)}, float8, scales of blocks"
    return f"{markdown(head, columns.values(), rows)}\n\nTFLOP/s. {provenance_of(measured)}"


def gmm_table() -> str:
    """The rates of AITER's functions, from their record."""
    measured = record.load("gmm")
    columns = {
        ("forward", "gmm"): "`gmm`",
        ("forward", "torch grouped_mm"): "`torch`'s",
        ("forward", "cuBLAS loop"): "cuBLAS loop",
        ("gradients", "ptgmm"): "`ptgmm`",
        ("gradients", "nptgmm"): "`nptgmm`",
        ("gradients", "torch grouped_mm"): "`torch`'s dB",
        ("gradients", "cuBLAS loop"): "cuBLAS loop, dB",
    }
    rows = [
        [title_of(entry) + _unit(entry), *(number(entry["rate"][each].get(name)) for each, name in columns)]
        for entry in measured["rows"].values()
    ]
    failed = any(entry.get("failed") for entry in measured["rows"].values())
    note = "TFLOP/s, or TB/s where reading bounds." + " –: its result failed the check." * failed
    head = "{}, {}".format(*gpu_and_dtype(measured))
    return f"{markdown(head, columns.values(), rows)}\n\n{note} {provenance_of(measured)}"


def masked_table() -> str:
    """The rates of masked products, from their record."""
    measured = record.load("masked")
    columns = {
        ("bfloat16", "auto"): "`deepgemm`",
        ("bfloat16", "torch grouped_mm, packed"): "`torch`'s, packed",
        ("bfloat16", "triton, shuffled"): "shuffled weights",
        ("float8", "auto"): "float8",
        ("float8", "torch scaled_grouped_mm, packed"): "`torch`'s, packed, float8",
        ("float8 blocks", "auto"): "float8, blocks",
    }
    rows, data = [], site_plots.data_of("masked")
    for row in data["rows"]:
        rates = {(kind, name): rate.get(name) for kind, rate in row["rate"].items() for name in rate}
        rates |= {(kind, "auto"): _ours(rate) for kind, rate in row["rate"].items()}
        rows.append([row["title"] + _unit(row), *(number(rates.get(column)) for column in columns)])
    head = f"{gpu_of(measured)}, bfloat16 where nothing else is said"
    note = _note_on_ours("deepgemm", (provider["key"] for provider in data["providers"]))
    table = markdown(head, columns.values(), rows)
    return f"{table}\n\nTFLOP/s, or TB/s where reading bounds.{note} {provenance_of(measured)}"


def jagged_table() -> str:
    """The rates of products that share a matrix, from their record."""
    measured = record.load("jagged")
    columns = {
        "auto": "`grouped_gemm_jagged`",
        "triton-simple": "its Triton kernel",
        "helion-simple": "its Helion kernel",
        "helion-scanning": "Helion, group by group",
        "torch": "`torch`'s, B for each group",
        "cublas": "dense, same size",
    }
    rows = [
        [title_of(entry), *(number(entry["rate"]["forward"].get(name)) for name in columns)]
        for entry in measured["rows"].values()
    ]
    head = "{}, {}".format(*gpu_and_dtype(measured))
    return f"{markdown(head, columns.values(), rows)}\n\nTFLOP/s. {provenance_of(measured)}"


# Page → name of a table or sentence → what writes it, between two marks.
TABLES = {
    PAGE: {
        "moe": layer_tables.layer_table,
        "moe_training": layer_tables.training_gain,
        "moe_forward": layer_tables.forward_table,
        "expert_parallel": layer_tables.parallel_table,
        "zoo": zoo_table,
        "zoo_h100": functools.partial(zoo_table, "zoo_h100"),
        "group_gemm": list_table,
        "grouped_mm": packed_table,
        "scaled_grouped_mm": scaled_table,
        "block_scaled": block_scaled_table,
        "gmm": gmm_table,
        "masked": masked_table,
        "jagged": jagged_table,
    },
    LIBRARY: {"moe": layer_tables.layer_gain},
    README: {"moe": layer_tables.picture, "expert_parallel": layer_tables.parallel_gain},
}


def with_tables(page: str, tables: Mapping[str, Callable[[], str]] = TABLES[PAGE]) -> str:
    """A page's text with each table between its two marks."""
    for name, make in tables.items():
        start = f"<!-- {name}: written by tools/make_pictures.py -->"
        before, rest = page.split(start)
        page = f"{before}{start}\n{make()}\n{END}{rest.split(END, 1)[1]}"
    return page


def main() -> None:
    for page, tables in TABLES.items():
        page.write_text(with_tables(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
    for target, draw in PICTURES.items():
        data = png(draw())
        target.write_bytes(data)
        print(f"{target.relative_to(ROOT)}: {len(data) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
