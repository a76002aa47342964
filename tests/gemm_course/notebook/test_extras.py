"""A lesson's missing extra is named in one sentence, and a notebook shows no traceback."""

from __future__ import annotations

import pytest

from gemm_course.notebook.extras import MissingExtra, need


def test_a_package_that_is_there_is_not_imported_and_passes():
    need("json", extra="x")


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(
        MissingExtra, match=r"needs the package no_such_thing: run `pip install '\.\[things\]'`"
    ) as found:
        need("no_such_thing", extra="things")
    assert isinstance(found.value, ImportError)
    assert found.value._render_traceback_() == [str(found.value)]


def test_a_notebook_shows_the_sentence_alone(capsys):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    shell.run_cell("from gemm_course.notebook.extras import need\nneed('no_such_thing', extra='things')")
    printed = "".join(capsys.readouterr())
    assert printed.count("\n") <= 2
    assert "Traceback" not in printed
    assert printed.startswith("This lesson needs the package no_such_thing")
