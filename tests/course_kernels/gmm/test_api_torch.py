"""gmm, ptgmm and nptgmm in torch's contexts: gradients, compilation, autocast, tensors without memory."""

from __future__ import annotations

import os

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from course_kernels import GemmConfig, gmm, nptgmm, ptgmm, runtime

import forked  # isort: skip
from gmm_cases import (
    RAGGED,
    SMALL,
    TRANSPOSED,
    assert_same,
    columns,
    exact_gmm,
    exact_tgmm,
    integers,
    sizes_of,
    weights,
)

TOTAL = sum(RAGGED)


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch.compiler.reset()


def layer(dtype=torch.float32, layout="row"):
    lhs, bias = integers(TOTAL, 8, dtype=dtype), integers(4, 6, dtype=dtype, seed=3)
    return lhs, weights(4, 8, 6, layout, dtype=dtype)[0], sizes_of(*RAGGED), bias


@pytest.mark.parametrize("layout", ["row", "column", "transposed"])
@pytest.mark.parametrize("launch", [{}, dict(grid_dim=3, work_stealing=True)], ids=str)
def test_gradients_are_those_of_the_loop(layout, launch):
    lhs, rhs, sizes, bias = layer(layout=layout)
    leaves = [t.clone().requires_grad_() for t in (lhs, rhs, bias)]
    gmm(leaves[0], leaves[1], sizes, leaves[2], torch.float32, **launch).square().sum().backward()
    wide = [t.detach().double().requires_grad_() for t in leaves]
    exact_gmm(wide[0], wide[1].mT if layout == "transposed" else wide[1], RAGGED, wide[2]).square().sum().backward()
    for found, right in zip(leaves, wide):
        assert torch.equal(found.grad, right.grad.float())


def test_the_transposed_product_is_differentiable_and_bias_grad_is_not_part_of_it():
    lhs, rhs = columns(8, TOTAL, dtype=torch.float32)[0].requires_grad_(), integers(TOTAL, 6, dtype=torch.float32)
    sums = torch.zeros(4, 8, device=lhs.device)
    ptgmm(lhs, rhs, sizes_of(*RAGGED), sums, torch.float32).sum().backward()
    wide = lhs.detach().double().requires_grad_()
    exact, exact_sums = exact_tgmm(wide, rhs, RAGGED)
    exact.sum().backward()
    assert torch.equal(lhs.grad, wide.grad.float())
    assert_same(sums, exact_sums.detach())
    assert not sums.requires_grad
    sums.zero_()
    found = torch.func.grad(lambda lhs: ptgmm(lhs, rhs, sizes_of(*RAGGED), sums, torch.float32).sum())(lhs.detach())
    assert torch.equal(found, lhs.grad)
    assert_same(sums, exact_sums.detach())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("options", [
    dict(check=True), dict(config=SMALL, work_stealing=True),
    dict(config=dict(BLOCK_SIZE_M=16, BLOCK_SIZE_K=16, BLOCK_SIZE_N=16, GROUP_SIZE=1), grid_dim=4),
], ids=str)  # fmt: skip
def test_gmm_compiles_into_one_graph(backend, options):
    lhs, rhs, sizes, bias = layer()
    function = torch.compile(lambda *given: gmm(*given, torch.float32, **options) * 2, backend=backend, fullgraph=True)
    assert_same(function(lhs, rhs, sizes, bias), 2 * exact_gmm(lhs, rhs, RAGGED, bias))
    leaf = lhs.clone().requires_grad_()
    function(leaf, rhs, sizes, bias).sum().backward()
    plain = lhs.clone().requires_grad_()
    (gmm(plain, rhs, sizes, bias, torch.float32) * 2).sum().backward()
    assert torch.equal(leaf.grad, plain.grad)
    if "check" in options:  # where the values are known, not where the call is traced
        with pytest.raises(ValueError, match="group_sizes must sum to 38, the rows of lhs, got 37"):
            function(lhs, rhs, sizes_of(17, 0, 16, 4), bias)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_tgmm_compiles_into_one_graph_and_writes(backend, name):
    (lhs, _), rhs = columns(8, TOTAL), integers(TOTAL, 6)

    @torch.compile(backend=backend, fullgraph=True)
    def function(lhs, rhs, sizes, sums, out):
        return TRANSPOSED[name](lhs, rhs, sizes, sums, torch.float32, out, True) + 1

    out, sums = integers(4, 8, 6, dtype=torch.float32, seed=5), integers(4, 8, dtype=torch.float32, seed=6)
    exact, exact_sums = exact_tgmm(lhs, rhs, RAGGED)
    exact, exact_sums = exact + out.double(), exact_sums + sums.double()
    found = function(lhs, rhs, sizes_of(*RAGGED), sums, out)
    assert_same(out, exact)
    assert_same(found, exact + 1)
    assert_same(sums, exact_sums)


