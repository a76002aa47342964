"""CONTRIBUTING.md, SECURITY.md and CITATION.cff say what is so."""

from __future__ import annotations

import re
import sys

import pytest

from places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_every_file_and_target_that_is_named_is_there(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    files = re.findall(r"\]\(([^):]+)\)", text) + re.findall(r"`((?:src|tests)/[\w/.]+)`", text)
    assert files
    assert [each for each in files if not (ROOT / each).exists()] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", text, re.MULTILINE)
    assert all(re.search(rf"^{each}:", makefile, re.MULTILINE) for each in targets)


def test_the_citation_is_of_this_version_and_licence():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    found = dict(line.split(": ", 1) for line in lines if re.match(r"[\w-]+: ", line))
    assert (found["version"], found["license"]) == (PROJECT["version"], PROJECT["license"])
    assert f"  - name: {PROJECT['authors'][0]['name']}" in lines
    assert found["cff-version"] == "1.2.0"
