"""Random problems for every packed function, each compared with the float64 oracle.

    python benchmarks/fuzz.py --seconds 120         as many cases as take two minutes on the GPU
    python benchmarks/fuzz.py --api gmm --count 1 --seed 4711
                                                    the case that a message named
    python benchmarks/fuzz.py --backend cute        products that the kernel in CuTe DSL takes
    python benchmarks/fuzz.py --count 20 --largest 24 --most-groups 4
                                                    on the CPU, in Triton's interpreter

The case of a function with a given number is always the same, and a run takes consecutive numbers. A hundred at a time
are alike in what a kernel is compiled for (mode, types, layouts, which extents are multiples of 16) and differ in
extents, groups and values: compiling for every case would take hours. `--of-each 10` takes the first ten of every
hundred. Operands are in memory that ends in NaN, and given outputs in memory that is checked for writes around them.
Any mismatch is an error with the case's function and number.

The cases of grouped_mm are here, those of all other functions in ``fuzz_cases``.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import pathlib
import random
import sys
import time
import unittest.mock
from collections import Counter
from collections.abc import Iterator, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

from course_kernels import GemmConfig, grouped_mm, scaled_grouped_mm  # isort: skip
import torch

import fuzz_cases
from course_kernels import runtime
from course_kernels.bench import loaded
from course_kernels.engine.hopper import cute
from course_kernels.engine.plans import PlanCache
from course_kernels.engine.product import Product
from course_kernels.kernels.cute_sm90.config import configs_for
from course_kernels.testing.grouped_cases import GroupedCase, check, random_case

COUNT = 20_000
ALIKE = fuzz_cases.ALIKE
GROUPED_MM = "grouped_mm"
LARGEST = 512
MOST_GROUPS = 24
WORKERS = 12  # most of the time is the host's: compiling, and the oracle's loop over groups
# Given by hand in some cases, so that tiles are small against the groups and every walk has several of them.
CONFIGS = (
    GemmConfig(64, 64, 64, group_m=2),
    GemmConfig(64, 128, 32, num_stages=2, store_parts=2),
    GemmConfig(32, 64, 64, schedule="dynamic"),
)


def case_of(number: int, largest: int = LARGEST, most_groups: int = MOST_GROUPS) -> GroupedCase:
    """The case with this number."""
    first = random_case(number // ALIKE, largest, most_groups)
    draw = random.Random(number)

    def like(extent: int) -> int:
        """Another extent with as many factors of two, up to 16: so have its products with others."""
        if extent < 2:
            return extent
        unit = min(16, extent & -extent)
        steps = draw.randint(1, max(1, largest // unit))
        return unit * (steps if unit == 16 else steps | 1)

    changes = dict(M=like(first.M), N=like(first.N), K=like(first.K), seed=number)
    total = sum(first.sizes) + first.tail_size
    if sum(first.sizes) > 1:
        sizes = [draw.choice([0, 1, size, like(size), draw.randint(0, largest)]) for size in first.sizes]
        unit = min(16, total & -total)
        # The tail makes up for what the sizes lack to be as divisible together as they were.
        tail = (unit if unit < 16 else 0) - sum(sizes)
        tail %= unit if unit == 16 else 2 * unit
        if first.mode == "batch":
            sizes, tail = first.sizes, 0
        changes |= dict(sizes=tuple(sizes), tail_size=tail + 16 * draw.choice([0, 0, 1, 5]) * (first.mode != "batch"))
    return dataclasses.replace(first, **changes)


def cases(seed: int, count: int, largest: int = LARGEST, most_groups: int = MOST_GROUPS) -> Iterator[GroupedCase]:
    """The cases with the numbers from `seed` on."""
    return (case_of(number, largest, most_groups) for number in range(seed, seed + count))


def for_cute(case: GroupedCase) -> GroupedCase:
    """A case like this one that the kernel in CuTe DSL takes."""
    draw = random.Random(-case.seed - 1)

    def whole(extent: int) -> int:
        return 8 * max(1, -(-extent // 8))

    sizes = case.sizes or (draw.randint(1, 9),)
    mode = draw.choice("mk")
    case = dataclasses.replace(
        case,
        mode=mode,
        sizes=sizes if sum(sizes) else (*sizes[1:], 1),
        M=whole(case.M),
        N=whole(case.N),
        K=whole(case.K),
        dtype=draw.choice([torch.float16, torch.bfloat16]),
        layout_a="col" if mode == "k" else draw.choice(["row", "pitched"]),
        layout_b=draw.choice(["row", "pitched"] if mode == "k" else ["col", "row", "pitched"]),
        layout_out=draw.choice([None, "row", "pitched"]),
        tail="zero",
        bias=None,
    )
    if mode == "m" and draw.random() < 0.25:
        return dataclasses.replace(case, dtype=torch.float8_e4m3fn, layout_b="col", K=-(-case.K // 16) * 16)
    return dataclasses.replace(case, bias=draw.choice([None, case.dtype, torch.float32]) if mode == "m" else None)


def config_of(case: GroupedCase) -> GemmConfig | None:
    """Half of the cases take the chosen configuration, as a user does."""
    kind = case.seed // ALIKE
    if kind % 2 or case.dtype == torch.float32:
        return None
    config = CONFIGS[kind // 2 % len(CONFIGS)]
    return CONFIGS[0] if case.mode == "k" and config.schedule == "dynamic" else config


def choose_for(case: GroupedCase):
    """Make a replacement for `cute.choose`. Half of the cases go through all configurations in turn.

    The library chooses by extents, which are small here. A configuration that splits the last wave is also tried
    without the split: these few tiles are all in the last wave.
    """
    kind, as_users = case.seed // ALIKE, cute.choose

    def choose(form, *extents):
        configs = configs_for(form)
        configs = [
            *configs,
            *(dataclasses.replace(config, split_last_wave=False) for config in configs if config.split_last_wave),
        ]
        return configs[kind // 2 % len(configs)] if kind % 2 else as_users(form, *extents)

    return choose


def compute(case: GroupedCase, backend: str = "triton"):
    """The public function of a case, as `check` calls it."""
    recipe = torch.nn.functional.ScalingType.RowWise

    def call(mat_a, mat_b, scale_a=None, scale_b=None, out_dtype=None, **arguments):
        arguments |= dict(backend=backend, config=config_of(case) if backend == "triton" else None)
        if scale_a is None:
            result = grouped_mm(mat_a, mat_b, out_dtype=out_dtype, **arguments)
        else:
            scales = (scale_a, recipe, scale_b, recipe)
            result = scaled_grouped_mm(mat_a, mat_b, *scales, output_dtype=out_dtype, **arguments)
        if backend == "cute":
            product = Product.packed(mat_a, mat_b, arguments["offs"].contiguous(), None, scale_a, scale_b)
            if cute.match_form(product, result) is None:
                raise RuntimeError("the kernel in CuTe DSL does not take this case")
        return result

    return call


def apis_of(backend: str) -> tuple[str, ...]:
    """The functions that are fuzzed with a backend."""
    return (GROUPED_MM, *(fuzz_cases.CUTE_APIS if backend == "cute" else fuzz_cases.APIS))


def judge(
    seed: int,
    count: int,
    largest: int,
    most_groups: int,
    backend: str = "triton",
    api: str = GROUPED_MM,
    deadline: float | None = None,
) -> tuple[Counter, Counter]:
    """Compute and compare some cases, in this process, until `time.time()` is past the deadline.

    Returns:
        Counts of the cases: by mode, or function, and by dtype.
    """
    device = runtime.device()
    modes, dtypes = Counter(), Counter()
    for number in range(seed, seed + count):
        if deadline is not None and time.time() > deadline:
            break
        if api == GROUPED_MM:
            case = case_of(number, largest, most_groups)
            case = for_cute(case) if backend == "cute" else case
        else:
            case = fuzz_cases.case_of(api, number, largest, most_groups, backend)
        if backend == "cute":
            PlanCache.clear_all()  # a plan of an earlier case may have another configuration
        if (case.dtype.itemsize == 1 or api == "quantize") and not runtime.supports_fp8():
            continue
        again = f"--api {api} --count 1 --seed {number} --largest {largest} --most-groups {most_groups}"
        again += f" --backend {backend}"
        try:
            with unittest.mock.patch.object(cute, "choose", choose_for(case)):
                if api == GROUPED_MM:
                    check(case, compute(case, backend), device=device)
                else:
                    with fuzz_cases.without_triton() if backend == "cute" else contextlib.nullcontext():
                        case.check(device, backend)
        except AssertionError as error:
            raise AssertionError(f"mismatch, to be had again with {again}\n{error}") from error
        except Exception as error:
            raise RuntimeError(f"failed, to be had again with {again}\n{case}: {error}") from error
        modes[case.mode if api == GROUPED_MM else api] += 1
        dtypes[str(case.dtype).removeprefix("torch.")] += 1
    loaded.share()
    return modes, dtypes


def jobs_of(apis: Sequence[str], seed: int, count: int, of_each: int) -> list[tuple[str, int, int]]:
    """Function, first number and count of each job: at most one hundred that are alike, and all functions in turn."""
    starts = [seed, *range(seed - seed % ALIKE + ALIKE, seed + count, ALIKE)]
    ends = [*starts[1:], seed + count]
    return [(api, first, min(end - first, of_each)) for first, end in zip(starts, ends) for api in apis]


def fuzz(
    count: int = COUNT,
    seed: int = 0,
    largest: int = LARGEST,
    most_groups: int = MOST_GROUPS,
    workers: int = WORKERS,
    progress: bool = False,
    backend: str = "triton",
    apis: Sequence[str] = (GROUPED_MM,),
    of_each: int = ALIKE,
    seconds: float | None = None,
) -> dict:
    """Compute and compare random cases.

    Args:
        count: numbers of cases of every function.
        seed: number of the first.
        largest, most_groups: bounds of extents and of the number of groups, as for `random_case`.
        workers: processes that share the GPU; 1 is this process.
        progress: print a line now and then.
        backend: "triton", or "cute" for products that its kernel takes.
        apis: the functions, of `apis_of(backend)`; empty: all of them.
        of_each: cases of every hundred that are alike.
        seconds: begin no case later than this after the start.

    Returns:
        The backend. Counts: of cases, of mismatches (0, since one is an error), of cases by mode of grouped_mm and by
        other function, and by dtype; and seconds.

    Raises:
        AssertionError: a result is wrong; the message has the case, and how to have it again.
        RuntimeError: a call failed; likewise.
        ValueError: a function that is not fuzzed with the backend.
    """
    start = time.perf_counter()
    deadline = None if seconds is None else time.time() + seconds
    if unknown := set(apis) - set(apis_of(backend)):
        raise ValueError(f"apis must be of {', '.join(apis_of(backend))} with {backend}, got {', '.join(unknown)}")
    jobs = jobs_of(apis or apis_of(backend), seed, count, of_each)
    total = sum(job[2] for job in jobs)
    modes, dtypes, done = Counter(), Counter(), 0

    def note(found: tuple[Counter, Counter]) -> None:
        nonlocal done
        modes.update(found[0])
        dtypes.update(found[1])
        done += 1
        if progress and (done % 20 == 0 or done == len(jobs)):
            print(f"{sum(modes.values())} of {total} cases, {time.perf_counter() - start:.0f} s", flush=True)

    calls = [(first, number, largest, most_groups, backend, api, deadline) for api, first, number in jobs]
    workers = min(workers, len(jobs))
    if workers <= 1:
        for call in calls:
            note(judge(*call))
    else:
        context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
        with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:
            tasks = [pool.submit(judge, *call) for call in calls]
            try:
                for task in concurrent.futures.as_completed(tasks):
                    note(task.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return {
        "backend": backend,
        "count": sum(modes.values()),
        "mismatches": 0,
        "seed": seed,
        "seconds": round(time.perf_counter() - start, 1),
        "modes": dict(sorted(modes.items())),
        "dtypes": dict(sorted(dtypes.items())),
    }


def record_of_triton() -> dict:
    """Fuzz Triton's kernels: ten cases of each kind, begun within 120 s. Compilation and running cases add time."""
    return fuzz(apis=(), of_each=10, seconds=120)


def record_of_cute() -> dict:
    """Fuzz the kernel in CuTe DSL in the same way, for 75 s."""
    return fuzz(apis=(), of_each=10, seconds=75, backend="cute")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=int, default=LARGEST, help="bound of every extent")
    parser.add_argument("--most-groups", type=int, default=MOST_GROUPS)
    parser.add_argument("--backend", choices=("triton", "cute"), default="triton")
    parser.add_argument("--api", dest="apis", nargs="*", default=(), help="functions; default: all of the backend's")
    parser.add_argument("--of-each", type=int, default=ALIKE, help="cases of every hundred that are alike")
    parser.add_argument("--seconds", type=float, help="begin no case later than this")
    parser.add_argument("--workers", type=int, default=WORKERS if runtime.mode() == "gpu" else 1)
    arguments = parser.parse_args()
    print(fuzz(**vars(arguments), progress=True))


if __name__ == "__main__":
    main()
