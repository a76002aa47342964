"""AITER's configurations: dicts and tuning files, which ``config`` takes, and dicts, which ``get_config`` returns."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from course_kernels import runtime, targets
from course_kernels.config import AMD_OPTIONS, GemmConfig, LaunchOptions, check_programs
from course_kernels.contexts import is_compiling
from course_kernels.dtypes import IN_DTYPES
from course_kernels.engine.product import typical_rows
from course_kernels.engine.triton_arguments import INTERPRETER_PROGRAMS
from course_kernels.engine.tuning import Extents, Gpu, Kind, choose
from course_kernels.engine.tuning.gpu_distance import UNKNOWN_BANDWIDTH
from course_kernels.kernels.codes import Scales
from course_kernels.targets import Arch
from course_kernels.type_checks import check_flags

FUNCTIONS = ("gmm", "ptgmm", "nptgmm")
_UNKNOWN_SMS = 100  # for an unknown GPU that is not in this machine
# As many as a launch can have; it is capped by the number of tiles.
ONE_PROGRAM_PER_TILE = 2**31 - 1
# AITER's keys and our fields. The result of the transposed functions is (K, N), and M is its depth.
_BLOCKS = {
    "gmm": {"BLOCK_SIZE_M": "block_m", "BLOCK_SIZE_K": "block_k", "BLOCK_SIZE_N": "block_n"},
    "tgmm": {"BLOCK_SIZE_M": "block_k", "BLOCK_SIZE_K": "block_m", "BLOCK_SIZE_N": "block_n"},
}
_OTHERS = {
    "GROUP_SIZE": "group_m", "GRID_DIM": "programs", "num_warps": "num_warps", "num_stages": "num_stages",
    "NUM_XCDS": "num_xcds", "STORE_PARTS": "store_parts",
    **{name: name for name in AMD_OPTIONS},
}  # fmt: skip
_OURS = {"NUM_XCDS": 1, "STORE_PARTS": 1}  # which AITER does not have, and their defaults
_STAGES = 2  # where none are named: on an AMD GPU one of them is in LDS


def _keys(function: str) -> dict[str, str]:
    """Every key of a function's configuration, and the field that it is."""
    keys = _BLOCKS["gmm" if function == "gmm" else "tgmm"] | _OTHERS
    return {key: field for key, field in keys.items() if function != "nptgmm" or key != "GRID_DIM"}


def as_config(function: str, config: Mapping | GemmConfig | str | os.PathLike) -> GemmConfig:
    """A configuration that a caller gave.

    Args:
        function: one of ``FUNCTIONS``.
        config: a dict with AITER's keys; one of such dicts by function, each under "default", or the path of a file
            with one, as AITER's ``gfx942-GMM.json``; or a configuration of this library for the product as ``packed``
            computes it: of ptgmm and nptgmm block_m divides K, and block_k divides M.

    Raises:
        TypeError: it is neither.
        ValueError: a key is missing or unknown, or a value is wrong; the file is not JSON.
        OSError: the file cannot be read.
    """
    if isinstance(config, GemmConfig):
        if function == "nptgmm" and config.programs is not None:
            raise ValueError(f"config of nptgmm must not name programs, got {config.programs}: each tile has its own")
        return config
    if isinstance(config, (str, os.PathLike)):
        config = _read(os.fspath(config))
    if not isinstance(config, Mapping):
        raise TypeError(
            f"config must be a dict with AITER's keys, the path of AITER's tuning file or a GemmConfig, got "
            f"{type(config).__name__}"
        )
    if any(isinstance(value, Mapping) for value in config.values()):
        config = _of_function(function, config)
    items = tuple((key, type(value), value) for key, value in config.items())  # to a cache, 64.0 and True are integers
    convert = _convert.__wrapped__ if is_compiling() else _convert
    try:
        return convert(function, items)
    except TypeError:  # a value that is not hashable
        return _convert.__wrapped__(function, items)


