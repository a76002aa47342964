"""The page for users of JAX: what it says to call agrees with megablox's definitions, in float64."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from course_kernels import gmm, grouped_mm, nptgmm, ptgmm
from course_kernels.gmm.configs import as_config
from places import ROOT

PAGE = (ROOT / "site" / "jax.md").read_text(encoding="utf-8")
GMM = (
    "lhs", "rhs", "group_sizes", "preferred_element_type", "tiling", "group_offset", "existing_out", "transpose_rhs",
    "interpret",
)  # fmt: skip
SIZES = [10, 0, 40, 20, 25, 5]
M, K, N, G = 100, 12, 20, 6
SHARDS = [(0, 6), (0, 1), (0, 3), (1, 1), (2, 3), (3, 3), (5, 1)]


@pytest.fixture(scope="module")
def page():
    """Run the page's examples, with their asserts, and return the names that they define."""
    names: dict[str, object] = {}
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)), names)
    return names


def bounds(sizes, first, own):
    """First and last row of each group of a shard."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return [(g - first, ends[g], ends[g + 1]) for g in range(first, first + own)]


def megablox_gmm(lhs, rhs, sizes, group_offset=0, existing_out=None, transpose_rhs=False):
    columns = rhs.shape[1] if transpose_rhs else rhs.shape[2]
    out = torch.zeros(len(lhs), columns, dtype=torch.float64) if existing_out is None else existing_out.double()
    for own, start, end in bounds(sizes, group_offset, len(rhs)):
        matrix = rhs[own].double()
        out[start:end] = lhs[start:end].double() @ (matrix.mT if transpose_rhs else matrix)
    return out


def megablox_tgmm(lhs, rhs, sizes, group_offset=0, num_actual_groups=None, existing_out=None):
    own = len(sizes) if num_actual_groups is None else num_actual_groups
    out = torch.zeros(own, len(lhs), rhs.shape[1], dtype=torch.float64)
    if existing_out is not None:
        out += existing_out.double()
    for g, start, end in bounds(sizes, group_offset, own):
        out[g] += lhs[:, start:end].double() @ rhs[start:end].double()
    return out


def normal(*shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def agree(actual, expected):
    assert_close(actual, expected.to(actual.dtype))


def sizes_of(sizes=SIZES):
    return torch.tensor(sizes, dtype=torch.int32)


FLOAT32 = dict(preferred_element_type=torch.float32)


def test_it_names_each_argument_of_megablox_and_says_what_the_fourth_is_here(page):
    for name in (*GMM, "num_actual_groups"):
        assert re.search(rf"^\| `{name}\b|^\| [^|]*`{name}\b", PAGE, re.MULTILINE), name
    assert list(inspect.signature(gmm).parameters)[:4] == ["lhs", "rhs", "group_sizes", "bias"]
    assert gmm(normal(M, K), normal(G, K, N), sizes_of()).dtype == torch.bfloat16


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("columns", [N, K])
def test_products_agree_with_megablox(backend, columns):
    lhs, rhs, sizes = normal(M, K), normal(G, K, columns), sizes_of()
    options = dict(backend=backend, **FLOAT32)
    agree(gmm(lhs, rhs, sizes, **options), megablox_gmm(lhs, rhs, SIZES))
    turned = rhs.mT.contiguous()
    expected = megablox_gmm(lhs, turned, SIZES, transpose_rhs=True)
    agree(gmm(lhs, turned, sizes, rhs_layout="gnk", **options), expected)
    agree(gmm(lhs, turned.mT, sizes, **options), expected)
    for function in (ptgmm, nptgmm):
        other = normal(M, columns)
        expected = megablox_tgmm(lhs.mT, other, SIZES)
        agree(function(lhs.mT, other, sizes, lhs_layout="km", **options), expected)
        agree(function(lhs, other, sizes, lhs_layout="mk", **options), expected)


def test_rows_after_the_last_group_are_zero():
    short = [10, 0, 40, 20, 20, 3]
    lhs, rhs = normal(M, K), normal(G, K, N)
    agree(gmm(lhs, rhs, sizes_of(short), **FLOAT32), megablox_gmm(lhs, rhs, short))
    existing = torch.full((M, N), 7.0)
    gmm(lhs, rhs, sizes_of(short), existing_out=existing, **FLOAT32)
    assert not existing[93:].any(), "unlike megablox, as the page says"


@pytest.mark.parametrize(("first", "own"), SHARDS)
def test_shards_agree_with_megablox(page, first, own):
    lhs, rhs, other = normal(M, K), normal(G, K, N)[first : first + own], normal(M, N)
    product = page["gmm_of_shard"](lhs, rhs, sizes_of(), first)
    agree(product, megablox_gmm(lhs, rhs, SIZES, first))
    assert product.dtype == torch.float32
    gradient = page["tgmm_of_shard"](lhs.mT, other, sizes_of(), first, own)
    agree(gradient, megablox_tgmm(lhs.mT, other, SIZES, first, own))
    start, end = sum(SIZES[:first]), sum(SIZES[: first + own])
    existing = normal(M, N, dtype=torch.float32)
    expected = megablox_gmm(lhs, rhs, SIZES, first, existing)
    gmm(lhs[start:end], rhs, sizes_of()[first : first + own], existing_out=existing[start:end], **FLOAT32)
    agree(existing, expected)


@pytest.mark.parametrize(("first", "own"), SHARDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_of_a_shard_are_those_that_megablox_defines(page, first, own, dtype):
    lhs, rhs = normal(M, K, dtype=dtype).requires_grad_(), normal(G, K, N, dtype=dtype)[first : first + own].clone()
    rhs.requires_grad_()
    other = normal(M, N, dtype=torch.float32)
    page["gmm_of_shard"](lhs, rhs, sizes_of(), first).backward(other)
    other = other.to(dtype)  # unlike megablox, as the page says
    agree(lhs.grad, megablox_gmm(other, rhs.detach(), SIZES, first, transpose_rhs=True))
    agree(rhs.grad, megablox_tgmm(lhs.detach().mT, other, SIZES, first, own))


def test_a_gradient_has_the_shape_of_a_transposed_operand():
    lhs, turned = normal(M, K), normal(G, N, K).requires_grad_()
    other = normal(M, N)
    gmm(lhs, turned, sizes_of(), rhs_layout="gnk").backward(other)
    agree(turned.grad, megablox_tgmm(lhs.mT, other, SIZES).mT)


def test_a_shard_without_rows(page):
    nothing = sizes_of([0] * G)
    assert page["gmm_of_shard"](normal(0, K), normal(2, K, N), nothing, 1).shape == (0, N)
    product = page["tgmm_of_shard"](normal(K, 0), normal(0, N), nothing, 1, 2)
    assert torch.equal(product, torch.zeros(2, K, N))


def test_a_shard_reads_nothing_on_the_host(page):
    with FakeTensorMode():  # whose tensors have no values: reading one raises
        lhs, rhs, sizes = torch.empty(M, K), torch.empty(2, K, N), torch.ones(G, dtype=torch.int32)
        assert page["gmm_of_shard"](lhs, rhs, sizes, 1).shape == (M, N)
        assert page["tgmm_of_shard"](lhs.mT, torch.empty(M, N), sizes, 1, 2).shape == (2, K, N)


def test_an_existing_result_of_tgmm_is_added_to():
    lhs, other = normal(M, K), normal(M, N)
    existing = normal(G, K, N, dtype=torch.float32)
    expected = megablox_tgmm(lhs.mT, other, SIZES, existing_out=existing)
    ptgmm(lhs, other, sizes_of(), existing_out=existing, accumulate=True, lhs_layout="mk", **FLOAT32)
    agree(existing, expected)
    ptgmm(lhs, other, sizes_of(), existing_out=existing, lhs_layout="mk", **FLOAT32)
    agree(existing, megablox_tgmm(lhs.mT, other, SIZES))


def test_rows_after_the_groups_stay_with_a_kept_tail():
    lhs, rhs, existing = normal(M, K), normal(G, K, N)[:3], normal(M, N, dtype=torch.float32)
    expected = megablox_gmm(lhs, rhs, SIZES, existing_out=existing)
    grouped_mm(lhs, rhs, sizes=sizes_of()[:3], out=existing, out_dtype=torch.float32, tail="keep")
    agree(existing, expected)


def test_tiles_are_those_of_megablox(page):
    lhs, rhs, other = normal(M, K), normal(G, K, N), normal(M, N)
    config = page["config_of"]((32, 16, 64))
    tiles = [as_config(name, config) for name in ("gmm", "ptgmm")]
    assert [(tile.block_m, tile.block_k, tile.block_n) for tile in tiles] == [(32, 16, 64), (16, 32, 64)]
    agree(gmm(lhs, rhs, sizes_of(), config=config, backend="triton", **FLOAT32), megablox_gmm(lhs, rhs, SIZES))
    options = dict(config=config, backend="triton", lhs_layout="mk", **FLOAT32)
    agree(ptgmm(lhs, other, sizes_of(), **options), megablox_tgmm(lhs.mT, other, SIZES))


def test_ragged_dot():
    lhs, rhs, other = normal(M, K), normal(G, K, N), normal(M, N)
    product = grouped_mm(lhs, rhs, sizes=sizes_of())
    assert product.dtype == lhs.dtype
    agree(product, megablox_gmm(lhs, rhs, SIZES))
    agree(grouped_mm(lhs.mT, other, sizes=sizes_of()), megablox_tgmm(lhs.mT, other, SIZES))
    batch = normal(3, 5, K)
    agree(grouped_mm(batch, rhs[:3]), batch.double() @ rhs[:3].double())
