"""Names and shapes of scales of blocks, and what of them decides about a launch."""

from __future__ import annotations

import pytest
import torch

from course_kernels.engine.options import Options
from course_kernels.engine.scaling import (
    BLOCK_SCALINGS,
    block_lines,
    block_scale_shapes,
    check_scaling,
    dequantized,
    is_outer,
)
from course_kernels.engine.signature import signature
from course_kernels.packed.checks import problem_of
from packed_operands import Operands

FP8 = torch.float8_e4m3fn


def test_lines():
    assert block_lines(None) is block_lines("row") is None
    assert block_lines("1x128 128x128") == (1, 128)
    assert block_lines("128x128 1x128") == (128, 1)


@pytest.mark.parametrize(
    ("mode", "scaling", "shapes"),
    [
        ("m", "1x128 128x128", ([(300, 2)], [(3, 2, 4)])),
        ("m", "1x128 1x128", ([(300, 2)], [(3, 500, 2)])),
        ("n", "128x128 1x128", ([(3, 3, 2)], [(500, 2)])),
        ("batch", "128x128 1x128", ([(3, 3, 2)], [(3, 500, 2)])),
        ("k", "1x128 1x128", ([(300, 4), (300, 2)], [(500, 4), (500, 2)])),
    ],
)
def test_shapes(mode, scaling, shapes):
    assert block_scale_shapes(mode, (300, 500, 200, 3), scaling) == shapes


def test_pairs_by_mode():
    for mode, scalings in BLOCK_SCALINGS.items():
        check_scaling("row", mode)
        for scaling in scalings:
            check_scaling(scaling, mode)
    with pytest.raises(ValueError, match="mode 'k': RowWise with RowWise, BlockWise1x128 with BlockWise1x128; got"):
        check_scaling("1x128 128x128", "k")


def test_outer_scales():
    assert is_outer(torch.zeros(3, 20).mT)
    assert not is_outer(torch.zeros(20, 3))
    assert not is_outer(torch.zeros(3, 40).mT[:20])


def layer(total, scaling="1x128 128x128", outer=False, spread=1):
    a, b = torch.zeros(total, 300, dtype=FP8), torch.zeros(3, 200, 300, dtype=FP8).mT
    offs = torch.zeros(3, dtype=torch.int32)
    scale_a = torch.zeros(3, total).mT if outer else torch.zeros(total, 3 * spread)[:, ::spread]
    scale_b = torch.zeros(3, 3, 2) if scaling.endswith("128x128") else torch.zeros(3, 200, 3)
    return Operands(a, b, offs, None, scale_a, scale_b), scaling


def key(operands, scaling):
    return signature(operands.product(scaling=scaling), Options())


def test_a_signature_leaves_out_the_total_and_nothing_else():
    for outer in (False, True):
        assert len({key(*layer(total, outer=outer)) for total in (290, 291, 260, 296)}) == 1
    kinds = [layer(300), layer(300, "1x128 1x128"), layer(300, outer=True), layer(300, spread=2)]
    made, scaling = layer(300)
    kinds.append((made._replace(scale_a=torch.zeros(903)[3:].view(300, 3)), scaling))
    kinds.append((made, "row"))
    keys = [key(*each) for each in kinds]
    assert keys[-1] is None, "scales of other shapes than the scaling's"
    assert None not in keys[:-1]
    assert len(set(keys)) == len(keys)
    assert key(made._replace(scale_a=torch.zeros(299, 3)), scaling) is None
    negated = torch.zeros(300, 3, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    assert key(made._replace(scale_a=negated), scaling) is None


def test_a_problem_knows_its_scaling():
    made, scaling = layer(300)
    assert problem_of(made.product(scaling=scaling), Options()).block_lines == (1, 128)
    unscaled = Operands(torch.zeros(4, 8), torch.zeros(2, 8, 6), torch.zeros(2, dtype=torch.int32)).product()
    assert problem_of(unscaled, Options()).scaling is None
    assert problem_of(unscaled, Options()).block_lines is None


def test_dequantized():
    matrix = torch.ones(130, 200).to(FP8)
    assert torch.equal(dequantized(matrix, torch.tensor([[2.0, 3.0], [4.0, 5.0]]), 128)[[0, 129]][:, [0, 199]],
                       torch.tensor([[2.0, 3.0], [4.0, 5.0]]))  # fmt: skip
    assert dequantized(matrix, torch.rand(130, 2), 1).shape == (130, 200)
