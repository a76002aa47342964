"""The site's plots: rates from a record, for `site/_static/plots.js` to draw in the reader's browser."""

from __future__ import annotations

import html
import json

from course_kernels.bench import record

SHOWN = ("ours", "peer", "ceiling")  # the other providers of a record are configurations that were tried
PASSES = {
    "forward": "forward",
    "called": "forward, as called",
    "dA": "gradient of A",
    "dB": "gradient of B",
    "step": "training step",
    "gradients": "gradient of the weights",
}


def data_of(name: str) -> dict:
    """What a plot of a record shows: its providers, its passes, and the rates of each row."""
    measured = record.load(name)
    rows = measured["rows"].values()
    passes = [each for each in PASSES if any(each in row["rate"] for row in rows)]
    found = dict.fromkeys(provider for row in rows for each in passes for provider in row["rate"].get(each, ()))
    about = measured.get("providers") or {each: {"label": each, "role": _role(each)} for each in found}
    providers = [
        {"key": key, "label": each["label"], "role": each["role"]}
        for key, each in about.items()
        if key in found and each["role"] in SHOWN
    ]
    keys = [each["key"] for each in providers]
    source = measured["provenance"]
    return {
        "title": f"{source['gpu'].removeprefix('NVIDIA ')}, {measured['dtype']}, {source['date'][:10]}",
        "providers": providers,
        "passes": [{"key": each, "label": PASSES[each]} for each in passes],
        "rows": [
            {"title": row["title"], "unit": row["unit"], "rate": _rates(row["rate"], passes, keys)} for row in rows
        ],
    }


def _rates(rates: dict, passes: list[str], providers: list[str]) -> dict[str, dict[str, float]]:
    """Rates of one row for the passes and providers that are shown; what was not measured is left out."""
    return {
        each: {key: rates[each][key] for key in providers if rates[each].get(key) is not None}
        for each in passes
        if each in rates
    }


def _role(provider: str) -> str:
    return "peer" if "torch" in provider or "cuBLAS" in provider else "ours"


def plot(name: str) -> str:
    """A plot of a record as HTML, on lines without a blank one between, so that Markdown takes it for one block."""
    data = json.dumps(data_of(name), ensure_ascii=False).replace("<", "\\u003c")
    label = html.escape(f"Plot of the record {name}; the numbers are in the table of this section")
    return (
        f'<figure class="plot" id="plot-{name}" role="group" aria-label="{label}">\n'
        f'<script type="application/json">{data}</script>\n</figure>'
    )
