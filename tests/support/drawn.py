"""What a figure shows, for tests: its rectangles, by the name that the figure gave them, and its words."""

from matplotlib.patches import Rectangle


def rectangles(axes, gid):
    return [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_gid() == gid]


def boxes(axes, gid):
    """(x, y, width, height) of each rectangle."""
    found = [(*each.get_xy(), each.get_width(), each.get_height()) for each in rectangles(axes, gid)]
    return [tuple(round(value, 6) for value in box) for box in found]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def title(axes):
    return axes.get_title(loc="left")
