"""The built site: complete, without a dead link, with nothing from other hosts, and readable in a browser."""

from __future__ import annotations

import contextlib
import functools
import html
import http.server
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from browser import wait_for
from places import ROOT

NEEDS = "needs the extra `site`: pip install '.[course,site]'"
for module in ("sphinx", "myst_nb", "sphinx_book_theme", "latex2mathml"):
    pytest.importorskip(module, reason=NEEDS)

import course_kernels  # noqa: E402
import make_site  # noqa: E402
import site_plots  # noqa: E402
from course_kernels.bench.rows import title_of  # noqa: E402
from gemm_course.exercises import manifest  # noqa: E402

LESSONS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
NARROW, WIDE = 400, 1400
ADDRESS = "https://course.invalid/site/"
# Attributes whose addresses a browser loads by itself. The address of an <a> is loaded only after a click.
LOADS = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}


class Parsed(HTMLParser):
    """A page's ids, its links, and the addresses that it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get("rel") == "canonical":  # an address for search engines
            return
        self.ids |= {attributes.get("id"), attributes.get("name")}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if attributes.get(LOADS.get(tag)):
            self.loads.append(attributes[LOADS[tag]])
        self.loads += re.findall(r"url\(([^)]+)\)", attributes.get("style") or "")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built site. Built in another process, because Sphinx and its imports change the process."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "tools" / "make_site.py"), str(folder)]
    variables = {**os.environ, "SITE_ADDRESS": ADDRESS}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


@pytest.fixture(scope="session")
def pages(site):
    """Every page by its path in the site, parsed."""
    return {path.relative_to(site).as_posix(): Parsed(path.read_text("utf-8")) for path in content(site)}


def content(site: Path) -> list[Path]:
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]


def is_external(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["make_site.py", str(tmp_path / "file" / "site")])
    assert make_site.main() == 1
    assert re.fullmatch(r"The site needs a folder that can be written: [^\n]+\n", capsys.readouterr().out)


def test_every_lesson_exercise_and_public_name_has_a_page(site, pages):
    wanted = [f"notebooks/{path.stem}.html" for path in LESSONS]
    wanted += [f"exercises/{each.name}.html" for each in manifest.exercises()]
    wanted += [f"{path.stem}.html" for path in (ROOT / "site").glob("*.md")]
    assert [page for page in [*wanted, "notebooks/glossary.html", "search.html"] if page not in pages] == []
    described = set().union(*(pages[page].ids for page in pages if page.startswith("api/")))
    names = {f"course_kernels.{name}" for name in course_kernels.__all__}
    assert {name.replace("course_kernels.runtime", "module-course_kernels.runtime") for name in names} <= described


def test_no_page_and_no_style_sheet_loads_anything_from_another_host(site, pages):
    external = {page: [each for each in parsed.loads if is_external(each)] for page, parsed in pages.items()}
    assert {page: found for page, found in external.items() if found} == {}
    for sheet in site.rglob("*.css"):
        found = re.findall(r"""(?:url\(|@import)\s*['"]?([^'")\s]+)""", sheet.read_text("utf-8"))
        assert [each for each in found if is_external(each)] == [], sheet.name


def test_every_internal_link_leads_to_a_page_and_a_place_in_it(site, pages):
    dead = []
    for page, parsed in pages.items():
        for link in [each for each in parsed.links + parsed.loads if not is_external(each)]:
            if link.startswith("data:"):
                continue
            path, _, anchor = link.partition("#")
            target = (site / page).parent / unquote(path.partition("?")[0]) if path else site / page
            name = target.resolve().relative_to(site.resolve()).as_posix()
            if not target.is_file() or (anchor and name in pages and unquote(anchor) not in pages[name].ids):
                dead.append((page, link))
    assert dead == []
    glossary = [link for link in pages["notebooks/glossary.html"].links if link.startswith("#")]
    assert len(glossary) > 5, "the glossary's links to its own words"


def test_an_exercise_has_its_hints_and_its_solution_folded(site):
    for exercise in manifest.exercises():
        text = (site / "exercises" / f"{exercise.name}.html").read_text("utf-8")
        folded = re.findall(r"<details><summary>(Hint \d|Show it)</summary>", text)
        assert folded == [*(f"Hint {i}" for i in range(1, len(exercise.hints) + 1)), "Show it"]
        assert "BEGIN SOLUTION" not in text
        before, _, solution = text.partition("<details><summary>Show it")
        assert exercise.function in solution.partition("</details>")[0]
        assert "NotImplementedError" in before, "the hole"


def test_an_answer_to_a_guess_is_folded(site):
    for lesson in LESSONS:
        cells = json.loads(lesson.read_text("utf-8"))["cells"]
        tagged = sum("hide-output" in cell["metadata"].get("tags", []) for cell in cells)
        text = (site / "notebooks" / f"{lesson.stem}.html").read_text("utf-8")
        assert len(re.findall(r'<details class="[\w ]*hide below-input', text)) == tagged, lesson.stem


def test_a_picture_opens_at_its_full_size(site):
    for page in [*(f"notebooks/{path.stem}" for path in LESSONS), "exercises/01_offsets", "index"]:
        text = (site / f"{page}.html").read_text("utf-8")
        linked = re.findall(r'<a class="full-size" href="([^"]+)" target="_blank"[^>]*><img [^>]*src="\1"', text)
        assert len(linked) == text.count("<img ") > 0, page


def test_each_picture_is_described(site):
    for path in content(site):
        for picture in re.findall(r'<a class="full-size"[^>]*><img [^>]*>', path.read_text("utf-8")):
            text = html.unescape(re.search(r'alt="([^"]*)"', picture)[1])
            assert len(text) > 30, (path, picture)
            assert text.endswith("."), text
            assert not re.search(r"\b(\w+) \1\b", text), f"a name in place of a word: {text}"
    lesson = (site / "notebooks" / "04_static_round_robin.html").read_text("utf-8")
    assert 'alt="Recorded: which of 4 programs computed each tile. Every C to scale, its tiles coloured' in lesson


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ('matrices.error_map(c, want, title="lda = K")', "lda = K. The errors of a result: white is right"),
        (
            '%matplotlib inline\nx = 1\ndraw({"a": x, "b": 2})',
            "Timelines on one time axis, so that",
        ),
    ],
)
def test_a_picture_is_described_by_the_function_that_drew_it(code, text):
    imports = "from gemm_course.figures import matrices\nfrom gemm_course.figures.timeline import compare as draw"
    sources = [imports, code]
    cells = [{"cell_type": "code", "source": each, "metadata": {}, "id": str(i)} for i, each in enumerate(sources)]
    cells[1]["outputs"] = [{"data": {"image/png": ""}}]
    make_site.describe_figures("a.ipynb", cells)
    assert cells[0]["metadata"] == {}
    found = cells[1]["metadata"]["mystnb"]["image"]["alt"]
    assert found.startswith(text)
    assert found.endswith(" (a; b)." if "draw" in code else ".")
    cells[1]["source"] = "print(1)"
    with pytest.raises(ValueError, match=r"a\.ipynb: cell 1 must call one function that draws, got 0"):
        make_site.describe_figures("a.ipynb", cells)


