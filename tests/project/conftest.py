"""Fixtures of the tests that open a real browser."""

import importlib.util

if importlib.util.find_spec("msgspec"):  # of the extra course; without it they are left out
    from browser import page

    __all__ = ["page"]
