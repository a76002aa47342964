"""The MoE layer: bytes of its operations, what fusing saves, what backward keeps, and where fusing does not pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from gemm_course.figures.shapes import arrow, bare, canvas, canvas_grid, centred, name_rows, rectangle, ticks_at
from gemm_course.figures.style import BLACK, BLUE, FAINT, GREEN, GREY, ORANGE, PINK, SKY, color_of, drawing, ink_on

_PARTS = {"routing": PINK, "gather": ORANGE, "product": BLUE, "activation": GREEN, "combine": SKY}
_LAYERS = {"fifteen operations": GREEN, "Liger": ORANGE, "this library": BLUE}  # lesson 15 has these colours, too


@drawing
def operations(moved: Sequence[tuple[str, float, float, float]]) -> Figure:
    """Draw the bytes that each operation of a layer reads and writes, in their order.

    Products are blue, all others orange. The lighter end of a bar is what is written. Autograd keeps it where it has
    a dot.

    Args:
        moved: name, bytes read, bytes written, bytes of these that are kept for backward.
    """
    figure, axes = canvas(0.25 * len(moved) + 0.9)
    for y, (name, read, written, kept_) in enumerate(moved):
        color, right = BLUE if name == "product" else ORANGE, (read + written) / 1e9
        axes.barh(y, read / 1e9, height=0.7, color=color, gid=f"{y} read")
        axes.barh(y, written / 1e9, left=read / 1e9, height=0.7, color=color, alpha=0.45, gid=f"{y} written")
        large = kept_ > 1e6
        if large:
            axes.plot([(read + written / 2) / 1e9], [y], "o", color=BLACK, ms=6, gid=f"{y} kept")
        axes.text(
            right + 0.03, y, f"{right:.2f}{f', keeps {kept_ / 1e9:.2f}' if large else ''}", va="center", fontsize=9
        )
    name_rows(axes, [f"{i + 1}  {name}" for i, (name, *_) in enumerate(moved)], fontsize=9)
    axes.set_xlabel("GB moved (dark: read, light: written; a dot: kept for backward)")
    axes.set_xlim(right=1.18 * max(read + written for _, read, written, _ in moved) / 1e9)
    return figure


@drawing
def fusions(plans: Mapping[str, Mapping[str, float]], recorded: Mapping[str, float] | None = None) -> Figure:
    """Draw the bytes that a layer moves, part by part, after each fusion.

    Args:
        plans: title → part → bytes; a part's colour goes by its first word.
        recorded: title → ms, where the time was recorded.
    """
    recorded = recorded or {}
    figure, axes = canvas(0.42 * len(plans) + 1.2)
    most = max(sum(parts.values()) for parts in plans.values())
    used: dict[str, str] = {}
    for y, (title, parts) in enumerate(plans.items()):
        left = 0.0
        for part, moved in parts.items():
            color = _PARTS[part.split()[0]]
            used.setdefault(part.split()[0], color)
            axes.barh(y, moved / 1e9, left=left, height=0.66, color=color, ec="white", gid=f"{y} {part}")
            if moved > 0.1 * most:
                centred(axes, left + moved / 2e9, y, part, fontsize=9, color=ink_on(color))
            left += moved / 1e9
        time = f", {recorded[title]:.1f} ms" if title in recorded else ""
        axes.text(left + 0.1, y, f"{left:.1f} GB{time}", va="center", fontsize=9, gid=f"{y} total")
    axes.set_xlim(right=1.2 * most / 1e9)
    name_rows(axes, list(plans), fontsize=9)
    axes.set_xlabel("GB moved")
    handles = [axes.barh([0], [0], color=color) for color in used.values()]
    figure.legend(handles, list(used), loc="outside upper left", ncols=len(used), fontsize=9)
    return figure


@drawing
def kept(columns: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw what each way keeps for backward as a column of bytes, one block for each tensor.

    Args:
        columns: title → tensor → bytes.
    """
    figure, axes = canvas(3.6)
    top = max(sum(parts.values()) for parts in columns.values())
    for i, (title, parts) in enumerate(columns.items()):
        height = 0.0
        for j, (name, size) in enumerate(parts.items()):
            rectangle(axes, 3.6 * i, height, 1.5, size, fc=color_of(j), ec="white", lw=2, gid=f"{title} {name}")
            axes.text(3.6 * i + 1.6, height + size / 2, f"{name}, {size / 1e9:.2f} GB", va="center", fontsize=9)
            height += size
        centred(axes, 3.6 * i + 0.75, height + 0.04 * top, f"{height / 1e9:.2f} GB", fontsize=10, fontweight="bold")
        axes.text(3.6 * i, -0.03 * top, title, ha="left", va="top", fontsize=10)
    bare(axes, (-0.2, 3.6 * len(columns)), (-0.13 * top, 1.12 * top))
    return figure


