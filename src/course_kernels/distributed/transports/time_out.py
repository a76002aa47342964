"""How long a group waits for a rank."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist


def time_out(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    """The time-out of a group, for collectives of tensors on a device."""
    return group._get_backend(device).options._timeout
