"""Results of a measurement as text: a table for each row, and a closing line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from course_kernels.bench.measured import Measured, Reasons, Results, speedups

__all__ = ["closing", "failures_of_ours", "require_correct", "table"]

_TITLES = {"forward": "forward", "called": "as called", "dA": "dA", "dB": "dB", "step": "fwd + bwd"}
_COLUMN = 10


def table(measured: Measured, roles: Mapping[str, str]) -> str:
    """A row's rates, the fastest of them marked; then what was not measured, with reasons.

    Args:
        measured: the row.
        roles: provider → role, in the order of the columns. A ceiling does other work and is not marked.
    """
    row, timings = measured.row, measured.timings
    shown = [name for name in roles if any(name in rate for rate in measured.rate.values())]

    def line(title: str, cells: Mapping[str, str]) -> str:
        return f"  {title:<10}" + "".join(f"{cells.get(name, '- '):>{_COLUMN}}" for name in shown)

    lines = [f"{row.name}: {row.title} ({row.unit}; * the fastest)"]
    lines.append(" " * 12 + "".join(f"{name:>{_COLUMN}}" for name in shown))
    for of, rate in measured.rate.items():
        best = max((name for name in rate if roles[name] != "ceiling"), key=rate.get, default=None)
        digits = 0 if row.kind == "compute" else 2
        lines.append(
            line(
                _TITLES[of], {name: f"{value:.{digits}f}{'*' if name == best else ' '}" for name, value in rate.items()}
            )
        )
    if timings.host_us:
        lines.append(line("host µs", {name: f"{us:.1f} " for name, us in timings.host_us.items()}))
    if timings.peak_bytes:
        lines.append(line("peak MiB", {name: f"{peak / 2**20:.0f} " for name, peak in timings.peak_bytes.items()}))
        lines.append(f"  {_TITLES['step']} is timed {timings.step_timed}")
    lines += [f"  {name} not measured: {reason}" for name, reason in timings.unsuited.items()]
    lines += [f"  {name} out of memory, {step}: {why}" for name, step, why in _flat(timings.out_of_memory)]
    return "\n".join(lines + [f"  ! {name} failed, {step}: {why}" for name, step, why in _flat(timings.failed)])


def closing(results: Results) -> str:
    """The copy bandwidth, the geometric means, and the rows that ran out of memory."""
    lines = [f"A copy within the device's memory moves {results.copy_tb_s:.2f} TB/s."]
    for mine, by_pass in speedups(results).items():
        lines.append(f"{mine}, times faster (geometric mean over rows; in brackets the worst row):")
        for of, others in by_pass.items():
            cells = (f"{other} {each['times']:.2f} ({each['worst']:.2f})" for other, each in others.items())
            lines.append(f"  {_TITLES[of]:<10}" + "   ".join(cells))
    short = [
        f"  {name}: " + ", ".join(f"{provider} ({', '.join(steps)})" for provider, steps in found.items())
        for name, measured in results.rows.items()
        if (found := measured.timings.out_of_memory)
    ]
    return "\n".join([*lines, *(["Out of memory, so not measured:", *short] if short else [])])


def failures_of_ours(results: Results) -> list[str]:
    """A line for each row in which a provider of ours was wrong or did not run. Memory that ran out is no failure."""
    return [
        f"{row}, {name}, {step}: {why}"
        for row, measured in results.rows.items()
        for name, step, why in _flat(measured.timings.failed)
        if results.role(name) == "ours"
    ]


def require_correct(results: Results) -> Results:
    """The results themselves.

    Raises:
        AssertionError: ours was wrong or failed.
    """
    if wrong := failures_of_ours(results):
        raise AssertionError("wrong or failed:\n" + "\n".join(wrong))
    return results


def _flat(reasons: Reasons) -> Iterator[tuple[str, str, str]]:
    return ((name, step, why) for name, steps in reasons.items() for step, why in steps.items())
