"""A notebook's kernel that only pretends, and a process that has checked nothing yet."""

from __future__ import annotations

import types

import pytest

from gemm_course.notebook import current_exercise


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(current_exercise, "_latest", None)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)


@pytest.fixture
def notebook(monkeypatch):
    """A notebook's kernel; returns what it displays."""
    IPython = pytest.importorskip("IPython", reason="needs IPython: pip install '.[course]'")
    history = types.SimpleNamespace(get_range=lambda raw: iter(()))
    shell, shown = types.SimpleNamespace(kernel=object(), user_ns={}, history_manager=history), []
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr("IPython.display.display", lambda each: shown.append(each.data))
    return shown
