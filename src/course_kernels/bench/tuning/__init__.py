"""Fitting the time model: ``config_times`` measures configurations, ``fit`` fits constants, ``tune`` does both for a
GPU.

``cute_sweep`` measures the configurations of the kernel in CuTe DSL as providers of a benchmark.
"""