def test_a_summary_has_words_and_no_link(site):
    for path in content(site):
        for attributes, inside in re.findall(r"<summary([^>]*)>(.*?)</summary>", path.read_text("utf-8"), re.DOTALL):
            assert "<a " not in inside, (path, inside)
            words = re.sub(r"<[^>]+>", "", inside).strip()
            assert words or re.search(r'aria-label="Pages below: [^"]+"', attributes), (path, inside)
    assert make_site.unnested('<summary><i>f</i> of <a href="x">y</a>!</summary>z') == (
        '<summary><i>f</i> of y!</summary><p><a href="x">y</a></p>z'
    )


def test_nothing_is_published_that_is_no_page(site, pages):
    assert [path for path in site.rglob("*.html") if path.relative_to(site).as_posix() not in pages] == []
    assert not (site / "originals").exists()


def test_each_page_describes_itself_for_searches_and_previews(site):
    found = {}
    for path in [site / f"{path.stem}.html" for path in (ROOT / "site").glob("*.md")] + [
        site / "notebooks" / f"{path.stem}.html" for path in LESSONS
    ]:
        tags = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)"', path.read_text("utf-8")))
        found[path] = tags["description"]
        assert 60 <= len(html.unescape(tags["description"])) <= 202, tags
        assert tags["og:description"] == tags["description"]
        assert tags["og:title"].endswith(" · Grouped GEMM")
        assert tags["og:url"] == ADDRESS + path.relative_to(site).as_posix()
        assert (site / tags["og:image"].removeprefix(ADDRESS)).is_file()
    assert len(set(found.values())) == len(found)
    for path in content(site):
        assert 'name="description" content=""' not in path.read_text("utf-8"), path


