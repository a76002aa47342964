"""Snippets of the library page that need several processes."""

from __future__ import annotations

import re

from places import ROOT


def run(words: str, **given) -> dict:
    """Run the one snippet of the page that has these words, with the names ``given``. Returns all names after it."""
    page = (ROOT / "site" / "library.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (found,) = [each for each in blocks if words in each]
    exec(compile(found, f"library.md: {words}", "exec"), given)
    return given
