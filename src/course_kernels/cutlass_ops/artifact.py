"""Compile an operator for a GPU that this machine need not have, and run what was compiled."""

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
from course_kernels.cutlass_ops.operands import NoOperator, gaps, refusal, tensors

# SMs by compute capability: H100 and H200, B200.
SMS = {90: 132, 100: 148}

_lock = threading.RLock()  # the settings below belong to the process


@dataclasses.dataclass(frozen=True, repr=False)
class Compiled:
    """An operator, compiled for a target.

    Attributes:
        operator: NVIDIA's object.
        target: for which it was compiled.
        clusters: that it launches at most, by the caller's word or the table; None where the driver was asked.
        artifact: NVIDIA's object, which ``operator.run`` takes.
        ptx: the assembly for a virtual machine.
        cubin: the machine code's file.
        seconds: that compiling took.
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
        clusters: how many clusters the GPU holds at a time, which a persistent operator launches. Default: where this
            machine's GPU is one that the code runs on, what its driver says, else its SMs (``SMS``) over the cluster's.

    Raises:
        TypeError: ``operator`` is none, or ``args`` are none of the API's.
        NoOperator: the operator does not take these operands on this target.
        ValueError: the number of clusters is not known for the target, or is not positive.
        CompileError: the compiler's message.
    """
    if not isinstance(operator, ops.Operator):
        raise TypeError(f"operator must be one that discover has found, got {type(operator).__name__}")
    _check_kind(args)
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
    """Launch what was compiled on the current stream; the result goes to the arguments' ``out``.

    Args:
        compiled: of ``compile``.
        args: on the GPU, of the dtypes and layouts that were compiled for.

    Raises:
        TypeError: ``compiled`` is not what ``compile`` returned, or ``args`` are none of the API's.
        NoOperator: the operator does not take these operands.
        RuntimeError: this machine has no GPU that the code runs on.
        ValueError: the operands are not on a GPU.
    """
    if not isinstance(compiled, Compiled):
        raise TypeError(f"compiled must be what compile returned, got {type(compiled).__name__}")
    _check_kind(args)
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


def _check_kind(args) -> None:
    if not isinstance(args, ops.RuntimeArguments):
        raise TypeError(f"args must be what arguments returned, got {type(args).__name__}")


def _check(operator: ops.Operator, args, target: ops.TargetSm) -> None:
    name = operator.metadata.operator_name
    if wrong := gaps(args):
        raise NoOperator(f"{name} does not take these operands", wrong)
    if told := refusal(operator, args, target):
        raise NoOperator(f"{name} does not take these operands on {target}", told)


def _runs_here(target: ops.TargetSm) -> bool:
    if not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability()
    return target.is_portable_to(ops.TargetSm(cc=10 * major + minor))


@contextlib.contextmanager
def _keeping_text(folder: str, target: ops.TargetSm) -> Iterator[None]:
    """CuTe DSL keeps PTX and machine code, and takes the architecture from here, as from its environment variables
    CUTE_DSL_KEEP and CUTE_DSL_ARCH, which it reads only once."""
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
        del settings.arch  # back to the environment variable, or to asking the driver when it matters


@contextlib.contextmanager
def _clusters(number: int | None) -> Iterator[None]:
    """Operators ask ``HardwareInfo`` how many clusters fit, and that asks the driver. Here it answers by itself."""
    if number is None:
        torch.cuda.synchronize()  # the question needs this thread to have a context
        yield
        return
    before = HardwareInfo.__init__, HardwareInfo.get_max_active_clusters
    HardwareInfo.__init__ = lambda self, device_id=0: None
    HardwareInfo.get_max_active_clusters = lambda self, cluster_size, stream=None: number
    try:
        yield
    finally:
        HardwareInfo.__init__, HardwareInfo.get_max_active_clusters = before
