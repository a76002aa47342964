"""Fixtures of the tests about tuning tables."""

from tuning_shapes import tables

__all__ = ["tables"]
