"""Parts of tables that are written from records: Markdown, numbers, and where a record comes from."""

from __future__ import annotations

from collections.abc import Iterable


def markdown(head: str, titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table: its first column to the left, the others to the right."""
    titles = list(titles)
    lines = [[head, *titles], ["---", *["---:"] * len(titles)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None) -> str:
    """Three digits or more; a dash for what was not measured."""
    return "–" if value is None else f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def gpu_of(measured: dict) -> str:
    """The GPU of a record, without its maker."""
    return measured["provenance"]["gpu"].removeprefix("NVIDIA ")


def provenance_of(measured: dict) -> str:
    """A sentence: when, at which commit and with which versions a record was measured, and begun if another run was."""
    source = measured["provenance"]
    begun = f" (begun {source['begun'][:10]} at {source['begun_at'][:8]})" if "begun" in source else ""
    return (
        f"Measured {source['date'][:10]} at commit {source['commit'][:8]}{begun}, "
        f"torch {source['torch']}, Triton {source['triton']}."
    )
