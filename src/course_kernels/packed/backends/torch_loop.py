"""Grouped products by torch alone: one after another, in float32, rounded once.

Not torch's own grouped_mm, which leaves the tail undefined.
"""

from __future__ import annotations

import torch

from course_kernels.packed.problem import MODES


@torch.no_grad()
def multiply(mat_a, mat_b, offs, out, bias, scale_a, scale_b, keep_tail: bool) -> None:
    """Write the product of checked operands to ``out``. Waits for the device, to read ``offs``.

    Args:
        mat_a, mat_b, offs, bias: as for ``grouped_mm``.
        out: the result; zeros to the tail unless ``keep_tail``.
        scale_a, scale_b: float32 factors of rows and columns, as for ``grouped_launch.multiply``; both or none.
        keep_tail: leave what lies behind the last group in ``out`` as it is.
    """
    mode = MODES[mat_a.dim(), mat_b.dim()]
    extent = {"m": mat_a.shape[0], "n": mat_b.shape[-1], "k": mat_a.shape[-1], "batch": 0}[mode]
    ends = [] if offs is None else offs.tolist()
    groups = mat_a.shape[0] if mode == "batch" else len(ends)
    start = 0
    with torch.autocast(mat_a.device.type, enabled=False):  # it would round the widened operands again
        for g in range(groups):
            # Ends that decrease or reach too far must not lead out of the operands; check=True reports them.
            end = 0 if mode == "batch" else max(start, min(ends[g], extent))
            part = slice(start, end)
            a, b, c = _parts(mode, g, part, mat_a, mat_b, out)
            product = a.float() @ b.float()
            if scale_a is not None:
                product *= (scale_a[part] if mode == "m" else scale_a[g])[:, None]
                product *= scale_b[part] if mode == "n" else scale_b[g]
            if bias is not None:
                product += bias[g].float()
            c.copy_(product)
            start = end
    if not keep_tail and mode in ("m", "n"):
        (out[start:] if mode == "m" else out[:, start:]).zero_()


def _parts(mode, g, part, mat_a, mat_b, out):
    """Views of one group's operands and result."""
    if mode == "m":
        return mat_a[part], mat_b[g], out[part]
    if mode == "n":
        return mat_a[g], mat_b[:, part], out[:, part]
    if mode == "k":
        return mat_a[:, part], mat_b[part], out[g]
    return mat_a[g], mat_b[g], out[g]
