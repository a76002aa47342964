"""Time configurations of the packed kernels for the tuner: verified, then in turn in CUDA graphs."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from course_kernels.bench import timing
from course_kernels.bench.interface import one_line
from course_kernels.bench.tune import Case, Measured
from course_kernels.bench.verification import count_wrong, exact_products
from course_kernels.config import GemmConfig
from course_kernels.engine import launch as triton
from course_kernels.engine.product import Operands, Options
from course_kernels.engine.tuning.defaults import candidates

REPEATS = 9
_MAX_THREADS = 16
# The unit of `count_wrong`: the last place of a 16-bit result; for float32 several times the loss that sums of up to
# 2**14 products showed.
_UNITS = {"float16": 2**-10, "bfloat16": 2**-7, "float8_e4m3fn": 2**-7, "float32": 2**-14, "tf32": 2**-8}


def operands(case: Case, device: torch.device | str = "cuda", *, tiny: bool = False) -> tuple:
    """Random operands of a case as ``_launch`` takes them: mat_a, mat_b, offs, out, scales.

    With ``tiny`` the extents are small, but Triton compiles the same kernel: layouts and the number of groups stay, and
    so do multiples of 16.
    """
    dtype = torch.float32 if case.dtype == "tf32" else getattr(torch, case.dtype)
    sizes, M, N, K = case.sizes, case.M, case.N, case.K
    if tiny:
        sizes = (16 + bool(sum(sizes) % 16), *[16] * (len(sizes) - 1))
        M, N, K = (256 + extent % 16 if extent else 0 for extent in (M, N, K))
    total, groups = sum(sizes), len(sizes)
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        if dtype.itemsize == 1:
            return torch.empty(shape, device=device).normal_(0.0, 1.0, generator=generator).to(dtype)
        return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, scale, generator=generator)

    offs = torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
    scales: tuple = (None, None)
    if case.op == "grouped_mm_k":
        a, b = normal(total, M).mT, normal(total, N, scale=max(total / groups, 1.0) ** -0.5)
        shape: tuple[int, ...] = (groups, M, N)
    else:
        weights = (groups, N, K) if case.b_layout == "col" else (groups, K, N)
        a, b = normal(total, K), normal(*weights, scale=K**-0.5)
        b = b.mT if case.b_layout == "col" else b
        shape = (total, N)
        if dtype.itemsize == 1:
            scales = tuple(torch.rand(s, device=device, generator=generator) for s in ((total,), (groups, N)))
    out = torch.empty(shape, dtype=torch.bfloat16 if dtype.itemsize == 1 else dtype, device=device)
    return a, b, offs, out, *scales


def _launch(case: Case, config: GemmConfig, a, b, offs, out, scale_a, scale_b) -> Callable[[], None]:
    def launch() -> None:
        triton.multiply(Operands(a, b, offs, None, scale_a, scale_b), out, Options(out.dtype, config=config))

    return launch


def _groups(case: Case, out: torch.Tensor) -> Sequence[torch.Tensor]:
    return out.unbind() if case.op == "grouped_mm_k" else out.split(case.sizes)


def wrong_elements(case: Case, tensors: tuple, reference: torch.Tensor | None = None) -> int:
    """Elements of a result that differ from float64 products, or from a verified result by twice the bound."""
    out, unit = _groups(case, tensors[3]), _UNITS[case.dtype]
    if reference is None:
        a, b, offs, _, *scales = tensors
        return sum(count_wrong(out, exact_products(Operands(a, b, offs, None, *scales), case.sizes), unit))
    return sum(count_wrong(out, (part.float() for part in _groups(case, reference)), 2 * unit))


@contextmanager
def _tf32(case: Case):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def compile_ahead(cases: Sequence[Case], tell: Callable[[str], object] = print) -> None:
    """Compile the kernels of all cases, several at a time, by running each on tiny operands.

    Threads suffice: the compiler mostly works without Python's lock. A kernel that fails here fails again when it is
    measured, and is reported then.
    """
    work: dict[tuple, tuple[Case, GemmConfig]] = {}
    for case in cases:
        for config in candidates(case.op, case.bucket, case.dtype):
            fixed = (case.op, case.dtype, case.b_layout, config, (len(case.sizes) - 1).bit_length())
            work.setdefault((*fixed, sum(case.sizes) % 16 == 0), (case, config))
    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    tell(f"compiling {len(work)} kernels, {threads} at a time")
    device = torch.device("cuda", torch.cuda.current_device())  # a new thread would use the first GPU

    def one(item: tuple[Case, GemmConfig]) -> None:
        case, config = item
        try:
            _launch(case, config, *operands(case, device, tiny=True))()
        except Exception:
            return

    for tf32 in (False, True):
        items = [item for item in work.values() if (item[0].dtype == "tf32") is tf32]
        if items:
            # TF32 is a setting of the process, so cases with it do not run beside cases without.
            with _tf32(items[0][0]), ThreadPoolExecutor(threads) as pool:
                list(pool.map(one, items))
    torch.cuda.synchronize()


def measure(case: Case, configs: Sequence[GemmConfig], repeats: int = REPEATS) -> Measured:
    """Time configurations of a case on the current GPU, after each result over poisoned memory was verified.

    Each is called ``repeats`` times, in turn; the L2 cache is overwritten before each call.
    """
    tensors = operands(case)
    out = tensors[3]
    graphs: dict[GemmConfig, torch.cuda.CUDAGraph] = {}
    failed: dict[GemmConfig, str] = {}
    reference = None
    with _tf32(case):
        for config in configs:
            try:
                graph = timing.capture(_launch(case, config, *tensors), warmups=1)
                out.fill_(float("nan"))
                graph.replay()
                if wrong := wrong_elements(case, tensors, reference):
                    failed[config] = f"{wrong} of {out.numel()} elements are wrong"
                    continue
            except Exception as error:
                failed[config] = one_line(error)
                torch.cuda.synchronize()  # raises if the device is lost: nothing more can be measured
                continue
            graphs[config] = graph
            reference = out.clone() if reference is None else reference
        names = {str(i): config for i, config in enumerate(graphs)}
        functions = {name: graphs[config].replay for name, config in names.items()}
        times = timing.interleaved_us(functions, repeats) if functions else {}
    us = {names[name]: values for name, values in times.items()}
    del tensors, out, graphs, functions, reference
    gc.collect()
    torch.cuda.empty_cache()
    return Measured(us, failed)
