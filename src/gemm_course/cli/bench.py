"""`course bench`: time `grouped_mm` against its peers on this machine's GPU, and print a table as it goes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Annotated

from course_kernels.bench import report
from course_kernels.bench import zoo as models_zoo
from course_kernels.bench.rows import EVERY_PASS, PASSES, Row, select
from gemm_course.cli import terminal
from gemm_course.cli.exit_codes import CANNOT, FAILED, OK, USAGE, Stop
from gemm_course.cli.options import File, Names, Option, check_folders

EXAMPLES = """\
examples:
  course bench                                 every row, every provider that is installed (about three minutes)
  course bench --list                          rows and providers, and which are installed
  course bench --rows equal12 decode           rows whose names begin so
  course bench --providers triton torch --passes forward dB
  course bench --json mine.json --plot mine.png --roofline roof.png
  course bench --zoo                           layers of published models: a compact set (about five minutes)
  course bench --zoo qwen3 dbrx --tokens 64 16384 --routing random zipf --passes forward step

exit codes: 0 measured; 1 a result of grouped_mm was wrong or failed; 2 wrong usage; 3 no GPU to measure on
"""
MANY = ("--rows", "--providers", "--passes", "--zoo", "--tokens", "--routing")
COMPACT = "compact"
ALONE = {"--zoo": COMPACT}
_ZOO_TOKENS, _ZOO_ROUTINGS = (64, 512, 4096), ("zipf",)


def run(
    rows: Annotated[Names, Option(metavar="ROW...", help="names, or beginnings of names (default: all)")] = None,
    providers: Annotated[Names, Option(metavar="NAME...", help="providers to measure (default: all)")] = None,
    passes: Annotated[
        Names,
        Option(
            metavar="PASS...",
            help=f"of {', '.join(EVERY_PASS)} (default: {', '.join(PASSES)}; "
            f"with --zoo: {', '.join(models_zoo.PASSES)})",
        ),
    ] = None,
    zoo: Annotated[
        Names, Option(metavar="[MODEL...]", help="layers of published models instead; no name: a compact set of all")
    ] = None,
    tokens: Annotated[
        list[int] | None, Option(metavar="N...", help=f"of --zoo (default: {' '.join(map(str, _ZOO_TOKENS))})")
    ] = None,
    routing: Annotated[
        Names, Option(metavar="NAME...", help="of --zoo: random, zipf, half-cold (default: zipf)")
    ] = None,
    repeats: Annotated[int | None, Option(metavar="N", help="timed calls of each (default: 40)")] = None,
    json: Annotated[
        File, Option(metavar="FILE", help="write the record, row by row, with machine and versions")
    ] = None,
    plot: Annotated[File, Option(metavar="FILE", help="draw every provider against the ceiling")] = None,
    roofline: Annotated[File, Option(metavar="FILE", help="draw every row under this GPU's roofline")] = None,
    only_list: Annotated[bool, Option("--list", help="show rows and providers and measure nothing")] = False,
) -> int:
    """Time grouped_mm against its peers on this machine's GPU; results are verified first."""
    import torch

    from course_kernels.bench import grouped, record
    from course_kernels.bench import providers as known_providers

    if zoo is None and (tokens or routing):
        raise Stop(USAGE, "--tokens and --routing choose among the rows of --zoo, which is not given")
    if zoo is not None and rows is not None:
        raise Stop(USAGE, "--rows and --zoo each name all rows to measure: give one of them")
    try:
        if zoo is None:
            chosen_rows, chosen = select(rows), known_providers.select(providers)
        else:
            chosen_rows = zoo_rows(zoo, tokens, routing)
            chosen = known_providers.select(providers, known_providers.zoo())
    except ValueError as error:
        raise Stop(USAGE, error) from None
    passes = passes or (PASSES if zoo is None else models_zoo.PASSES)
    if only_list:
        print(terminal.fit(listing(chosen_rows, chosen)))
        if zoo is None and rows is None:
            print("\n" + terminal.fit(zoo_listing()))
        if not torch.cuda.is_available():
            print("\nThere is no GPU that torch can use, so nothing can be measured here.")
        return OK
    if (plot or roofline) and importlib.util.find_spec("matplotlib") is None:
        what = "--plot and --roofline draw with matplotlib, which is not installed: pip install matplotlib"
        raise Stop(USAGE, what)
    check_folders(json=json, plot=plot, roofline=roofline)
    if wrong := next((each for each in passes if each not in EVERY_PASS), None):
        raise Stop(USAGE, f"--passes must be among {', '.join(EVERY_PASS)}, got {wrong!r}")
    if repeats is not None and repeats < 2:
        raise Stop(USAGE, f"--repeats must be at least 2, got {repeats}")
    if not torch.cuda.is_available():
        raise Stop(CANNOT, "times are measured on an NVIDIA GPU, and torch sees none here.\ncourse bench --list shows "
                   "what would be measured; benchmarks/results/ of the course's repository has an H200's.")  # fmt: skip
    reasons = {provider.name: provider.unavailable() for provider in chosen}
    for name in filter(reasons.get, reasons):
        print(f"{name} is left out: {reasons[name]}")
    present = [name for name, reason in reasons.items() if reason is None]
    if not present:
        raise Stop(CANNOT, "none of these providers is installed here")
    many = "s" * (len(chosen_rows) != 1)
    print(f"measuring {len(chosen_rows)} row{many} by {', '.join(present)}; kernels are compiled first", flush=True)
    roles = {provider.name: provider.role for provider in chosen}
    about = record.provenance() if json else {}
    results = grouped.measure(
        chosen_rows, chosen, passes=passes, repeats=repeats or grouped.REPEATS,
        tell=lambda measured: print("\n" + report.table(measured, roles), flush=True),
        keep=(lambda results: record.write(json, results.as_json(), about)) if json else None,
    )  # fmt: skip
    print("\n" + report.closing(results))
    if json:
        print(f"wrote {json}")
    if plot or roofline:
        from gemm_course.figures import roofline as rates  # matplotlib is optional

        for path, draw in ((plot, rates.against_peers), (roofline, rates.roofline)):
            if path:
                draw(results.as_json()).savefig(path, dpi=150)
                print(f"wrote {path}")
    if wrong := report.failures_of_ours(results):
        raise Stop(FAILED, "\n  ".join(["not measured, because wrong or failed:", *wrong]))
    return OK


