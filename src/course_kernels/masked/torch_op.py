"""``deepgemm`` as torch sees it: an operator that writes to one of its arguments, with a fake kernel.

As in ``packed.torch_ops``, an eager call goes past torch's dispatcher; ``torch.compile``, modes and tensors without
memory go through ``torch.ops.course_kernels.deepgemm``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from course_kernels.contexts import is_profiling, refuse_dtensors
from course_kernels.masked.execute import execute
from course_kernels.masked.problem import Operands, Options, Problem
from course_kernels.packed.torch_ops import decode_config, encode_config, is_plain, wants_grad

_library = torch.library.Library("course_kernels", "FRAGMENT")
_library.define(
    "deepgemm(Tensor XQ, Tensor WQ, Tensor(a!) Y, Tensor group_layout, Tensor? x_scale, Tensor? w_scale, "
    "bool shuffled, int rows, bool check, str backend, str config) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def multiply(operands: Operands, options: Options) -> Tensor:
    """A masked product in any of torch's contexts; no gradients.

    Raises:
        TypeError: an operand requires a gradient.
    """
    for name, tensor in operands._asdict().items():
        if name != "Y" and wants_grad(tensor):
            raise TypeError(f"{name} requires a gradient, and deepgemm has none: detach it, or call it in no_grad")
    if is_plain(*operands) and not is_profiling():
        execute(operands, options)
        torch.autograd.graph.increment_version(operands.Y)  # a kernel's writes are not seen by autograd
        return operands.Y
    if not torch.compiler.is_compiling():
        refuse_dtensors("deepgemm", **operands._asdict())
        Problem.of(operands, options)  # raises in our words, before the dispatcher does in its own
    torch.ops.course_kernels.deepgemm(
        *operands, options.shuffled, options.rows, bool(options.check), options.backend, encode_config(options.config)
    )
    return operands.Y


def _deepgemm(
    XQ, WQ, Y, group_layout, x_scale, w_scale, shuffled, rows, check, backend, config, fake=False
):  # fmt: skip
    operands = Operands(XQ, WQ, Y, group_layout, x_scale, w_scale)
    options = Options(shuffled, rows, check, backend, decode_config(config))
    if fake:
        Problem.of(operands, options)
    else:
        execute(operands, options)
        torch.autograd.graph.increment_version(Y)


_library.impl("deepgemm", _deepgemm, "CompositeExplicitAutograd")
torch.library.register_fake("course_kernels::deepgemm", functools.partial(_deepgemm, fake=True), lib=_library)
