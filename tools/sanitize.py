"""Runs every kernel of the library on small problems, for compute-sanitizer:

    compute-sanitizer --tool memcheck python3 tools/sanitize.py
    compute-sanitizer --tool racecheck python3 tools/sanitize.py
    compute-sanitizer --report-api-errors no python3 tools/sanitize.py --kernels cute
    compute-sanitizer --report-api-errors no python3 tools/sanitize.py --kernels cute_layers

The kernel in CuTe DSL runs on Hopper, with the packages of the extra cutlass. Loading it asks the driver for optional
things, which memcheck would count as API errors.
Each result is compared with an oracle, so that a clean report is the report of kernels that did their work. Without
a GPU the same cases run in Triton's interpreter, which checks this program and nothing else. `--list` names the cases;
names given as arguments select some of them. racecheck needs `--racecheck`; ``compile_for_racecheck`` says why.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from dataclasses import dataclass, replace

# Before torch is imported: with its cache a block of memory is a slice of a larger one, and a step over the slice's end
# is inside an allocation that memcheck finds valid.
os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import course_kernels as ck  # isort: skip
from course_kernels.bench import loaded  # isort: skip
import torch

from course_kernels.engine.hopper import cute
from course_kernels.engine.product import Product
from course_kernels.kernels.cute_sm90.config import CONFIGS, CuteConfig, configs_for
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.testing import Problem, assert_exact, empty_problems, integers, ragged_problems, strided_like
from course_kernels.testing.grouped_cases import MODES, GroupedCase, check
from sanitize_calls import Called, called_cases, called_cute_cases, cute_layers, nothing_measured, run_called, title

SCHEDULES = ("round_robin", "chunks", "dynamic")
OTHER_LAYOUTS = (("col", "row"), ("row", "col"), ("col", "col"))  # of A and B, beside row-major ones
WHOLE = [Problem(64, 64, 64), Problem(128, 64, 32), Problem(96, 160, 64)]
PROBLEMS = {"ragged": ragged_problems(), "empty": empty_problems(), "whole": WHOLE}
# Tails of every kind that still obey the 16-byte rule, so that the descriptor kernel keeps them.
PROBLEMS["aligned"] = [Problem(65, 48, 80), Problem(1, 160, 16), Problem(33, 16, 144), Problem(64, 64, 0)]


@dataclass(frozen=True)
class Case:
    """One call: the problems, their layout in memory, the kernel and its schedule."""

    method: str
    problems: str
    dtype: torch.dtype = torch.float16
    strides: tuple[str, str] = ("row", "row")
    schedule: str = "round_robin"
    precision: str = "ieee"
    store_parts: int = 1

    def __str__(self) -> str:
        walk = (self.method, self.schedule, self.problems)
        return title(*walk, self.dtype, *self.strides, self.precision, self.store_parts)


def cases() -> list[Case]:
    """Every kernel with every schedule, then every type, layout and store of each kernel."""
    found = [Case("naive", problems) for problems in PROBLEMS]
    for method in ("round_robin", "tma"):
        found += [Case(method, problems, schedule=s) for s in SCHEDULES for problems in ("aligned", "ragged", "empty")]
    fp8, single = torch.float8_e4m3fn, torch.float32
    for method in ("naive", "round_robin", "tma"):
        found += [Case(method, "aligned", dtype) for dtype in (torch.bfloat16, single)]
        found += [Case(method, "aligned", single, precision="tf32"), Case(method, "aligned", fp8, ("row", "col"))]
        found += [Case(method, "ragged", fp8)]
        found += [Case(method, "aligned", strides=pair) for pair in OTHER_LAYOUTS]
        found += [Case(method, "ragged", strides=(how, how)) for how in ("unaligned", "every_other", "expanded")]
    found += [Case("tma", "aligned", schedule=s, store_parts=2) for s in SCHEDULES]
    return found


def run(case: Case) -> str:
    """Compute a case and compare; returns the kernels that it took, with their counts of problems."""
    device = ck.runtime.device()
    generator = torch.Generator().manual_seed(7)
    group_A, group_B = [], []
    for m, n, k in PROBLEMS[case.problems]:
        for group, shape, how in ((group_A, (m, k), case.strides[0]), (group_B, (k, n), case.strides[1])):
            group.append(strided_like(integers(shape, case.dtype, generator, device=device), how))
    config = ck.GemmConfig(64, 64, 32, group_m=2, schedule=case.schedule, store_parts=case.store_parts)
    options = dict(method=case.method, precision=case.precision, config=config)
    # Fewer programs than tiles: each walks on to a second tile and from problem to problem.
    plan = ck.GroupGemmPlan(group_A, group_B, **options, programs=3)
    for repeat in range(2):  # the second starts with the dynamic counter that the first left
        for c in plan.out:
            c.fill_(float("nan"))
        plan.run()
        for i, (c, a, b) in enumerate(zip(plan.out, group_A, group_B)):
            assert_exact(c, a, b, what=f"{case}, run {repeat}, problem {i}")
    return ", ".join(f"{launch.kernel} of {len(launch.problems)}" for launch in plan.launches)


@dataclass(frozen=True)
class Packed:
    """One call of grouped_mm, with a configuration whose tiles are small against the groups."""

    case: GroupedCase
    store_parts: int = 1
    schedule: str = "round_robin"
    precision: str = "ieee"

    @property
    def dtype(self) -> torch.dtype:
        """Of the operands."""
        return self.case.dtype

    def __str__(self) -> str:
        case = self.case
        extents = "x".join(map(str, (*case.sizes, case.M, case.N, case.K)))
        operands = (case.dtype, case.out_dtype, case.bias, case.layout_a, case.layout_b, case.layout_out, case.tail)
        return title("packed", case.mode, extents, *operands, self.schedule, self.precision, self.store_parts)


def packed_cases() -> list[Packed]:
    """Every mode with every type, layout, output and configuration; aligned extents, and extents that are not."""
    found = []
    for mode in MODES:
        tail = 0 if mode == "batch" else 37
        whole = GroupedCase(mode, (65, 0, 130, 16), 80, 96, 64, tail_size=tail, layout_out="padded")
        ragged = GroupedCase(mode, (65, 0, 1, 33), 67, 33, 45, tail_size=tail, layout_out="unaligned", seed=1)
        single, bias = torch.float32, torch.float32 if mode != "n" else None
        for case in (whole, ragged):
            changes = [dict(dtype=dtype) for dtype in (torch.float16, torch.bfloat16, single, torch.float8_e4m3fn)]
            changes += [dict(out_dtype=single, bias=bias), *([dict(tail="keep")] if mode in ("m", "n") else [])]
            found += [Packed(replace(case, **change)) for change in changes]
            found += [Packed(replace(case, dtype=single), precision="tf32"), Packed(case, store_parts=2)]
            if mode != "k":
                found += [Packed(case, schedule="dynamic", store_parts=parts) for parts in (1, 2)]
        empty = {"m": dict(sizes=(0, 0, 0)), "n": dict(sizes=()), "k": dict(sizes=(0, 0)), "batch": dict(K=0)}[mode]
        changes = [empty, dict(sizes=(1,) * 70, M=17, N=24, K=16)]
        changes += [dict(layout_a=a, layout_b=b) for a, b in OTHER_LAYOUTS]
        for how in ("unaligned", "every_other", "expanded", "transposed"):
            changes.append(dict(layout_a=how, layout_b=how, layout_out="every_other"))
        if mode != "k":
            changes.append({"layout_a" if mode == "n" else "layout_b": "shared"})
        found += [Packed(replace(whole, **change)) for change in changes]
    return found


def run_packed(packed: Packed) -> str:
    """Compute a case twice and compare; the result is in memory that is checked for writes around it."""
    recipe = torch.nn.functional.ScalingType.RowWise
    config = ck.GemmConfig(64, 32, 32, group_m=2, store_parts=packed.store_parts, schedule=packed.schedule)

    def function(mat_a, mat_b, scale_a=None, scale_b=None, out_dtype=None, **arguments):
        arguments |= dict(backend="triton", config=config)
        if scale_a is None:
            return ck.grouped_mm(mat_a, mat_b, out_dtype=out_dtype, **arguments)
        scales = (scale_a, recipe, scale_b, recipe)
        return ck.scaled_grouped_mm(mat_a, mat_b, *scales, output_dtype=out_dtype, **arguments)

    saved = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = packed.precision == "tf32"
    try:
        for repeat in range(2):  # the second reuses the launch that the first prepared
            check(replace(packed.case, seed=packed.case.seed + repeat), function, device=ck.runtime.device())
    finally:
        torch.backends.cuda.matmul.allow_tf32 = saved
    return f"grouped_mm of {len(packed.case.sizes)}"


@dataclass(frozen=True)
class Jagged:
    """One call of a jagged kernel: rows of each group, rows of the tail, and layouts in memory."""

    kernel: str
    sizes: tuple[int, ...]
    dtype: torch.dtype = torch.float16
    b_dtype: torch.dtype = torch.float16
    strides: tuple[str, str] = ("row", "row")

    def __str__(self) -> str:
        return title("jagged", self.kernel, "x".join(map(str, self.sizes)), self.dtype, self.b_dtype, *self.strides)


def jagged_cases() -> list[Jagged]:
    """Both kernels with every type, with operands of two types, with other layouts, and with no rows in any group."""
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    sizes, found = (65, 0, 1, 33), []
    for kernel in ("simple", "persistent"):
        found += [Jagged(kernel, sizes, *pair) for pair in ((half, half), (brain, brain), (single, single))]
        found += [Jagged(kernel, sizes, *pair) for pair in ((half, brain), (brain, single))]
        found += [Jagged(kernel, sizes, strides=pair) for pair in (*OTHER_LAYOUTS, ("unaligned", "every_other"))]
        found += [Jagged(kernel, (1,) * 70), Jagged(kernel, (0, 0))]
    return found


def run_jagged(case: Jagged) -> str:
    """Compute a case with a tail and compare."""
    from course_kernels.jagged import triton_kernels

    device, generator, rows = ck.runtime.device(), torch.Generator().manual_seed(7), sum(case.sizes)
    operands = [
        strided_like(integers(shape, dtype, generator, device=device), how)
        for shape, dtype, how in zip(((rows + 37, 45), (45, 67)), (case.dtype, case.b_dtype), case.strides)
    ]
    offsets = torch.tensor([0, *case.sizes], device=device).cumsum(0).to(torch.int32)
    result = triton_kernels.multiply(case.kernel, *operands, offsets, ck.GemmConfig(32, 32, 32, group_m=2))
    right = (operands[0].double() @ operands[1].double()).to(result.dtype)
    right[rows:] = 0
    assert torch.equal(result, right), str(case)
    return f"grouped_gemm_jagged of {len(case.sizes)}"


@dataclass(frozen=True)
class Cute:
    """One configuration of the kernel in CuTe DSL, on operands of one form and dtype."""

    config: CuteConfig
    form: Form
    dtype: torch.dtype
    out_dtype: torch.dtype

    def __str__(self) -> str:
        bias = ["bias"] * bool(self.form.bias_bytes)
        return title("cute", self.config.name, *self.form[:2], *bias, self.dtype, self.out_dtype)


def cute_cases() -> list[Cute]:
    """Every configuration, including those chosen for few rows, and each dtype once."""
    half, wide, narrow = torch.bfloat16, torch.float32, torch.float8_e4m3fn
    forms = [Form(*form) for form in (("m", "k"), ("m", "n"), ("k", "n"))]
    scaled, biased = Form("m", "k", 1, scaling="lines"), Form("m", "k", bias_bytes=2)
    found = []
    for form in (*forms, scaled, biased):
        configs = dict.fromkeys((*configs_for(form), cute.choose(form, 1, (1, 264), 136, 1, None)))
        found += [Cute(config, form, narrow if form is scaled else half, half) for config in configs]
    others = ((torch.float16, torch.float16), (half, wide))
    found += [Cute(CONFIGS[0], form, *dtypes) for form in forms for dtypes in others]
    return [*found, *(Cute(configs_for(scaled)[0], scaled, narrow, dtype) for dtype in (torch.float16, wide))]


def cute_problems(each: Cute) -> list[GroupedCase]:
    """The problems of a case, for all heights and widths of tiles.

    Groups have one row of tiles, an even and a larger odd number of rows of tiles, or are empty; columns of tiles are
    even and odd in number. These few tiles are all in the last wave, so a configuration that splits it gets a problem
    of more tiles as well.
    """
    along, major, operand_bytes, *_ = each.form
    case = GroupedCase(
        along, (65, 0, 300, 200, 16, 0, 1), K=136 if operand_bytes == 2 else 144, dtype=each.dtype,
        out_dtype=each.out_dtype, layout_a="col" if along == "k" else "row", layout_b="col" if major == "k" else "row",
        layout_out="pitched", tail_size=37, bias=each.dtype if each.form.bias_bytes else None,
    )  # fmt: skip
    tile_m = each.config.tile_m
    heights = (tile_m - 8, 2 * tile_m - 56, 2 * tile_m + 72) if along == "k" else (case.M,)
    found = [replace(case, M=M, N=N) for M in heights for N in (136, 264)]
    if each.config.split_last_wave:
        # With 17 columns of tiles 70 cluster tiles: a wave of 66 clusters and a few more, in one window of groups.
        found.append(replace(case, N=16 * each.config.tile_n + 8))
    return found


def run_cute(each: Cute) -> str:
    """Compute a case's problems and compare; results are in memory that is checked for writes around it."""

    def function(mat_a, mat_b, offs, out, out_dtype=None, **scales):
        product = Product.packed(mat_a, mat_b, offs, **scales)
        assert cute.match_form(product, out) == each.form
        cute.multiply(product, out, each.form, each.config)
        return out

    problems = cute_problems(each)
    for problem in problems:
        check(problem, function, device=ck.runtime.device())
    return ", ".join(f"grouped_mm of {len(problem.sizes)}" for problem in problems)


