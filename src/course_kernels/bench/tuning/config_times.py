"""Measure every configuration on many shapes: the data that the time model is fitted to.

The shapes are those of published models with several numbers of tokens, and random ones. A configuration that cannot be
the fastest, because its tiles would be nearly empty or because a group has dozens of them, is left out.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.bench import timing
from course_kernels.bench.interface import one_line
from course_kernels.bench.operands import make_operands
from course_kernels.bench.rows import Row, jittered, zipf
from course_kernels.bench.verification import count_unlike, count_wrong, exact_products
from course_kernels.config import GemmConfig
from course_kernels.dtypes import FP8, dtype_name
from course_kernels.engine import triton_launch as triton
from course_kernels.engine.hopper import compiled_cache, cute
from course_kernels.engine.options import Options
from course_kernels.engine.product import STORE, Ends, Gated, GatedBackward, Product
from course_kernels.engine.scaling import BLOCK, ROW, UNSCALED
from course_kernels.engine.tuning import Gpu, Kind, time_model
from course_kernels.engine.tuning.configs_by_kind import Config, form_of, name_of, offered
from course_kernels.engine.tuning.kinds import KINDS, KINDS_8_BIT, KINDS_OF_LAYER
from course_kernels.kernels.codes import Activation, Function
from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.packed.checks import problem_of

__all__ = [
    "KIND_OF_PASS",
    "PASSES",
    "PASSES_8_BIT",
    "PASSES_OF_LAYER",
    "Made",
    "compile_ahead",
    "failures",
    "here",
    "launch",
    "made",
    "measure",
    "random_rows",
]

PASSES = ("forward", "dA", "dB")
PASSES_8_BIT = ("forward fp8", "forward fp8 blocks", "dA fp8", "dA fp8 blocks")
PASSES_OF_LAYER = ("forward gated", "forward gated_pre", "dA gated_backward", "dB gathered")
# pass → kind in the time model
KIND_OF_PASS = dict(zip((*PASSES, *PASSES_8_BIT, *PASSES_OF_LAYER), (*KINDS, *KINDS_8_BIT, *KINDS_OF_LAYER)))
REPEATS = 7
# Repeats of products from 1e12 FLOP on, which would take most of the time. Three were too few on an H200.
_LARGE, _REPEATS_LARGE = 1e12, 5
DEVICE = "cuda"
_PROCESSES, _THREADS = 12, 16  # for compiling, at most
# The unit of `count_wrong` by operand bytes: the last place of a bfloat16 result, and the loss of sums of 8-bit
# products in the Triton kernel's tensor cores.
_UNITS = {2: 2.0**-7, 1: 2.0**-5}


def here(triton_only: bool = False) -> dict[Kind, tuple[Config, ...]]:
    """The configurations that are measured on the current GPU, by kind."""
    gpu = Gpu.of(runtime.Device.of(torch.device(DEVICE)))
    return {kind: offered(kind, gpu, triton_only or not cute.installed()) for kind in KIND_OF_PASS.values()}


def random_rows(
    count: int, seed: int = 0, most_flops: float = 2e12, most_bytes: float = 8e9, few_groups: bool = False
) -> list[Row]:
    """Draw shapes of no model: extents and numbers of groups are uniform on a logarithmic scale.

    Args:
        count, seed: the number of shapes, and the seed of the draw.
        most_flops, most_bytes: of a product, and of its weights.
        few_groups: one to four groups of 1,024 to 32,768 rows; else 2 to 256 groups of up to 5,800 rows.
    """
    draw, found, name = random.Random(seed), [], "random-few" if few_groups else "random"
    of_groups, of_rows = ((0, 2), (10, 15)) if few_groups else ((1, 8), (0, 12.5))  # binary logarithms
    while len(found) < count:
        groups = round(2 ** draw.uniform(*of_groups))
        rows = 2 ** draw.uniform(*of_rows)
        step = draw.choice((8, 64, 128))
        N, K = (max(2, round(2 ** draw.uniform(8.5, 14) / step)) * step for _ in range(2))
        total = max(1, round(groups * rows))
        sizes = zipf(groups, total, len(found)) if draw.random() < 0.5 else jittered(groups, rows, len(found))
        title = f"{groups} groups, {sum(sizes):,} rows, N {N}, K {K}"
        row = Row(f"{name}-{len(found)}", title, sizes, N, K, "compute")
        if sum(sizes) and row.flops <= most_flops and 2 * groups * N * K <= most_bytes:
            found.append(row)
    return found


class Made(NamedTuple):
    """The operands of a pass and memory for its result.

    Attributes:
        product, out: the product and its result, as kernels take them.
        sizes: rows of each group.
    """

    product: Product
    out: Tensor
    sizes: tuple[int, ...]


def made(row: Row, passes: Sequence[str], device: torch.device | str = DEVICE) -> Iterator[tuple[str, Made]]:
    """Yield the operands of a row's passes in turn. 16-bit passes share memory; so do an 8-bit product's passes with
    factors of rows and of blocks. An 8-bit pass, or a layer's, whose operands no descriptor describes is left out."""
    if sixteen := [name for name in passes if name in PASSES]:
        o = make_operands(row, device)
        of = {
            "forward": (o.a, o.weight.mT, o.out), "dA": (o.d_out, o.weight, o.d_a), "dB": (o.d_out.mT, o.a, o.d_weight),
        }  # fmt: skip
        for name in sixteen:
            mat_a, mat_b, out = of[name]
            yield name, Made(Product.packed(mat_a, mat_b, o.offs), out, o.sizes)
        del o, of, mat_a, mat_b, out
    for name in passes if row.N % 16 == row.K % 16 == 0 else ():
        if name in PASSES_OF_LAYER:
            yield name, _of_layer(row, KIND_OF_PASS[name].fused, device)
    for form in ("forward", "dA"):
        eight = [name for name in passes if name.startswith(f"{form} fp8")]
        if not eight or row.N % 16 or row.K % 16:
            continue
        turned = row if form == "forward" else replace(row, N=row.K, K=row.N)
        o = make_operands(turned, device, FP8)
        mat_b = o.weight.mT if form == "forward" else o.weight.mT.contiguous()
        for name in eight:
            scales, scaling = (o.scale_a, o.scale_b), ROW
            if name.endswith("blocks"):
                scales, scaling = _block_scales(turned, device), cute.BLOCKS
            product = Product.packed(o.a, mat_b, o.offs, None, *scales, scaling=scaling)
            yield name, Made(product, o.out, o.sizes)


