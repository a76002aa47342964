"""A product of low rank that is added to the sums of another one."""

from __future__ import annotations

import re

import pytest
import torch

from course_kernels import GemmConfig, runtime
from course_kernels.codegen import Build, compile_many
from course_kernels.codegen.packed import build_options, device_of, specialized
from course_kernels.engine.hopper import cute
from course_kernels.engine.low_rank import LowRank, arguments
from course_kernels.engine.options import Options
from course_kernels.engine.plans import find
from course_kernels.engine.product import Ends, Problem, Product, Store
from course_kernels.engine.triton_arguments import prepare

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

DEVICE = runtime.device()
OFFS = torch.tensor([10, 10, 30], dtype=torch.int32, device=DEVICE)


def made(rank, dtype=torch.float32):
    """A product, its result's memory, and the result in float64."""
    rng = torch.Generator().manual_seed(rank)
    a, b, left, right = (
        torch.randn(shape, generator=rng).to(dtype).to(DEVICE)
        for shape in ((37, 40), (3, 40, 48), (37, rank), (3, 48, rank))
    )
    product = Product(a, b, Ends(OFFS), epilogue=Store(None, True, LowRank(left, right.mT, 0.5)))
    exact, start = torch.zeros(37, 48, dtype=torch.float64, device=DEVICE), 0
    for g, end in enumerate(OFFS.tolist()):
        rows = slice(start, end)
        exact[rows] = a[rows].double() @ b[g].double() + 0.5 * left[rows].double() @ right[g].mT.double()
        start = end
    return product, torch.zeros(37, 48, dtype=dtype, device=DEVICE), exact


@pytest.mark.parametrize("rank", [1, 8, 12, 64, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_added_in_float32(rank, dtype):
    product, out, exact = made(rank, dtype)
    options = Options(backend="triton")
    problem = Problem("m", 3, 37, 48, 40, (37, 48), dtype, "ieee", options, keep_tail=True)
    find(product, options, out, lambda: problem).run(product, out)
    assert (out.double() - exact).abs().max() <= torch.finfo(dtype).eps * 4 * exact.abs().max()


def test_keys_tell_scales_and_ranks_apart():
    epilogue = made(8)[0].epilogue
    low = epilogue.low_rank
    keys = {epilogue.key(), Store(None, True).key(), epilogue._replace(low_rank=low._replace(scale=2.0)).key()}
    assert len({*keys, made(9)[0].epilogue.key()}) == 4
    assert epilogue._replace(low_rank=low._replace(left=torch._neg_view(low.left))).key() is None


def test_arguments_and_the_kernel_that_takes_none():
    assert (arguments(None)["RANK"], arguments(None)["left_ptr"]) == (0, None)
    assert [arguments(made(rank)[0].epilogue.low_rank)["BLOCK_R"] for rank in (1, 17, 200)] == [16, 32, 64]
    product, out, _ = made(8, torch.bfloat16)
    assert cute.match_form(product, out) is None


@pytest.mark.skipif(runtime.mode() != "interpreter", reason="on a GPU it runs")
@pytest.mark.parametrize("gathers", [False, True])
def test_it_compiles_for_hopper_and_leaves_the_loop_pipelined(gathers):
    """With a product of low rank before it, the loop over K still loads ahead, and nothing is spilled."""
    a, b, out = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((512, 256), (4, 256, 256), (512, 256)))
    left, right = torch.empty(512, 16, dtype=torch.bfloat16), torch.empty(4, 16, 256, dtype=torch.bfloat16)
    index = torch.empty(512, dtype=torch.int32) if gathers else None
    rows = Ends(torch.empty(4, dtype=torch.int32), index)
    config = GemmConfig(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3)
    options, builds = Options(torch.bfloat16, config=config), []
    for low in (None, LowRank(left, right, 0.5)):
        product = Product(a, b, rows, epilogue=Store(None, True, low))
        problem = Problem("m", 4, 512, 256, 256, (512, 256), torch.bfloat16, "ieee", options, keep_tail=True)
        prepared = prepare(problem, product, out, device_of("sm_90", config))
        given = specialized("contiguous", prepared.arguments)
        builds.append(Build("contiguous", *given, **build_options(prepared.options)))
    without, beside = compile_many([(each, "sm_90") for each in builds], workers=2)
    assert beside.spills.bytes == 0
    assert beside.ptx.count("wgmma.mma_async") > without.ptx.count("wgmma.mma_async")
    for each in (without, beside):  # the loop waits for all products but the one that it has just started
        assert re.search(r"wgmma\.wait_group\.sync\.aligned\s+1\b", each.ptx)
    assert config.shared_memory("contiguous", 2, 2, uses_tma=True) < beside.shared_bytes or gathers
    assert beside.shared_bytes <= config.shared_memory("contiguous", 2, 2, uses_tma=True, rank_block=16)


@pytest.mark.skipif(runtime.mode() != "interpreter", reason="on a GPU it runs")
def test_a_configuration_is_chosen_that_has_room_for_it():
    """On an H100, whose best tile without it takes 229,408 of 232,448 bytes."""
    a, b, out = (torch.empty(s, dtype=torch.bfloat16) for s in ((32768, 256), (4, 256, 256), (32768, 256)))
    chosen = {}
    for rank in (0, 16, 64):
        low = LowRank(a.new_empty(32768, rank), a.new_empty(4, rank, 256)) if rank else None
        product = Product(a, b, Ends(torch.empty(4, dtype=torch.int32)), epilogue=Store(None, True, low))
        options = Options(torch.bfloat16)
        problem = Problem("m", 4, 32768, 256, 256, (32768, 256), torch.bfloat16, "ieee", options, keep_tail=True)
        prepared = prepare(problem, product, out, device_of("sm_90", None))
        blocks = (prepared.arguments[f"BLOCK_{axis}"] for axis in "MNK")
        rest = dict(num_stages=prepared.options["num_stages"], store_parts=prepared.arguments["STORE_PARTS"])
        chosen[rank] = GemmConfig(*blocks, **rest)
    assert chosen[0].shared_memory("contiguous", 2, 2, rank_block=16) > 232448, "the question does not arise"
    for rank in (16, 64):
        assert chosen[rank].shared_memory("contiguous", 2, 2, rank_block=rank) <= 232448