def zoo_rows(models: Sequence[str], tokens: Sequence[int] | None, routings: Sequence[str] | None) -> list[Row]:
    """The rows of `--zoo`: the compact set; or both projections of models, of all if only the others are given.

    Raises:
        ValueError: a name that does not exist, or fewer than 1 token.
    """
    every = list(models) == [COMPACT]
    if every and not tokens and not routings:
        return models_zoo.compact()
    return models_zoo.rows(None if every else models, tokens or _ZOO_TOKENS, routings or _ZOO_ROUTINGS)


def zoo_listing() -> str:
    """The models of the zoo, and what its rows are named after, as lines of text."""
    about = [
        (model.name, f"{model.experts} experts", f"top {model.top_k}", f"hidden {model.hidden}",
         f"intermediate {model.intermediate}", model.source)
        for model in models_zoo.MODELS
    ]  # fmt: skip
    names = f"MODEL-TOKENS-ROUTING-PROJECTION: tokens {', '.join(map(str, models_zoo.TOKENS))}"
    lines = ["Zoo (--zoo; --list --zoo lists its rows)", terminal.columns(about, indent=2)]
    return "\n".join([*lines, f"  Rows are {names}; routings {', '.join(models_zoo.ROUTINGS)}; up and down."])


def listing(rows: Sequence[Row], providers: Sequence) -> str:
    """Rows, and providers with what keeps each from running here, as lines of text."""
    work = [
        (row.name, row.title, f"{row.flops / 1e9:.0f} GFLOP", f"{row.bytes_moved() / 1e9:.2f} GB", f"{row.kind}-bound")
        for row in rows
    ]
    about = [
        (each.name, each.label, each.role, f"left out: {reason}" if (reason := each.unavailable()) else "installed")
        for each in providers
    ]
    lines = ["Rows (B is (G, N, K) transposed, bfloat16)", terminal.columns(work, indent=2, right=(2, 3))]
    return "\n".join([*lines, "", "Providers", terminal.columns(about, indent=2)])
