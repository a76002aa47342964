"""Arguments beyond a problem's form: out, scales, ends; not an element is written before they are right."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, grouped_mm, runtime
from course_kernels.testing import poisoned
from packed_errors import BACKENDS, DEVICE, OFFS, A, B, assert_message, ends, good, matrix

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


def test_keep_wants_an_out():
    with pytest.raises(ValueError, match="tail must be 'zero' where out is not given, got 'keep'"):
        grouped_mm(A, B, offs=OFFS, tail="keep")


def bad_outs():
    base = torch.zeros(200, dtype=torch.float16, device=DEVICE)
    negative = torch.zeros(12, 6, dtype=torch.complex64, device=DEVICE).conj().imag
    return {
        "a list": ([matrix(12, 6)], TypeError, ["out", "torch.Tensor", "list"]),
        "shape": (matrix(12, 5), ValueError, ["out", "(12, 6)", "(12, 5)"]),
        "rank": (matrix(1, 12, 6), ValueError, ["out", "(12, 6)", "(1, 12, 6)"]),
        "dtype": (matrix(12, 6, dtype=torch.float32), TypeError, ["out", "float16", "float32"]),
        "device": (matrix(12, 6).to("meta"), ValueError, ["out", "device", "meta"]),
        "sparse": (torch.zeros(12, 6).to_sparse(), TypeError, ["out", "dense", "sparse_coo"]),
        "gradient": (matrix(12, 6).requires_grad_(), ValueError, ["out", "gradient", "detach"]),
        "expanded": (base[:6].expand(12, 6), ValueError, ["out", "share memory", "(0, 1)"]),
        "overlapping rows": (base.as_strided((12, 6), (5, 1)), ValueError, ["out", "share memory", "(5, 1)"]),
        "negated": (negative, ValueError, ["out", "negated"]),
    }


@pytest.mark.parametrize("what", bad_outs())
@pytest.mark.parametrize("backend", BACKENDS)
def test_out(backend, what):
    out, error, words = bad_outs()[what]
    arguments = good() if what != "negated" else good(mat_a=A.float(), mat_b=B.float())
    before = out.clone() if isinstance(out, torch.Tensor) and not out.is_meta else None
    with pytest.raises(error) as caught:
        grouped_mm(**arguments, out=out, backend=backend)
    assert_message(caught, words)
    if before is not None and not before.is_sparse:
        assert torch.equal(out, before), "out was written before the error"


def test_out_must_have_the_dtype_that_is_asked_for():
    with pytest.raises(TypeError, match=r"out must have dtype torch\.float32, got torch\.float16"):
        grouped_mm(A, B, offs=OFFS, out=matrix(12, 6), out_dtype=torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_out_that_shares_memory(backend):
    pool = torch.ones(4, 16, 40, dtype=torch.float16, device=DEVICE)
    offs = ends(4, 9, 9, 12)
    left, right = pool[..., :16], pool[..., 16:32]
    for name, arguments, out in (
        ("mat_a", dict(mat_a=left[0], mat_b=right, offs=offs), left[0]),
        ("mat_b", dict(mat_a=matrix(16, 16), mat_b=right, offs=offs), right[1]),
        ("mat_a", dict(mat_a=left, mat_b=right), left),
        ("mat_b", dict(mat_a=left, mat_b=right), right),
        ("mat_a", dict(mat_a=left, mat_b=matrix(4, 16, 16)), pool[..., 8:24]),
        ("bias", dict(mat_a=matrix(16, 16), mat_b=right, offs=offs, bias=pool[0, :4, :16]), pool[0, :, :16]),
    ):
        with pytest.raises(ValueError, match=f"out shares memory with {name}"):
            grouped_mm(**arguments, out=out, backend=backend)
    assert (pool == 1).all()
    wide_ends = torch.zeros(32, dtype=torch.int32, device=DEVICE)
    out = wide_ends.view(torch.float16)[:16].view(16, 1)
    with pytest.raises(ValueError, match="out shares memory with offs"):
        grouped_mm(matrix(16, 4), matrix(4, 4, 1), offs=wide_ends[:4], out=out, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_slices_that_interlock_do_not_overlap(backend):
    pool = torch.ones(4, 16, 48, dtype=torch.float16, device=DEVICE)
    out = grouped_mm(pool[..., :16], pool[..., 16:32], out=pool[..., 32:], backend=backend)
    assert (out == 16).all()
    assert (pool[..., :32] == 1).all()
    # A matrix of the same columns, whose rows lie between those of every matrix of the batch.
    out = grouped_mm(pool[0, :, :16], pool[..., 16:32], offs=ends(3, 3, 9, 16), out=pool[0, :, 32:], backend=backend)
    assert (out == 16).all()
    assert (pool[..., :32] == 1).all()


def test_out_with_a_gradient():
    out, verify = poisoned((12, 6), device=DEVICE)
    with pytest.raises(ValueError, match="out cannot be given when an operand requires a gradient"):
        grouped_mm(A, B.clone().requires_grad_(), offs=OFFS, out=out)
    verify()
    assert out.isnan().all()
    with torch.no_grad():
        assert grouped_mm(A, B.clone().requires_grad_(), offs=OFFS, out=out) is out
    assert not out.isnan().any()


def test_wrong_ends_never_write_outside():
    for offs in (ends(-100, 7), ends(9, 3), ends(5, 400), ends(-(2**31), 2**31 - 1), ends(30, 20)):
        for backend in ("torch", "triton"):
            out, verify = poisoned((12, 6), device=DEVICE)
            grouped_mm(A, B, offs=offs, out=out, backend=backend, config=GemmConfig(16, 16, 16))
            verify(all_written=True)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_out_that_requires_a_gradient_or_has_no_version(backend):
    """As with torch's own ``out``: the first is written to without gradients alone, the second in its mode alone."""
    wanted = grouped_mm(A, B, offs=OFFS)
    out = torch.nn.Parameter(torch.zeros_like(wanted))
    with torch.no_grad():
        assert grouped_mm(A, B, offs=OFFS, out=out, backend=backend) is out
    assert torch.equal(out, wanted)
    with torch.inference_mode():
        out = torch.zeros_like(wanted)
        assert torch.equal(grouped_mm(A, B, offs=OFFS, out=out, backend=backend), wanted)
    with pytest.raises(ValueError, match=r"out was made in torch.inference_mode\(\).*pass a clone"):
        grouped_mm(-A, B, offs=OFFS, out=out, backend=backend)
    assert torch.equal(out, wanted), "a refused call wrote"


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_an_operand_whose_memory_was_freed(backend):
    """As FSDP frees parameters: found although an equal product has a plan."""
    b = B.clone()
    wanted = grouped_mm(A, b, offs=OFFS, backend=backend)
    size = b.untyped_storage().size()
    b.untyped_storage().resize_(0)
    for options in (dict(), dict(out=torch.zeros_like(wanted))):
        with pytest.raises(ValueError, match=r"mat_b of shape \(2, 8, 6\) has no memory: its storage was resized to 0"):
            grouped_mm(A, b, offs=OFFS, backend=backend, **options)
    b.untyped_storage().resize_(size)
    b.copy_(B)
    assert torch.equal(grouped_mm(A, b, offs=OFFS, backend=backend), wanted)
