"""The providers of a benchmark: this library, its peers, and a ceiling. Each says whether it can run here.

All providers get the same operands in the same memory. A pass is a table of candidates (configurations of one
library), and the fastest is measured: no peer is shown with a configuration that was tuned for another problem.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from course_kernels import grouped_mm, runtime
from course_kernels.bench.interface import Calls, Provider, one_line
from course_kernels.bench.operands import Operands, training_step
from course_kernels.bench.rows import Row
from course_kernels.engine import product_checks
from course_kernels.engine.hopper import cute

__all__ = ["CublasLoop", "Dense", "Ours", "Quack", "Torch", "Tutorial", "backends", "providers", "select", "zoo"]


class Ours(Provider):
    """`grouped_mm` of this library with one of its backends, or with "auto", which chooses one."""

    role = "ours"

    def __init__(self, backend: str):
        self.backend, self.name, self.label = backend, backend, f"grouped_mm ({backend})"

    def unavailable(self) -> str | None:
        """The kernel in CuTe DSL needs its packages, and Hopper."""
        if self.backend != "cute":
            return None
        try:
            cute.check_available(runtime.device())
        except (ImportError, ValueError) as error:
            return str(error)
        return None

    def prepare(self, operands: Operands) -> Calls:
        """Calls for graphs write into the shared buffers; the call as a user makes it allocates its result."""
        o, backend = operands, self.backend
        return Calls(
            forward={"": lambda: grouped_mm(o.a, o.weight.mT, offs=o.offs, out=o.out, backend=backend)},
            called={"": lambda: grouped_mm(o.a, o.weight.mT, offs=o.offs, backend=backend)},
            d_a={"": lambda: grouped_mm(o.d_out, o.weight, offs=o.offs, out=o.d_a, backend=backend)},
            d_b={"": lambda: grouped_mm(o.d_out.mT, o.a, offs=o.offs, out=o.d_weight, backend=backend)},
            step={"": training_step(lambda a, b: grouped_mm(a, b, offs=o.offs, backend=backend), o)},
        )


class Torch(Provider):
    """`torch.nn.functional.grouped_mm`, of torch 2.10; a little earlier it had a private name."""

    name, label = "torch", "torch grouped_mm"
    function_name, multiple = "grouped_mm", 8  # N and K must be whole 16 bytes

    def unavailable(self) -> str | None:
        """An older torch does not have it."""
        return None if self.function() else f"torch {torch.__version__} has no {self.function_name}"

    def function(self) -> Callable | None:
        """The function, if this torch has it."""
        return getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)

    def unsuited(self, row: Row) -> str | None:
        """Its alignment rule."""
        fits = row.N % self.multiple == row.K % self.multiple == 0
        return None if fits else f"torch wants N and K to be multiples of {self.multiple}"

    def prepare(self, operands: Operands) -> Calls:
        """It has no `out=`: each call allocates its result, in a graph once for all replays."""
        o, function = operands, self.function()
        forward = {"": lambda: function(o.a, o.weight.mT, offs=o.offs)}
        return Calls(
            forward=forward,
            called=forward,
            d_a={"": lambda: function(o.d_out, o.weight, offs=o.offs)},
            # The layout that torch's own backward gives it for a transposed B.
            d_b={"": lambda: function(o.d_out.mT, o.a, offs=o.offs)},
            step={"": training_step(lambda a, b: function(a, b, offs=o.offs), o)},
        )


class CublasLoop(Provider):
    """One `torch.mm` per group into slices of the result; the host has to know the sizes."""

    name, label = "loop", "cuBLAS loop"

    def prepare(self, operands: Operands) -> Calls:
        """The call of a user slices the operands, too; for graphs that is done here."""
        o = operands
        a, d_out = o.a.split(o.sizes), o.d_out.split(o.sizes)
        out, d_a = o.out.split(o.sizes), o.d_a.split(o.sizes)
        weight, d_weight = o.weight.unbind(), o.d_weight.unbind()
        weight_t, d_out_t = [w.mT for w in weight], [d.mT for d in d_out]

        def loop(left: Sequence[Tensor], right: Sequence[Tensor], results: Sequence[Tensor], whole: Tensor) -> Tensor:
            for x, y, result in zip(left, right, results):
                torch.mm(x, y, out=result)
            return whole

        def called() -> Tensor:
            result = o.a.new_empty(o.out.shape)
            for x, w, c in zip(o.a.split(o.sizes), o.weight, result.split(o.sizes)):
                torch.mm(x, w.mT, out=c)
            return result

        return Calls(
            forward={"": lambda: loop(a, weight_t, out, o.out)},
            called={"": called},
            d_a={"": lambda: loop(d_out, weight, d_a, o.d_a)},
            d_b={"": lambda: loop(d_out_t, a, d_weight, o.d_weight)},
        )


class Dense(Provider):
    """One cuBLAS product of the same total size: it computes something else, and shows what arithmetic allows."""

    name, label, role = "dense", "dense cuBLAS, same size", "ceiling"

    def unsuited(self, row: Row) -> str | None:
        """It reads one weight instead of all of them, so it is no ceiling where reading bounds."""
        return None if row.kind == "compute" else "a dense product reads one weight; here the copy bandwidth bounds"

    def prepare(self, operands: Operands) -> Calls:
        """All rows with the first weight."""
        o = operands.as_dense()
        weight, d_weight = o.weight[0], o.d_weight[0]

        def d_b() -> Tensor:
            torch.mm(o.d_out.mT, o.a, out=d_weight)
            return o.d_weight

        return Calls(
            forward={"": lambda: torch.mm(o.a, weight.mT, out=o.out)},
            d_a={"": lambda: torch.mm(o.d_out, weight, out=o.d_a)},
            d_b={"": d_b},
            operands=o,
        )


class Tutorial(Provider):
    """The kernel of tutorials: float16, row-major copies of the weights, memory padded to whole tiles."""

    name, label = "tutorial", "tutorial's kernel (fp16, padded)"

    def unsuited(self, row: Row) -> str | None:
        """It has no masks, and only M and N are padded."""
        return None if row.K % 64 == 0 else f"it wants K to be a multiple of 64, got {row.K}"

    def prepare(self, operands: Operands) -> Calls:
        """Tables and padded copies are made here; results are views of padded memory."""
        from course_kernels.bench.tutorial_peer import TutorialPlan, configurations  # loads Triton

        group_A = [part.half() for part in operands.a.split(operands.sizes)]
        group_B = [weight.mT.contiguous().half() for weight in operands.weight.unbind()]
        plan, settings = TutorialPlan(group_A, group_B, 0), configurations()

        def candidate(setting: dict) -> Callable[[], list[Tensor]]:
            def run() -> list[Tensor]:
                plan.config = setting
                return plan.run()

            return run

        names = [f"{s['BLOCK_M']}x{s['BLOCK_N']}x{s['BLOCK_K']}, {s['NUM_SM']} programs" for s in settings]
        return Calls(forward=dict(zip(names, map(candidate, settings))))


# Tiles (M, N, ping-pong) on Hopper, each with clusters of two along M and along N: twelve configurations.
_QUACK_TILES = (
    (128, 128, True), (128, 160, True), (128, 192, True), (128, 208, True), (256, 128, False), (256, 192, False),
)  # fmt: skip
_QUACK_CLUSTERS = ((2, 1), (1, 2))
# Each takes seconds to compile, once for each pass and scheduler: the gradients and the dynamic scheduler have fewer.
_QUACK_GRADIENT_TILES = ((128, 128, True), (128, 192, True), (256, 192, False))
_QUACK_GRADIENT_CLUSTERS = _QUACK_DYNAMIC_CLUSTERS = ((2, 1),)


def _quack_name(tile: tuple, cluster: tuple, dynamic: bool) -> str:
    words = f"{tile[0]}x{tile[1]}{' ping-pong' if tile[2] else ''}, cluster {cluster[0]}x{cluster[1]}"
    return words + ", dynamic" * dynamic


class Quack(Provider):
    """QuACK's variable-length GEMM (package quack-kernels), the best of its Hopper configurations.

    Both its schedulers are among them: the static one, and the dynamic one, in which CTAs take tiles from a counter.
    """

    name, label = "quack", "QuACK (best configuration)"

    def unavailable(self) -> str | None:
        """It needs its package and the CuTe DSL; the configurations here are for capability 9."""
        for module, package in (("quack", "quack-kernels"), ("cutlass", "nvidia-cutlass-dsl")):
            if importlib.util.find_spec(module) is None:
                return f"{package} is not installed"
        if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9:
            return "its configurations here are for compute capability 9"
        try:
            importlib.import_module("quack.gemm")
        except Exception as error:  # a half-installed package may raise anything
            return f"quack.gemm cannot be imported: {one_line(error)}"
        return None

    def version(self) -> str | None:
        """Of quack-kernels."""
        try:
            return importlib.metadata.version("quack-kernels")
        except importlib.metadata.PackageNotFoundError:
            return getattr(importlib.import_module("quack"), "__version__", None)

    def unsuited(self, row: Row) -> str | None:
        """Its alignment rule."""
        return None if row.N % 8 == row.K % 8 == 0 else "QuACK wants N and K to be multiples of 8"

    def prepare(self, operands: Operands) -> Calls:
        """A candidate compiles when it is first called, once for all rows."""
        gemm = importlib.import_module("quack.gemm").gemm
        o = operands
        starts = torch.nn.functional.pad(o.offs, (1, 0))  # (G+1,)
        weight_t, a_t, d_out_t = o.weight.mT, o.a.mT, o.d_out.mT

        counter = torch.zeros(1, dtype=torch.int32, device=o.a.device)

        def product(
            left: Tensor, right: Tensor, result: Tensor, groups: dict, tile: tuple, cluster: tuple, dynamic: bool
        ) -> Callable:
            # Without these arguments where they are not needed: earlier versions do not have them.
            scheduler = {"is_dynamic_persistent": True} if dynamic else {}

            def run(result: Tensor = result) -> Tensor:
                if dynamic:
                    counter.zero_()  # as its own interface does: the kernel leaves the count of tiles there
                gemm(
                    left, right, result, None, counter if dynamic else None, *tile[:2], *cluster,
                    pingpong=tile[2], persistent=True, **scheduler, **groups,
                )  # fmt: skip
                return result

            return run

        def candidates(*operands, tiles: Sequence[tuple] = _QUACK_TILES, clusters: Sequence = _QUACK_CLUSTERS) -> dict:
            static = [(tile, cluster, False) for tile in tiles for cluster in clusters]
            dynamic = [(tile, cluster, True) for tile in tiles for cluster in _QUACK_DYNAMIC_CLUSTERS]
            return {_quack_name(*each): product(*operands, *each) for each in static + dynamic}

        few = dict(tiles=_QUACK_GRADIENT_TILES, clusters=_QUACK_GRADIENT_CLUSTERS)
        by_m, by_k = {"cu_seqlens_m": starts}, {"cu_seqlens_k": starts}
        usual = ((128, 192, True), (2, 1), False)  # QuACK's own default on Hopper
        default = product(o.a, o.weight, o.out, by_m, *usual)
        return Calls(
            forward=candidates(o.a, o.weight, o.out, by_m),
            called={_quack_name(*usual): lambda: default(o.a.new_empty(o.out.shape))},
            # Its B is (G, n, k): for dA n is K and k is N; for dB the groups are along k.
            d_a=candidates(o.d_out, weight_t, o.d_a, by_m, **few),
            d_b=candidates(d_out_t, a_t, o.d_weight, by_k, **few),
        )


def providers() -> list[Provider]:
    """All providers, available here or not, ours first."""
    return [*map(Ours, backends()), Quack(), Torch(), CublasLoop(), Tutorial(), Dense()]


def zoo() -> list[Provider]:
    """The providers of the zoo's rows: "auto" beside the backends that it chooses from, and no tutorial's kernel.

    The tutorial's kernel copies every weight to float16, and 256 experts of DeepSeek-V3 leave no room for that.
    """
    return [Ours("auto"), *(provider for provider in providers() if not isinstance(provider, Tutorial))]


def backends() -> list[str]:
    """The backends of `grouped_mm` that are kernels of ours; a new one is measured without an entry here."""
    return [name for name in product_checks.BACKENDS if name not in ("auto", "torch")]


def select(names: Sequence[str] | None, among: Sequence[Provider] | None = None) -> list[Provider]:
    """Providers by name, in the order of `among`; None selects all. An unknown name is a ValueError.

    Args:
        among: None is `providers()`.
    """
    every = {provider.name: provider for provider in (providers() if among is None else among)}
    if names is None:
        return list(every.values())
    if unknown := [name for name in names if name not in every]:
        raise ValueError(f"providers must be among {', '.join(every)}; got {', '.join(map(repr, unknown))}")
    return [provider for name, provider in every.items() if name in names]
