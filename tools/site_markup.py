"""A Sphinx extension for the site: anchors of headings as in JupyterLab, formulas that need no script, and pictures
that open at their full size."""

from __future__ import annotations

from html import escape

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


def picture(translator: nodes.NodeVisitor, node: nodes.image) -> None:
    """A picture as a link to itself: on a telephone, the text in a wide one is too small to read."""
    node["alt"] = node.get("alt", "Figure")  # otherwise the file's name, which is a hash
    start, body = len(translator.body), translator.body
    type(translator).visit_image(translator, node)
    if not isinstance(node.parent, nodes.reference):
        address = escape(node["uri"])
        link = f'<a class="full-size" href="{address}" target="_blank" rel="noopener" title="Open at full size">'
        body[start:] = [link, *body[start:], "</a>"]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderers of formulas and pictures."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.add_node(nodes.image, override=True, html=(picture, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
