"""`course bench`: time `grouped_mm` against its peers on this machine's GPU, and print a table as it goes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from course_kernels.bench.rows import PASSES, Row

EXAMPLES = """\
examples:
  course bench                                 every row, every provider that is installed (about three minutes)
  course bench --list                          rows and providers, and which are installed
  course bench --rows equal12 decode           rows whose names begin so
  course bench --providers triton torch --passes forward dB
  course bench --json mine.json --plot mine.png --roofline roof.png

exit codes: 0 measured; 1 a result of grouped_mm was wrong or failed; 2 wrong usage; 3 no GPU to measure on
"""

OK, FAILED, USAGE, CANNOT = 0, 1, 2, 3
_TITLES = {"forward": "forward", "called": "as called", "dA": "dA", "dB": "dB"}
_COLUMN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = "Time grouped_mm against its peers on this machine's GPU; results are verified first."
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="names, or beginnings of names (default: all)")
    parser.add_argument("--providers", nargs="+", metavar="NAME", help="who is measured (default: all)")
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=list(PASSES), metavar="PASS",
                        help=f"of {', '.join(PASSES)} (default: all)")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=None, metavar="N", help="timed calls of each (default: 40)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record, with machine and versions")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw every provider against the ceiling")
    parser.add_argument("--roofline", type=Path, metavar="FILE", help="draw every row under this GPU's roofline")
    parser.add_argument("--list", action="store_true", help="show rows and providers and measure nothing")


def listing(rows: Sequence[Row], providers: Sequence) -> str:
    """Rows and providers as text.

    Args:
        rows: to show.
        providers: to show, each with what keeps it from running here.

    Returns:
        Lines of text.
    """
    lines = ["Rows (B is (G, N, K) transposed, bfloat16)"]
    for row in rows:
        work = f"{row.flops / 1e9:7.0f} GFLOP  {row.bytes_moved() / 1e9:6.2f} GB  {row.kind}-bound"
        lines.append(f"  {row.name:<16}{row.title:<44}{work}")
    lines += ["", "Providers"]
    for provider in providers:
        reason = provider.unavailable()
        about = f"{provider.role:<9}" + (f"left out: {reason}" if reason else "installed")
        lines.append(f"  {provider.name:<12}{provider.label:<36}{about}")
    return "\n".join(lines)


def table(row: Row, entry: Mapping, roles: Mapping[str, str]) -> str:
    """One row's rates as text, the fastest marked, and what failed.

    Args:
        row: that was measured.
        entry: of `grouped.measure`.
        roles: name of a provider → its role, in the order of the columns. A ceiling does other work and is not marked.

    Returns:
        Lines of text.
    """
    shown = [name for name in roles if any(name in rate for rate in entry["rate"].values())]
    lines = [f"{row.name}: {row.title} ({row.unit}; * the fastest)"]
    lines.append(" " * 12 + "".join(f"{name:>{_COLUMN}}" for name in shown))
    for of, rate in entry["rate"].items():
        best = max((name for name in rate if roles[name] != "ceiling"), key=rate.get, default=None)
        digits = 0 if row.kind == "compute" else 2
        cells = (f"{rate[n]:.{digits}f}{'*' if n == best else ' '}" if n in rate else "- " for n in shown)
        lines.append(f"  {_TITLES[of]:<10}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells))
    if entry["host_us"]:
        cells = (f"{entry['host_us'][n]:.1f} " if n in entry["host_us"] else "- " for n in shown)
        lines.append(f"  {'host µs':<10}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells))
    lines += [f"  {name} not measured: {reason}" for name, reason in entry["unsuited"].items()]
    for name, failed in entry["failed"].items():
        lines += [f"  ! {name} failed, {step}: {reason}" for step, reason in failed.items()]
    return "\n".join(lines)


def closing(results: Mapping) -> str:
    """The geometric means as text.

    Args:
        results: of `grouped.measure`.

    Returns:
        Lines of text.
    """
    lines = [f"A copy within the device's memory moves {results['copy_tb_s']:.2f} TB/s."]
    for mine, by_pass in results["speedups"].items():
        lines.append(f"{mine}, times faster (geometric mean over rows; in brackets the worst row):")
        for of, others in by_pass.items():
            cells = (f"{other} {each['times']:.2f} ({each['worst']:.2f})" for other, each in others.items())
            lines.append(f"  {_TITLES[of]:<10}" + "   ".join(cells))
    return "\n".join(lines)


def failures_of_ours(results: Mapping) -> list[str]:
    """What of ours is wrong or did not run.

    Args:
        results: of `grouped.measure`.

    Returns:
        A line for each failure; none is the good case.
    """
    ours = [name for name, each in results["providers"].items() if each["role"] == "ours"]
    return [
        f"{row}, {name}, {step}: {reason}"
        for row, entry in results["rows"].items()
        for name in ours
        for step, reason in entry["failed"].get(name, {}).items()
    ]


def _write_figures(results: Mapping, plot: Path | None, roofline: Path | None) -> None:
    if plot is None and roofline is None:
        return
    from gemm_course.figures import roofline as rates

    for path, draw in ((plot, rates.against_peers), (roofline, rates.roofline)):
        if path is not None:
            draw(results).savefig(path, dpi=150)
            print(f"wrote {path}")


def _problem(arguments: argparse.Namespace) -> str | None:
    """What would only be noticed after minutes of measuring."""
    if arguments.plot or arguments.roofline:
        import importlib.util

        if importlib.util.find_spec("matplotlib") is None:
            return "--plot and --roofline draw with matplotlib, which is not installed: pip install matplotlib"
    for option in ("json", "plot", "roofline"):
        path = getattr(arguments, option)
        if path is not None and not path.absolute().parent.is_dir():
            return f"--{option} must name a file in a folder that exists, got {path}"
    if arguments.repeats is not None and arguments.repeats < 2:
        return f"--repeats must be at least 2, got {arguments.repeats}"
    return None


def run(arguments: argparse.Namespace) -> int:
    """Measure, or list.

    Args:
        arguments: of `add_arguments`.

    Returns:
        The exit code.
    """
    import torch

    from course_kernels.bench import providers as known
    from course_kernels.bench import rows as table_of_rows

    try:
        rows = table_of_rows.select(arguments.rows)
        providers = known.select(arguments.providers)
    except ValueError as error:
        print(f"course bench: {error}", file=sys.stderr)
        return USAGE
    if arguments.list:
        print(listing(rows, providers))
        if not torch.cuda.is_available():
            print("\nThere is no GPU that torch can use, so nothing can be measured here.")
        return OK
    if problem := _problem(arguments):
        print(f"course bench: {problem}", file=sys.stderr)
        return USAGE
    if not torch.cuda.is_available():
        print(
            "course bench: times are measured on an NVIDIA GPU, and torch sees none here.\n"
            "course bench --list shows what would be measured; benchmarks/results/ holds what was, on an H200.",
            file=sys.stderr,
        )
        return CANNOT
    from course_kernels.bench import grouped, record

    reasons = {provider.name: provider.unavailable() for provider in providers}
    for name, reason in reasons.items():
        if reason:
            print(f"{name} is left out: {reason}")
    present = [name for name, reason in reasons.items() if reason is None]
    if not present:
        print("course bench: none of these providers is installed here", file=sys.stderr)
        return CANNOT
    print(f"measuring {len(rows)} row{'s' * (len(rows) != 1)} by {', '.join(present)}; kernels are compiled first",
          flush=True)  # fmt: skip
    roles = {provider.name: provider.role for provider in providers}
    results = grouped.measure(
        rows, providers, passes=arguments.passes, repeats=arguments.repeats or grouped.REPEATS,
        tell=lambda row, entry: print("\n" + table(row, entry, roles), flush=True),
    )  # fmt: skip
    print("\n" + closing(results))
    if arguments.json:
        record.write(arguments.json, results)
        print(f"wrote {arguments.json}")
    _write_figures(results, arguments.plot, arguments.roofline)
    if wrong := failures_of_ours(results):
        print("course bench: not measured, because wrong or failed:", *wrong, sep="\n  ", file=sys.stderr)
        return FAILED
    return OK
