"""Sphinx's settings of the course's site; `tools/make_site.py` gathers the pages and calls Sphinx with them.

Nothing is executed: pages show the outputs that the notebooks store. Nothing is fetched, neither now nor by a reader's
browser: formulas become MathML, which browsers draw themselves, and every script and style sheet is a local file.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))  # for site_markup

project = "Grouped GEMM"
author = "The grouped GEMM course authors"
copyright = author
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "site_markup"]
# Titles of pages that are read out of order stay short: no "Grouped GEMM documentation".
html_title = "Grouped GEMM"
html_theme = "sphinx_book_theme"
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "show_prev_next": True,
    "navbar_persistent": [],  # the search is in the side bar already
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "github-dark",
}
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
html_baseurl = os.environ.get("SITE_ADDRESS", "")  # with a slash at its end; previews of pages name their picture by it
html_static_path = [str(HERE / "_static"), str(HERE.parent / "docs" / "grouped_gemm.png")]
html_css_files = ["site.css"]
html_js_files = [("plots.js", {"defer": "defer"}), ("pages.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_favicon = str(HERE / "_static" / "icon.svg")
html_math_renderer = "mathml"

nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "Show the {type}"
nb_code_prompt_hide = "Hide the {type}"
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings give shapes and dtypes, which say more
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
toc_object_entries = False  # each has a heading already

exclude_patterns = ["originals"]  # notebooks to download