def test_another_total_compiles_nothing_new():
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    function = torch.compile(
        lambda *given: gmm(*given, None, torch.float32), backend=count, fullgraph=True, dynamic=True
    )
    for sizes in ((3, 4), (9, 2), (20, 31)):
        lhs, (rhs, _) = integers(sum(sizes), 8, dtype=torch.float32), weights(2, 8, 6, dtype=torch.float32)
        assert_same(function(lhs, rhs, sizes_of(*sizes)), exact_gmm(lhs, rhs, sizes))
    assert len(graphs) == 1


def test_autocast_casts_the_operands_as_grouped_mm_does():
    lhs, rhs, sizes, bias = layer()
    device = runtime.device().type
    with torch.autocast(device, torch.bfloat16):
        out = gmm(lhs, rhs.half(), sizes, bias)
        gradient = ptgmm(lhs, integers(TOTAL, 6, dtype=torch.float32), sizes, lhs_layout="mk")
        kept = torch.zeros(TOTAL, 6, device=lhs.device)
        gmm(lhs, rhs, sizes, bias, torch.float32, kept)  # a given result says what is wanted
    assert out.dtype == gradient.dtype == torch.bfloat16
    assert_same(out, exact_gmm(lhs, rhs, RAGGED, bias))
    assert_same(kept, exact_gmm(lhs, rhs, RAGGED, bias))


@pytest.mark.parametrize("check", [False, True])
def test_tensors_without_memory_have_the_results_form(check):
    def forms(make):
        lhs, rhs, right = make(TOTAL, 8), make(4, 6, 8), make(TOTAL, 6)
        sizes = make(4, dtype=torch.int64)
        found = gmm(lhs, rhs, sizes, make(4, 6), torch.float16, check=check, grid_dim=4)
        assert (found.shape, found.dtype, found.stride()) == ((TOTAL, 6), torch.float16, (6, 1))
        for function in (ptgmm, nptgmm):
            sums = make(4, 8, dtype=torch.float32)
            found = function(lhs, right, sizes, sums, lhs_layout="mk", check=check)
            assert (found.shape, found.dtype) == ((4, 8, 6), torch.bfloat16)
            out = make(4, 8, 6, dtype=torch.float32)
            assert function(lhs, right, sizes, sums, torch.float32, out, True) is out

    def on(device):
        return lambda *shape, dtype=torch.bfloat16: torch.zeros(shape, dtype=dtype, device=device)

    forms(on("meta"))
    with FakeTensorMode():
        forms(on("cpu"))
        with pytest.raises(ValueError, match="rhs must have shape"):
            gmm(on("cpu")(3, 8), on("cpu")(2, 5, 7), on("cpu")(2, dtype=torch.int32))


def test_functional_transforms():
    lhs, rhs, sizes, bias = layer()

    def loss(lhs, rhs):
        return gmm(lhs, rhs, sizes, bias, torch.float32, check=True).square().sum()

    found = torch.func.grad(loss, (0, 1))(lhs, rhs)
    plain = [t.clone().requires_grad_() for t in (lhs, rhs)]
    loss(*plain).backward()
    assert all(torch.equal(one, other.grad) for one, other in zip(found, plain))
    batch = torch.stack([lhs, 2 * lhs])
    out = torch.func.vmap(lambda each: gmm(each, rhs, sizes, None, torch.float32))(batch)
    assert_same(out[1], 2 * exact_gmm(lhs, rhs, RAGGED))


def test_a_write_counts_as_one_for_autograd():
    lhs, rhs, sizes, _ = layer()
    out = torch.zeros(TOTAL, 6, device=lhs.device)
    version = out._version
    gmm(lhs, rhs, sizes, None, torch.float32, out, config=GemmConfig(16, 16, 16), backend="triton")
    assert out._version > version


