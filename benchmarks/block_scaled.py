"""Measurements of ``scaled_grouped_mm`` with a factor for each block of 128 along K, in the shapes of DeepSeek-V3.

The rows are those that DeepGEMM publishes for its contiguous layout: groups of 8,192 and of 4,096 rows. `run.py`
measures all of it; run by itself, this compares variants of the kernel in CuTe DSL. Where DeepGEMM is installed, it is
measured, too.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import ScalingType

from course_kernels import GemmConfig, quantize_1x128, quantize_128x128, scaled_grouped_mm
from course_kernels.bench.gpu_timer import GpuTimer
from course_kernels.bench.interface import Calls, Function, Provider, Unverified, WrongResult
from course_kernels.bench.rows import Row, describe
from course_kernels.bench.verification import count_wrong
from course_kernels.bench.verified_timing import measure_one
from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Product
from course_kernels.fp8.quantize import quantize_whole_blocks
from course_kernels.kernels.cute_sm90.config import CONFIGS_BLOCK_SCALED, COOPERATIVE, CuteConfig

LINE, SQUARE, ROW = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128, ScalingType.RowWise
EXTENTS = ((4096, 7168), (7168, 2048), (6144, 7168), (7168, 3072))
ROWS = tuple(
    Row(
        f"{groups}x{rows}_{N}_{K}",
        describe((rows,) * groups, N, K, f"{rows:,} each"),
        (rows,) * groups,
        N,
        K,
        "compute",
    )
    for groups, rows in ((4, 8192), (8, 4096))
    for N, K in EXTENTS
)
# Beside the shipped ones: more stages, which have room for one block of C to store; and narrow last tiles.
SWEPT = (
    *CONFIGS_BLOCK_SCALED,
    CuteConfig(128, 192, 128, 2, 5, COOPERATIVE),
    CuteConfig(128, 192, 128, 2, 4, COOPERATIVE, last_tile_n=128),
)
# Sizes of tiles, and stages: `python benchmarks/block_scaled.py` compares them.
VARIANTS = (
    *SWEPT,
    CuteConfig(128, 192, 128, 2, 4, COOPERATIVE),
    CuteConfig(128, 256, 128, 2, 3, COOPERATIVE),
)
ROWS_OF_VARIANTS = (ROWS[0], ROWS[1], ROWS[7])
# The row-wise kernel, which adds blocks, too, but multiplies at the end: what factors of blocks cost.
SWEPT_ROW_WISE = (CuteConfig(128, 192, 128, 2, 4, COOPERATIVE),)
TRITON = (
    GemmConfig(128, 128, 128, 8, 3, 8, 1, 1),
    GemmConfig(128, 128, 128, 8, 4, 8, 1, 2),
    GemmConfig(64, 256, 128, 8, 3, 8, 1, 2),
    GemmConfig(64, 128, 128, 4, 3, 8, 2, 2),
)
# DeepGEMM's function for groups one after the other, by its names since and before July 2025.
DEEPGEMM = ("m_grouped_fp8_gemm_nt_contiguous", "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous")
DEEPGEMM_ROWS = 128  # its groups are multiples of that
REPEATS = 25
SAMPLED = 64  # rows of a group whose results are compared


def as_quantised(x: Tensor, scale: Tensor, lines: int) -> Tensor:
    """Lines of float8 values, multiplied with their factors in float64."""
    factors = scale.double().repeat_interleave(128, -1)[:, : x.shape[1]]
    return x.double() * factors.repeat_interleave(lines, 0)[: x.shape[0]]


class Layer:
    """The operands of a row, quantised, and its results."""

    def __init__(self, row: Row, device: torch.device | str = "cuda"):
        generator = torch.Generator(device).manual_seed(0)
        options = dict(dtype=torch.bfloat16, device=device)
        self.row, self._exact = row, {}
        self.x = torch.empty(row.total_m, row.K, **options).normal_(generator=generator)
        self.dy = torch.empty(row.total_m, row.N, **options).normal_(generator=generator)
        weight = torch.empty(row.groups, row.N, row.K, **options).normal_(0, row.K**-0.5, generator=generator)
        self.offs = torch.tensor(row.sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)
        (self.qx, self.sx), (self.qw, self.sw) = quantize_1x128(self.x), quantize_128x128(weight)
        self.qd, self.sd = quantize_1x128(self.dy)
        self.of_lines = [quantize_1x128(t.mT, offs=self.offs) for t in (self.dy, self.x)]
        self.whole = [quantize_whole_blocks(t.mT, self.offs) for t in (self.dy, self.x)]
        self.out = torch.empty(row.total_m, row.N, **options)
        self.rows_of_a = torch.rand(row.total_m, generator=generator, device=device) + 0.5
        self.cols_of_b = torch.rand(row.groups, row.N, generator=generator, device=device) + 0.5

    def forward(self, **options) -> Tensor:
        """The product through the public function."""
        return scaled_grouped_mm(
            self.qx, self.qw.mT, self.sx, LINE, self.sw.mT, SQUARE, offs=self.offs, out=self.out, **options
        )

    def configured(self, config: CuteConfig, row_wise: bool = False) -> Tensor:
        """The product in a configuration of the kernel in CuTe DSL."""
        scales = (self.rows_of_a, self.cols_of_b) if row_wise else (self.sx, self.sw.mT)
        scaling = "row" if row_wise else cute.BLOCKS
        product = Product.packed(self.qx, self.qw.mT, self.offs, None, *scales, scaling=scaling)
        form = cute.match_form(product, self.out)
        cute.multiply(product, self.out, form, config)
        return self.out

    def by_torch(self) -> Tensor:
        """torch's own, if it has such scales."""
        return torch.nn.functional.scaled_grouped_mm(
            self.qx, self.qw.mT, self.sx, LINE, self.sw.mT, SQUARE, offs=self.offs, output_dtype=torch.bfloat16
        )

    @functools.cached_property
    def group_of_row(self) -> Tensor:
        """The group of each row, int32."""
        groups = torch.arange(self.row.groups, dtype=torch.int32, device=self.x.device)
        return groups.repeat_interleave(torch.tensor(self.row.sizes, device=self.x.device))

    def by_deepgemm(self) -> Tensor:
        """DeepGEMM's, if it is installed. It wants the factors as the quantisers store them."""
        if any(size % DEEPGEMM_ROWS for size in self.row.sizes):
            raise ValueError(f"DeepGEMM wants groups of multiples of {DEEPGEMM_ROWS} rows, got {self.row.sizes}")
        library = importlib.import_module("deep_gemm")
        function = next(getattr(library, name) for name in DEEPGEMM if hasattr(library, name))
        function((self.qx, self.sx), (self.qw, self.sw), self.out, self.group_of_row)
        return self.out

    def dense(self, fast: bool) -> Tensor:
        """One row-wise product of the same size: the ceiling."""
        return torch._scaled_mm(
            self.qx, self.qw[0].mT, self.rows_of_a[:, None], self.cols_of_b[:1], out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )  # fmt: skip

    def grad_x(self, backend: str) -> Tensor:
        """The gradient of x, whose weights have another contiguous dimension than fp8 tensor cores read: the backend
        "cute" copies them first."""
        return scaled_grouped_mm(self.qd, self.qw, self.sd, LINE, self.sw, SQUARE, offs=self.offs, backend=backend)

    def grad_w(self, backend: str) -> Tensor:
        """The gradient of the weights, of blocks that restart at groups: the backend "cute" copies both operands."""
        (qd, sd), (qx, sx) = self.of_lines
        return scaled_grouped_mm(qd, qx.mT, sd, LINE, sx, LINE, offs=self.offs, backend=backend)

    def grad_w_of_whole_blocks(self, backend: str) -> Tensor:
        """The gradient of the weights, of operands as FP8 training makes them."""
        (qd, sd, ends), (qx, sx, _) = self.whole
        return scaled_grouped_mm(qd, qx.mT, sd, LINE, sx, LINE, offs=ends, backend=backend)

    def wrong(self, result: Tensor, kind: str) -> int:
        """Wrong elements among the last rows of each group, or the first of its gradient."""
        if kind not in self._exact:
            self._exact[kind] = [self._exact_part(kind, g) for g in range(self.row.groups)]
        found = [result[g, :SAMPLED] if kind == "dB" else result[self._sample(g)] for g in range(self.row.groups)]
        return sum(count_wrong(found, self._exact[kind], 2.0**-7))

    def _sample(self, g: int) -> slice:
        end = sum(self.row.sizes[: g + 1])
        return slice(end - min(SAMPLED, self.row.sizes[g]), end)

    def _exact_part(self, kind: str, g: int) -> Tensor:
        part, end = self._sample(g), sum(self.row.sizes[: g + 1])
        if kind == "dB":
            start = end - self.row.sizes[g]
            (qd, sd), (qx, sx) = self.of_lines
            first = start // 128 + g
            columns, lines = slice(first, first + -(-(end - start) // 128)), slice(start, end)
            left = as_quantised(qd[:SAMPLED, lines], sd[:SAMPLED, columns], 1)
            return left @ as_quantised(qx[:, lines], sx[:, columns], 1).mT
        if kind == "row":
            product = self.qx[part].double() @ self.qw[g].double().mT
            return product * self.rows_of_a[part, None].double() * self.cols_of_b[g].double()
        weight = as_quantised(self.qw[g], self.sw[g], 128)
        if kind == "dA":
            return as_quantised(self.qd[part], self.sd[part], 1) @ weight
        return as_quantised(self.qx[part], self.sx[part], 1) @ weight.mT


class Part(NamedTuple):
    """A layer with the kind of a result: "forward", "dA", "dB", or "row" for the row-wise kernel."""

    layer: Layer
    kind: str

    def verify(self, result: Tensor, pass_name: str) -> None:
        """Count wrong elements with ``Layer.wrong``; raise WrongResult if there are any."""
        if wrong := self.layer.wrong(result, self.kind):
            raise WrongResult(f"{wrong} wrong elements")


def provider(name: str, call: Callable[[Layer], Tensor], kind: str = "forward", role: str = "peer") -> Provider:
    """Make a provider from a method of ``Layer``, timed as "forward". Without a kind, its results are not compared."""

    def prepare(layer: Layer) -> Calls:
        return Calls({"": lambda: call(layer)}, operands=Part(layer, kind) if kind else Unverified())

    return Function(name, prepare, role)


def peers() -> list[Provider]:
    """Providers of other libraries: torch, and DeepGEMM if it is installed."""
    deepgemm = [provider("deepgemm", Layer.by_deepgemm)] if importlib.util.find_spec("deep_gemm") else []
    return [provider("torch", Layer.by_torch), *deepgemm]


def configured(configs: Iterable[CuteConfig], name: str = "", row_wise: bool = False) -> list[Provider]:
    """Providers for configurations of the kernel in CuTe DSL, or of its row-wise variant. ``name`` is their prefix."""
    kind = "row" if row_wise else "forward"
    return [
        provider(name + config.name, lambda layer, c=config: layer.configured(c, row_wise), kind, "candidate")
        for config in configs
    ]


def providers() -> list[Provider]:
    """All providers that are measured for a row."""
    found = [provider(name, lambda layer, b=name: layer.forward(backend=b), role="ours") for name in ("cute", "triton")]
    for config in TRITON:
        block = "x".join(map(str, config.block))
        name = f"triton {block}_{config.num_warps}_{config.num_stages}_{config.programs_per_sm}"
        found.append(
            provider(name, lambda layer, c=config: layer.forward(backend="triton", config=c), role="candidate")
        )
    found += configured(SWEPT, "cute ") + configured(SWEPT_ROW_WISE, "row-wise cute ", row_wise=True) + peers()
    for fast in (False, True):
        found.append(provider("dense row-wise" + ", fast" * fast, lambda layer, f=fast: layer.dense(f), "", "ceiling"))
    for backend in ("cute", "triton"):
        for name, kind, method in (
            (f"dA {backend}", "dA", Layer.grad_x),
            (f"dB {backend}", "dB", Layer.grad_w),
            (f"dB {backend}, whole blocks", "dB", Layer.grad_w_of_whole_blocks),
        ):
            found.append(provider(name, lambda layer, m=method, b=backend: m(layer, b), kind, "ours"))
    return found


def measure(row: Row, among: Sequence[Provider], device: str = "cuda", timer=None) -> tuple[dict, list[str]]:
    """Verify and time a row, and print the rates.

    Returns:
        The row's "title", and by provider "us", "rate" in TFLOP/s and "failed". Then a line for each result of ours
        that is wrong or failed.
    """
    timings = measure_one(row, lambda: Layer(row, device), among, ("forward",), REPEATS, timer or GpuTimer())
    medians = timings.medians_us("forward")
    rate = {name: round(row.rate(us), 1) for name, us in medians.items()}
    reasons = {name: ", ".join(why.values()) for name, why in (timings.failed | timings.out_of_memory).items()}
    ranked = sorted(rate, key=rate.get, reverse=True)
    print(row.title, *(f"  {rate[name]:7.1f} {name}" for name in ranked), sep="\n", flush=True)
    print(*(f"  ! {name}: {reason}" for name, reason in reasons.items()), sep="\n", flush=True)
    ours = {each.name for each in among if each.role == "ours"}
    wrong = [f"{row.name}, {name}: {reasons[name]}" for name in timings.failed if name in ours]
    us = timings.us_as_json()["forward"]
    return {"title": row.title, "us": us, "rate": rate, "failed": reasons}, wrong


def quantisers(row: Row, device: str = "cuda", timer=None) -> dict:
    """Measure the quantisers' times and TB/s. They read two bytes and write one per element."""
    functions: dict[str, Callable[[Layer], object]] = {
        "1x128": lambda layer: quantize_1x128(layer.x),
        "1x128, transposed, restarting": lambda layer: quantize_1x128(layer.x.mT, offs=layer.offs),
        "1x128, transposed, whole blocks": lambda layer: quantize_whole_blocks(layer.x.mT, layer.offs),
        "128x128": lambda layer: quantize_128x128(layer.x),
    }

    def quiet(layer: Layer, function: Callable) -> None:
        function(layer)  # the results have several dtypes and are not compared

    among = [provider(name, functools.partial(quiet, function=each), "") for name, each in functions.items()]
    timings = measure_one(row, lambda: Layer(row, device), among, ("forward",), REPEATS, timer or GpuTimer())
    elements = row.total_m * row.K
    rates = {name: round(3 * elements / us / 1e6, 2) for name, us in timings.medians_us("forward").items()}
    print("quantisers, TB/s", rates, flush=True)
    return {"us": timings.us_as_json()["forward"], "TB/s": rates}


def rows() -> dict:
    """Measure all rows. A wrong or failed result of the library is an error; that of a configuration is noted."""
    results: dict = {"rows": {}}
    failed = []
    for row in ROWS:
        results["rows"][row.name], wrong = measure(row, providers())
        failed += wrong
        if row is ROWS[0]:
            results["quantisers"] = quantisers(row)
    if failed:
        raise AssertionError("wrong or failed:\n" + "\n".join(failed))
    return results


def variants() -> None:
    """Print the rates of ``VARIANTS``, of the row-wise kernel and of peers, verified, on some of the rows."""
    for row in ROWS_OF_VARIANTS:
        measure(row, [*configured(VARIANTS), *configured(SWEPT_ROW_WISE, "row-wise ", row_wise=True), *peers()])


if __name__ == "__main__":
    variants()