def test_a_lesson_and_an_exercise_can_be_downloaded(site):
    for name in ["notebooks/01_the_grouped_problem", "exercises/03_tail_masks"]:
        page = site / f"{name}.html"
        address = re.search(r'<a class="reference download internal"[^>]* href="([^"]+)"', page.read_text("utf-8"))[1]
        assert (page.parent / unquote(address)).read_bytes() == (ROOT / f"{name}.ipynb").read_bytes()
        assert Path(address).name == f"{Path(name).name}.ipynb"


def test_the_lessons_page_has_figures_minutes_routes_and_scripts(site, pages):
    text = (site / "lessons.html").read_text("utf-8")
    links = re.findall(r'<a class="[^"]*" href="(notebooks/\w+\.html)"><img [^>]*class="lesson-figure"', text)
    assert links == [f"notebooks/{path.stem}.html" for path in LESSONS]
    assert len(re.findall(r"\d+ minutes\. Afterwards you can", text)) == len(LESSONS)
    assert "I train MoE models" in text
    scripts = [link for link in pages["lessons.html"].links if link.endswith(".py")]
    assert [Path(link).stem for link in scripts] == [path.stem for path in LESSONS]
    assert all((site / link).is_file() for link in scripts)
    for page in ["lessons.html", "index.html"]:
        assert "explore.html" in pages[page].links


def test_the_sites_own_links_take_the_place_of_the_notebooks(site):
    """Previous and next come from the contents; the line of links in the notebook would repeat them."""
    for before, after in itertools.pairwise(LESSONS):
        text = (site / "notebooks" / f"{before.stem}.html").read_text("utf-8")
        assert re.search(rf'class="right-next"\s+href="{after.stem}\.html"', text), before.stem
        assert re.findall("← <a|</a> →", text) == [], before.stem


def test_links_between_files_become_links_between_pages(tmp_path):
    gathered = make_site.Gathered(tmp_path)
    links = {
        "../src/course_kernels/config.py": "../src/course_kernels/config.py.md",
        "05_scheduling.ipynb#x": "05_scheduling.ipynb#x",
        "../README.md": "../index.md",
        "https://x.y": "https://x.y",
        "a": "a",  # no link: kernel[grid](a)
    }
    for link, wanted in links.items():
        assert gathered.relink(f"x[y]({link})", "notebooks/04.ipynb", "notebooks/04.ipynb") == f"x[y]({wanted})"
    html = '<a href="../src/course_kernels/config.py">'
    assert gathered.relink(html, "notebooks/04.ipynb", "notebooks/04.ipynb", html=True) == (
        '<a href="../src/course_kernels/config.py.html">'
    )
    assert gathered.relink("[e](../notebooks/glossary.md)", "site/a.md", "a.md") == "[e](notebooks/glossary.md)"
    assert gathered.linked == {"src/course_kernels/config.py", "notebooks/glossary.md", "README.md"}


