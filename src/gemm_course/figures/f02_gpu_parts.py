"""Where a Triton program runs, and what it reads: a GPU's parts with their sizes; the blocks of a vector's programs."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gemm_course.figures.shapes import bare, canvas, centred, rectangle
from gemm_course.figures.style import (
    BLACK,
    BLUE,
    DIM,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    WIDTH,
    WRONG,
    as_ink,
    color_of,
    drawing,
    ink_on,
)

# NVIDIA H100 SXM. An H200 has the same chip with 141 GB of memory at 4.8 TB/s.
SMS, WARP = 132, 32
_SM_COLUMNS = 12
_CORES = 4  # tensor cores of an SM
_MOST = 48  # elements that can be drawn with readable numbers
_PALE, _PALE_ORANGE = "#F4F4F4", "#FBE5C0"
_HEIGHT, _TOP = 4.7, 4.2


@drawing
def gpu_parts(num_warps: int = 4) -> Figure:
    """Draw an H100 in three steps: the GPU with its SMs, one SM, and one program with its warps and threads.

    Args:
        num_warps: warps of the program, 1, 2, 4 or 8.
    """
    if num_warps not in (1, 2, 4, 8):
        raise ValueError(f"num_warps must be 1, 2, 4 or 8, got {num_warps!r}")
    figure = Figure(figsize=(WIDTH, _HEIGHT))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    bare(axes, (0, WIDTH), (0, _HEIGHT))
    chosen = _draw_gpu(axes)
    _draw_sm(axes, chosen)
    _draw_program(axes, num_warps)
    return figure


def _heading(axes: Axes, x: float, title: str, note: str) -> None:
    axes.text(x, _TOP + 0.28, title, fontsize=12, fontweight="bold", color=BLACK, va="center")
    axes.text(x, _TOP + 0.08, note, fontsize=9, color=DIM, va="center")


def _part(axes: Axes, box: tuple[float, float, float, float], color: str, words: str, gid: str, **look) -> None:
    """A filled box (x, y, width, height) with words in its middle."""
    x, y, width, height = box
    rectangle(axes, x, y, width, height, fc=color, ec="white", lw=1, gid=gid)
    centred(axes, x + width / 2, y + height / 2, words, **{"fontsize": 9, "color": ink_on(color), **look})


def _zoom(axes: Axes, small: tuple[float, float, float, float], x: float, low: float, high: float) -> None:
    """Two lines from the right edge of a small box to the left edge of the picture of its inside."""
    left, bottom, width, height = small
    for y, end in ((bottom, low), (bottom + height, high)):
        axes.plot([left + width, x], [y, end], color=GREY, lw=0.9, ls=(0, (3, 2)), zorder=1.5)


def _draw_gpu(axes: Axes) -> tuple[float, float, float, float]:
    """The GPU; returns the box of the SM that the next picture shows."""
    left, width = 0.15, 3.0
    _heading(axes, left, "GPU: H100", f"{SMS} SMs share the L2 cache and the memory")
    rectangle(axes, left, 0.15, width, _TOP - 0.25, fc=_PALE, ec=BLACK, lw=1.2)
    rows, cell = SMS // _SM_COLUMNS, (width - 0.2) / _SM_COLUMNS
    top, chosen = _TOP - 0.2, None
    for number in range(SMS):
        row, column = divmod(number, _SM_COLUMNS)
        box = (left + 0.1 + column * cell, top - (row + 1) * 0.2, cell - 0.03, 0.17)
        one = (row, column) == (4, _SM_COLUMNS - 1)
        rectangle(axes, *box, fc=BLUE if one else SKY, lw=0, gid="SM")
        chosen = box if one else chosen
    below = top - rows * 0.2
    _part(axes, (left + 0.1, below - 0.5, width - 0.2, 0.42), GREEN, "L2 cache: 50 MB", "L2", fontsize=10)
    words = "memory (HBM): 80 GB\n3.35 TB/s"
    _part(axes, (left + 0.1, 0.25, width - 0.2, below - 0.83), PINK, words, "HBM", fontsize=10)
    return chosen


def _draw_sm(axes: Axes, chosen: tuple[float, float, float, float]) -> None:
    left, width, bottom = 3.75, 2.35, 0.15
    _heading(axes, left, "one SM", "runs one program, or a few")
    _zoom(axes, chosen, left, bottom, _TOP - 0.1)
    rectangle(axes, left, bottom, width, _TOP - 0.1 - bottom, fc="#E8F3FA", ec=BLUE, lw=1.5)
    inner, x = width - 0.2, left + 0.1
    core = inner / _CORES
    for i in range(_CORES):
        _part(axes, (x + i * core, 3.28, core - 0.04, 0.72), ORANGE, "tensor\ncore", "tensor core")
    # A program has a share of both: the right part of each, in one frame.
    share = 0.98
    rest = inner - share - 0.06
    for color, y, gid, words in (
        (SKY, 2.02, "registers", "registers:\n256 KiB, or\n65,536 of\n32 bits"),
        (GREEN, 0.84, "shared memory", "shared\nmemory:\nup to\n227 KiB"),
    ):
        rectangle(axes, x, y, inner - 0.04, 1.08, fc=color, ec="white", lw=1, gid=gid)
        centred(axes, x + rest / 2, y + 0.54, words, fontsize=9, color=ink_on(color))
        own = (x + rest + 0.06, y + 0.1, share - 0.16, 0.88)
        _part(axes, own, _PALE_ORANGE, "its share", f"share of {gid}")
    frame = (x + rest, 0.25, share - 0.04, 2.93)
    rectangle(axes, *frame, fill=False, ec=ORANGE, lw=2, gid="program")
    centred(axes, frame[0] + frame[2] / 2, 0.53, "a program\n(CTA)", fontsize=10, color=BLACK)
    _zoom(axes, frame, 6.65, 0.15, _TOP - 0.1)


def _draw_program(axes: Axes, num_warps: int) -> None:
    left, width, bottom = 6.65, 2.2, 0.15
    threads = num_warps * WARP
    _heading(axes, left, "one program (CTA)", f"num_warps={num_warps}: {threads} threads")
    rectangle(axes, left, bottom, width, _TOP - 0.1 - bottom, fc="white", ec=ORANGE, lw=1.5)
    room = 3.3 / num_warps
    step = (width - 0.2) / (WARP // 2)
    for warp in range(num_warps):
        top = _TOP - 0.2 - warp * room
        axes.text(left + 0.1, top - 0.1, f"warp {warp}", fontsize=9, color=BLACK, va="center")
        height = min(0.25, (room - 0.24) / 2)
        for thread in range(WARP):
            row, column = divmod(thread, WARP // 2)
            x, y = left + 0.1 + column * step, top - 0.22 - (row + 1) * height
            rectangle(axes, x, y, step - 0.025, height - 0.03, fc=_PALE_ORANGE, ec=ORANGE, lw=0.5, gid="thread")
    words = f"a warp: {WARP} threads, which\nexecute the same instruction"
    centred(axes, left + width / 2, bottom + 0.26, words, fontsize=9, color=DIM)


@drawing
def vector_blocks(n: int, block: int) -> Figure:
    """Draw a vector's elements by the program that computes them, the places that the last mask leaves out hatched.

    Args:
        n: elements, 1 to 48 with those that the mask leaves out.
        block: elements of a program.
    """
    if n < 1 or block < 1:
        raise ValueError(f"n and block must be at least 1, got {n} and {block}")
    programs = -(-n // block)
    places = programs * block
    if places > _MOST:
        raise ValueError(f"n must be small enough to label: at most {_MOST} places in whole blocks, got {places}")
    figure, axes = canvas(1.75)
    gap = 0.35
    for place in range(places):
        program = place // block
        x, color = place + gap * program, color_of(program)
        if place < n:
            rectangle(axes, x, 0, 0.94, 1, fc=color, ec="white", gid=f"program {program}")
        else:
            rectangle(axes, x, 0, 0.94, 1, fc="white", ec=WRONG, hatch="////", gid="masked")
        look = {"color": ink_on(color)} if place < n else {"color": as_ink(WRONG), "backgroundcolor": "white"}
        centred(axes, x + 0.47, 0.5, str(place), fontsize=9, **look)
    for program in range(programs):
        middle = program * (block + gap) + block / 2
        centred(axes, middle, 1.35, f"program {program}", fontsize=10, color=BLACK)
        first = f"{program} · {block}"
        centred(axes, middle, -0.35, f"{first} + (0 … {block - 1})", fontsize=9, color=DIM)
    end = places + gap * (programs - 1)
    bare(axes, (-0.2, end + 0.2), (-0.7, 1.7))
    out = places - n
    tail = f"; mask i < {n} leaves out {out}" if out else ""
    axes.set_title(f"i = program_id · BLOCK + arange: {n} elements, BLOCK = {block}{tail}")
    return figure
