"""Whether kernels are compiled or interpreted in this process, and what its GPU can do.

Importing this module changes nothing. Triton decides between compiler and interpreter while it is being imported, so
the mode is fixed when the first kernel is loaded (``load_triton``); until then, ``mode`` says what it will be. If there
is no GPU, a Triton that something else has imported for its compiler is set up for its interpreter then.

==================  =============================================  =================================================
``mode()``          when                                           where kernels want their tensors
==================  =============================================  =================================================
``"gpu"``           torch sees a GPU                               on that GPU
``"interpreter"``   no GPU, or ``TRITON_INTERPRET=1``              on the CPU; Triton's interpreter runs kernels
``"compile-only"``  no GPU and ``TRITON_INTERPRET=0``, or a GPU    on the CPU; kernels can be compiled for any GPU
                    and ``TRITON_INTERPRET=1`` came after Triton   but not run
==================  =============================================  =================================================

>>> device() if mode() == "gpu" else mode()  # of a machine without a GPU
'interpreter'
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

import torch

from course_kernels import late_interpreter

Mode: TypeAlias = Literal["gpu", "interpreter", "compile-only"]
_Parameters, _Result = ParamSpec("_Parameters"), TypeVar("_Result")
TOO_LATE = (
    "triton was imported for this process's GPU before TRITON_INTERPRET=1 was set, so kernels cannot run in Triton's "
    "interpreter. Start the process with TRITON_INTERPRET=1."
)
COMPILE_ONLY = (
    "this process has no GPU and TRITON_INTERPRET=0, so kernels can be compiled but not run. Unset TRITON_INTERPRET "
    "to run them in Triton's interpreter."
)
LACKS_NUMPY = (
    "Triton's interpreter needs numpy, which is not installed: pip install numpy, or install this package with its "
    "extra [interpreter]"
)
# This distribution is on no package index: anybody could register its name there.
INSTALL_EXTRA = "pip install '.[{}]' in a checkout of the course's repository"
_PROPERTIES = (
    "multi_processor_count", "major", "minor", "gcnArchName", "shared_memory_per_block",
    "shared_memory_per_block_optin", "clock_rate", "memory_clock_rate", "memory_bus_width",
)  # fmt: skip
_TRUE = frozenset({"1", "true", "on", "yes", "y"})

# Oldest compute capability on which Triton uses tensor cores (Turing, 7.5, has them, but Triton multiplies with scalar
# instructions there); with descriptors (TMA); with float8_e4m3fn in tensor cores.
TENSOR_CORE_CAPABILITY = (8, 0)
DESCRIPTOR_CAPABILITY = (9, 0)
FP8_CAPABILITY = (8, 9)

# Triton's interpreter keeps the running program's number, and much else, in globals of the process, so that two threads
# in it give garbage.
_interpreter = threading.RLock()
_loading = threading.RLock()  # Triton looks different while it is being imported


@functools.cache
def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    return torch.cuda.device_count() > 0


def _decide() -> tuple[Mode, str | None]:
    """The mode, and the reason why kernels cannot run in it, or None."""
    with _loading:
        return _decide_alone()


def _decide_alone() -> tuple[str, str | None]:
    if late_interpreter.is_interpreted():
        return "interpreter", None
    flag = os.environ.get("TRITON_INTERPRET", "").strip().lower()
    if flag in _TRUE:
        return ("compile-only", TOO_LATE) if has_gpu() and "triton.language" in sys.modules else ("interpreter", None)
    if has_gpu():
        return "gpu", None
    return ("compile-only", COMPILE_ONLY) if flag else ("interpreter", None)


def mode() -> Mode:
    """How kernels run in this process: "gpu", "interpreter" or "compile-only"; see the module's table."""
    return _decide()[0]


def load_triton() -> None:
    """Import Triton, for its interpreter where no GPU is visible and the user has not decided otherwise.

    The choice is for this process alone: the environment, which child processes inherit, does not change.

    Raises:
        RuntimeError: for its interpreter, Triton needs numpy.
    """
    with _loading:
        _load_triton_alone()


def _load_triton_alone() -> None:
    imported, interprets = "triton.language" in sys.modules, mode() == "interpreter"
    if interprets and not late_interpreter.is_interpreted():
        if importlib.util.find_spec("numpy") is None:
            raise RuntimeError(LACKS_NUMPY)
        if imported:
            late_interpreter.convert()
    if imported:
        return
    if mode() != "interpreter" or os.environ.get("TRITON_INTERPRET", "").strip():
        importlib.import_module("triton.language")
        return
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        importlib.import_module("triton.language")
    finally:
        del os.environ["TRITON_INTERPRET"]
    # For kernels that are defined later. Triton's own setter would change the environment.
    vars(sys.modules["triton.knobs"].runtime)["interpret"] = True


