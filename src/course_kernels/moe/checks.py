"""Checks of a layer's arguments. They read no values, so tensors may be fake, meta or symbolic."""

from __future__ import annotations

import torch
from torch import Tensor

from course_kernels.contexts import is_sharded
from course_kernels.dtypes import OUT_DTYPES
from course_kernels.engine.product_checks import check_added_dtype, check_backend, check_device, check_num_sms, differ
from course_kernels.memory_overlap import check_detached, check_written
from course_kernels.moe.form import Form, Operands
from course_kernels.moe.routing import Routing, check_ids
from course_kernels.type_checks import check_dense, check_extents, check_flags, is_number

WEIGHTS_ON = ("output", "input")


def check_names(backend, weights_on, concatenated, num_sms) -> None:
    """Raise unless the options of ``moe_feed_forward`` are what it takes."""
    check_backend(backend)
    if weights_on not in WEIGHTS_ON:
        raise ValueError(f"weights_on must be one of {WEIGHTS_ON}, got {weights_on!r}")
    check_flags(concatenated=concatenated)
    check_num_sms(num_sms)


def refuse_spread(**weights) -> None:
    """Raise where a weight is a DTensor, which a layer without ``ep`` does not take.

    Raises:
        TypeError: naming the argument.
    """
    for name, weight in weights.items():
        if is_sharded(weight):
            raise TypeError(
                f"{name} is a DTensor: ep must be the ExpertParallel that its experts are spread by, got None. "
                "to_local() instead would take ids for numbers of this rank's experts"
            )


def check_operands(operands: Operands, form: Form, weight_dtype: torch.dtype | None = None) -> None:
    """Raise unless the tensors of a layer fit each other. ``weight_dtype``: of weights that have not x's.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.
    """
    x, gate_up, down, weights, gate_up_bias, down_bias = operands
    for name, tensor, rank, form_of in (
        ("x", x, 2, "(T, H)"), ("gate_up", gate_up, 3, "(E, N, H)"), ("down", down, 3, "(E, H, I)"),
        ("top_k_weights", weights, 2, "(T, k)"),
    ):  # fmt: skip
        check_dense(name, tensor)
        if tensor.dim() != rank:
            hint = ": pass x.flatten(0, -2)" if name == "x" and tensor.dim() > 2 else ""
            raise ValueError(f"{name} must be {rank}-D, {form_of}, got shape {tuple(tensor.shape)}{hint}")
    if x.dtype not in OUT_DTYPES:
        raise TypeError(f"x must have a dtype of {OUT_DTYPES}, got {x.dtype}")
    for name, tensor in (("gate_up", gate_up), ("down", down)):
        if tensor.dtype != (weight_dtype or x.dtype):
            wanted = weight_dtype or f"the dtype of x, {x.dtype}"
            raise TypeError(f"{name} must have {wanted}, got {tensor.dtype}")
    if not weights.dtype.is_floating_point:
        raise TypeError(f"top_k_weights must have a floating dtype, got {weights.dtype}")
    experts, width, hidden = gate_up.shape
    inner = down.shape[2]
    if differ(x.shape[1], hidden, "x must have as many columns as gate_up"):
        hint = ". Its second extent is H: pass gate_up.mT" if _equal(width, x.shape[1]) else ""
        raise ValueError(f"gate_up must have shape (E, N, H) with H = {x.shape[1]}, got {tuple(gate_up.shape)}{hint}")
    if differ(down.shape[0], experts, "down must have as many experts as gate_up"):
        raise ValueError(f"down must have {experts} experts, as gate_up has, got shape {tuple(down.shape)}")
    if differ(down.shape[1], hidden, "down must have H rows"):
        hint = ". Its last extent is H: pass down.mT" if _equal(inner, hidden) else ""
        raise ValueError(f"down must have shape (E, H, I) with H = {hidden}, got {tuple(down.shape)}{hint}")
    wanted = 2 * inner if form.activation.gated else inner
    if differ(width, wanted, "gate_up must have 2 * I rows with a gate, else I"):
        kind = "two rows, of gate and up," if form.activation.gated else "one row, without a gate,"
        raise ValueError(
            f"gate_up must have {kind} for each of down's I = {inner} columns, {wanted} in all, got {width} (shapes "
            f"{tuple(gate_up.shape)} and {tuple(down.shape)})"
        )
    if differ(weights.shape[0], x.shape[0], "top_k_weights must have a row for each token"):
        raise ValueError(f"top_k_weights must have a row for each of the {x.shape[0]} tokens, got {weights.shape[0]}")
    for name, bias, columns in (("gate_up_bias", gate_up_bias, width), ("down_bias", down_bias, hidden)):
        if bias is not None:
            _check_bias(name, bias, (experts, columns), x)
    for name, tensor in zip(("gate_up", "down", "top_k_weights", "gate_up_bias", "down_bias"), operands[1:]):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} must be on the device of x, {x.device}, got {tensor.device}")
    for name, tensor in (("x", x), ("gate_up", gate_up), ("down", down)):
        check_extents(name, tensor.shape)
    if not torch.compiler.is_compiling():  # a graph cannot ask what the GPU can do; the operator does
        check_device("x", x, form.backend)


