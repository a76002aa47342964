"""Grouped products of packed tensors: ``grouped_mm``, and the sums of groups that a bias gradient is."""
