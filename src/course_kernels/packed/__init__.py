"""Grouped products of packed tensors: ``grouped_mm`` and ``scaled_grouped_mm``."""
