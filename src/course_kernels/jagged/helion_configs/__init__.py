"""Configurations of the Helion kernels that were tuned on real GPUs: a file for each architecture."""
