"""Many GPUs: what ranks send, a token's journey, the wire and the products over time, loads, and larger clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from course_kernels.schedule import LayerTime
from gemm_course.figures.shapes import arrow, bare, canvas, canvas_grid, centred, name_rows, rectangle
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREY, ORANGE, PINK, RED, SKY, color_of, drawing, ink_on

_STEPS = {"dispatch": ORANGE, "experts": BLUE, "combine": SKY}
_WAYS = {"no exchange": FAINT, "by hand": PINK, "all_to_all": SKY, "overlapped": ORANGE, "symmetric": BLUE}
_LINKS = {"NVLink": ORANGE, "network": PINK, "experts": BLUE}


@drawing
def splits(ids: Sequence[Sequence[Sequence[int]]], experts: int) -> Figure:
    """Draw the experts of each rank's tokens, and the rows that it sends to each rank: one for a token, or none.

    A colour belongs to the rank that has the expert. An id that is nobody's is grey.

    Args:
        ids: rank → token → the ids of its experts.
        experts: of all ranks together.
    """
    ranks, top_k = len(ids), len(ids[0][0])
    each = experts // ranks
    deepest = [max(1, len(line)) for line in ids]
    figure, axes = canvas(0.36 * sum(deepest) + 0.3 * ranks + 0.8)
    left = 1.1 + 0.55 * top_k + 0.9
    centred(axes, 1.1 + 0.275 * top_k, -0.55, "ids of each token's experts", fontsize=9)
    for r in range(ranks):
        x = left + 1.75 * r
        last = f"{r * each} to {(r + 1) * each - 1}" if each > 1 else f"{r}"
        centred(axes, x + 0.75, -0.55, f"to rank {r}\n(experts {last})", fontsize=9)
    y = 0.0
    for rank, line in enumerate(ids):
        height = 0.75 * deepest[rank]
        centred(axes, 0.35, y + height / 2, f"rank {rank}", fontsize=10, fontweight="bold")
        for t, choices in enumerate(line):
            axes.text(1.0, y + 0.75 * t + 0.36, f"{t}", ha="right", va="center", fontsize=9)
            for j, e in enumerate(choices):
                color = color_of(e // each) if 0 <= e < experts else FAINT
                rectangle(axes, 1.1 + 0.55 * j, y + 0.75 * t + 0.06, 0.5, 0.6, fc=color, gid=f"{rank} {t} {j}")
                centred(axes, 1.35 + 0.55 * j, y + 0.75 * t + 0.36, str(e), fontsize=9, color=ink_on(color))
        arrow(axes, (left - 0.75, y + height / 2), (left - 0.2, y + height / 2), GREY, mutation_scale=14)
        for r in range(ranks):
            x, row = left + 1.75 * r, 0
            rectangle(axes, x, y, 1.5, height - 0.03, fc="none", ec=FAINT)
            for t, choices in enumerate(line):
                here = [e for e in choices if 0 <= e < experts and e // each == r]
                if here:
                    color = color_of(r)
                    rectangle(axes, x + 0.08, y + 0.75 * row + 0.06, 1.34, 0.6, fc=color, gid=f"{rank} to {r}: {t}")
                    text = f"token {t}" + (f", {len(here)} experts" if len(here) > 1 else "")
                    centred(axes, x + 0.75, y + 0.75 * row + 0.36, text, fontsize=8, color=ink_on(color))
                    row += 1
        y += height + 0.35
    bare(axes, (-0.1, left + 1.75 * ranks), (y - 0.2, -1.1))
    return figure


@drawing
def journey() -> Figure:
    """Draw the journey of one token: from its rank to the ranks of its experts, through the experts, and back.

    It has two experts at rank 1. Both get its row there, their results are summed, and one row returns. Its rank adds
    what returns.
    """
    figure, axes = canvas(3.8)

    def box(x, y, width, text, color, gid, height=0.76):
        rectangle(axes, x, y + 0.5 - height / 2, width, height, fc=color, ec="white", gid=gid)
        centred(axes, x + width / 2, y + 0.5, text, fontsize=9, color=ink_on(color))

    for rank in range(4):
        rectangle(axes, 0.9, rank + 0.04, 9.1, 0.92, fc="#F5F5F5", ec="none")
        axes.text(0, rank + 0.5, f"rank {rank}", va="center", fontsize=10, fontweight="bold", color=BLACK)
    for x, text in ((1.6, "token and its ids"), (2.85, "dispatch"), (3.8, "its row"), (5.05, "experts"),
                    (6.65, "sum of the rank"), (8.0, "combine"), (9.35, "result")):  # fmt: skip
        centred(axes, x, -0.25, text, fontsize=9)
    box(1.0, 0, 1.2, "2, 3 and 6", color_of(0), "token")
    for rank, experts, text in ((1, (2, 3), "w₂ y₂ + w₃ y₃"), (3, (6,), "w₆ y₆")):
        color, middle = color_of(rank), rank + 0.5
        box(3.5, rank, 0.6, "row", color, f"row {rank}")
        box(6.1, rank, 1.1, text, color, f"sum {rank}")
        for i, expert in enumerate(experts):
            y = middle + 0.43 * (i - (len(experts) - 1) / 2)
            box(4.65, y - 0.5, 0.8, f"expert {expert}", color, f"expert {expert}", height=0.36)
            for start, end in (((4.13, middle), (4.62, y)), ((5.48, y), (6.07, middle))):
                arrow(axes, start, end, GREY, mutation_scale=12)
        arrow(axes, (2.25, 0.55), (3.47, middle), mutation_scale=16)
        arrow(axes, (7.25, middle), (8.75, 0.62), mutation_scale=16)
    box(8.8, 0, 1.1, "their sum", color_of(0), "result")
    bare(axes, (-0.05, 10.1), (4.05, -0.5))
    return figure


@drawing
def matrices(panels: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """Draw the rows that each rank (down) sends to each rank (across). The darker, the more; one scale for all.

    Args:
        panels: title → the matrix.
    """
    figure, axes_of = canvas_grid(3.2, 1, len(panels))
    top = max(max(map(max, matrix)) for matrix in panels.values()) or 1
    for axes, (title, matrix) in zip(axes_of, panels.items(), strict=True):
        for s, line in enumerate(matrix):
            for r, count in enumerate(line):
                color = _shade(count / top)
                rectangle(axes, r + 0.03, s + 0.03, 0.94, 0.94, fc=color, gid=f"{title} {s} {r}")
                centred(axes, r + 0.5, s + 0.5, f"{count:,}", fontsize=9, color=ink_on(color))
        total = sum(map(sum, matrix))
        axes.set_title(f"{title}: {total:,} rows", fontsize=10)
        axes.set(xlim=(0, len(matrix)), ylim=(len(matrix), 0), aspect="equal")
        axes.set_xticks([r + 0.5 for r in range(len(matrix))], [f"to {r}" for r in range(len(matrix))])
        axes.set_yticks([r + 0.5 for r in range(len(matrix))], [f"from {r}" for r in range(len(matrix))])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


def _shade(share: float) -> str:
    """From nearly white to blue."""
    low, high = (0.92, 0.95, 0.99), (0.0, 0.30, 0.55)
    return to_hex([a + (b - a) * share for a, b in zip(low, high)])


@drawing
def timelines(times: Mapping[str, LayerTime], recorded: Mapping[str, float]) -> Figure:
    """Draw a layer's steps on the wire and on the SMs of one GPU, simulated. A dashed line is the recorded end.

    Args:
        times: way → what the model says.
        recorded: way → microseconds, of the ways that were measured.
    """
    figure, axes_of = canvas_grid(1.15 * len(times) + 0.7, len(times), 1, sharex=True)
    for axes, (title, time) in zip(axes_of, times.items(), strict=True):
        for step, chunk, start, end in time.spans:
            lane, color = (1 if step == "experts" else 0), _STEPS[step]
            axes.barh(lane, (end - start) / 1e3, left=start / 1e3, height=0.8, color=color, ec="white",
                      gid=f"{title} {step} {chunk}")  # fmt: skip
        measured = "not recorded yet"
        if title in recorded:
            axes.axvline(recorded[title] / 1e3, color=BLACK, ls="--", lw=1.4, gid=f"{title} recorded")
            measured = f"recorded {recorded[title] / 1e3:.2f} ms"
        axes.set_title(f"{title}: {time.total_us / 1e3:.2f} ms simulated, {measured}", fontsize=10)
        name_rows(axes, ["wire", "SMs"], fontsize=9)
    axes_of[-1].set_xlabel("ms")
    handles = [Patch(color=color) for color in _STEPS.values()]
    figure.legend(handles, list(_STEPS), loc="outside lower right", ncols=len(handles), fontsize=9)
    return figure


@drawing
def recorded_layers(panels: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Draw the recorded forward of layers, by how their tokens travel, first without an exchange.

    Args:
        panels: title → GPUs → way → microseconds; as from ``layer_records.parallel_panels``. The two of a row have one
            scale.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes_of = canvas_grid(1.75 * rows + 0.6, rows, columns, sharey="row")
    for axes in axes_of[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, layers) in zip(axes_of, panels.items()):
        size = 9 if len(layers) < 3 else 8
        for place, (gpus, us) in enumerate(layers.items()):
            for i, (way, color) in enumerate(_WAYS.items()):
                if way in us:
                    x, ms = place + 0.185 * (i - 2), us[way] / 1e3
                    axes.bar(x, ms, width=0.175, color=color, gid=f"{title} {gpus} {way}")
                    axes.annotate(f"{ms:#.3g}", (x, ms), (0, 1), textcoords="offset points", ha="center", fontsize=size)
        axes.set_title(title, fontsize=10)
        axes.set_xticks(range(len(layers)), list(layers), fontsize=9)
        axes.set_xlim(-0.5, len(layers) - 0.5)
        axes.tick_params(axis="x", length=0)
        axes.margins(y=0.18)
    for axes in axes_of[::columns]:
        axes.set_ylabel("ms")
    handles = [Patch(color=color) for color in _WAYS.values()]
    figure.legend(handles, list(_WAYS), loc="outside lower right", ncols=len(handles), fontsize=9)
    return figure


@drawing
def loads(arriving: Mapping[str, Sequence[int]]) -> Figure:
    """Draw how much each rank has to compute, in choices. Hatched: it waits for the slowest rank.

    Args:
        arriving: title → choices of each rank.
    """
    figure, axes_of = canvas_grid(2.7, 1, len(arriving), sharey=True)
    for axes, (title, counts) in zip(axes_of, arriving.items(), strict=True):
        top, mean = max(counts), sum(counts) / len(counts)
        for rank, count in enumerate(counts):
            slowest = count == top
            axes.bar(rank, count, width=0.7, color=RED if slowest else BLUE, gid=f"{title} {rank}")
            if not slowest:
                axes.bar(rank, top - count, bottom=count, width=0.7, color="white", ec=GREY, hatch="///",
                         gid=f"{title} {rank} waits")  # fmt: skip
                text = f"waits {(top - count) / top:.0%}"
                axes.annotate(text, (rank, top), (0, 2), textcoords="offset points", ha="center", fontsize=9)
        axes.axhline(mean, color=BLACK, ls="--", lw=1.2)
        axes.set_title(f"{title}: slowest rank {top / mean:.2f} × the mean", fontsize=10)
        axes.set_xticks(range(len(counts)), [f"rank {rank}" for rank in range(len(counts))], fontsize=9)
        axes.tick_params(axis="x", length=0)
        axes.margins(y=0.1)
    axes_of[0].set_ylabel("choices to compute\n(dashed: the mean)")
    return figure


@drawing
def clusters(panels: Mapping[int, Mapping[str, Sequence[float]]]) -> Figure:
    """Draw the time of an exchange on both links, for more and more GPUs. The dashed line is the experts' time.

    Args:
        panels: GPUs → copies → ms on NVLink, on the network, and of the experts.
    """
    figure, axes_of = canvas_grid(3.0, 1, len(panels), sharey=True)
    for axes, (ranks, ways) in zip(axes_of, panels.items(), strict=True):
        for i, (copies, (nvlink, network, experts)) in enumerate(ways.items()):
            axes.bar(i - 0.2, nvlink, width=0.38, color=_LINKS["NVLink"], gid=f"{ranks} {copies} NVLink")
            axes.bar(i + 0.2, network, width=0.38, color=_LINKS["network"], gid=f"{ranks} {copies} network")
            axes.plot([i - 0.45, i + 0.45], [experts, experts], color=_LINKS["experts"], lw=2, ls="--")
        axes.set_title(f"{ranks} GPUs", fontsize=10)
        axes.set_xticks(range(len(ways)), [f"a row\na {copies}" for copies in ways], fontsize=9)
        axes.tick_params(axis="x", length=0)
    axes_of[0].set_ylabel("ms, there and back")
    handles = [Patch(color=_LINKS[link]) for link in ("NVLink", "network")]
    handles += [Line2D([], [], color=_LINKS["experts"], lw=2, ls="--")]
    figure.legend(handles, list(_LINKS), loc="outside lower right", ncols=3, fontsize=9)
    return figure
