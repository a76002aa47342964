"""Lesson 10's kernel: compiled for Hopper anywhere, its PTX counted; on a Hopper GPU, its products."""

from __future__ import annotations

import inspect

import pytest
import torch

cutlass = pytest.importorskip("cutlass", reason="needs CuTe DSL: pip install '.[cutlass]'")

from gemm_course.lessons import hopper_kernel  # noqa: E402


def test_it_compiles_to_copies_barriers_and_wgmma():
    _, ptx = hopper_kernel.compile_product(tile_n=64)
    assert ptx.count("wgmma.mma_async.sync.aligned.m64n64k16") == hopper_kernel.TILE_K // 16
    assert ptx.count("cp.async.bulk.tensor.2d.shared::cta") == 2
    assert ptx.count("cp.async.bulk.tensor.2d.global") == 1
    assert ptx.count("mbarrier.init") == 2 * hopper_kernel.STAGES
    assert "st.local" not in ptx
    assert "st.global" not in ptx


def test_the_widest_tile_is_the_last_that_fits():
    stages = lambda n: hopper_kernel.STAGES * ((hopper_kernel.TILE_M + n) * hopper_kernel.TILE_K * 2 + 16)  # noqa: E731
    tile = lambda n: hopper_kernel.TILE_M * n * 2  # noqa: E731
    assert stages(hopper_kernel.MAX_TILE_N) + tile(hopper_kernel.MAX_TILE_N) <= 227 * 1024 < stages(256) + tile(256)
    for wrong in (0, 40, 256):
        with pytest.raises(ValueError, match=f"tile_n must be a multiple of 16 from 16 to 192, got {wrong}"):
            hopper_kernel.compile_product(tile_n=wrong)


def test_the_device_code_has_at_most_80_lines():
    device = "load", "multiply", "round_sums", "store", "kernel", "share_memory"
    assert sum(len(inspect.getsource(getattr(hopper_kernel, name)).splitlines()) for name in device) <= 80


@pytest.mark.gpu
@pytest.mark.parametrize(("M", "N", "K", "tile_n"), [(128, 128, 64, 128), (200, 136, 520, 64), (8, 1000, 8, 192)])
def test_its_product_is_exact_on_hopper(M, N, K, tile_n):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    generator = torch.Generator(device="cuda").manual_seed(0)
    a, b = (
        torch.randint(-2, 3, (extent, K), generator=generator, device="cuda").bfloat16() for extent in (M, N)
    )  # fmt: skip
    c = torch.full((M, N), torch.nan, dtype=torch.bfloat16, device="cuda")
    run, _ = hopper_kernel.compile_product(tile_n=tile_n)
    run(a, b, c)
    assert torch.equal(c.double(), (a.double() @ b.double().T).bfloat16().double())
