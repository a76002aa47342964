"""The Helion kernels: the Triton code that they become, with no GPU, and how they are chosen."""

from __future__ import annotations

import re

import pytest
import torch

from course_kernels import codegen, runtime
from course_kernels.codegen import Build
from jagged_cases import DEVICE, SIZES, expected, needs_helion, operands

pytestmark = [needs_helion] + ([pytest.mark.gpu] if runtime.mode() == "gpu" else [])
LARGE = {
    "simple": {"block_sizes": [128, 128, 64], "num_warps": 8, "num_stages": 3, "l2_groupings": [8]},
    "persistent": {
        "block_sizes": [128, 128, 64], "num_warps": 8, "num_stages": 3, "group_m": 8, "workers_per_sm": 2
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels():
    from course_kernels.jagged import helion_kernels

    yield helion_kernels
    codegen.close()


@pytest.fixture(params=LARGE)
def kernel(request):
    return request.param


def generated(kernels, kernel, dtype=torch.bfloat16):
    """The Triton code for the shape of Helion's example, with the arguments of the launch."""
    A_packed, B = torch.empty(640, 256, dtype=dtype), torch.empty(256, 128, dtype=dtype)
    offsets = torch.empty(5, dtype=torch.int32)
    return kernels.bind(kernel, A_packed, B, offsets, LARGE[kernel]).to_triton_code(LARGE[kernel])


def test_generated_code_needs_no_gpu_and_is_compiled_for_hopper(kernels, kernel, tmp_path):
    code = generated(kernels, kernel)
    assert f"_helion_{kernels.FUNCTIONS[kernel].__name__}" in code
    assert "tl.dot(tl.cast(block_a, tl.bfloat16)" in code, "operands are multiplied as they are, and summed in float32"
    path = tmp_path / f"{kernel}.py"
    path.write_text(code)
    name, parameters = re.search(r"^def (_helion_\w+)\((.*)\):", code, re.MULTILINE).groups()
    pointers = {"A_packed": "*bf16", "B": "*bf16", "out": "*bf16", "group_offsets": "*i32"}
    constants = {"GROUP_M": 8} if "GROUP_M: tl.constexpr" in parameters else {}
    names = [each.split(":")[0] for each in parameters.split(", ")]
    constants |= {each: 1 for each in names if re.search(r"stride_1$|offsets_stride_0$", each)}
    signature = {each: pointers.get(each, "i32") for each in names if each not in constants}
    aligned = {"A_packed", "B", "out", "A_packed_stride_0", "B_stride_0", "out_stride_0", "N", "K"} & signature.keys()
    spec = Build(f"{path}:{name}", signature, constants, tuple(aligned), num_warps=8, num_stages=3)
    compiled = codegen.compile_kernel(spec, "sm_90")
    assert compiled.instructions["wgmma"] > 0
    assert compiled.shared_bytes >= 2 * (128 + 128) * 64 * 2, "blocks are in flight"


def test_a_persistent_worker_strides_through_tiles_of_its_own(kernels):
    code = generated(kernels, "persistent")
    loops = re.findall(r"for offset_\d+ in tl\.range\((.*)\):", code)
    strided = [loop for loop in loops if loop.startswith("tl.cast(offset_") and "workers" in loop]
    assert len(loops) == 3, "tiles, blocks of K, and the tail's tiles; no loop over groups"
    assert len(strided) == 2, "from the worker's number, in steps of as many as there are workers"
    assert "workers = sms * 2" in code


def test_settings_follow_types_and_sizes(kernels, monkeypatch):
    def settings(*shapes, dtype=torch.float32, b_dtype=None):
        a, b = (torch.empty(shape, dtype=each, device="meta") for shape, each in zip(shapes, (dtype, b_dtype or dtype)))
        return kernels.make_kernel("simple", a, b, LARGE["simple"]).settings

    assert settings((64, 32), (32, 16)).index_dtype == torch.int32
    assert settings((2**20, 2**11), (2**11, 16)).index_dtype == torch.int64, "A's addresses"
    assert settings((2**16, 16), (16, 2**16)).index_dtype == torch.int64, "the result's"
    monkeypatch.setattr(runtime, "allows_tf32", lambda: False)
    assert settings((64, 32), (32, 16)).dot_precision == "ieee"
    monkeypatch.setattr(runtime, "allows_tf32", lambda: True)
    assert settings((64, 32), (32, 16)).dot_precision == "tf32"
    assert settings((64, 32), (32, 16), dtype=torch.float16).dot_precision == "ieee"
    assert settings((64, 32), (32, 16), dtype=torch.float16, b_dtype=torch.float32).dot_precision == "tf32"


def test_one_kernel_serves_every_number_of_rows_and_groups_up_to_a_power_of_two(kernels, kernel):
    function = None
    for sizes in ((5, 0, 33), SIZES[:4], (40,) * 4):
        A_packed, B, offsets = operands(sizes, 20, 37, torch.float16, index=torch.int32)
        config = dict(LARGE[kernel], block_sizes=[32, 32, 32], num_warps=4)
        result = kernels.multiply(kernel, A_packed, B, offsets, config)
        torch.testing.assert_close(result, expected(A_packed, B, sum(sizes)), rtol=0, atol=0)
        bound = kernels.bind(kernel, A_packed, B, offsets, config)
        assert function in (None, bound)
        function = bound


def test_launches_with_64_bit_indices(kernels, kernel, monkeypatch):
    monkeypatch.setattr(kernels, "_INT32_REACH", 0)
    A_packed, B, offsets = operands((5, 0, 33), 20, 37, torch.float16, tail=2)
    assert kernels.make_kernel(kernel, A_packed, B, LARGE[kernel]).settings.index_dtype == torch.int64
    result = kernels.multiply(kernel, A_packed, B, offsets)
    torch.testing.assert_close(result, expected(A_packed, B, 38), rtol=0, atol=0)
    assert result.device == DEVICE


@pytest.mark.skipif(runtime.mode() == "gpu", reason="Helion's interpreter multiplies on a GPU")
@pytest.mark.parametrize("triton", ["0", "1"])
def test_helions_own_interpreter_is_refused_on_a_cpu(kernels, kernel, triton, monkeypatch):
    monkeypatch.setenv("HELION_INTERPRET", "1")
    monkeypatch.setenv("TRITON_INTERPRET", triton)
    with pytest.raises(RuntimeError, match=r"runs in Triton's interpreter on CPU tensors, and HELION_INTERPRET=1"):
        kernels.multiply(kernel, torch.ones(3, 4), torch.ones(4, 2), torch.tensor([0, 3]))
