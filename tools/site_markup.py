"""A Sphinx extension for the site: formulas that need no script, pictures that open at their full size, and each page's
description for searches and previews."""

from __future__ import annotations

from html import escape

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

PREVIEW = "_static/grouped_gemm.png"
SHORTEST, LONGEST = 60, 200  # characters of a description
A_SENTENCE = 90  # a shorter paragraph with links is a list of links


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
    if not node.get("alt"):
        logging.getLogger(__name__).warning("a picture has no description: %s", node["uri"], location=node)
    start, body = len(translator.body), translator.body
    type(translator).visit_image(translator, node)
    if not isinstance(node.parent, nodes.reference):
        address = escape(node["uri"])
        link = f'<a class="full-size" href="{address}" target="_blank" rel="noopener" title="Open at full size">'
        body[start:] = [link, *body[start:], "</a>"]


def description(doctree: nodes.document) -> str:
    """The first paragraphs of a page, until they have SHORTEST characters, cut off at a word after LONGEST."""
    text = ""
    for paragraph in doctree.findall(nodes.paragraph):
        if any(paragraph.findall(nodes.reference)) and len(paragraph.astext()) < A_SENTENCE:
            continue
        text = f"{text} {' '.join(paragraph.astext().split())}".strip()
        if len(text) >= SHORTEST:
            break
    return text if len(text) < LONGEST else text[:LONGEST].rpartition(" ")[0] + " …"


def preview(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Describe a page in its head, if it has text. A picture needs the site's address, which `html_baseurl` has."""
    if doctree is None or not (text := description(doctree)):
        return
    title = f"{context['title']} · {app.config.project}"
    about = {"og:title": title, "og:description": text, "og:site_name": app.config.project, "og:type": "article"}
    if base := app.config.html_baseurl:
        about |= {"og:url": f"{base}{page}.html", "og:image": base + PREVIEW}
    tags = [f'<meta name="description" content="{escape(text)}"/>']
    tags += [f'<meta property="{name}" content="{escape(value)}"/>' for name, value in about.items()]
    context["metatags"] = "\n".join([context.get("metatags", ""), *tags])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderers of formulas and pictures, and the descriptions of pages."""
    app.connect("html-page-context", preview)
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.add_node(nodes.image, override=True, html=(picture, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
