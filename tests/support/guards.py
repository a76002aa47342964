"""torch's compiler without a measurement of its own."""

import torch._C._dynamo


def time_nothing() -> None:
    """Do not measure how long the guards of what was compiled take: to flush the caches for it takes 24 ms a frame."""
    torch._C._dynamo.guards.profile_guard_manager = lambda *_: 0.0