@functools.lru_cache(maxsize=16)
def _read(path: str) -> object:
    """The content of a tuning file. Read once in a process, as AITER does."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"config must be the path of a JSON file, got {path!r}: {error}") from None


def _of_function(function: str, config: Mapping) -> Mapping:
    """The entry of a function in the content of a tuning file."""
    entry = config.get(function)
    if isinstance(entry, Mapping) and any(isinstance(value, Mapping) for value in entry.values()):
        entry = entry.get("default")
    if not isinstance(entry, Mapping):
        raise ValueError(
            f"config must have {function!r} with 'default', as AITER's tuning files have, got "
            f"{', '.join(map(repr, config))}"
        )
    return entry


@functools.lru_cache(maxsize=256)
def _convert(function: str, items: tuple[tuple[str, type, object], ...]) -> GemmConfig:
    """The configuration of a dict, given as keys, types and values."""
    config = {key: value for key, _, value in items}
    keys = _keys(function)
    needed = [key for key in keys if key.startswith("BLOCK_SIZE_") or key == "GROUP_SIZE"]
    unknown = [str(key) for key in config if key not in keys]
    if missing := [key for key in needed if key not in config]:
        also = f", and it has {', '.join(unknown)}, which is no key" * bool(unknown)
        raise ValueError(f"config of {function} must have {', '.join(needed)}; missing: {', '.join(missing)}{also}")
    if unknown:
        raise ValueError(f"config of {function} must have keys among {', '.join(keys)}, got {', '.join(unknown)}")
    fields = {"num_stages": _STAGES}
    for key, value in config.items():
        try:
            GemmConfig(**{keys[key]: value})
        except ValueError as error:
            raise ValueError(str(error).replace(keys[key], f"config[{key!r}]", 1)) from None
        fields[keys[key]] = value
    without_effect = [key for key in config if key in AMD_OPTIONS]
    if without_effect and torch.version.hip is None and not is_compiling():
        warnings.warn(
            f"config of {function}: {', '.join(without_effect)} {'have' if len(without_effect) > 1 else 'has'} no "
            "effect here: only AMD's compiler has such options",
            stacklevel=2,
        )
    return GemmConfig(**fields)


def launch_of(
    function: str,
    config: Mapping | GemmConfig | str | os.PathLike | None,
    grid_dim: int | None = None,
    work_stealing: bool = False,
) -> GemmConfig | LaunchOptions | None:
    """The launch configuration of a call, in the form of ``engine.options.Options.config``; None for the default.

    Raises:
        TypeError, ValueError: ``config``, ``grid_dim`` or ``work_stealing`` is wrong.
    """
    check_programs("grid_dim", grid_dim)
    if type(work_stealing) is not bool:
        raise TypeError(f"work_stealing must be True or False, got {work_stealing!r}")
    programs = ONE_PROGRAM_PER_TILE if function == "nptgmm" else grid_dim
    given = None if config is None else as_config(function, config)
    if programs is None and not work_stealing:
        return given
    asked = LaunchOptions(programs, "dynamic" if work_stealing else None)
    return asked if given is None else asked.applied(given)


def get_config(
    gmm_type: str,
    M: int,
    K: int,
    N: int,
    G: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    arch: Arch = None,
    accumulate: bool = False,
) -> dict[str, int]:
    """The chosen configuration of the Triton kernels for a shape, as AITER's dict.

    Args:
        gmm_type: "gmm", "ptgmm" or "nptgmm".
        M: rows of all groups together.
        K, N: extents of each group's weight.
        G: number of groups.
        dtype: of the operands.
        arch: as in ``targets.canonical_arch``. Default: this machine's GPU, or the interpreter without one.
        accumulate: for products that are added to a 16-bit result of ptgmm or nptgmm.

    Returns:
        A new dict: BLOCK_SIZE_M, BLOCK_SIZE_K, BLOCK_SIZE_N, GROUP_SIZE, num_warps, num_stages, and GRID_DIM (the
        number of programs) for the persistent functions, unless it is unknown how many SMs the GPU has. NUM_XCDS and
        STORE_PARTS, which AITER does not have, are there where they are not 1.

    Raises:
        ValueError: an unknown function, architecture or dtype, or a negative extent.
        TypeError: an extent is no integer, or accumulate neither True nor False.

    Notes:
        A launch makes the same choice, by ``engine.tuning.choose``. For gfx942 and gfx950 it follows rules that nobody
        has measured. AITER ignores the shape; here it decides. On a Hopper GPU, ``backend="auto"`` computes many
        products with a kernel in CuTe DSL that has configurations of its own.
    """
    if gmm_type not in FUNCTIONS:
        raise ValueError(f"gmm_type must be one of {FUNCTIONS}, got {gmm_type!r}")
    for name, extent in (("M", M), ("K", K), ("N", N), ("G", G)):
        if not isinstance(extent, int) or isinstance(extent, bool):
            raise TypeError(f"{name} must be an integer, got {type(extent).__name__}")
        if extent < 0:
            raise ValueError(f"{name} must not be negative, got {extent}")
    if dtype not in IN_DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, IN_DTYPES))}, got {dtype!r}")
    check_flags(accumulate=accumulate)
    here = runtime.Device.of(runtime.device())
    name = targets.canonical_arch(here.arch if arch is None else arch)
    gpu, sms = (Gpu.of(here), here.num_sms) if name == targets.canonical_arch(here.arch) else (None, None)
    if gpu is None and name is not None:
        sms = targets.num_sms(name)
        gpu = Gpu(name, sms or _UNKNOWN_SMS, UNKNOWN_BANDWIDTH)
    return dict(_items(gmm_type, M, K, N, G, dtype.itemsize, gpu, sms, accumulate))


@functools.lru_cache(maxsize=4096)
def _items(
    gmm_type: str, M: int, K: int, N: int, G: int, size: int, gpu: Gpu | None, sms: int | None, accumulate: bool
) -> tuple[tuple[str, int], ...]:
    """The entries of ``get_config``; ``sms``: the GPU's SMs, if known."""
    rows = round(typical_rows(M, G) * G) / max(1, G)
    if gmm_type == "gmm":
        kind, extents = Kind("m", "k", size, Scales.LINES if size == 1 else Scales.NONE), Extents(rows, N, K, G)
    else:
        kind, extents = Kind("k", "n", size), Extents(K, N, rows, G)
    # TMA adds only to float32, so a result of another dtype has no descriptor.
    added = accumulate and gmm_type != "gmm"
    programs = ONE_PROGRAM_PER_TILE if gmm_type == "nptgmm" else None
    uses_tma = False if added else None
    config = choose(kind, extents, gpu, uses_tma=uses_tma, accumulate=added, programs=programs).config
    if config.programs is None and gmm_type != "nptgmm":
        programs = INTERPRETER_PROGRAMS if gpu is None else sms and sms * config.programs_per_sm
        config = dataclasses.replace(config, programs=programs)
    found = {key: getattr(config, field) for key, field in _keys(gmm_type).items()}
    return tuple((key, value) for key, value in found.items() if value is not None and _OURS.get(key) != value)