@pytest.mark.parametrize(("builder", "last"), [("html", "Open html/index.html"), ("linkcheck", "linkcheck: 0 s")])
def test_a_build_ends_with_the_page_to_open(tmp_path, monkeypatch, capsys, builder, last):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sphinx.cmd.build.main", lambda options: 0)
    monkeypatch.setattr(make_site, "gather", lambda folder: None)
    assert make_site.build(tmp_path, builder) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_plot_shows_what_its_record_has():
    data = site_plots.data_of("grouped_mm")
    measured = site_plots.record.load("grouped_mm")
    row = next(iter(measured["rows"].values()))
    assert data["rows"][0]["title"] == title_of(row), "as in the lessons' figures"
    assert data["rows"][0]["rate"]["dA"] == {key: rate for key, rate in row["rate"]["dA"].items() if rate is not None}
    assert {each["role"] for each in data["providers"]} == {"ours", "peer", "ceiling"}
    assert "candidate" not in json.dumps(site_plots.data_of("scaled_grouped_mm"))
    figure, _, numbers = site_plots.plot("grouped_mm", "torch").partition("</figure>")
    assert "\n\n" not in figure
    assert figure.count("<") == 3, "no text ends the script"
    assert f"| {title_of(row)} ({row['unit']}) | {row['rate']['forward']['auto']:.4g} |" in numbers
    masked = site_plots.data_of("masked")
    cell = next(iter(site_plots.record.load("masked")["cells"].values()))
    assert masked["rows"][0]["rate"]["bfloat16"]["triton"] == cell["kinds"]["bfloat16"]["rates"]["triton"]["tb_s"]
    with pytest.raises(ValueError, match="no provider 'nobody'"):
        site_plots.plot("gmm", "nobody")


