"""The wheel: two packages and the exercises' stubs, and nothing of the checkout besides."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import forked
from places import ROOT

PARTS = ("pyproject.toml", "docs/package.md", "LICENSE", "src", "exercises")
MOST_BYTES = 2 * 2**20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built by the backend itself, from a copy: it leaves folders beside the sources. Takes two seconds."""
    # Asked without importing it: that fails in a process that has imported Python's own distutils before.
    found = [each.version for each in importlib.metadata.distributions(name="setuptools")]
    if not found or int(found[0].partition(".")[0]) < 77:
        pytest.skip("setuptools 77 or newer is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PARTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("what belongs to the project is known to git alone")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    code = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (built,) = (folder / "dist").glob("*.whl")
    return folder, built


def test_it_holds_every_file_of_the_packages_and_no_other(wheel):
    folder, built = wheel
    wanted = {path.relative_to(folder / "src").as_posix() for path in (folder / "src").rglob("*")
              if path.is_file() and "egg-info" not in str(path)}  # fmt: skip
    with zipfile.ZipFile(built) as archive:
        names = archive.namelist()
    found = {name for name in names if ".dist-info/" not in name and ".data/" not in name}
    assert found == wanted
    assert {name.partition("/")[0] for name in found} == {"course_kernels", "gemm_course"}
    stubs = {name.rpartition("/")[2] for name in names if ".data/data/share/" in name}
    assert stubs == {path.name for path in (folder / "exercises").glob("*.ipynb")}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert built.name.endswith("-py3-none-any.whl")
    assert built.stat().st_size < MOST_BYTES


def test_its_page_on_an_index_is_whole(wheel):
    """There, an address that is relative leads nowhere."""
    _, built = wheel
    with zipfile.ZipFile(built) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    fields, _, page = text.partition("\n\n")
    assert "Requires-Python: <3.15,>=3.10" in fields
    assert "from course_kernels import grouped_mm" in page
    links = re.findall(r"\]\(([^)]+)\)|(?:src|href)=\"([^\"]+)\"", page)
    assert [link for link in links if "://" not in "".join(link)] == []


def test_it_can_be_used_from_where_it_is_unpacked(wheel, tmp_path):
    """Without the checkout: its tables, and what it says of itself."""
    _, built = wheel
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path)
    code = f"""
import os, sys
os.chdir({str(tmp_path)!r})
kept = [entry for entry in sys.path if "site-packages" in entry or not entry.startswith({str(ROOT)!r})]
sys.path = [{str(tmp_path)!r}, *kept]
import importlib.metadata, torch, course_kernels
from course_kernels.engine.tuning import Extents, Gpu, Kind, choose
assert course_kernels.__file__.startswith({str(tmp_path)!r}), course_kernels.__file__
assert choose(Kind("m"), Extents(512, 1024, 1024, 8), Gpu("sm_90", 132, 4.8)).us
(found,) = importlib.metadata.distributions(path=[{str(tmp_path)!r}])
assert found.version == course_kernels.__version__
assert sorted(found.requires[:2]) == ['torch>=2.11', 'triton>=3.6; platform_system == "Linux"'], found.requires
a, b = torch.ones(4, 4), torch.ones(1, 4, 4)
print(course_kernels.grouped_mm(a, b, offs=torch.tensor([4])).sum().item())
"""
    done = forked.run(code)
    assert done.stdout.strip() == "64.0", done.stderr


def test_the_changelog_knows_this_version():
    import course_kernels

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {course_kernels.__version__}" in text
