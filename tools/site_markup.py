"""A Sphinx extension for the site: anchors of headings as in JupyterLab, and formulas that need no script."""

from __future__ import annotations

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def heading_slug(title: str) -> str:
    """Anchors as JupyterLab makes them, so that a link to a heading works in both: spaces become `-`, case is kept."""
    return title.replace(" ", "-")


def inline(translator: nodes.NodeVisitor, node: nodes.math) -> None:
    """A formula in a line, as MathML, which browsers draw themselves."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(translator: nodes.NodeVisitor, node: nodes.math_block) -> None:
    """A formula on a line of its own."""
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer of formulas."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