def known_cases(kernels: str) -> dict[str, Case | Packed | Jagged | Cute | Called]:
    """All cases of some kernels, by name: "triton"; "cute", products in CuTe DSL; "cute_layers", layers with it. None
    if they cannot run."""
    if kernels != "triton" and not (cute.runs_on(ck.runtime.device()) and cute.installed()):
        return {}
    listed = {
        "triton": (cases, packed_cases, jagged_cases, called_cases), "cute": (cute_cases, called_cute_cases),
        "cute_layers": (cute_layers,),
    }[kernels]  # fmt: skip
    return {str(case): case for list_cases in listed for case in list_cases()}


def run_any(case: Case | Packed | Jagged | Cute | Called, racecheck: bool = False) -> str:
    """Compute a case and compare; returns what it ran. ``racecheck`` as in ``sanitize_calls.compile_for_racecheck``."""
    called = functools.partial(run_called, racecheck=racecheck)
    function = {Case: run, Packed: run_packed, Jagged: run_jagged, Cute: run_cute, Called: called}[type(case)]
    with nothing_measured():
        return function(case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases to run, by name; default: all")
    kernels = dict(choices=("triton", "cute", "cute_layers"), default="triton", help="which (default: triton)")
    parser.add_argument("--kernels", **kernels)
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--racecheck", action="store_true", help="kernels in a form that racecheck can follow")
    arguments = parser.parse_args()
    known = known_cases(arguments.kernels)
    if unknown := set(arguments.names) - set(known):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}; --list names all")
    if arguments.list:
        print(*known, sep="\n")
        return
    torch.set_num_threads(1)  # as many processes as cores share the cases
    chosen = arguments.names or list(known)
    for name in chosen:
        case = known[name]
        if case.dtype == torch.float8_e4m3fn and not ck.runtime.supports_fp8():
            print(f"{name}: skipped, this GPU does not multiply float8_e4m3fn")
            continue
        begin = time.monotonic()
        print(f"{name}: exact; {run_any(case, arguments.racecheck)}; {time.monotonic() - begin:.0f} s", flush=True)
    if ck.runtime.mode() == "gpu":
        torch.cuda.synchronize()
    print(f"{len(chosen)} cases ran in mode {ck.runtime.mode()}")
    loaded.share()


if __name__ == "__main__":
    main()
