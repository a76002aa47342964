"""Arguments that subcommands share: whole numbers in a range, and files in folders that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from gemm_course.cli import options
from gemm_course.cli.exit_codes import USAGE, Stop


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("7", 7), ("12", 12), ("007", 7)])
def test_a_whole_number_in_its_range_is_taken(text, number):
    assert options.integer(3, 12)(text) == number


@pytest.mark.parametrize("text", ["2", "13", "-5", "4.0", "four", "", " 5"])
def test_another_is_refused_with_the_range(text):
    with pytest.raises(typer.BadParameter) as refused:
        options.integer(3, 12)(text)
    assert refused.value.message == f"must be a number from 3 to 12, got {text!r}"


def test_a_file_may_be_new_but_not_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options.check_folders(csv=tmp_path / "new.csv", json=Path("new.json"))
    options.check_folders(csv=None)
    missing = tmp_path / "none" / "new.csv"
    with pytest.raises(Stop) as stopped:
        options.check_folders(json=tmp_path / "new.json", csv=missing)
    assert (stopped.value.code, str(stopped.value)) == (USAGE, f"--csv {missing}: there is no folder {missing.parent}")
