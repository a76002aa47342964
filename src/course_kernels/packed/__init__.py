"""Grouped products of packed tensors: ``grouped_mm``, and the sums of groups for the gradient of a bias."""