def _of_layer(row: Row, fused: str, device: torch.device | str) -> Made:
    """The operands of a layer's product. Its rows, or lines along K, are of an eighth as many tokens, in random
    order."""
    o, swiglu = make_operands(row, device), Activation(Function.SILU)
    total, columns = o.d_out.shape[0], 2 * row.K
    tokens = max(1, total // 8)
    index = torch.randint(tokens, (total,), dtype=torch.int32, device=device)
    if fused == "gathered":
        rows = Ends(o.offs, index, "b")
        return Made(Product(o.d_out.mT, o.a[:tokens], rows, UNSCALED, STORE), o.d_weight, o.sizes)
    rows = Ends(o.offs, index)
    if fused == "gated_backward":
        pre, out = torch.randn(total, columns, dtype=o.a.dtype, device=device), o.a.new_empty(total, columns)
        factors = torch.rand(total, dtype=torch.float32, device=device)
        dots = torch.empty(total, -(-row.K // 32), dtype=torch.float32, device=device)
        epilogue = GatedBackward(swiglu, False, pre, factors, o.d_a, dots)
        return Made(Product(o.d_out[:tokens], o.weight, rows, UNSCALED, epilogue), out, o.sizes)
    pre = torch.empty_like(o.out) if fused == "gated_pre" else None
    product = Product(o.a[:tokens], o.weight.mT, rows, UNSCALED, Gated(swiglu, pre=pre))
    return Made(product, o.a.new_empty(total, row.N // 2), o.sizes)


def _block_scales(row: Row, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Make factors of blocks. A's are stored as by the quantiser. B's strides are multiples of 16 for all extents, so
    the compiler always sees the same kernel."""
    generator = torch.Generator(device).manual_seed(1)
    deep, wide = (-(-extent // BLOCK) for extent in (row.K, row.N))
    of_a = torch.empty(deep, row.total_m, dtype=torch.float32, device=device).uniform_(0.5, 1.5, generator=generator).mT
    of_b = torch.empty(row.groups, wide, -(-deep // 16) * 16, dtype=torch.float32, device=device)
    of_b.uniform_(0.5 * row.K**-0.5, 1.5 * row.K**-0.5, generator=generator)
    return of_a, of_b[..., :deep].mT


def launch(made: Made, config: Config) -> Callable[[], object] | None:
    """The call that computes a product in a configuration; None if its kernel does not take the operands."""
    product, out, _ = made
    if isinstance(config, GemmConfig):
        problem = problem_of(product, Options(out.dtype, config=config))
        return lambda: triton.multiply(problem, product, out)
    form = cute.match_form(product, out)
    return form and (lambda: cute.multiply(product, out, form, config))


def _suited(row: Row, kind: Kind, among: Mapping[Kind, Sequence[Config]]) -> list[Config]:
    """The configurations of a kind that are measured on a row."""
    return [each for each in among[kind] if time_model.suits(each, kind, row.total_m / row.groups)]


def _compile(config: CuteConfig, form: Form) -> None:
    compiled_cache.compiled(config, form, dtype_name(FP8) if form.operand_bytes == 1 else "bfloat16", "bfloat16")


def compile_ahead(
    rows: Sequence[Row],
    passes: Sequence[str] = PASSES,
    among: Mapping[Kind, Sequence[Config]] | None = None,
    tell: Callable[[str], object] = print,
) -> None:
    """Compile the kernels of ``measure``, several at a time: those in CuTe DSL in other processes, which write them to
    files; those of Triton in threads, by running each on few rows and columns.

    Failures are ignored here: they occur again in ``measure``, which reports them.
    """
    jobs: dict[tuple[CuteConfig, Form], None] = {}
    tiny: dict[tuple, tuple[Row, str, GemmConfig]] = {}
    among = among or here()
    for row in rows:
        for pass_name in passes:
            kind = KIND_OF_PASS[pass_name]
            for config in _suited(row, kind, among):
                if isinstance(config, CuteConfig):
                    depth = row.N if pass_name.startswith("dA") else row.K
                    form = form_of(kind)
                    jobs[config, form._replace(whole_rounds=config.whole_rounds(depth, form))] = None
                    continue
                extents = 256 + row.N % 16, 256 + row.K % 16
                small = replace(row, sizes=(16,) * row.groups, N=extents[0], K=extents[1])
                # Kernels differ by the number of groups, rounded up to a power of two.
                tiny.setdefault((kind, config, (row.groups - 1).bit_length(), extents), (small, pass_name, config))
    tell(f"compiling {len(jobs)} kernels in CuTe DSL and {len(tiny)} in Triton")
    device = torch.device(DEVICE, torch.cuda.current_device())  # a new thread would use the first GPU

    def run(item: tuple[Row, str, GemmConfig]) -> None:
        row, pass_name, config = item
        with contextlib.suppress(Exception):
            ((_, product),) = made(row, [pass_name], device)
            with torch.cuda.device(device):
                launch(product, config)()

    threads = min(_THREADS, os.cpu_count() or 1)
    with ProcessPoolExecutor(min(_PROCESSES, threads), get_context("spawn")) as pool:
        compiled = [pool.submit(_compile, *job) for job in jobs]
        with ThreadPoolExecutor(threads) as others:
            list(others.map(run, tiny.values()))
        for each in compiled:
            each.exception()
    torch.cuda.synchronize()


def _check(made: Made, first: Tensor | None) -> None:
    """Raise ValueError unless a result matches the float64 product, or within twice its bound the first such result."""
    out, unit = made.out, _UNITS[made.product.a.element_size()]
    if made.product.epilogue.activation is not None:
        unit *= 2  # gate and up may be rounded, too: three half units
    if first is None:
        groups = out.unbind() if out.dim() == 3 else out.split(made.sizes)
        wrong = sum(count_wrong(groups, exact_products(made.product, made.sizes), unit))
    else:
        # Most results are the same bit for bit, and ``equal`` takes few launches.
        wrong = 0 if torch.equal(out, first) else count_unlike(out, first, 2 * unit)
    if wrong:
        raise ValueError(f"{wrong} of {out.numel()} elements are wrong")


def measure(
    rows: Sequence[Row],
    passes: Sequence[str] = PASSES,
    repeats: int = REPEATS,
    seconds: float = float("inf"),
    among: Mapping[Kind, Sequence[Config]] | None = None,
    tell: Callable[[str], object] = print,
) -> dict:
    """Measure the times of all configurations.

    Memory for results holds NaN before each verified call. The first result of each pass is compared with float64
    products of the operands (8-bit ones times their factors), the others with the first.

    Args:
        rows, passes, repeats: the measured rows, passes and calls; at most five calls from 1e12 FLOP on.
        seconds: the time after which no row begins.
        among: the configurations for each kind of product; by default those of ``here``.
        tell: gets a line about each pass.

    Returns:
        row → {"sizes", "N", "K", pass → {"us": name → median, "failed": name → reason}}. Rows after ``seconds`` are
        left out.
    """
    found, began, among = {}, time.monotonic(), among or here()
    for row in rows:
        if time.monotonic() - began > seconds:
            break
        entry = found[row.name] = {"title": row.title, "sizes": list(row.sizes), "N": row.N, "K": row.K}
        for pass_name, product in made(row, passes, DEVICE):
            graphs, failed, first = {}, {}, None
            for config in _suited(row, KIND_OF_PASS[pass_name], among):
                if not (call := launch(product, config)):
                    continue
                try:
                    graph = timing.capture(call, warmups=1)
                    product.out.fill_(float("nan"))
                    graph.replay()
                    torch.cuda.synchronize()
                    _check(product, first)
                    first = product.out.clone() if first is None else first
                    graphs[name_of(config)] = graph.replay
                except Exception as error:
                    failed[name_of(config)] = one_line(error)
                    torch.cuda.synchronize()
            turns = repeats if row.flops < _LARGE else min(repeats, _REPEATS_LARGE)
            times = timing.interleaved_us(graphs, turns) if graphs else {}
            medians = {name: round(statistics.median(each), 2) for name, each in times.items()}
            entry[pass_name] = {"us": medians, "failed": failed}
            if medians:
                best = min(medians, key=medians.get)
                tell(f"{row.name} {pass_name}: {best} {medians[best]} us, failed {len(failed)}")
            del graphs, first
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    return found


def failures(found: Mapping[str, Mapping]) -> dict[str, dict[str, str]]:
    """The wrong or failed calls of a ``measure``: "row, pass" → name → reason."""
    return {
        f"{name}, {of}": each["failed"]
        for name, entry in found.items()
        for of, each in entry.items()
        if of in KIND_OF_PASS and each["failed"]
    }
