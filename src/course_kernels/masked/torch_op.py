"""``deepgemm`` as torch sees it: an operator that writes to one of its arguments, with a fake kernel.

As in ``packed.torch_ops``, an eager call goes past torch's dispatcher; ``torch.compile``, modes and tensors without
memory go through ``torch.ops.course_kernels.deepgemm``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from course_kernels import flops
from course_kernels.contexts import is_functional, is_plain, is_profiling, refuse_dtensors, wants_grad
from course_kernels.engine.options import Options, decode_launch, encode_launch
from course_kernels.engine.plans import execute
from course_kernels.masked.checks import Call, check_call, problem_of

_library = torch.library.Library("course_kernels", "FRAGMENT")
_library.define(
    "deepgemm(Tensor XQ, Tensor WQ, Tensor(a!) Y, Tensor group_layout, Tensor? x_scale, Tensor? w_scale, "
    "bool shuffled, int rows, bool check, str backend, str config) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def multiply(call: Call, options: Options) -> Tensor:
    """A masked product in any of torch's contexts; no gradients.

    Raises:
        TypeError: an operand requires a gradient.
    """
    for name, tensor in call.tensors().items():
        if name != "Y" and wants_grad(tensor):
            raise TypeError(f"{name} requires a gradient, and deepgemm has none: detach it, or call it in no_grad")
    if is_plain(*call[:6]) and not is_profiling():
        return _execute(call, options)
    if not torch.compiler.is_compiling():
        if is_functional():
            raise RuntimeError("deepgemm writes to Y, and torch.func.functionalize does not see that: call it outside")
        flops.register()
        refuse_dtensors("deepgemm", **call.tensors())
        problem_of(call, options)  # raises our error, before the dispatcher raises its own
    torch.ops.course_kernels.deepgemm(*call, options.check, options.backend, encode_launch(options))
    return call.Y


def _execute(call: Call, options: Options) -> Tensor:
    execute(call.product(), options, call.Y, check_call, call)
    torch.autograd.graph.increment_version(call.Y)  # autograd does not see a kernel's writes
    return call.Y


def _deepgemm(
    XQ, WQ, Y, group_layout, x_scale, w_scale, shuffled, rows, check, backend, config, fake=False
):  # fmt: skip
    call = Call(XQ, WQ, Y, group_layout, x_scale, w_scale, shuffled, rows)
    options = Options(None, check, backend, *decode_launch(config))
    if fake:
        flops.register()
        problem_of(call, options)
    else:
        _execute(call, options)


_library.impl("deepgemm", _deepgemm, "CompositeExplicitAutograd")


def _batched(info, in_dims, *arguments) -> tuple[None, None]:
    """vmap: one call for each element of the batch."""
    if in_dims[2] is None:
        raise RuntimeError(
            "Y must be one of the batched arguments under torch.func.vmap: each element of the batch writes a result"
        )
    for i in range(info.batch_size):
        parts = (each if d is None else each.select(d, i) for each, d in zip(arguments, in_dims))
        torch.ops.course_kernels.deepgemm(*parts)
    return None, None


torch.library.register_vmap("course_kernels::deepgemm", _batched, lib=_library)
torch.library.register_fake("course_kernels::deepgemm", functools.partial(_deepgemm, fake=True), lib=_library)
