"""What a configuration uses of an SM: one step of its tile, registers, shared memory, and the limits."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_kernels.config import GemmConfig
from gemm_course.figures.shapes import bare, canvas, canvas_grid, centred, rectangle, spread_apart
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREEN, GREY, ORANGE, PINK, RED, WIDTH, as_ink, drawing
from gemm_course.lessons.l07_budget import RESERVED_BYTES, SM_SHARED_BYTES, THREAD_REGISTERS, Use, rejection_reason


def short_name(config: GemmConfig) -> tuple[str, str]:
    """The block, and the rest: 8w 4s 2p 2/SM is 8 warps, 4 stages, stored in 2 parts, two programs per SM."""
    rest = f"{config.num_warps}w {config.num_stages}s"
    rest += f" {config.store_parts}p" if config.store_parts > 1 else ""
    return "×".join(map(str, config.block)), rest + (f" {config.programs_per_sm}/SM" * (config.programs_per_sm > 1))


_BEYOND = "#FBEFE5"  # past a limit
_SHORT = "w warps · s stages · 2p stored in two parts · 2/SM two programs on an SM"


@drawing
def tile_step(cases: Sequence[tuple[int, GemmConfig]]) -> Figure:
    """Draw the blocks of one step of the K loop to scale: A on the left, B above, the sums between them.

    Rows of the group are filled, the other rows of the tile are hatched. A case is (rows of the group, configuration).
    """
    gap = 14
    widths = [config.block_k + gap + config.block_n for _, config in cases]
    height = max(config.block_k + gap + config.block_m for _, config in cases)
    ratios = [width + 60 for width in widths]
    tall = (WIDTH - 0.6) * (height + 60) / sum(ratios) + 0.5
    figure, panels = canvas_grid(tall, 1, len(cases), width_ratios=ratios)
    for axes, (rows, config) in zip(panels, cases):
        m, n, k = config.block
        used, left, top = min(rows, m), k + gap, k + gap
        for gid, corner, full, part, color in (
            ("A", (0, top), (k, m), (k, used), BLUE),
            ("B", (left, 0), (n, k), (n, k), ORANGE),
            ("sums", (left, top), (n, m), (n, used), GREEN),
        ):
            rectangle(axes, *corner, *full, fc="white", ec=color, hatch="////", lw=1, gid=f"{gid} block")
            rectangle(axes, *corner, *part, fc=color, ec=color, lw=1, gid=f"{gid} used")
        below = {"ha": "center", "va": "top", "fontsize": 9, "color": BLACK}
        axes.text(k / 2, top + m + 5, f"A: {m} × {k}", **below)
        axes.text(left + n / 2, top + m + 5, f"sums: {m} × {n}", **below)
        centred(axes, left + n / 2, k / 2, f"B: {k} × {n}", fontsize=9, color=BLACK)
        axes.set_title(f"group of {rows:,} rows\nthe tile uses {used} of its {m}", fontsize=10)
        bare(axes, (-30, left + n + 30), (height + 30, -6), equal=True)
        axes.set_anchor("NW")
    return figure


@drawing
def sm_budget(uses: Sequence[Use], itemsize: int = 2) -> Figure:
    """Draw what configurations use of a thread's registers and an SM's shared memory; the dashed lines are the limits.

    Values that are spilled lie past the limit of a thread's registers.
    """
    figure, (registers, shared) = canvas_grid(0.62 * len(uses) + 1.5, 1, 2, sharey=True)
    most = SM_SHARED_BYTES
    for y, use in enumerate(uses):
        config = use.config
        sums = ("sums", min(use.sums, use.registers), GREEN)
        _stack(registers, y, [sums, ("other", use.registers - use.sums, GREY), ("spilled", use.spilled / 4, RED)], 1)
        a, b = (config.block_k * lines * itemsize for lines in (config.block_m, config.block_n))
        stages = min(config.num_stages, use.shared // (a + b))  # the compiler may do with fewer
        blocks = [("A", a, BLUE), ("B", b, ORANGE)] * stages
        rest = [("result", use.shared - stages * (a + b), PINK), ("system", RESERVED_BYTES, GREY)]
        _stack(shared, y, (blocks + rest) * config.programs_per_sm)
        most = max(most, use.sm_shared)
    wanted = max(max(use.registers, use.sums) + use.spilled / 4 for use in uses)
    for axes, limit, high, title in (
        (registers, THREAD_REGISTERS, wanted, "registers of a thread"),
        (shared, SM_SHARED_BYTES / 1024, most / 1024, "shared memory of an SM, KiB"),
    ):
        axes.axvline(limit, color=BLACK, lw=1.2, ls="--")
        axes.set_title(f"{title} (dashed: at most {limit:.0f})", fontsize=10)
        axes.set_xticks(range(0, int(high) + 65, 64))
        axes.set_xlim(0, max(limit, high) * 1.05)
        axes.tick_params(axis="y", length=0, labelcolor=BLACK)
    registers.set_yticks(range(len(uses)), ["\n".join(short_name(use.config)) for use in uses], fontsize=9)
    registers.set_ylim(len(uses) - 0.5, -0.5)
    entries = [("sums", GREEN), ("other registers", GREY), ("block of A", BLUE), ("block of B", ORANGE),
               ("result, before it is stored", PINK)]  # fmt: skip
    entries += [("spilled to memory", RED)] * any(use.spilled for use in uses)
    figure.legend(handles=[Patch(color=color, label=name) for name, color in entries], loc="outside lower center",
                  ncols=len(entries), fontsize=9, handlelength=1, columnspacing=1.2, title=_SHORT,
                  title_fontsize=9)  # fmt: skip
    return figure


def _stack(axes, y: float, parts: Sequence[tuple[str, float, str]], unit: float = 1024) -> None:
    """A horizontal bar of parts (gid, size, colour), one after the other, in units."""
    left = 0.0
    for gid, size, color in parts:
        if size > 0:
            axes.barh(y, size / unit, left=left, height=0.62, color=color, ec="white", lw=0.8, gid=gid)
            left += size / unit


@drawing
def limits(uses: Sequence[Use]) -> Figure:
    """Draw candidates against the two limits: sums per thread and shared memory per SM.

    A red cross is a candidate that is not worth measuring.
    """
    reasons = {"spills": "spills", "registers": "registers", "shared memory": "too much shared memory"}
    figure, axes = canvas(5.2)
    limit = SM_SHARED_BYTES / 1024
    top = max(limit, *(use.sm_shared / 1024 for use in uses)) * 1.1
    columns = sorted({use.sums for use in uses})
    place, right = {}, 0.0  # a column is as wide as the longest of its names
    for sums in columns:
        place[sums] = right
        right += max(len(" ".join(short_name(use.config))) for use in uses if use.sums == sums) + 8.5
    edge = min([place[sums] for sums in columns if sums > THREAD_REGISTERS], default=right) - 1.5
    axes.axhspan(limit, top, color=_BEYOND, lw=0)
    axes.fill_between([edge, max(right, edge + 12)], 0, limit, color=_BEYOND, lw=0)
    for use in uses:
        bad, x, y = rejection_reason(use), place[use.sums], use.sm_shared / 1024
        axes.plot([x], [y], "X" if bad else "o", color=RED if bad else BLUE, ms=10 if bad else 8, gid=bad or "fits")
    for sums in columns:
        column = sorted((use for use in uses if use.sums == sums), key=lambda use: use.sm_shared)
        heights = [use.sm_shared / 1024 for use in column]
        # Few names have room for two lines, and then leave more of it to the next column.
        line, gap = ("\n", 0.11) if len(column) < 3 else (" ", 0.058)
        for use, y, at in zip(column, heights, spread_apart(heights, gap * top)):
            x, color = place[sums], as_ink(RED, _BEYOND) if rejection_reason(use) else BLACK
            axes.plot([x + 0.6, x + 2.2], [y, at], color=color, lw=0.6, alpha=0.6)
            axes.text(
                x + 2.5, at, line.join(short_name(use.config)), va="center", fontsize=9, color=as_ink(color, _BEYOND)
            )
    axes.text(-2, limit + 0.01 * top, f"an SM's shared memory ends here: {limit:.0f} KiB", va="bottom", fontsize=9)
    axes.text(edge + 0.5, 0.015 * top, f"a thread's registers\nend here: {THREAD_REGISTERS}", va="bottom", fontsize=9)
    axes.set(xlim=(-2.5, max(right, edge + 12)), ylim=(0, top), ylabel="KiB of shared memory, all programs of an SM",
             xlabel=f"registers per thread for the tile's sums alone\n({_SHORT})")  # fmt: skip
    axes.set_xticks(list(place.values()), [f"{sums:.0f}" for sums in place])
    counts = {reason: sum(rejection_reason(use) == reason for use in uses) for reason in reasons}
    rejected = ", ".join(f"{count} {reasons[reason]}" for reason, count in counts.items() if count)
    axes.set_title(f"{len(uses)} candidates" + (f"; crosses: {rejected}" if rejected else ""))
    axes.grid(axis="x", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)
    return figure
