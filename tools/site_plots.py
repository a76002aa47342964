"""The site's plots: rates from a record, for `site/_static/plots.js` to draw in the reader's browser."""

from __future__ import annotations

import html
import json

from course_kernels.bench import record
from course_kernels.bench.rows import title_of

SHOWN = ("ours", "peer", "ceiling")  # the other providers of a record are configurations that were tried
MANY_ROWS = 512  # rows of a group; from here on, arithmetic bounds a masked product, not reading weights
PASSES = {
    "forward": "forward",
    "called": "forward, as called",
    "dA": "gradient of A",
    "dB": "gradient of B",
    "step": "training step",
    "gradients": "gradient of the weights",
}


def data_of(name: str) -> dict:
    """The data of a plot of a record: its providers, its passes, and the rates of each row."""
    measured = record.load(name)
    kinds = "cells" in measured
    rows = _rows_of_cells(measured["cells"]) if kinds else list(measured["rows"].values())
    found = dict.fromkeys(provider for row in rows for rate in row["rate"].values() for provider in rate)
    shown = dict.fromkeys(each for row in rows for each in row["rate"]) if kinds else PASSES
    passes = {each: PASSES.get(each, each) for each in shown if any(each in row["rate"] for row in rows)}
    about = measured.get("providers") or {each: {"label": each, "role": _role(each)} for each in found}
    providers = [
        {"key": key, "label": each["label"], "role": each["role"]}
        for key, each in about.items()
        if key in found and each["role"] in SHOWN
    ]
    keys, source = [each["key"] for each in providers], measured["provenance"]
    dtypes = "" if kinds else f" {measured['dtype']},"
    return {
        "title": f"{source['gpu'].removeprefix('NVIDIA ')},{dtypes} measured {source['date'][:10]}",
        "choice": "Operands" if kinds else "Pass",
        "providers": providers,
        "passes": [{"key": key, "label": label} for key, label in passes.items()],
        "rows": [
            {"title": title_of(row), "unit": row["unit"], "rate": _rates(row["rate"], list(passes), keys)}
            for row in rows
        ],
    }


def _rows_of_cells(cells: dict) -> list[dict]:
    """Rows of the record of masked groups: its cells have kinds of operands where other rows have passes."""
    found = []
    for cell in cells.values():
        few = cell["rows"] < MANY_ROWS
        rate = {
            kind: {key: each["tb_s" if few else "tflops"] for key, each in about["rates"].items()}
            for kind, about in cell["kinds"].items()
        }
        title = f"{cell['groups']} groups of about {cell['rows']} rows, N {cell['N']}, K {cell['K']}"
        found.append({"title": title, "unit": "TB/s" if few else "TFLOP/s", "rate": rate})
    return found


def _rates(rates: dict, passes: list[str], providers: list[str]) -> dict[str, dict[str, float]]:
    """Rates of one row for the passes and providers that are shown; what was not measured is left out."""
    return {
        each: {key: rates[each][key] for key in providers if rates[each].get(key) is not None}
        for each in passes
        if each in rates
    }


def _role(provider: str) -> str:
    return "peer" if "torch" in provider or "cuBLAS" in provider else "ours"


def tables(data: dict) -> str:
    """The numbers of a plot as Markdown, a table for each pass."""
    found = []
    for each in data["passes"]:
        rows = [(row, row["rate"][each["key"]]) for row in data["rows"] if each["key"] in row["rate"]]
        shown = [provider for provider in data["providers"] if any(provider["key"] in rate for _, rate in rows)]
        lines = [["", *(provider["label"] for provider in shown)], ["---", *["---:"] * len(shown)]]
        for row, rate in rows:
            values = (rate.get(provider["key"]) for provider in shown)
            lines.append([f"{row['title']} ({row['unit']})", *("–" if v is None else f"{v:.4g}" for v in values)])
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        found.append(f"**{each['label'].capitalize()}**\n\n{table}")
    return "\n\n".join(found)


def plot(name: str, base: str = "") -> str:
    """A plot of a record as Markdown, with all of its numbers folded below.

    Args:
        name: of the record.
        base: the provider whose rate the plot counts in at first; "" is the rate itself.
    """
    data = data_of(name)
    if base and base not in (each["key"] for each in data["providers"]):
        raise ValueError(f"the record {name} has no provider {base!r}")
    # No blank line: Markdown takes it for one block. No "<": a text cannot end the script.
    text = json.dumps({**data, "base": base}, ensure_ascii=False).replace("<", "\\u003c")
    label = html.escape(f"Plot of the record {name}; the numbers are folded below")
    return (
        f'<figure class="plot" id="plot-{name}" role="group" aria-label="{label}">\n'
        f'<script type="application/json">{text}</script>\n</figure>\n\n'
        f"<details><summary>All numbers of this plot</summary>\n\n{tables(data)}\n\n</details>"
    )
