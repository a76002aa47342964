"""Calls of all functions beside the list API, the plain product of grouped_mm and the jagged ones, for ``sanitize.py``.

They are the calls of ``benchmarks/calls.py``, chosen for each way in which a kernel reads and stores: tails, empty
groups, odd strides, factors of every kind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import sys
import unittest.mock
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "benchmarks"))

import torch

import course_kernels as ck
from calls import Call
from course_kernels.dtypes import dtype_name
from course_kernels.engine.hopper import cute
from course_kernels.engine.plans import PlanCache
from course_kernels.engine.scaling import BLOCK_SCALINGS
from course_kernels.engine.tuning import gpu_constants, time_model
from course_kernels.kernels.cute_sm90.config import (
    CONFIGS,
    CONFIGS_8_BIT,
    CONFIGS_ALONG_K,
    CONFIGS_BLOCK_SCALED,
    CuteConfig,
    configs_for,
)
from course_kernels.kernels.cute_sm90.form import GATED, GATED_BACKWARD, GATED_PRE, Form
from course_kernels.moe import ACTIVATIONS
from fuzz_cases import without_triton
from layer_calls import Accumulate, Gmm, Sums, Tgmm
from moe_calls import FeedForward, InPieces, Journey, Route
from scaled_calls import BlockScaled, DeepGemm, Pack, Quantize


def title(*fields) -> str:
    """A case's name on the command line."""
    return "-".join(str(field).removeprefix("torch.") for field in fields)


