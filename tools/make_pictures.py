"""Draw the picture of the README: `python tools/make_pictures.py` writes docs/grouped_gemm.png."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from course_kernels import testing
from course_kernels.viz.overview import overview

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "grouped_gemm.png"
PIXELS_WIDE = 1600
COLORS = 128  # the figure has a few flat colours and the edges of text: a palette takes a third of the bytes


def png(figure: Figure, pixels_wide: int = PIXELS_WIDE) -> bytes:
    """A figure as a PNG with a palette, without the software's name in it."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=pixels_wide / figure.get_figwidth())
    image = Image.open(drawn).convert("RGB")
    image.quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def hero() -> Figure:
    """64 tokens over 8 experts, as a skewed router spreads them."""
    return overview(testing.route("zipf", 64, s=1.2, seed=1))


def main() -> int:
    TARGET.parent.mkdir(exist_ok=True)
    data = png(hero())
    TARGET.write_bytes(data)
    print(f"{TARGET.relative_to(ROOT)}: {len(data) / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