def device() -> torch.device:
    """The device on which tensors have to live for kernels to run on them: the current GPU, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if mode() == "gpu" else torch.device("cpu")


@functools.cache
def interpreter_problem() -> str | None:
    """Why Triton's interpreter cannot run every kernel here, or None."""
    if importlib.util.find_spec("numpy") is None:
        return LACKS_NUMPY
    load_triton()  # before the plain import below, which would choose the compiler
    import numpy
    import triton

    def version(module):
        return tuple(int(part) for part in module.__version__.split(".")[:2])

    if version(triton) < (3, 7) and version(numpy) >= (2, 4):
        return (
            f"Triton {triton.__version__}'s interpreter cannot loop to a loaded bound with numpy {numpy.__version__}: "
            "install 'triton>=3.7.1' or 'numpy<2.4'"
        )
    return None


@contextlib.contextmanager
def interpreting():
    """Around every launch on CPU tensors: one thread at a time, and no warnings from numpy, with which the interpreter
    computes, about NaN and infinities."""
    import numpy

    with _interpreter, numpy.errstate(all="ignore"):
        yield


def check_can_launch(tensor_device: torch.device) -> None:
    """Check that a kernel can run on tensors of this device.

    Raises:
        RuntimeError: the process cannot run kernels at all; the message has the reason.
        ValueError: it can, but not on tensors of this device.
    """
    now, why_not = _decide()
    if why_not is not None:
        raise RuntimeError(why_not)
    if now == "interpreter":
        if tensor_device.type != "cpu":
            raise ValueError(
                f"kernels run in Triton's interpreter here (TRITON_INTERPRET=1), which wants tensors on the CPU; "
                f"got {tensor_device}"
            )
        if problem := interpreter_problem():
            raise RuntimeError(problem)
    elif tensor_device.type != "cuda":
        raise ValueError(
            f"kernels run on the GPU here and want tensors on it; got {tensor_device}. Set TRITON_INTERPRET=1 before "
            "starting Python to run them on CPU tensors in Triton's interpreter."
        )


@functools.cache
def _properties(index: int) -> types.SimpleNamespace:
    """What torch tells of a GPU. A copy: torch asks the driver at each look at the memory's clock, which takes much
    longer than a launch."""
    _check_gpu(torch.device("cuda", index))
    found = torch.cuda.get_device_properties(index)
    return types.SimpleNamespace(**{name: getattr(found, name, None) for name in _PROPERTIES})


def _index(tensor_device: torch.device | None) -> int | None:
    tensor_device = device() if tensor_device is None else torch.device(tensor_device)
    if tensor_device.type != "cuda":
        return None
    if tensor_device.index is not None:
        return tensor_device.index
    _check_gpu(tensor_device)
    return torch.cuda.current_device()


def _check_gpu(tensor_device: torch.device) -> None:
    if not has_gpu():
        raise RuntimeError(f"torch sees no GPU, got device {str(tensor_device)!r}")


def num_sms(tensor_device: torch.device | None = None) -> int | None:
    """Number of streaming multiprocessors of a GPU (compute units on AMD); None for a CPU."""
    index = _index(tensor_device)
    return None if index is None else _properties(index).multi_processor_count


def capability(tensor_device: torch.device | None = None) -> tuple[int, int] | None:
    """Compute capability of an NVIDIA GPU, such as (9, 0); None for a CPU or an AMD GPU."""
    index = _index(tensor_device)
    if index is None or torch.version.hip is not None:
        return None
    properties = _properties(index)
    return properties.major, properties.minor


def amd_arch(tensor_device: torch.device | None = None) -> str:
    """The name of an AMD GPU's architecture, such as "gfx942"; "gfx" where torch does not tell."""
    properties = _properties(_index(tensor_device))
    return (properties.gcnArchName or "").partition(":")[0] or "gfx"


def shared_memory_limit(tensor_device: torch.device | None = None) -> int | None:
    """Bytes of shared memory (LDS) that one program can have on a GPU; None for a CPU, where there is no limit."""
    index = _index(tensor_device)
    if index is None:
        return None
    properties = _properties(index)
    # AMD's builds of torch leave the first at 0.
    return properties.shared_memory_per_block_optin or properties.shared_memory_per_block


def memory_bandwidth(tensor_device: torch.device | None = None) -> float | None:
    """TB/s of a GPU's memory by its clock and the width of its bus; None for a CPU, or where torch does not tell."""
    index = _index(tensor_device)
    if index is None:
        return None
    khz, bits = _properties(index).memory_clock_rate, _properties(index).memory_bus_width
    return 2 * khz * 1e3 * bits / 8 / 1e12 if khz and bits else None  # two transfers a clock


def clock(tensor_device: torch.device | None = None) -> float | None:
    """The highest clock of a GPU's SMs in GHz; None for a CPU, or if torch does not report it."""
    index = _index(tensor_device)
    khz = None if index is None else _properties(index).clock_rate
    return khz / 1e6 if khz else None


