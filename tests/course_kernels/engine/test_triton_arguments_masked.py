"""What a launch of the masked kernel is given: descriptors where layouts allow, tiles for the expected rows, a grid."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig
from course_kernels.engine.options import Options
from course_kernels.engine.triton_arguments import prepare
from course_kernels.engine.tuning.fallback_rules import rows_class
from course_kernels.kernels.codes import Layout, Scales, Store
from course_kernels.masked.checks import Call, check_call
from course_kernels.runtime import Device

HOPPER, AMD = Device((9, 0), (9, 0), 132, 232_448, True), Device("gfx", None, 304, 65536, False)
FP8 = torch.float8_e4m3fn


def call(G=4, max_M=256, N=512, K=512, dtype=torch.bfloat16, **changes):
    sizes = torch.zeros(G, dtype=torch.int32)
    scales = (None, None)
    if dtype.itemsize == 1:
        scales = torch.ones(G, max_M), torch.ones(G)
    x, w, y = (
        *(torch.empty(G, rows, K, dtype=dtype) for rows in (max_M, N)),
        torch.empty(G, max_M, N, dtype=torch.bfloat16),
    )
    return Call(x, w, y, sizes, *scales)._replace(**changes)


def prepared(made, device=HOPPER, **options):
    problem, product = check_call(made, Options(**options), made.Y)
    return prepare(problem, product, made.Y, device)


def kinds(made, **options):
    arguments = prepared(made, **options).arguments
    return tuple(arguments[name] for name in ("A_KIND", "B_KIND", "C_KIND"))


def test_which_operands_have_descriptors():
    row, col, pointer = Layout.ROW_MAJOR, Layout.COL_MAJOR, Layout.ANY
    assert kinds(call()) == (row, row, Store.WINDOW)
    assert kinds(call(WQ=torch.zeros(4, 512, 512).bfloat16().mT)) == (row, col, Store.WINDOW)
    assert kinds(call(shuffled=True)) == (row, pointer, Store.WINDOW)
    assert kinds(call(XQ=torch.zeros(4, 256, 513)[..., 1:].bfloat16())) == (row, row, Store.WINDOW)
    assert kinds(call(XQ=torch.zeros(4, 256, 513).bfloat16()[..., 1:])) == (pointer, row, Store.WINDOW)
    # Groups further apart than their rows: no window slides over them.
    assert kinds(call(Y=torch.zeros(4, 300, 512).bfloat16()[:, :256])) == (row, row, Store.POINTERS)
    assert kinds(call(Y=torch.zeros(4, 256, 520).bfloat16()[..., :512])) == (row, row, Store.WINDOW)
    assert kinds(call(N=500)) == (row, row, Store.POINTERS), "16 bytes of the last column would be others'"
    assert kinds(call(K=500)) == (pointer, pointer, Store.WINDOW)
    arguments = prepared(call(), AMD).arguments
    assert (arguments["A_KIND"], arguments["c_desc"]) == (pointer, None)


@pytest.mark.parametrize("shuffled", [False, True], ids=["plain", "shuffled"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8], ids=str)
def test_tiles_hold_the_expected_rows(dtype, shuffled):
    for rows, block_m in ((0, 128), (10, 16), (20, 32), (50, 64), (200, 128)):
        made = prepared(call(N=4096, K=2048, G=16, dtype=dtype, rows=rows and rows_class(rows), shuffled=shuffled))
        assert made.arguments["BLOCK_M"] == block_m, rows


def test_programs_are_no_more_than_tiles():
    config = GemmConfig(64, 64, 64, programs_per_sm=2)
    assert prepared(call(G=1), config=config).programs(0) == 4 * 8
    assert prepared(call(G=64), config=config).programs(0) == 264
    assert prepared(call(), Device(None, None, None, None, True)).programs(0) == 4


@pytest.mark.parametrize(("dtype", "pack"), [(torch.bfloat16, 8), (torch.float16, 8), (FP8, 16)], ids=str)
def test_packs_are_of_the_stored_type(dtype, pack):
    made = call(dtype=dtype)
    assert prepared(made._replace(shuffled=True)).arguments["PACK"] == pack
    assert prepared(made).arguments["PACK"] == 0
    # The interpreter gets wider copies in the same order.
    problem, product = check_call(made._replace(shuffled=True), Options(), made.Y)
    copies = product._replace(a=product.a.float(), b=product.b.float())
    assert prepare(problem, copies, made.Y, Device(None, None, None, None, True)).arguments["PACK"] == pack


def test_scales_serve_lines_that_share_them():
    arguments = prepared(call(dtype=FP8)).arguments
    assert [arguments[f"stride_sb_{dim}"] for dim in "gnk"] == [1, 0, 0]
    assert [arguments[f"stride_sa_{dim}"] for dim in "gmk"] == [256, 1, 0]
    assert arguments["SCALES"] == Scales.LINES
    blocks = dict(x_scale=torch.ones(4, 256, 4), w_scale=torch.ones(4, 4, 4))
    arguments = prepared(call(dtype=FP8, **blocks)).arguments
    assert [arguments[f"stride_sb_{dim}"] for dim in "gnk"] == [16, 4, 1]
    assert [arguments[f"stride_sa_{dim}"] for dim in "gmk"] == [1024, 4, 1]
    assert arguments["SCALES"] == Scales.BLOCKS
    assert arguments["BLOCK_K"] <= 128
    assert prepared(call()).arguments["SCALES"] == Scales.NONE


def test_configurations_that_do_not_suit():
    with pytest.raises(ValueError, match="the masked kernel, which has no schedule 'dynamic'"):
        prepared(call(), config=GemmConfig(schedule="dynamic"))
    with pytest.raises(ValueError, match="shared memory"):
        prepared(call(), AMD, config=GemmConfig(256, 256, 64, num_stages=4))


@pytest.mark.parametrize(("num_sms", "programs"), [(None, 264), (132, 264), (131, 131), (1, 1)])
def test_a_limit_on_sms_is_one_on_programs(num_sms, programs):
    config = GemmConfig(64, 64, 64, programs_per_sm=2)
    assert prepared(call(G=32), config=config, num_sms=num_sms).programs(0) == programs
