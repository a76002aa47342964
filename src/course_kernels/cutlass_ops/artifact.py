"""Compile an operator for a GPU that this machine need not have, and run it on one that it has."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
import threading
import time
from collections.abc import Iterator

import cutlass.operators as ops
import torch
from cutlass.cutlass_dsl import CuTeDSL
from cutlass.utils import HardwareInfo

from course_kernels.codegen import CompileError
from course_kernels.cutlass_ops.discovery import design, find_target
from course_kernels.cutlass_ops.operands import NoOperator, check_arguments, gaps, refusal, tensors

# SMs by compute capability: H100 and H200, B200.
SMS = {90: 132, 100: 148}

_lock = threading.RLock()  # the settings below belong to the process


@dataclasses.dataclass(frozen=True, repr=False)
class Compiled:
    """An operator, compiled for a target.

    Attributes:
        clusters: the most that it launches, as given or from the table; None where the driver was asked.
        artifact: NVIDIA's object, for ``operator.run``.
        ptx: the assembly for a virtual machine.
        cubin: the machine code's file.
        seconds: of compiling.
    """

    operator: ops.Operator
    target: ops.TargetSm
    clusters: int | None
    artifact: ops.CompiledArtifact
    ptx: str
    cubin: bytes
    seconds: float

    def __str__(self) -> str:
        row = design(self.operator)
        tile, cluster = "×".join(map(str, row.tile)), "×".join(map(str, row.cluster))
        return f"{tile} in clusters of {cluster} for sm_{self.target}"

    def __repr__(self) -> str:
        return f"<Compiled {self}>"


def compile(
    operator: ops.Operator,
    args: ops.IndexPtrGroupedGemmArguments,
    target: str | ops.TargetSm | None = None,
    *,
    clusters: int | None = None,
) -> Compiled:
    """Compile an operator. Neither a GPU nor a driver is needed.

    Args:
        operator: of ``discover``.
        args: dtypes and layouts to compile for; extents may differ when it is run.
        target: as for ``discover``.
        clusters: how many clusters the GPU holds at a time, which a persistent operator launches. Default: the
            driver's number where the code runs on this machine's GPU, else the target's SMs (``SMS``) over the CTAs of
            a cluster.

    Raises:
        TypeError: ``operator`` is no operator, or ``args`` are not the API's.
        NoOperator: the operator does not take these operands on this target.
        ValueError: the number of clusters is not known for the target, or is not positive.
        CompileError: the compiler's message.
    """
    if not isinstance(operator, ops.Operator):
        raise TypeError(f"operator must be one that discover has found, got {type(operator).__name__}")
    check_arguments(args, ops.RuntimeArguments)
    target = find_target(target)
    _check(operator, args, target)
    if clusters is None and not _runs_here(target):
        rows, columns = design(operator).cluster
        if target.cc not in SMS:
            known = ", ".join(map(str, SMS))
            raise ValueError(
                f"clusters must be given for sm_{target}, got None: how many clusters of {rows * columns} CTAs its GPU "
                f"holds, at most one CTA an SM. SMs are known of compute capabilities {known} only"
            )
        clusters = SMS[target.cc] // (rows * columns)
    if clusters is not None and (type(clusters) is not int or clusters < 1):
        raise ValueError(f"clusters must be a positive integer, got {clusters!r}")
    with _lock, tempfile.TemporaryDirectory() as folder, _keeping_text(folder, target), _clusters(clusters):
        started = time.perf_counter()
        try:
            artifact = operator.compile(args, target)
        except Exception as error:
            message = re.sub(r"\x1b\[\d*m", "", str(error))  # coloured for a terminal
            raise CompileError(f"{operator.metadata.operator_name} for sm_{target}: {message}") from error
        seconds = time.perf_counter() - started
        code = artifact.compiled_obj
        return Compiled(operator, target, clusters, artifact, code.__ptx__, code.__cubin__, seconds)


def run(compiled: Compiled, args: ops.IndexPtrGroupedGemmArguments) -> None:
    """Launch a compiled operator on the current stream; the result goes to the arguments' ``out``.

    Args:
        compiled: of ``compile``.
        args: on the GPU, with the dtypes and layouts of the compilation.

    Raises:
        TypeError: ``compiled`` is not what ``compile`` returned, or ``args`` are not the API's.
        NoOperator: the operator does not take these operands.
        RuntimeError: this machine has no GPU that the code runs on.
        ValueError: the operands are not on a GPU.
    """
    if not isinstance(compiled, Compiled):
        raise TypeError(f"compiled must be what compile returned, got {type(compiled).__name__}")
    check_arguments(args, ops.RuntimeArguments)
    major, minor = compiled.target.major, compiled.target.minor
    others = {"f": " or of its family", "a": ""}.get(str(compiled.target)[-1], " or later")
    needs = f"this was compiled for sm_{compiled.target} and needs an NVIDIA GPU of compute capability {major}.{minor}"
    needs += others
    if not torch.cuda.is_available():
        raise RuntimeError(f"{needs}; torch sees none. Compiling and reading the code work without one")
    if not _runs_here(compiled.target):
        raise RuntimeError("{}; this one's is {}.{}".format(needs, *torch.cuda.get_device_capability()))
    mat_a = tensors(args)[0]
    if not mat_a.is_cuda:
        raise ValueError(f"mat_a, mat_b, out and offs must be on the GPU, got {mat_a.device}")
    _check(compiled.operator, args, compiled.target)
    with torch.cuda.device(mat_a.device):
        stream = torch.cuda.current_stream()
        compiled.operator.run(args, compiled.artifact, stream=stream, assume_supported_args=True)


def _check(operator: ops.Operator, args, target: ops.TargetSm) -> None:
    name = operator.metadata.operator_name
    if wrong := gaps(args):
        raise NoOperator(f"{name} does not take these operands", wrong)
    if wrong := refusal(operator, args, target):
        raise NoOperator(f"{name} does not take these operands on {target}", wrong)


def _runs_here(target: ops.TargetSm) -> bool:
    if not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability()
    return target.is_portable_to(ops.TargetSm(cc=10 * major + minor))


@contextlib.contextmanager
def _keeping_text(folder: str, target: ops.TargetSm) -> Iterator[None]:
    """Make CuTe DSL keep PTX and machine code and compile for the target. Its environment variables for this,
    CUTE_DSL_KEEP and CUTE_DSL_ARCH, are read only once."""
    settings = CuTeDSL._get_dsl().envar
    values = {"keep_ptx": True, "keep_cubin": True, "dump_dir": folder}
    before = {name: getattr(settings, name) for name in values}
    for name, value in values.items():
        setattr(settings, name, value)
    settings.arch = f"sm_{target}"
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)
        del settings.arch  # the environment variable, or the driver, decides again


@contextlib.contextmanager
def _clusters(number: int | None) -> Iterator[None]:
    """Answer operators that ask ``HardwareInfo``, and so the driver, how many clusters fit."""
    if number is None:
        torch.cuda.synchronize()  # the driver answers only a thread that has a context
        yield
        return
    before = HardwareInfo.__init__, HardwareInfo.get_max_active_clusters
    HardwareInfo.__init__ = lambda self, device_id=0: None
    HardwareInfo.get_max_active_clusters = lambda self, cluster_size, stream=None: number
    try:
        yield
    finally:
        HardwareInfo.__init__, HardwareInfo.get_max_active_clusters = before