def _reaches(tensor_device: torch.device | None, needed: tuple[int, int], amd: bool = False) -> bool:
    """Whether a device has a compute capability. A CPU, where kernels are interpreted, has all; ``amd``: an AMD GPU."""
    if _index(tensor_device) is None:
        return True
    found = capability(tensor_device)
    return amd if found is None else found >= needed


def supports_descriptors(tensor_device: torch.device | None = None) -> bool:
    """Whether descriptor kernels are worth running: TMA hardware (capability 9.0 or newer), or the interpreter."""
    return _reaches(tensor_device, DESCRIPTOR_CAPABILITY)


def supports_fp8(tensor_device: torch.device | None = None) -> bool:
    """Whether operands of float8_e4m3fn and float8_e5m2 can be multiplied: capability 8.9 or newer, or the
    interpreter."""
    return _reaches(tensor_device, FP8_CAPABILITY)


def supports_bf16(tensor_device: torch.device | None = None) -> bool:
    """Whether bfloat16 operands can be multiplied: capability 8.0 or newer, an AMD GPU, or the interpreter."""
    return _reaches(tensor_device, TENSOR_CORE_CAPABILITY, amd=True)


def supports_tf32(tensor_device: torch.device | None = None) -> bool:
    """Whether float32 operands can be multiplied in TF32: capability 8.0 or newer, or the interpreter."""
    return _reaches(tensor_device, TENSOR_CORE_CAPABILITY)


class Device(NamedTuple):
    """The properties of a device that launches depend on.

    Attributes:
        arch: compute capability, "gfx942" or another name of AMD's, None for the interpreter.
        capability: compute capability; None for an AMD GPU and the interpreter.
        num_sms: streaming multiprocessors; None in the interpreter.
        shared_limit: bytes of shared memory that a program can have; None in the interpreter.
        uses_tma: whether operands go through descriptors where they can.
        bandwidth: of the memory in TB/s, as its clock and bus give it; None where torch does not tell.
        clock: of the SMs in GHz; None where torch does not tell.
    """

    arch: tuple[int, int] | str | None
    capability: tuple[int, int] | None
    num_sms: int | None
    shared_limit: int | None
    uses_tma: bool
    bandwidth: float | None = None
    clock: float | None = None

    @classmethod
    def of(cls, device: torch.device) -> Device:
        """A device of this machine."""
        version, sms = capability(device), num_sms(device)
        arch = version or (None if sms is None else amd_arch(device))
        tma, bandwidth = supports_descriptors(device), memory_bandwidth(device)
        return cls(arch, version, sms, shared_memory_limit(device), tma, bandwidth, clock(device))


def check_dtype(name: str, dtype: torch.dtype, tensor_device: torch.device, remedy: str) -> None:
    """Raise TypeError, with the remedy, where a device does not multiply a dtype."""
    needs = {torch.float8_e4m3fn: (supports_fp8, "8.9"), torch.bfloat16: (supports_bf16, "8.0")}
    needs[torch.float8_e5m2] = needs[torch.float8_e4m3fn]
    if dtype in needs and not needs[dtype][0](tensor_device):
        raise TypeError(
            f"{name} has dtype {str(dtype).removeprefix('torch.')}, which needs a GPU of compute capability "
            f"{needs[dtype][1]} or newer; {tensor_device} has {capability(tensor_device)}. {remedy}"
        )


def allows_tf32() -> bool:
    """Whether torch's settings let products of float32 matrices on a GPU use TF32."""
    matmul = torch.backends.cuda.matmul
    try:
        return matmul.allow_tf32
    except RuntimeError:  # the newer setting is in use, and torch refuses to read the older one
        return matmul.fp32_precision == "tf32"


def outside_graphs(
    reason: str,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Decorator: ``torch.compile`` calls the function between two graphs and does not trace it.

    Like ``torch.compiler.disable``, but imports the compiler (almost a second) only where something is compiled. Under
    ``fullgraph=True``, torch's error gives the reason.
    """
    advice = f"{reason}: call it without fullgraph=True"

    def decorate(function):
        disabled = []

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            # While a graph is traced, the table of modules is costly to look at.
            if not torch.compiler.is_dynamo_compiling() and "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            if not disabled:
                if torch.compiler.is_dynamo_compiling():  # which cannot trace ``disable``, and would complain of that
                    torch._dynamo.graph_break(msg=advice)
                disabled.append(torch.compiler.disable(function, reason=advice))
            return disabled[0](*args, **kwargs)

        return wrapper

    return decorate


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")


def ensure_allocator() -> None:
    """Give Triton memory for descriptors that kernels make on the device, unless the user has set an allocator.

    Triton keeps its allocator in a context variable, so each new thread (such as autograd's) starts without one.
    """
    from triton.runtime import _allocation

    if isinstance(_allocation._allocator.get(), _allocation.NullAllocator):
        _allocation.set_allocator(_scratch)