@dataclass(frozen=True)
class Called:
    """One call of a function beside the products above, with a backend; a configuration is for the kernel in CuTe DSL:
    itself, or its place among those of each form."""

    call: Call
    backend: str = "triton"
    config: CuteConfig | int | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the operands, or of what is made."""
        in_float8 = isinstance(self.call, FeedForward) and (self.call.scales or self.call.recipe)
        return torch.float8_e4m3fn if isinstance(self.call, Quantize) or in_float8 else self.call.dtype

    def __str__(self) -> str:
        changed = [type(self.call).__name__.lower(), *["cute"] * (self.backend == "cute")]
        for field in dataclasses.fields(self.call):
            value = getattr(self.call, field.name)
            if value != field.default:
                if isinstance(value, ck.GemmConfig):
                    value = "x".join(map(str, (*value.block, value.num_xcds, value.store_parts)))
                value = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
                changed.append(f"{field.name}={value.removeprefix('torch.').replace(' ', '.')}")
        return title(*changed, *self._configured())

    def _configured(self) -> list[str | int]:
        """The configuration, if there is one, in a name."""
        return [] if self.config is None else [getattr(self.config, "name", self.config)]

    def choose(self, form: Form, *others) -> CuteConfig:
        """Choose the configuration of a product in CuTe DSL."""
        if not isinstance(self.config, int):
            return self.config
        configs = configs_for(form)
        return configs[self.config % len(configs)]


@contextlib.contextmanager
def nothing_measured() -> Iterator[None]:
    """Make choices depend on rules alone, and not on measured constants, which change."""
    time_model.forget()
    try:
        with unittest.mock.patch.object(gpu_constants, "_measured", unittest.mock.Mock(return_value=[])):
            yield
    finally:
        time_model.forget()


def called_cases() -> list[Called]:
    """Every other Triton kernel with tails, empty groups and odd strides; each way to read and to store."""
    sizes, odd = (65, 0, 130, 16), dict(sizes=(65, 0, 1, 33), N=33)
    half, brain, single, fp8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
    small, chiplets = ck.GemmConfig(32, 64, 32, group_m=2), ck.GemmConfig(32, 64, 32, num_xcds=8, programs=24)
    strange = dict(layout_out="every_other", index=torch.int64)
    whole = dict(sizes=sizes, N=96, K=80, config=small)
    found: list[Call] = [Gmm(**whole | dict(dtype=dtype, bias=dtype, out_dtype=dtype)) for dtype in (half, single)]
    found += [Gmm(**whole | dict(layout_rhs=how, bias=single, config=chiplets)) for how in ("transposed", "col")]
    found += [Gmm(**odd, K=45, layout_lhs="unaligned", layout_rhs="every_other", **strange), Gmm(sizes=(0, 0))]
    found.append(Gmm(**whole | dict(work_stealing=True, grid_dim=3)))
    for function in ("ptgmm", "nptgmm"):
        found += [Tgmm(function=function, **whole | dict(layout_lhs=how)) for how in ("row", "transposed")]
        for dtype in (half, brain, single):
            found.append(Tgmm(function=function, **whole | dict(dtype=dtype, out_dtype=dtype, accumulate=True)))
        found.append(Tgmm(function=function, **odd, K=45, layout_lhs="unaligned", accumulate=True, **strange))
    found.append(Tgmm(**whole | dict(config=chiplets)))
    into = dict(sizes=sizes, M=80, N=96, config=small)
    found += [Accumulate(**into, dtype=half, out_dtype=dtype) for dtype in (half, brain, single)]
    found += [Accumulate(**odd, M=45, layout_a="every_other", **strange), Accumulate(**into | dict(main_grad=True))]
    found.append(Accumulate(**into | dict(config=replace(small, store_parts=2))))
    for dtype, accumulate in ((half, False), (brain, True), (single, True)):
        found.append(Sums(**odd, dtype=dtype, accumulate=accumulate))
    found += [Sums(sizes=(300, 0, 257, 1), N=70, tail=256, layout=how, **strange) for how in ("col", "unaligned")]
    masked = dict(sizes=(65, -1, 0, 90, 1), max_m=80)
    for shuffled in (False, True):
        found += [DeepGemm(**masked, dtype=dtype, shuffled=shuffled) for dtype in (half, brain)]
        for scales in ("group", "channel", "block"):
            found.append(DeepGemm(**masked, dtype=fp8, scales=scales, shuffled=shuffled, N=144, K=160))
    apart = dict(**masked, N=33, layout_x="unaligned", layout_w="every_other", **strange)
    found += [DeepGemm(**apart, K=45), DeepGemm(**apart, K=145, dtype=fp8, scales="block")]
    for dtype, how in ((half, "row"), (brain, "col"), (single, "every_other")):
        found += [Quantize(dtype=dtype, layout=how, shape=(2, 70, 145)), Quantize(dtype=dtype, lines=128, layout=how)]
    found += [Quantize(restart=True, sizes=(65, 0, 130, 1), shape=(33, 201), layout=how) for how in ("row", "col")]
    found += [Pack(sizes=(65, 0, 130, 1), layout=how) for how in ("row", "col", "every_other")]
    found += [Pack(sizes=(128, 0, 256), restart=False, index=torch.int64), Pack(scaled=False)]
    for mode, scalings in BLOCK_SCALINGS.items():
        for scaling in scalings:
            found.append(BlockScaled(mode=mode, scaling=scaling, sizes=(65, 0, 130), config=small))
        odd_blocks = dict(M=45, K=145, layout_a="unaligned", layout_b="every_other", **strange)
        found.append(BlockScaled(mode=mode, scaling=scalings[-1], **odd, **odd_blocks))
    return [Called(call) for call in [*found, *moe_calls()]]


def moe_calls() -> list[Call]:
    """Layers of experts with all gradients, with every kind of adapter and rounding; routings of few and of many
    choices; and journeys between ranks."""
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    strange = dict(hidden=23, inner=37, layout_x="every_other", index=torch.int32)
    one_token = dict(sizes=(1, 0, 1), tail=0)
    turns, none, oai = dict(concatenated=False), dict(activation="relu2", bias=half), dict(activation="swiglu_oai")
    kinds = [turns, none, oai | turns | dict(bias=single), dict(weights_on="input", bias=half), strange, one_token]
    layers = [*(dict(dtype=dtype) for dtype in (half, brain, single)), *kinds, dict(sizes=(0, 0))]
    layers += [dict(weights_on="input"), dict(layout_w="transposed"), dict(values="integers", activation="reglu")]
    layers += [dict(main_grads=True), dict(main_grads=True, layout_w="col", weights_on="input")]
    layers += [dict(rank=4, **kind) for kind in ({}, *kinds[:5])]
    for how in ("rowwise", "blockwise"):
        layers += [
            dict(scales=how, sizes=(9, 0, 1), hidden=144, inner=136),
            *(dict(scales=how, **kind) for kind in kinds),
        ]
        layers += [dict(recipe=how, sizes=(131, 0, 5), main_grads=True), *(dict(recipe=how, **kind) for kind in kinds)]
        layers.append(dict(recipe=how, sizes=(9, 0, 1), hidden=16, inner=136))
        layers.append(dict(scales=how, with_grads=False, hidden=144, inner=136, **one_token))
    layers += [dict(with_grads=False, **kind) for kind in ({}, oai | turns, dict(weights_on="input"))]
    few = dict(with_grads=False) | one_token
    layers += [
        few | dict(tail=1, top_k=3),
        few | oai | turns | dict(dtype=brain, bias=brain),
        few | strange | dict(bias=single),
    ]
    layers += [few | none | dict(layout_w="transposed", weights_on="input"), few | dict(hidden=600, inner=270)]
    many, very_many = dict(sizes=(1, 0, 20), times=100), dict(sizes=(40, 0, 800), times=20)  # each sorts in its own way
    routes = [{}, dict(index=torch.int32, layout="every_other"), many, many | dict(index=torch.int32, layout="col")]
    routes += [very_many, very_many | dict(index=torch.int32, layout="every_other")]
    journeys = [{}, dict(sizes=(1, 3), most=3), dict(columns=1040, layout="every_other", index=torch.int32)]
    journeys.append(dict(sizes=(70, 9), most=70, dtype=single, columns=16, top_k=6))
    return [
        *(FeedForward(**dict(sizes=(35, 0, 5, 20)) | each) for each in layers),
        *(Route(**each) for each in routes), *(Journey(**each) for each in journeys),
    ]  # fmt: skip


def called_cute_cases() -> list[Called]:
    """Masked products of 16 bits and with every kind of scales, scales of blocks in mode "m", and added products."""
    half, fp8, single = torch.bfloat16, torch.float8_e4m3fn, torch.float32
    sizes = (65, 0, 300, 200, 16, 0, 1)
    found: list[tuple[CuteConfig, Call]] = []
    # Flat tiles, whose weights L2 does not keep, and high ones. The second of 16 bits takes its tiles as it gets room.
    for rows, place in ((20, -1), (300, 0)):
        masked = dict(sizes=(65, -1, *sizes[2:]), max_m=210, N=264, expected_m=rows)
        of_16 = CONFIGS[place] if place else next(config for config in CONFIGS if config.dynamic)
        found += [(of_16, DeepGemm(**masked, K=136, dtype=half, out_dtype=dtype)) for dtype in (half, single)]
        found.append((of_16, DeepGemm(**masked, K=136, index=torch.int64, layout_x="pitched")))
        for scales in ("group", "channel", "block"):
            of_8 = CONFIGS_BLOCK_SCALED if scales == "block" else CONFIGS_8_BIT
            found.append((of_8[place], DeepGemm(**masked, K=272, dtype=fp8, scales=scales)))
    for few, config in (((7, 0, 16, 1), CONFIGS_BLOCK_SCALED[-1]), (sizes, CONFIGS_BLOCK_SCALED[0])):
        for N, dtype in ((264, half), (136, single)):
            found.append((config, BlockScaled(sizes=few, N=N, K=272, tail=37, out_dtype=dtype)))
    for M, config in ((120, CONFIGS_ALONG_K[0]), (328, CONFIGS_ALONG_K[-1])):
        found.append((config, Accumulate(sizes=sizes, M=M, N=264, tail=37, dtype=half)))
    return [Called(call, "cute", config) for config, call in found]


def cute_layers() -> list[Called]:
    """Layers whose products the kernel in CuTe DSL computes: in every configuration of the epilogues with an
    activation, and with the layouts, additions and roundings that it takes."""
    half, brain = torch.float16, torch.bfloat16
    whole = dict(sizes=(65, 0, 300, 200, 16, 0, 1), tail=37, hidden=136, inner=264, dtype=brain)
    # The gate's columns and up's are products of their own where weights are transposed: fewer configurations fit.
    form = Form("m", epilogue=GATED_PRE, load="gather", activation=ACTIVATIONS["swiglu"])
    places, transposed = (len(configs_for(form._replace(b_major=major))) for major in ("k", "n"))
    found = [(place, {}) for place in range(places)]
    found += [(place, dict(layout_w="transposed")) for place in range(transposed)]
    found += [(place, dict(with_grads=False)) for place in range(0, places, 3)]
    found.append((1, dict(with_grads=False, layout_w="transposed")))
    found += [(0, dict(dtype=half, main_grads=True)), (1, dict(dtype=half, main_grads=True, layout_w="transposed"))]
    found += [(0, dict(activation="relu2")), (1, dict(activation="swiglu_oai")), (2, dict(weights_on="input"))]
    found += [(place, dict(sizes=(17, 30, 9, 0, 70), layout_x="pitched")) for place in (2, 3)]
    oai, turns, single = dict(activation="swiglu_oai"), dict(concatenated=False), torch.float32
    found += [(0, oai | dict(bias=brain)), (1, oai | dict(bias=single)), (2, dict(activation="relu2", bias=single))]
    found += [(place, oai | turns | dict(bias=single, with_grads=False)) for place in (0, 1)]
    found += [(2, turns | dict(with_grads=False)), (1, oai | turns | dict(bias=brain))]
    float8 = dict(hidden=144, inner=272)
    for how in ("rowwise", "blockwise"):
        # Rounded weights keep their layout. In one direction the kernel needs a copy, which pays where rows are many.
        training = float8 | dict(recipe=how, **(dict(sizes=(1300, 900)) if how == "blockwise" else {}))
        found += [(0, training), (1, training | dict(main_grads=True, dtype=half)), (0, float8 | dict(scales=how))]
    layers = [Called(FeedForward(**whole | each), "cute", place) for place, each in found]
    return [*layers, *(Called(InPieces(**whole), "cute", place) for place in range(0, places, 3))]


def compile_for_racecheck(config: CuteConfig, form: Form, dtype: str, out_dtype: str, **options) -> Callable:
    """Compile a kernel whose threads read stages themselves so that racecheck can follow them: every lane gives a stage
    back, not one for its warp, and no cluster has a second block.

    racecheck takes an arrival at a barrier for the arriving thread's alone, also where its whole warp has met before
    (``__syncwarp``), and reports what the other 31 have read as races with the next round's writes. Where TMA writes
    and wgmma reads, it watches neither.
    """
    from course_kernels.kernels.cute_sm90 import kernel, stages
    from course_kernels.kernels.cute_sm90.compilation import compile_for

    def ring_of_lanes(*arguments):
        with unittest.mock.patch.object(stages, "WARP_GROUP", 32 * stages.WARP_GROUP):  # readers are counted in warps
            ring = stages.make_ring(*arguments)
        return dataclasses.replace(ring, is_signaling_thread=True)

    with unittest.mock.patch.object(kernel, "make_ring", ring_of_lanes):
        return compile_for(replace(config, cluster=1), form, dtype, out_dtype, **options)


def run_called(called: Called, racecheck: bool = False) -> str:
    """Compute a case and compare. Each tensor has an allocation that ends with it. ``racecheck``: it is under this
    tool, see ``compile_for_racecheck``."""
    with contextlib.ExitStack() as stack:

        def replaced(name: str, function: Callable) -> unittest.mock.Mock:
            return stack.enter_context(unittest.mock.patch.object(cute, name, side_effect=function))

        if called.backend == "cute":
            stack.enter_context(without_triton())
        if called.config is not None:
            PlanCache.clear_all()  # a plan of an earlier case may have another configuration
            chosen = replaced("choose", called.choose)
        if racecheck:
            replaced("compiled", functools.partial(compiled_for_racecheck, cute.compiled))
        called.call.check(ck.runtime.device(), called.backend, guards=False)
    done = f"{called.call.api} of {len(called.call.sizes)}"
    if not isinstance(called.config, int):
        return done
    asked = (each.args[0] for each in chosen.call_args_list)
    forms = {(form.along, form.load, form.epilogue, form.rows) for form in asked}
    if missing := forms_of(called.call) - forms:
        raise AssertionError(f"{called}: the kernel in CuTe DSL was not asked for {sorted(missing)}")
    return f"{done}, {len(forms)} forms"


def compiled_for_racecheck(compiled: Callable, config, form: Form, dtype, out_dtype, device) -> Callable:
    """Do what ``cute.compiled`` does, or what racecheck needs in its place."""
    if not form.stages_scales:
        return compiled(config, form, dtype, out_dtype, device)
    return compile_for_racecheck(config, form, dtype_name(dtype), dtype_name(out_dtype))


def forms_of(call: FeedForward | InPieces) -> set[tuple[str, str, str, str]]:
    """The forms of the CuTe kernel that a layer needs with 16 bits: which extent groups share, load, epilogue, rows."""
    plain = ("m", "tma", "store", "ends")
    if isinstance(call, InPieces):
        return {("m", "gather", epilogue, "pieces") for epilogue in (GATED_PRE, GATED_BACKWARD)}
    if call.scales or call.recipe:
        return set()
    if call.weights_on == "input" or (call.with_grads and not call.concatenated):
        return {plain}
    if not call.with_grads:
        return {("m", "gather", GATED, "ends"), plain}
    of_weights = "add" if call.main_grads else "store"
    gathered = {("k", load, of_weights, "ends") for load in ("gather", "gather_b")}
    return {*(("m", "gather", epilogue, "ends") for epilogue in (GATED_PRE, GATED_BACKWARD)), plain, *gathered}
