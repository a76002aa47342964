"""The kernel in CuTe DSL for Hopper: its products, its compiled code, its counters."""
