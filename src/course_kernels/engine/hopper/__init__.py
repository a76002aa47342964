"""The kernel in CuTe DSL for Hopper: what it computes, its compiled code, its counters."""
