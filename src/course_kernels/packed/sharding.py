"""How the operators of packed groups work on the shards of a DTensor.

This module does not import ``torch.distributed``. It registers its strategies when another module
has imported ``torch.distributed.tensor``: code that calls an operator with DTensors always has.
"""

from __future__ import annotations

import sys

import torch

from course_kernels.engine.scaling import ROW

_TENSOR = "torch.distributed.tensor"
# (rank of mat_a, rank of mat_b) → the shardings on one dimension of the mesh. Each has the sharded dimension of the
# result, mat_a, mat_b and the bias: None is replicated, "+" is a partial sum. The ragged extent and the group ends are
# never sharded. If K is sharded, the bias is a partial sum, too.
SHARDED = {
    (2, 3): [(1, None, 2, 1), ("+", 1, 1, "+")],
    (3, 2): [(0, 1, None, None), ("+", 2, 0, None)],
    (2, 2): [(2, None, 1, 1), (1, 0, None, None)],
    (3, 3): [(2, None, 2, 1), (1, 1, None, None), ("+", 2, 1, "+"), (0, 0, 0, 0)],
}
# Where rows and columns have factors: the dimension of scale_a that is the rows, and of scale_b that is the columns. A
# sharded batch shards dimension 0 of both.
_SCALED_LINES = {(2, 3): (0, 1), (3, 2): (1, 0), (2, 2): (1, 1), (3, 3): (1, 1)}
# A product is linear in each operand.
_LINEAR = [(None, None, None, None), ("+", "+", None, "+"), ("+", None, "+", "+")]
_registered: set[str] = set()  # names of operators


def register() -> None:
    """Make the operators known to DTensor, if it has been imported."""
    if _registered or _TENSOR not in sys.modules or not hasattr(sys.modules[_TENSOR], "DTensor"):
        return
    from torch.distributed.tensor.experimental import register_sharding

    ops = torch.ops.course_kernels
    strategies = {
        "grouped_mm": _products,
        "scaled_grouped_mm": _scaled_products,
        "group_sums": _sums,
        "quantize_1x128": _lines,
        "quantize_128x128": _squares,
    }
    if not all(hasattr(ops, name) for name in strategies):
        return  # the library is being imported
    _registered.update(strategies)
    for name, strategy in strategies.items():
        register_sharding(getattr(ops, name).default)(strategy)


def _placed(dim):
    """The placement for an entry of the tables above."""
    placements = sys.modules[_TENSOR]
    if dim is None:
        return placements.Replicate()
    return placements.Partial() if dim == "+" else placements.Shard(dim)


def _placements(tensor, dim):
    """The placement of an argument; None if the argument is None."""
    return None if tensor is None else _placed(dim)


def _products(mat_a, mat_b, offs, bias, *options):
    """The allowed combinations of placements: of the result, and of the arguments."""
    rests = [None] * len(options)
    return [
        ([_placed(out)], [_placed(a), _placed(b), _placements(offs, None), _placements(bias, of_bias), *rests])
        for out, a, b, of_bias in _LINEAR + SHARDED[mat_a.ndim, mat_b.ndim]
    ]


def _scaled_products(mat_a, mat_b, scale_a, scale_b, offs, bias, *options):
    """The same for scaled products: those with factors of rows and columns are sharded as others are. With factors of
    blocks everything is replicated: a shard's end may cut a block."""
    ranks, found = (mat_a.ndim, mat_b.ndim), [(None,) * 6]
    if options[-1] == ROW:
        for out, a, b, of_bias in SHARDED[ranks]:
            of_a, of_b = (
                of_lines if side == line else (0 if out == 0 and ranks == (3, 3) else None)
                for side, line, of_lines in zip((a, b), (ranks[0] - 2, ranks[1] - 1), _SCALED_LINES[ranks])
            )
            if all(of is None or of < scale.ndim for of, scale in ((of_a, scale_a), (of_b, scale_b))):
                found.append((out, a, b, of_a, of_b, of_bias))
    rests = [None] * len(options)
    return [
        (
            [_placed(out)],
            [*map(_placements, (mat_a, mat_b, scale_a, scale_b, offs, bias), (*dims, None, of_bias)), *rests],
        )
        for out, *dims, of_bias in found
    ]


def _lines(x, offs, *options):
    """The same for values and factors of blocks: all dimensions may be sharded, but those that blocks divide."""
    rests = [None] * len(options)
    return [([_placed(dim)] * 2, [_placed(dim), _placements(offs, None), *rests]) for dim in (None, *range(x.ndim - 1))]


def _squares(w, *options):
    rests = [None] * len(options)
    return [([_placed(dim)] * 2, [_placed(dim), *rests]) for dim in (None, *range(w.ndim - 2))]


def _sums(matrix, offs, backend):
    """The same for sums over rows."""
    return [([_placed(dim)], [_placed(dim), _placed(None), None]) for dim in (None, "+", 1)]
