"""The key of a launch: everything that decides about it, and not the total of a batch."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, runtime
from course_kernels.engine.options import Options
from course_kernels.engine.product import Counts, Ends, Product, Store
from course_kernels.engine.scaling import BLOCKS, UNSCALED, Blocks, Lines
from course_kernels.engine.signature import signature
from course_kernels.packed.checks import problem_of
from packed_operands import layer

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
DEVICE = runtime.device()


def key(operands, options=None, **parts):
    return signature(operands.product(**parts), options or Options())


@pytest.mark.parametrize("mode", ["m", "k"])
def test_a_new_total_is_no_new_key(mode):
    keys = {key(layer(total, mode)) for total in (290, 291, 260, 296)}  # a quarter of an octave
    assert len(keys) == 1
    assert None not in keys


@pytest.mark.parametrize("totals", [(0, 1), (296, 297), (3000, 4000)], ids=str)
def test_totals_at_which_a_backend_may_choose_otherwise_have_keys_of_their_own(totals):
    assert len({key(layer(total)) for total in totals}) == 2
    assert len({problem_of(layer(total).product(), Options()).rows_per_group for total in totals}) == 2


def test_the_total_along_k_is_that_of_the_index():
    """A gathered operand may have any number of lines; the other one has as many as the index."""
    offs = torch.zeros(3, dtype=torch.int32, device=DEVICE)

    def of(lines, total, operand, indexed=None):
        index = torch.zeros(total if indexed is None else indexed, dtype=torch.int32, device=DEVICE)
        few, all_ = torch.zeros(lines, 24, device=DEVICE), torch.zeros(total, 24, device=DEVICE)
        a, b = (few, all_) if operand == "a" else (all_, few)
        return signature(Product(a.mT, b, Ends(offs, index, operand)), Options())

    keys = [of(lines, total, "a") for lines, total in ((5, 290), (7, 296))]
    assert keys[0] is not None
    assert keys[0] == keys[1] != of(5, 3000, "a")
    assert of(5, 290, "b") not in (None, keys[0])
    assert of(290, 290, "a", indexed=280) is None, "left to the checks"
    assert of(290, 290, "b", indexed=280) is None


def test_everything_else_is_in_the_key():
    made = layer(300)
    others = [
        made._replace(mat_a=made.mat_a.double()),
        made._replace(mat_a=torch.zeros(300, 41, device=DEVICE)[:, :40]),
        made._replace(mat_a=torch.zeros(300 * 40 + 1, device=DEVICE)[1:].view(300, 40)),
        made._replace(mat_b=made.mat_b.mT.contiguous().mT),
        made._replace(offs=made.offs.long()),
        made._replace(bias=torch.zeros(3, 24, device=DEVICE)),
    ]
    options = [dict(out_dtype=torch.float16), dict(backend="torch"), dict(config=GemmConfig()), dict(num_sms=100)]
    keys = [key(each) for each in (made, *others)]
    keys += [key(made, Options(**each)) for each in options] + [key(made, keep_tail=True)]
    assert len(set(keys)) == len(keys)
    assert None not in keys


def shifted(tensor):
    """A tensor of the same form, whose address 16 bytes do not divide."""
    span = sum(step * (size - 1) for step, size in zip(tensor.stride(), tensor.shape)) + 1
    memory = torch.empty(span + 16, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, tensor.stride(), 1)


@pytest.mark.parametrize("scaling", [None, Lines, Blocks], ids=["plain", "lines", "blocks"])
@pytest.mark.parametrize("rows", [Ends, Counts])
def test_whether_16_bytes_divide_an_address_is_in_the_key(rows, scaling):
    """Triton compiles for it: a kernel for aligned addresses reads 16 bytes at a time."""
    total = (3, 300) if rows is Counts else (300,)
    a, b = torch.empty(*total, 256, device=DEVICE), torch.empty(3, 256, 384, device=DEVICE)
    tail = () if scaling is Lines else (2,)
    factors = torch.ones(*total, *tail, device=DEVICE), torch.ones(3, *((2, 3) if tail else (384,)), device=DEVICE)
    factors = UNSCALED if scaling is None else scaling(*factors, *((BLOCKS,) if tail else ()))
    store = Store(torch.zeros(3, 384, device=DEVICE))
    parts = Product(a, b, rows(torch.zeros(3, dtype=torch.int32, device=DEVICE)), factors, store)
    shifts = [parts, parts._replace(a=shifted(a)), parts._replace(b=shifted(b))]
    shifts.append(parts._replace(rows=rows(shifted(parts.rows[0]))))
    shifts.append(parts._replace(epilogue=Store(shifted(store.bias))))
    for name in "ab" if scaling else "":
        shifts.append(parts._replace(scaling=factors._replace(**{name: shifted(getattr(factors, name))})))
    keys = [signature(each, Options()) for each in shifts]
    out = torch.empty(*total, 384, device=DEVICE)
    keys += [signature(parts, Options(), each) for each in (out, shifted(out))]
    assert None not in keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "change",
    [
        dict(mat_a=[1]), dict(mat_a=torch.zeros(3)), dict(offs=torch.tensor(3)), dict(bias=1),
        dict(offs=torch.zeros(6, dtype=torch.int32)[::2]), dict(mat_a=torch.eye(300, 40).to_sparse()),
        dict(mat_a=torch.zeros(300, 40, dtype=torch.complex64).conj().imag), dict(scale_a=torch.ones(7)),
    ],
)  # fmt: skip
def test_what_no_plan_is_kept_for(change):
    assert key(layer(300)._replace(**change)) is None
