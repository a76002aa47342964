"""What a notebook's kernel knows and shows, and what happens outside of one."""

from __future__ import annotations

import types

import pytest

from gemm_course.notebook import kernel


def test_outside_of_a_notebook_there_is_no_name_and_text_is_plain():
    assert kernel.notebook_name() is None
    assert kernel.bold("title") == "title"
    assert not kernel.show_markdown("text")


def test_in_a_notebook_text_is_bold_and_markdown_is_shown(notebook):
    assert kernel.bold("title") == "\x1b[1mtitle\x1b[0m"
    assert kernel.show_markdown("*text*")
    assert notebook == ["*text*"]


def test_the_editor_says_which_notebook_is_open(monkeypatch, notebook):
    assert kernel.notebook_name() is None, "it is executed by a program"
    monkeypatch.setenv("JPY_SESSION_NAME", "exercises/03_tail_masks.ipynb")
    assert kernel.notebook_name() == "03_tail_masks.ipynb"
    monkeypatch.delenv("JPY_SESSION_NAME")
    IPython = pytest.importorskip("IPython")
    code = types.SimpleNamespace(kernel=object(), user_ns={"__vsc_ipynb_file__": "/home/me/04b_tables.ipynb"})
    monkeypatch.setattr(IPython, "get_ipython", lambda: code)
    assert kernel.notebook_name() == "04b_tables.ipynb"