def test_the_workflow_builds_what_it_publishes():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "pages.yml").read_text("utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert "make site" in [step.get("run") for step in steps]
    uploaded = next(step["with"]["path"] for step in steps if "upload-pages-artifact" in step.get("uses", ""))
    assert ROOT / uploaded == make_site.BUILD / "html"


# In a browser.


@pytest.fixture(scope="session")
def address(site):
    """Where the site is served on this machine."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Do not print a line for each request."""

    def log_message(self, *arguments):
        pass


def open_page(page, address, width):
    """Open an address, wait until it is loaded, and return its bad events: errors, and requests to other hosts."""
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    page.command("Emulation.setDeviceMetricsOverride", **size)
    page.events.clear()
    loader = page.command("Page.navigate", url=address)["loaderId"]

    def loaded():
        page.evaluate("1")
        return any(
            event["method"] == "Page.lifecycleEvent"
            and event["params"]["loaderId"] == loader
            and event["params"]["name"] == "load"
            for event in page.events
        )

    deadline = time.monotonic() + 20
    while not loaded():
        assert time.monotonic() < deadline, f"{address} does not load"
        time.sleep(0.02)
    return bad_events(page.events, urlsplit(address).netloc)


def bad_events(events, host):
    found = []
    for event in events:
        method, about = event["method"], event["params"]
        if method == "Network.requestWillBeSent":
            requested = urlsplit(about["request"]["url"])
            if requested.scheme not in ("data", "blob") and requested.netloc != host:
                found.append(about["request"]["url"])
        elif method == "Network.responseReceived" and about["response"]["status"] >= 400:
            found.append(about["response"]["url"])
        elif method == "Runtime.exceptionThrown":
            found.append(about["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
            found.append(str(about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            found.append(about["entry"]["text"])
    return found


@pytest.fixture
def watched(page):
    for domain in ("Page", "Network", "Runtime", "Log"):
        page.command(f"{domain}.enable")
    page.command("Page.setLifecycleEventsEnabled", enabled=True)
    return page


OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Whether the first figure of an article is in view, and its width.
FIGURE = """(async () => {
    const image = document.querySelector('article img');
    image.loading = 'eager';
    await image.decode();
    image.scrollIntoView();
    const box = image.getBoundingClientRect();
    return [box.left >= 0 && box.right <= document.documentElement.clientWidth, Math.round(box.width)];
})()"""


# Words in tables that are on several lines.
BROKEN = """[...document.querySelectorAll('article td, article th')].flatMap((cell) => {
    const found = [], walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = document.createRange();
    while (walker.nextNode()) {
        for (const word of walker.currentNode.data.matchAll(/[A-Za-z0-9]{2,}/g)) {
            range.setStart(walker.currentNode, word.index);
            range.setEnd(walker.currentNode, word.index + word[0].length);
            if (range.getClientRects().length > 1) found.push(word[0]);
        }
    }
    return found;
})"""


def test_every_page_is_quiet_and_fits_a_telephone(watched, address, pages):
    wrong = {}
    for name in pages:
        found = open_page(watched, f"{address}/{name}", NARROW)
        if watched.evaluate(OVERFLOW) > 0:
            found.append("wider than the screen")
        if broken := watched.evaluate(BROKEN):
            found.append(f"broken in tables: {broken}")
        if found:
            wrong[name] = found
    assert wrong == {}


# Code cells whose lines do not fit, and whether the button beside the title shows the contents of the page.
CUT = "[...document.querySelectorAll('.cell_input pre')].filter(each => each.scrollWidth > each.clientWidth).length"
SHOW_CONTENTS = "document.querySelector('button.secondary-toggle').click()"
CONTENTS = "document.querySelector('#pst-page-toc-nav a').getBoundingClientRect().width > 100"


def test_code_fits_a_laptops_screen(watched, address):
    open_page(watched, f"{address}/notebooks/07_autotuning.html", WIDE)
    assert watched.evaluate(CUT) == 0
    assert not watched.evaluate(CONTENTS), "the code has their room"
    watched.evaluate(SHOW_CONTENTS)
    wait_for("contents of the page", lambda: watched.evaluate(CONTENTS), 5)


@pytest.mark.parametrize(("width", "least"), [(NARROW, 300), (WIDE, 600)])
def test_a_lessons_figure_is_seen(watched, address, width, least):
    open_page(watched, f"{address}/notebooks/01_the_grouped_problem.html", width)
    inside, shown = watched.evaluate(FIGURE)
    assert inside
    assert shown >= least


def test_a_figure_has_a_light_card_in_the_dark(watched, address):
    open_page(watched, f"{address}/notebooks/01_the_grouped_problem.html", WIDE)
    color = "getComputedStyle(document.querySelector('article img')).backgroundColor"
    body = "getComputedStyle(document.body).backgroundColor"
    watched.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert watched.evaluate(color) == "rgb(255, 255, 255)"
    wait_for("dark page", lambda: watched.evaluate(body) != "rgb(255, 255, 255)", 5)


# The least contrast of an article's words with what is behind them, and the word that has it.
CONTRAST = """(() => {
    const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = (color) => color.slice(0, 3).map((c) => c / 255)
        .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (node) => {
        for (; node; node = node.parentElement) {
            const color = numbers(getComputedStyle(node).backgroundColor);
            if (color.length < 4 || color[3] === 1) return color;
        }
    };
    const own = (each) => [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    document.querySelectorAll('.bd-article details').forEach((each) => { each.open = true; });
    const words = [...document.querySelectorAll('.bd-article :not(.headerlink)')]
        .filter((each) => own(each) && each.checkVisibility());
    return words.map((each) => {
        const [dark, bright] = [numbers(getComputedStyle(each).color), behind(each)].map(light).sort((a, b) => a - b);
        return [(bright + 0.05) / (dark + 0.05), each.className + ' ' + each.textContent];
    }).sort(([a], [b]) => a - b)[0];
})()"""
READ = ("notebooks/04_static_round_robin", "exercises/03_tail_masks", "api/packed", "library", "lessons")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", READ)
def test_words_can_be_read(watched, address, name, theme):
    """Those of code, and of what is folded, too."""
    open_page(watched, f"{address}/{name}.html", WIDE)
    watched.evaluate("document.head.append(Object.assign(document.createElement('style'), "
                     "{textContent: '* { transition: none !important; }'}))")  # fmt: skip
    watched.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    least, word = watched.evaluate(CONTRAST)
    assert 4.5 <= least < 21, word


@pytest.mark.parametrize("width", [800, WIDE])
def test_no_word_in_a_table_is_broken(watched, address, width):
    for page in ["library", "benchmarks", "start", "exercises"]:
        open_page(watched, f"{address}/{page}.html", width)
        assert watched.evaluate("document.querySelectorAll('article td').length") > 0, page
        assert watched.evaluate(BROKEN) == [], page


def test_a_button_copies_code(watched, address):
    open_page(watched, f"{address}/notebooks/02_triton_in_fifteen_minutes.html", WIDE)
    cells = json.loads((ROOT / "notebooks" / "02_triton_in_fifteen_minutes.ipynb").read_text("utf-8"))["cells"]
    first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    watched.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    watched.evaluate("document.querySelector('.cell_input .copy-code').click()")
    assert wait_for("copy", lambda: watched.evaluate("window.copied"), 5).strip() == first.strip()
    assert watched.evaluate("document.querySelectorAll('.cell_output .copy-code').length") == 0


def test_a_schedule_can_be_explored_from_a_file(watched, site):
    for width in (NARROW, 800, WIDE):
        assert open_page(watched, (site / "explore.html").as_uri(), width) == []
        assert watched.evaluate(OVERFLOW) <= 0
        outside = "[...document.querySelectorAll('.explore *')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
        assert watched.evaluate(f"{outside}.map((e) => e.className + e.textContent)") == []
        shown = "document.querySelector('.explore-timeline').getBoundingClientRect()"
        assert watched.evaluate(f"{shown}.width > 300 && {shown}.bottom <= innerHeight + 1"), "in view with the bars"


def test_search_finds_a_word(watched, address):
    assert open_page(watched, f"{address}/search.html?q=descriptor", WIDE) == []
    links = "[...document.querySelectorAll('#search-results li a')].map(link => new URL(link.href).pathname)"
    found = wait_for("results", lambda: watched.evaluate(links), 20)
    with contextlib.suppress(pytest.fail.Exception):  # results appear one after the other
        wait_for("lesson 06", lambda: "/notebooks/06_tma_descriptors.html" in watched.evaluate(links), 5)
    assert "/notebooks/06_tma_descriptors.html" in (found := watched.evaluate(links)), found
    assert not [each for each in found if each.startswith("/src/")], "files that lessons link to are not searched"
    excerpts = "[...document.querySelectorAll('#search-results p.context')].map(each => each.textContent)"
    shown = wait_for("excerpts", lambda: watched.evaluate(excerpts), 10)
    assert [each for each in shown if re.search("System Settings|Contents|Copy", each)] == []


def test_a_plot_answers(watched, address):
    open_page(watched, f"{address}/benchmarks.html", WIDE)
    plot = "document.getElementById('plot-grouped_mm')"
    shown = site_plots.data_of("grouped_mm")
    rows, names = shown["rows"], [provider["key"] for provider in shown["providers"]]
    assert watched.evaluate(f"{plot}.querySelectorAll('.plot-row').length") == len(rows)
    select = "const s = {0}.querySelectorAll('select')[{1}]; s.value = '{2}'; s.dispatchEvent(new Event('change'));"
    watched.evaluate(select.format(plot, 0, "dB"))
    enter = f"{plot}.querySelector('.plot-row').dispatchEvent(new Event('pointerenter'));"
    point = f"{enter} {plot}.querySelector('.plot-values').textContent"
    told = watched.evaluate(point)
    assert told.startswith(rows[0]["title"])
    assert f"QuACK (best configuration) {rows[0]['rate']['dB']['quack']:.0f} TFLOP/s" in told
    watched.evaluate(f"{plot}.querySelectorAll('input')[{names.index('quack')}].click()")
    assert "QuACK" not in watched.evaluate(point)
    watched.evaluate("{" + select.format(plot, 1, "torch") + "}")
    ratio = rows[0]["rate"]["dB"]["cute"] / rows[0]["rate"]["dB"]["torch"]
    assert f"grouped_mm (cute) {ratio:.2f} ×" in watched.evaluate(point)


def test_links_to_headings_have_anchors_that_every_version_of_the_parser_makes(tmp_path):
    """Lessons link as JupyterLab does, pages as GitHub does. The parser for Python 3.10 knows one kind alone."""
    page = make_site.Gathered(tmp_path).relink
    text = "[a](glossary.md#CUDA-graph) [b](#What-was-tested,-where) [c](https://example.org/#As-It-Is)"
    assert page(text, "notebooks/x.ipynb", "notebooks/x.ipynb") == (
        "[a](glossary.md#cuda-graph) [b](#what-was-tested-where) [c](https://example.org/#As-It-Is)"
    )
    assert "myst_heading_slug_func" not in (ROOT / "site" / "conf.py").read_text(encoding="utf-8")
