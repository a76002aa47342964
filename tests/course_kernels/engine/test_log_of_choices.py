"""Every product logs which kernel it gets, and why."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.nn.functional import ScalingType

import course_kernels as ck
from course_kernels import runtime
from course_kernels.engine import backend_choice, plans
from course_kernels.engine.hopper import cute
from course_kernels.engine.options import Options
from course_kernels.engine.product import Product
from course_kernels.engine.tuning import Extents, Gpu, Kind
from course_kernels.packed.checks import problem_of

ROWS, G, N, K = 96, 3, 128, 256
DEVICE = runtime.device()
ENDS = torch.tensor([30, 30, 90], dtype=torch.int32, device=DEVICE)
SIZES = torch.tensor([30, 0, 60], dtype=torch.int32, device=DEVICE)
A = torch.ones(ROWS, K, dtype=torch.bfloat16, device=DEVICE)
B = torch.ones(G, N, K, dtype=torch.bfloat16, device=DEVICE).mT


def float8(backend):
    a, factors_a = ck.quantize_1x128(A)
    b, factors_b = ck.quantize_128x128(B.mT.contiguous())
    line, square = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
    return ck.scaled_grouped_mm(a, b.mT, factors_a, line, factors_b.mT, square, offs=ENDS, backend=backend)


CALLS = {
    "grouped_mm along M": lambda backend: ck.grouped_mm(A, B, offs=ENDS, backend=backend),
    "grouped_mm along N": lambda backend: ck.grouped_mm(B.mT, A.mT, offs=ENDS, backend=backend),
    "grouped_mm along K": lambda backend: ck.grouped_mm(A.mT, A, offs=ENDS, backend=backend),
    "grouped_mm of a batch": lambda backend: ck.grouped_mm(B.mT, B, backend=backend),
    "scaled_grouped_mm": float8,
    "gmm": lambda backend: ck.gmm(A[:90], B, SIZES, backend=backend),
    "ptgmm": lambda backend: ck.ptgmm(A[:90].mT, A[:90], SIZES, backend=backend),
    "nptgmm": lambda backend: ck.nptgmm(A[:90].mT, A[:90], SIZES, backend=backend),
    "deepgemm": lambda backend: ck.deepgemm(
        A.view(G, 32, K), B.mT, A.new_zeros(G, 32, N), SIZES.clamp(max=32), backend=backend
    ),
}


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, "course_kernels")
    plans.plans.clear()
    return caplog


@pytest.mark.parametrize("backend, says", [("triton", ": triton "), ("torch", ": torch: as named")])
@pytest.mark.parametrize("name", CALLS)
def test_every_product_logs_its_choice(name, backend, says, log):
    CALLS[name](backend)
    (message,) = log.messages
    assert says in message
    assert backend == "torch" or runtime.mode() == "gpu" or "the interpreter runs every product with" in message


def test_a_given_configuration_is_logged(log):
    ck.grouped_mm(A, B, offs=ENDS, config=ck.GemmConfig(32, 32, 32), backend="triton")
    (message,) = log.messages
    assert message.endswith(": as given")


def test_a_plan_is_logged_when_it_is_made_and_not_when_it_runs(log):
    for _ in range(3):
        ck.grouped_mm(A.cpu(), B.cpu(), offs=ENDS.cpu())
    assert log.messages == ["3 groups: M 96 in total, N 128, K 256 each; result bfloat16: torch: operands are on a CPU"]


SHAPES = {
    "grouped_mm along M": "3 groups: M 96 in total, N 128, K 256 each; result bfloat16",
    "grouped_mm along N": "3 groups: M 128, N 96 in total, K 256 each; result bfloat16",
    "grouped_mm along K": "3 groups: M 256, N 256 each, K 96 in total; result bfloat16",
    "grouped_mm of a batch": "3 products: M 128, N 128, K 256 each; result bfloat16",
    "scaled_grouped_mm": "3 groups: M 96 in total, N 128, K 256 each; float8, result bfloat16",
    "deepgemm": "3 groups: M up to 32, N 128, K 256 each; result bfloat16",
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_total_is_not_taken_for_each_groups_extent(name, log):
    CALLS[name]("torch")
    assert log.messages == [f"{SHAPES[name]}: torch: as named"]


on_a_cpu = pytest.mark.skipif(DEVICE.type != "cpu", reason="the device is a GPU")


@pytest.mark.parametrize(
    "tokens, backend, says",
    [
        (5, "torch", "torch: as named"), (0, "triton", "torch: it is empty"),
        (1, "triton", "triton: few tokens: two kernels that multiply vectors"),
        pytest.param(5, "auto", "torch: operands are on a CPU", marks=on_a_cpu),
    ],
)  # fmt: skip
def test_a_layer_logs_what_computes_it(tokens, backend, says, log):
    x, gate_up, down = (torch.ones(size, device=DEVICE) for size in ((tokens, 16), (4, 48, 16), (4, 16, 24)))
    index = torch.arange(2, dtype=torch.int64, device=DEVICE).expand(tokens, 2)
    ck.moe_feed_forward(x, gate_up, down, index, torch.ones(tokens, 2, device=DEVICE), backend=backend)
    assert log.messages == [f"a layer of 4 experts, H 16, I 24; {tokens} tokens in float32: {says}"]


def test_a_list_logs_its_launches(log):
    ck.group_gemm([A, A], [B[0], B[1]], method="tma")
    assert [message.partition(":")[0] for message in log.messages] == ["group_gemm"]


@pytest.mark.parametrize(
    "backend, us, says",
    [
        ("cute", 30, "cute 128×192×64, pingpong, 4 stages, strips of 8, 30 µs expected: as named"),
        ("auto", 0, "cute 128×192×64, pingpong, 4 stages, strips of 8, 0 µs expected: expected to be faster"),
        ("auto", 1e9, "not taken, Triton is expected to be faster"),
    ],
)
def test_the_kernel_in_cute_dsl_logs_its_time(backend, us, says, log, monkeypatch):
    asked = Kind("m"), Extents(512, 2048, 2048, 8), Gpu("sm_90", 132, 4.81)
    config = cute.CuteConfig(128, 192, 64, 1, 4, cute.PINGPONG)
    monkeypatch.setattr(cute, "runs_on", lambda device: True)
    monkeypatch.setattr(cute, "installed", lambda: True)
    monkeypatch.setattr(cute, "offer", lambda *_: cute.Offer(us, asked, config, lambda: None))
    product = Product.packed(A.to("meta"), B.to("meta"), ENDS.to("meta"))
    problem = problem_of(product, Options(backend=backend))
    monkeypatch.setattr("course_kernels.engine.triton_launch.plan", lambda *_: None)
    backend_choice.choose(problem, product, torch.empty(ROWS, N, device="meta"))
    assert says in log.messages[0]
