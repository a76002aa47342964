"""Fixtures of the tests that open a real browser."""

from browser import page

__all__ = ["page"]
