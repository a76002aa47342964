"""Groups along the depth as whole blocks of 128: copies and quantised operands, by a kernel and by torch."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_kernels import quantize_1x128, runtime
from course_kernels.engine.whole_blocks import ends_of, pack, pack_by_torch
from course_kernels.fp8.quantize import quantize_whole_blocks

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
DEVICE = runtime.device()
FP8 = torch.float8_e4m3fn
ENDS = [(1, 128, 256, 385), (0, 5, 5, 140, 400), (128, 256, 384), (300,), (127, 254, 382), (0, 0), (420,), (9, 3, 200)]
LAYOUTS = {
    "depth contiguous": lambda x: x.contiguous(),
    "lines contiguous": lambda x: x.mT.contiguous().mT,
    "gaps": lambda x: torch.stack([x, x], -1)[..., 0],
}


def lines_of(ends, layout, count=70, total=420, seed=0):
    """Numbers whose bits are all different enough, NaN after the last group."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, total, generator=generator)
    x[:, max(ends, default=0) :] = torch.nan
    return LAYOUTS[layout](x.to(DEVICE))


def bits(values):
    return values.view(torch.uint8)


def wanted(values, scale, ends, restart=True):
    """Values, factors and ends, group by group; how many blocks are used."""
    found, of_blocks, used, counts = [], [], [], 0
    for g, (start, end) in enumerate(itertools.pairwise((0, *ends))):
        blocks = -(-max(end - start, 0) // 128)
        part = bits(values.contiguous())[:, start : max(start, end)]
        found.append(torch.nn.functional.pad(part, (0, blocks * 128 - part.shape[1])))
        first = start // 128 + g * restart
        of_blocks.append(scale[:, first : first + blocks])
        counts += blocks
        used.append(128 * counts)
    return torch.cat(found, 1), torch.cat(of_blocks, 1), used, counts


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_copies(ends, layout, dtype):
    x = lines_of(ends, layout).to(FP8)
    offs = torch.tensor(ends, dtype=dtype, device=DEVICE)
    scale = LAYOUTS[layout](torch.rand(70, 420 // 128 + len(ends), device=DEVICE))
    values, factors, bounds, blocks = wanted(x, scale, ends)
    for made in (pack(x, offs, scale), pack_by_torch(x, offs, scale)):
        assert made.values.stride() == ((420 // 128 + len(ends)) * 128, 1)
        assert torch.equal(bits(made.values)[:, : 128 * blocks], values)
        assert torch.equal(made.scale[:, :blocks], factors)
        assert (made.ends.tolist(), made.ends.dtype) == (bounds, torch.int32)
    assert not bits(made.values)[:, 128 * blocks :].any()
    assert not made.scale[:, blocks:].any()
    assert ends_of(offs, 420).tolist() == bounds
    alone = pack(x, offs)
    assert alone.scale is None
    assert torch.equal(bits(alone.values)[:, : 128 * blocks], values)


def test_copies_of_what_is_whole():
    ends = (128, 128, 384)
    x = lines_of(ends, "lines contiguous").to(FP8)
    scale = torch.rand(70, 4, device=DEVICE)
    made = pack(x, torch.tensor(ends, dtype=torch.int32, device=DEVICE), scale, restart=False)
    values, factors, bounds, blocks = wanted(x, scale, ends, restart=False)
    assert blocks == 3
    assert torch.equal(bits(made.values)[:, :384], values)
    assert torch.equal(made.scale[:, :3], factors)
    assert made.ends.tolist() == list(bounds) == list(ends)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ends", [*ENDS[:-1], ()], ids=str)
def test_quantised(ends, layout, backend):
    """The same values and factors as where blocks restart at groups; what no block has is zeros."""
    x = lines_of(ends, layout)
    offs = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    for power_of_two in (False, True):
        made = quantize_whole_blocks(x, offs, power_of_two=power_of_two, backend=backend)
        again = pack_by_torch(*_restarting(x, offs, power_of_two))
        assert torch.equal(bits(made[0]), bits(again.values))
        assert torch.equal(made[1], again.scale)
        assert torch.equal(made[2], again.ends)
        assert made[0].is_contiguous()


def _restarting(x, offs, power_of_two):
    values, scale = quantize_1x128(x, offs=offs, power_of_two=power_of_two, backend="torch")
    return values, offs, scale


def test_extents_of_zero():
    offs = torch.tensor([3, 130], dtype=torch.int32, device=DEVICE)
    for backend in ("torch", "triton"):
        values, scale, ends = quantize_whole_blocks(torch.ones(0, 140, device=DEVICE), offs, backend=backend)
        assert (values.shape, scale.shape, ends.tolist()) == ((0, 384), (0, 3), [128, 256])
        values, scale, ends = quantize_whole_blocks(torch.ones(2, 0, device=DEVICE), offs, backend=backend)
        assert (values.shape, scale.shape, ends.tolist()) == ((2, 256), (2, 2), [0, 0])


def test_opcheck():
    offs = torch.tensor([3, 130], dtype=torch.int32, device=DEVICE)
    options = dict(test_utils=("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"))
    operator = torch.ops.course_kernels.quantize_whole_blocks
    torch.library.opcheck(operator, (torch.ones(5, 140, device=DEVICE), offs, False, "auto"), **options)