@drawing
def backward_epilogue() -> Figure:
    """Draw the one product of backward from which three results come: its epilogue reads what forward kept.

    The tile of dy · Wᵀ stays in registers. With the kept pre-activation and the routing weight it gives the gradient of
    the pre-activation, the activation once more, and a dot product for each row.
    """
    figure, axes = canvas(3.1)

    def box(x, y, width, text, color, gid):
        rectangle(axes, x, y, width, 0.8, fc=color, ec="white", gid=gid)
        centred(axes, x + width / 2, y + 0.4, text, fontsize=9, color=ink_on(color))

    given = [("dy, rows by index", ORANGE), ("down, Wᵀ", BLUE), ("pre, kept", GREY), ("s, routing weight", GREY)]
    for i, (text, color) in enumerate(given):
        box(0, 0.1 + 1.1 * i, 1.9, text, color, text.split(",")[0])
    box(2.7, 0.65, 1.9, "tile t of dy · Wᵀ\n(registers)", FAINT, "sums")
    box(2.7, 2.3, 1.9, "activation a,\nits slope a′", FAINT, "again")
    rectangle(axes, 5.3, 0.1, 0.9, 4.1, fc=FAINT, ec="white", gid="epilogue")
    axes.text(5.75, 2.15, "epilogue", fontsize=9, rotation=90, ha="center", va="center")
    results = [
        ("s · t · a′: gradient of pre\n→ dx, gradient of gate_up", BLUE),
        ("s · a\n→ gradient of down", BLUE),
        ("t · a, summed over I\n→ the router's gradient", PINK),
    ]
    for i, (text, color) in enumerate(results):
        box(6.9, 0.1 + 1.65 * i, 2.6, text, color, f"result {i}")
        arrow(axes, (6.25, 0.5 + 1.65 * i), (6.85, 0.5 + 1.65 * i), mutation_scale=16)
    ways = [
        ((1.95, 0.5), (2.65, 1.0)), ((1.95, 1.6), (2.65, 1.1)), ((1.95, 2.7), (2.65, 2.7)),
        ((4.65, 1.05), (5.25, 1.05)), ((4.65, 2.7), (5.25, 2.7)), ((1.95, 3.8), (5.25, 3.8)),
    ]  # fmt: skip
    for start, end in ways:
        arrow(axes, start, end, mutation_scale=16)
    bare(axes, (-0.1, 9.6), (4.4, -0.1))
    return figure


@drawing
def gains(series: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draw how many times as fast each way is as the fifteen operations, over the number of tokens.

    Args:
        series: way → tokens → ratio; a way whose name ends with "recorded" is drawn as dots.
    """
    figure, axes = canvas(3.4)
    for i, (name, ratios) in enumerate(series.items()):
        look = dict(marker="os"[i % 2], ms=9 - 2 * i, ls="none") if name.endswith("recorded") else dict(lw=2)
        axes.plot(list(ratios), list(ratios.values()), color=color_of(i), label=name, gid=name, **look)
    axes.axhline(1, color=GREY, lw=1)
    axes.set(xscale="log", xlabel="tokens", ylabel="times as fast as\nfifteen operations", ylim=(0, None))
    every = [tokens for ratios in series.values() for tokens in ratios]
    ticks_at(axes.xaxis, [4**i for i in range(9)], min(every), max(every), "{:,.0f}")
    axes.legend(loc="lower right", fontsize=9)
    return figure


@drawing
def overheads(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Draw how many times as long each layer takes as its products alone, over the number of tokens.

    At the grey line everything around the products would be free.

    Args:
        panels: title → way → tokens → ratio.
    """
    figure, axes_of = canvas_grid(3.4, 1, len(panels), sharey=True)
    for axes, (title, ways) in zip(axes_of, panels.items(), strict=True):
        for name, ratios in ways.items():
            color = _LAYERS[name]
            axes.plot(list(ratios), list(ratios.values()), "o-", color=color, label=name, gid=f"{title} {name}")
        axes.axhline(1, color=GREY, lw=1)
        every = [tokens for ratios in ways.values() for tokens in ratios]
        axes.set(xscale="log", yscale="log", xlabel="tokens")
        ticks_at(axes.xaxis, [8**i for i in range(7)], min(every), max(every), "{:,.0f}")
        axes.set_title(title, fontsize=10)
    low, high = axes_of[0].get_ylim()
    ticks_at(axes_of[0].yaxis, [1, 1.5, 2, 3, 5, 10, 20, 50], low, high)
    axes_of[0].set_ylabel("times as long as\nthe products alone")
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=9)
    return figure


@drawing
def losses(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the loss of every training step: the first curve as a wide line, the others as thin ones on it."""
    figure, (left, right) = canvas_grid(3.2, 1, 2, width_ratios=(2, 1))
    first = next(iter(curves.values()))
    for i, (name, losses_) in enumerate(curves.items()):
        steps = range(1, len(losses_) + 1)
        left.plot(steps, losses_, color=(ORANGE, BLACK)[min(i, 1)], lw=6 - 4.5 * min(i, 1), label=name, gid=name)
        if i:
            right.plot(steps, [a - b for a, b in zip(losses_, first)], color=BLACK, lw=1.2, gid=f"{name} difference")
    left.set(xlabel="step", ylabel="loss", ylim=(0, None))
    left.legend(loc="upper right", fontsize=9)
    right.axhline(0, color=ORANGE, lw=2)
    right.set(xlabel="step")
    right.set_title(" and ".join(list(curves)[1:]) + f" minus {next(iter(curves))}", fontsize=10)
    right.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    return figure
