"""Whether all ranks have the same numbers, and send rows of the same dtype and width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)
UNKNOWN = 0


def form_of(rows: Tensor | None) -> int:
    """A number for the dtype and width of rows (any, width), which ranks tell each other; ``UNKNOWN`` of None."""
    return UNKNOWN if rows is None else 1 + rows.shape[1] * len(_DTYPES) + _DTYPES.index(rows.dtype)


def check_same(name: str, values: Sequence[int], here: int) -> None:
    """Raise, on every rank, unless the argument ``name`` has the same value on all of them: ``values``, by rank."""
    other = next((rank for rank, value in enumerate(values) if value != values[here]), None)
    if other is not None:
        raise ValueError(
            f"{name} must be the same on all ranks, got {values[here]} on rank {here} and {values[other]} on rank "
            f"{other}"
        )


def check_agreement(name: str, forms: Sequence[int], here: int) -> None:
    """Raise, on every rank, unless the rows ``name`` have the same form on all of them.

    Args:
        forms: ``form_of`` the rows of each rank. Ranks whose rows are unknown agree with all.
        here: this rank, which the error names together with one that differs.
    """
    known = {rank: form for rank, form in enumerate(forms) if form != UNKNOWN}
    first = here if here in known else min(known, default=here)
    for rank, form in known.items():
        if form != known[first]:
            raise ValueError(
                f"{name} must have the same dtype and width on all ranks, got {_words(known[first])} on rank {first} "
                f"and {_words(form)} on rank {rank}"
            )


def _words(form: int) -> str:
    width, dtype = divmod(form - 1, len(_DTYPES))
    return f"{_DTYPES[dtype]} of width {width}"
