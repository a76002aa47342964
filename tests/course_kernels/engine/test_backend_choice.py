"""Which backend computes a product: the named one where it can, else the first in order that supports it."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig
from course_kernels.engine import backend_choice, torch_loop, triton_launch
from course_kernels.engine.hopper import cute
from course_kernels.engine.options import Options
from course_kernels.engine.product import Ends, Pieces, Problem, Product
from course_kernels.packed.checks import problem_of


def chosen(total=300, config=None, bias=None, keep_tail=False, backend="auto"):
    a, b = torch.zeros(total, 24).bfloat16(), torch.zeros(3, 40, 24).bfloat16().mT
    product = Product.packed(a, b, torch.zeros(3, dtype=torch.int32), bias, keep_tail=keep_tail)
    problem = problem_of(product, Options(backend=backend, config=config))
    return backend_choice.choose(problem, product, torch.zeros(total, 40).bfloat16())


@pytest.fixture
def hopper(monkeypatch):
    """A machine where the kernel in CuTe DSL runs, as far as the choice sees it."""
    monkeypatch.setattr(cute, "runs_on", lambda device: True)
    monkeypatch.setattr(cute, "installed", lambda: True)
    monkeypatch.setattr(cute, "_plan", lambda *asked: cute)
    monkeypatch.setattr(triton_launch, "plan", lambda problem, product, out: triton_launch)


def test_the_named_backend(hopper):
    assert isinstance(chosen(backend="torch"), torch_loop.Plan)
    assert chosen(backend="triton") is triton_launch
    assert chosen(backend="cute") is cute
    assert chosen(backend="cute", bias=torch.zeros(3, 40)) is cute


@pytest.mark.parametrize(("backend", "along_k"), [("torch", False), ("auto", False), ("triton", True)])
def test_no_backend_ignores_an_index(backend, along_k):
    a, b = torch.zeros(5, 24).bfloat16(), torch.zeros(3, 40, 24).bfloat16().mT
    rows = Ends(torch.zeros(3, dtype=torch.int32), torch.zeros(8, dtype=torch.int32))
    product = Product(*((a.mT, torch.zeros(5, 8).bfloat16()) if along_k else (a, b)), rows)
    problem = Problem("k" if along_k else "m", 3, 8, 40, 24, (8, 40), a.dtype, "ieee", Options(backend=backend))
    with pytest.raises(ValueError, match="rows must have no index in mode"):
        backend_choice.choose(problem, product, torch.zeros(8, 40).bfloat16())


@pytest.mark.parametrize("backend", ["torch", "auto", "triton"])
def test_no_backend_reads_rows_that_may_not_be_there(backend):
    a, b = torch.zeros(5, 24).bfloat16(), torch.zeros(3, 40, 24).bfloat16().mT
    ends = torch.zeros(3, dtype=torch.int32)
    rows = Ends(ends, torch.zeros(8, dtype=torch.int32), pieces=Pieces(ends, ends, ends, 1))
    problem = Problem("m", 3, 8, 40, 24, (8, 40), a.dtype, "ieee", Options(backend=backend))
    with pytest.raises(ValueError, match=f"rows must be there, not in pieces, for backend '{backend}'"):
        backend_choice.choose(problem, Product(a, b, rows), torch.zeros(8, 40).bfloat16())


def test_auto_takes_torch_on_cpu_tensors():
    assert isinstance(chosen(), torch_loop.Plan)


@pytest.mark.parametrize(
    "options, why",
    [
        (dict(config=GemmConfig()), "a configuration is one of the Triton kernels"),
        (dict(keep_tail=True), "the kernel in CuTe DSL writes the tail"),
    ],
)
def test_the_triton_kernels_take_what_cute_does_not(hopper, options, why):
    assert chosen(backend="cute", **options) is triton_launch, why


def test_a_machine_without_the_kernel_says_so():
    with pytest.raises(ValueError, match=r"backend='cute' needs a GPU of compute capability 9\.0"):
        chosen(backend="cute")


def along_k(backend="auto", operand="a", dtype=torch.bfloat16):
    a, b = torch.zeros(5, 24, dtype=dtype).mT, torch.zeros(300, 40, dtype=dtype)
    if operand == "b":
        a, b = b.mT, a.mT
    rows = Ends(torch.zeros(3, dtype=torch.int32), torch.zeros(300, dtype=torch.int32), operand)
    options, out = Options(backend=backend), torch.zeros(3, a.shape[0], b.shape[1], dtype=dtype)
    problem = Problem("k", 3, *out.shape[1:], 300, tuple(out.shape), dtype, "ieee", options)
    return Product(a, b, rows), options, out, problem


@pytest.mark.parametrize("operand", ["a", "b"])
def test_what_cute_does_not_offer_is_none(hopper, monkeypatch, operand):
    def offered(*asked, **options):
        product, _, out, problem = along_k(*asked, **options)
        return backend_choice.offered(problem, product, out)

    monkeypatch.setattr(cute, "check_available", lambda *asked: None)
    assert offered("cute", operand) is cute
    assert offered("cute", operand, torch.float32) is None
    assert offered("triton", operand) is None
    assert offered("torch", operand) is None
    for sooner in (True, False):
        monkeypatch.setattr(backend_choice, "is_sooner", lambda *asked, sooner=sooner: sooner)
        assert (offered("auto", operand) is cute) == sooner
    monkeypatch.setattr(cute, "installed", lambda: False)
    assert offered("auto", operand) is None