def test_memory_is_compared_under_a_counter_too_before_anything_is_written():
    """Operands are not plain there, and have addresses all the same."""
    lhs, rhs, sizes, _ = layer()
    grad = integers(TOTAL, 6, dtype=torch.float32)
    whole, flat = torch.full((4, 8, 6), 7.0, device=lhs.device), torch.zeros(TOTAL * 6 + 8, device=lhs.device)
    over_sizes = flat.view(torch.int32)[:4]
    over_sizes.copy_(sizes)
    with FlopCounterMode(display=False):
        with pytest.raises(ValueError, match=r"^bias_grad shares memory with existing_out"):
            ptgmm(lhs.mT, grad, sizes, whole.view(-1)[:32].view(4, 8), torch.float32, whole)
        with pytest.raises(ValueError, match=r"^bias_grad shares memory with lhs"):
            ptgmm(lhs.mT, grad, sizes, lhs[:4], torch.float32, whole)
        with pytest.raises(ValueError, match=r"^bias_grad has elements that share memory"):
            ptgmm(lhs.mT, grad, sizes, whole[0, :, :1].mT.expand(4, 8), torch.float32)
        with pytest.raises(ValueError, match=r"^existing_out shares memory with group_sizes"):
            gmm(lhs, rhs, over_sizes, None, torch.float32, flat[: TOTAL * 6].view(TOTAL, 6))
    assert (whole == 7).all()
    assert over_sizes.tolist() == sizes.tolist()


def test_a_graph_compares_what_both_results_are_written_to():
    lhs, grad = columns(8, TOTAL, dtype=torch.float32)[0], integers(TOTAL, 6, dtype=torch.float32)

    def both(lhs, grad, sizes, sums, out):
        return ptgmm(lhs, grad, sizes, sums, torch.float32, out)

    out = torch.zeros(4, 8, 6, device=lhs.device)
    with pytest.raises(ValueError, match=r"^out shares memory with product"):
        torch.compile(both, backend="eager", fullgraph=True)(
            lhs, grad, sizes_of(*RAGGED), out.view(-1)[:32].view(4, 8), out
        )


def test_transforms_are_told_in_aiters_names():
    lhs, rhs, sizes, _ = layer()
    grad = integers(TOTAL, 6, dtype=torch.float32)
    out, sums = grad.clone(), torch.zeros(4, 8, device=lhs.device)
    with pytest.raises(RuntimeError, match=r"^existing_out must be None under torch.func"):
        torch.func.vmap(lambda x: gmm(x, rhs, sizes, None, torch.float32, out))(lhs[None])
    with pytest.raises(RuntimeError, match=r"^bias_grad must be None under torch.func"):
        torch.func.vmap(lambda x: ptgmm(x.mT, grad, sizes, sums, torch.float32))(lhs[None])


def test_meta_tensors_do_not_import_triton():
    """torch's cumsum of one does, for its compiler; then nothing could be interpreted."""
    code = (
        "import sys, torch; from course_kernels import gmm; a, b = torch.empty(5, 8), torch.empty(2, 8, 6);"
        "gmm(a.to('meta'), b.to('meta'), torch.empty(2, dtype=torch.int32, device='meta'));"
        "print('triton' in sys.modules)"
    )
    done = forked.run(code, dict(os.environ))
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


@pytest.mark.parametrize("layout", ["row", "transposed"])
def test_a_square_lhs_is_refused_by_graphs_that_were_made_for_any_other(layout):
    function = torch.compile(lambda *given: ptgmm(*given, None, torch.float32), backend="eager", dynamic=True)
    for total in (3, 5, 8):
        sizes, rhs = (1, total - 1), integers(total, 6, dtype=torch.float32)
        lhs, plain = columns(8, total, layout, dtype=torch.float32)
        if total == 8:
            with pytest.raises(ValueError, match="lhs_layout must be 'km' or 'mk' where K equals M"):
                function(lhs, rhs, sizes_of(*sizes))
        else:
            assert_same(function(lhs, rhs, sizes_of(*sizes)), exact_tgmm(plain, rhs, sizes)[0])


def test_an_export_for_any_total_means_the_same_for_each():
    class Gradient(torch.nn.Module):
        def forward(self, lhs, rhs, sizes):
            return ptgmm(lhs, rhs, sizes, None, torch.float32)

    def operands(total):
        lhs, _ = columns(8, total, dtype=torch.float32)
        return lhs, integers(total, 6, dtype=torch.float32), sizes_of(1, total - 1)

    total = torch.export.Dim("total", min=2)
    shapes = dict(lhs={1: total}, rhs={0: total}, sizes=None)
    program = torch.export.export(Gradient(), operands(5), dynamic_shapes=shapes).module()
    for rows in (3, 8, 9):
        lhs, rhs, sizes = operands(rows)
        assert_same(program(lhs, rhs, sizes), exact_tgmm(lhs, rhs, sizes.tolist())[0])