def _equal(one, other) -> bool:
    return is_number(one) and is_number(other) and one == other


def _check_bias(name: str, bias, shape: tuple, x: Tensor) -> None:
    check_dense(name, bias)
    if bias.dim() != 2 or any(differ(*each, f"{name} must be (E, columns)") for each in zip(bias.shape, shape)):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(bias.shape)}")
    check_added_dtype(name, bias, x.dtype, "x")


def check_choices(top_k_index, weights: Tensor, experts: int) -> None:
    """Raise unless the ids fit the weights of the choices."""
    if top_k_index is None:
        raise TypeError("top_k_index must be a torch.Tensor where no routing is given, got None")
    check_ids(top_k_index, experts)
    if top_k_index.device != weights.device:
        raise ValueError(f"top_k_index must be on the device of x, {weights.device}, got {top_k_index.device}")
    if any(differ(*each, "top_k_index and top_k_weights") for each in zip(top_k_index.shape, weights.shape)):
        raise ValueError(
            f"top_k_weights must have the shape of top_k_index, {tuple(top_k_index.shape)}, got {tuple(weights.shape)}"
        )


def check_routing(routing, weights: Tensor, experts: int) -> None:
    """Raise unless a given routing is of as many tokens, choices of each, and experts."""
    if not isinstance(routing, Routing):
        raise TypeError(f"routing must be a Routing, from Routing.of, got {type(routing).__name__}")
    extents = zip(routing.rows.shape, weights.shape)
    if routing.rows.dim() != 2 or any(differ(*each, "routing must be of the same choices") for each in extents):
        raise ValueError(
            f"routing must be of the tokens and choices of top_k_weights, (T, k) = {tuple(weights.shape)}, got "
            f"{tuple(routing.rows.shape)}"
        )
    if differ(routing.ends.shape[0], experts, "routing must be of the same experts"):
        raise ValueError(f"routing must be of {experts} experts, got {routing.ends.shape[0]}")
    if routing.ends.device != weights.device:
        raise ValueError(f"routing must be on the device of x, {weights.device}, got {routing.ends.device}")


def check_main_grads(main_grads, operands: Operands) -> None:
    """Raise unless the weights' gradients can be added to ``main_grads``."""
    if not isinstance(main_grads, (tuple, list)):
        raise TypeError(f"main_grads must be a pair, of gate_up and of down, got {type(main_grads).__name__}")
    if len(main_grads) != 2:
        got = f"a {type(main_grads).__name__} of {len(main_grads)}"
        raise ValueError(f"main_grads must be a pair, of gate_up and of down, got {got}")
    others = {name: tensor for name, tensor in operands._asdict().items() if tensor is not None}
    for i, (name, weight) in enumerate((("gate_up", operands.gate_up), ("down", operands.down))):
        grad = main_grads[i]
        if grad is None:
            continue
        full = f"main_grads[{i}]"
        check_dense(full, grad)
        if grad.dtype != torch.float32:
            raise TypeError(f"{full} must be torch.float32, got {grad.dtype}")
        if grad.shape != weight.shape:
            raise ValueError(f"{full} must have the shape of {name}, {tuple(weight.shape)}, got {tuple(grad.shape)}")
        if grad.device != weight.device:
            raise ValueError(f"{full} must be on the device of {name}, {weight.device}, got {grad.device}")
        if not weight.requires_grad:
            raise ValueError(f"{full} must be None where {name} requires no gradient: there is none to add")
        check_detached(full, grad)
        check_written(full, grad, others)
    if all(grad is not None for grad in main_grads):
        check_written("main_grads[0]", main_grads[0], {"main_grads[1]": main_grads[1]})
