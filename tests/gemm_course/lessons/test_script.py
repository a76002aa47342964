"""Scripts of lessons print values, save figures, and go on after an expected error."""

from __future__ import annotations

import pytest

from gemm_course.lessons import script


def test_values_are_printed_and_none_is_nothing(capsys):
    script.show("a", None, 1)
    assert capsys.readouterr().out == "'a'\n1\n"


def test_a_figure_becomes_a_file(tmp_path, monkeypatch, capsys):
    class Figure:
        def savefig(self, path):
            path.touch()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script, "_figures", 0)
    monkeypatch.setattr("sys.argv", ["x/03_lesson.py"])
    script.show(Figure(), Figure())
    assert capsys.readouterr().out.split() == ["03_lesson_figures/01.png", "03_lesson_figures/02.png"]
    assert (tmp_path / "03_lesson_figures" / "02.png").is_file()


def test_an_expected_error_is_printed_and_its_absence_is_one(capsys):
    with script.expected_error():
        raise ValueError("so it goes")
    assert capsys.readouterr().out == "ValueError: so it goes\n"
    with pytest.raises(AssertionError, match="there was none"), script.expected_error():
        pass
