"""What only a GPU can show of the jagged products: real sizes, 64-bit addresses, graphs, no waiting, memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from course_kernels import grouped_gemm_jagged, grouped_gemm_jagged_persistent
from course_kernels.bench import jagged
from jagged_cases import FUNCTIONS, IMPLEMENTATIONS, needs_helion, offsets_of

pytestmark = pytest.mark.gpu


def whole(*shape, dtype=torch.bfloat16):
    """Whole numbers from -2 to 2, drawn on the GPU."""
    return torch.empty(shape, dtype=dtype, device="cuda").random_(-2, 3)


def check(result, A_packed, B, rows):
    right = (A_packed.double() @ B.double()).to(result.dtype)
    right[rows:] = 0
    assert torch.equal(result, right)


@pytest.fixture(params=FUNCTIONS)
def function(request):
    return FUNCTIONS[request.param]


@pytest.mark.parametrize(
    ("dtype", "b_dtype"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float16),
        (torch.float32, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("odd", [0, 1], ids=["aligned", "odd"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_chosen_configurations(function, implementation, odd, dtype, b_dtype):
    sizes = (0, 300, 1, 128, 0, 513, 77, 0)
    K, N, rows = 208 + odd, 320 + odd, sum(sizes)
    A_packed, B = whole(rows + 61, K, dtype=dtype), whole(K, N, dtype=b_dtype)
    result = function(A_packed, B, offsets_of(sizes), implementation=implementation)
    assert result.dtype == torch.promote_types(dtype, b_dtype)
    check(result, A_packed, B, rows)
    assert torch.equal(result, function(A_packed, B, offsets_of(sizes, torch.int64), implementation=implementation))


@pytest.mark.parametrize("row", jagged.rows(), ids=lambda row: row.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rows_of_the_benchmark(function, implementation, row):
    A_packed, weight = whole(row.total_m, row.K), whole(row.N, row.K)
    for B in (weight.mT.contiguous(), weight.mT):
        result = function(A_packed, B, offsets_of(row.sizes), implementation=implementation)
        check(result, A_packed, B, row.total_m)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("rows", "K", "N"), [(2**16 + 300, 2**15, 16), (2**16 + 300, 16, 2**15)], ids=["A", "result"])
def test_addresses_of_64_bits(function, implementation, rows, K, N):
    A_packed, B = whole(rows, K), whole(K, N)
    result = function(A_packed, B, offsets_of((rows - 200, 0, 200)), implementation=implementation)
    for part in (slice(0, 256), slice(rows - 400, rows)):
        check(result[part].clone(), A_packed[part], B, 400)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_graph_serves_other_offsets(function, implementation):
    A_packed, B, offsets = whole(700, 128), whole(128, 256), offsets_of((300, 0, 400))

    def call():
        return function(A_packed, B, offsets, implementation=implementation)

    call()  # compiles
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    for sizes in ((300, 0, 400), (1, 2, 3), (0, 0, 0), (130, 500, 70)):
        offsets.copy_(offsets_of(sizes))
        result.fill_(float("nan"))
        graph.replay()
        check(result, A_packed, B, sum(sizes))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_warm_call_never_waits_and_allocates_its_result_alone(function, implementation):
    A_packed, B, offsets = whole(700, 128), whole(128, 256), offsets_of((300, 0, 400))
    for _ in range(2):
        result = function(A_packed, B, offsets, implementation=implementation)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = function(A_packed, B, offsets, implementation=implementation)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() - before <= result.numel() * result.element_size() + 512
    check(result, A_packed, B, 700)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients(implementation):
    A_packed, B, offsets = whole(700, 128), whole(256, 128).mT, offsets_of((300, 0, 350))
    operands = [tensor.requires_grad_() for tensor in (A_packed, B)]
    grad = whole(700, 256)
    result = grouped_gemm_jagged(*operands, offsets, implementation=implementation)
    grad_a, grad_b = torch.autograd.grad(result, operands, grad)
    grad[650:] = 0
    left, right = A_packed.detach().double(), B.detach().double()
    for mine, exact in ((grad_a, grad.double() @ right.mT), (grad_b, left.mT @ grad.double())):
        torch.testing.assert_close(mine.double(), exact, rtol=2**-8, atol=0)
    assert implementation == "auto" or grad_b.stride() == B.stride(), "no transposing copy"


def test_thousands_of_groups():
    sizes = [g % 5 if g % 7 else 0 for g in range(4096)]
    A_packed, B = whole(sum(sizes) + 3, 48), whole(48, 32)
    for implementation in ("auto", "triton"):
        result = grouped_gemm_jagged_persistent(A_packed, B, offsets_of(sizes), implementation=implementation)
        check(result, A_packed, B, sum(sizes))


@needs_helion
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("own", [0, 1])
def test_helions_first_kernel_of_a_process_is_launched_on_its_operands_gpu(own):
    code = f"""
import torch
from course_kernels import grouped_gemm_jagged
A_packed, B = (torch.ones(shape, dtype=torch.float16, device="cuda:{own}") for shape in ((4096, 512), (512, 512)))
for end in (4096, 1024):
    torch.cuda._sleep(10**8)
    offsets = torch.full((2,), end, dtype=torch.int32, device="cuda:{own}") * torch.arange(2, device="cuda:{own}")
    result = grouped_gemm_jagged(A_packed, B, offsets, implementation="helion")
    assert result.sum(1, dtype=torch.float64).tolist() == [512.0**2] * end + [0.0] * (4096 - end)
    assert torch.cuda.current_device() == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
