"""Options of a product, and their form as strings, which torch's operators accept."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from course_kernels.config import GemmConfig, LaunchOptions


class Options(NamedTuple):
    """Options of the computation of a product; see ``grouped_mm``.

    Attributes:
        out_dtype: of the result; None for the operands' own.
        check: validate the values of ends or counts, which waits for the device.
        backend: one of ``checks.BACKENDS``.
        config: for the Triton kernels, in place of the chosen one; or options for launching the chosen one.
        num_sms: SMs that the launch may use; None for all.
    """

    out_dtype: torch.dtype | None = None
    check: bool = False
    backend: str = "auto"
    config: GemmConfig | LaunchOptions | None = None
    num_sms: int | None = None


_FIELDS = tuple(GemmConfig.__dataclass_fields__)
_LAUNCH, _SMS = "launch", "sms"  # first words: of encoded ``LaunchOptions``, of a number of SMs


def encode_launch(options: Options) -> str:
    """Encode configuration and number of SMs as an operator's argument; "" for none."""
    config, words = options.config, []
    if options.num_sms is not None:
        words += [_SMS, options.num_sms]
    if isinstance(config, LaunchOptions):
        words += [_LAUNCH, config.programs, config.schedule]
    elif config is not None:
        words += [getattr(config, name) for name in _FIELDS]
    # Not str alone: Dynamo cannot write symbols. It makes a number of what range takes, and a graph for each.
    return " ".join(str(len(range(word)) if type(word) is int else word) for word in words)


@functools.lru_cache(maxsize=1024)
def decode_launch(text: str) -> tuple[GemmConfig | LaunchOptions | None, int | None]:
    """Decode configuration and number of SMs from the text of ``encode_launch``."""
    words = [None if word == "None" else int(word) if word.isdigit() else word for word in text.split()]
    num_sms = None
    if words[:1] == [_SMS] and len(words) > 1:
        num_sms, words = words[1], words[2:]
    if not words:
        return None, num_sms
    if words[0] == _LAUNCH and len(words) == 3:
        return LaunchOptions(*words[1:]), num_sms
    if len(words) != len(_FIELDS):
        raise ValueError(f"config must name the {len(_FIELDS)} values {' '.join(_FIELDS)}, got {text!r}")
    return GemmConfig(*words), num_sms
