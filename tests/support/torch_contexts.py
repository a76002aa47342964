"""Every public function in every one of torch's contexts: it works, or it refuses in the library's own words.

python tests/support/torch_contexts.py    write the table of site/library.md anew
"""

from __future__ import annotations

import linecache
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

import course_kernels
from places import ROOT
from public_calls import Call, calls, copied, flat, seeds

PAGE = ROOT / "site" / "library.md"
BEGIN, END = "<!-- contexts: written by tests/support/torch_contexts.py -->", "<!-- end of contexts -->"
WORKS, REFUSES, NOT_OURS = "yes", "refused", "other"
# A row of the table: what it is called, and the call that stands for it.
ROWS = {
    "`grouped_mm`": "grouped_mm m torch",
    "`grouped_mm`, `out=`": "grouped_mm accumulate torch",
    "`grouped_mm`, `main_grad=`": "grouped_mm main_grad torch",
    "`scaled_grouped_mm`": "scaled_grouped_mm rows torch",
    "`to_fp8_then_scaled_grouped_mm`": "to_fp8_then_scaled_grouped_mm blockwise torch",
    "`quantize_1x128`": "quantize_1x128 offs torch",
    "`quantize_128x128`": "quantize_128x128 torch",
    "`moe_feed_forward`": "moe_feed_forward swiglu torch",
    "`group_sums`": "group_sums torch",
    "`deepgemm`": "deepgemm torch",
    "`gmm`": "gmm torch",
    "`ptgmm`": "ptgmm torch",
    "`nptgmm`": "nptgmm torch",
    "`group_gemm`": "group_gemm auto",
    "`group_gemm`, a named method": "group_gemm round_robin",
    "`GroupGemmPlan`": "GroupGemmPlan round_robin",
    "`grouped_gemm_jagged`": "grouped_gemm_jagged auto",
    "`grouped_gemm_jagged`, a named implementation": "grouped_gemm_jagged triton",
    "`grouped_gemm_jagged_persistent`": "grouped_gemm_jagged_persistent auto",
    "`grouped_gemm_jagged_persistent`, a named implementation": "grouped_gemm_jagged_persistent triton",
    "`shuffle_weight`": "shuffle_weight",
    "`unshuffle_weight`": "unshuffle_weight",
    "`GroupLayout`": "GroupLayout",
}


def chosen() -> dict[str, Call]:
    """The call of every row, without checks of values."""
    known = {call.name: call for call in calls()}
    collecting = known["grouped_mm main_grad torch"]
    known[collecting.name] = replace(collecting, function=course_kernels.grouped_mm)
    layer = known["moe_feed_forward swiglu torch"]
    leaves = "x", "gate_up", "down", "top_k_weights", "gate_up_bias", "down_bias"
    known[layer.name] = replace(layer, function=course_kernels.moe_feed_forward, leaves=leaves)
    known["GroupLayout"] = replace(known["GroupLayout"], function=moved)
    found = {label: known[name] for label, name in ROWS.items()}
    return {label: call.with_(check=False) if "check" in call.arguments else call for label, call in found.items()}


def moved(sizes: Tensor, row_groups: Tensor, packed: Tensor) -> list[Tensor]:
    """What a layout does without values on the host."""
    layout, slots = course_kernels.GroupLayout.from_sizes(sizes), 4
    by_rows = course_kernels.GroupLayout.from_row_groups(row_groups, 2)
    padded = layout.pad(packed, slots)
    return [
        layout.ends, layout.offsets, layout.row_groups(len(packed)), padded, layout.pack(padded, len(packed)),
        by_rows.sizes, course_kernels.GroupLayout.sort_order(row_groups),
    ]  # fmt: skip


# ---- contexts


def tensors_of(call: Call) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
    """The tensors among a call's arguments, and the call as a function of them."""
    arguments = copied(call.arguments)
    tensors = list(flat(list(arguments.values())))

    def function(*given: Tensor) -> list[Tensor]:
        remaining = iter(given)

        def put(value):
            if isinstance(value, Tensor):
                return next(remaining)
            return type(value)(map(put, value)) if type(value) in (list, tuple) else value

        return list(flat(call.function(**{name: put(value) for name, value in arguments.items()})))

    return tensors, function


def same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one.detach().float().nan_to_num(9), other.detach().float().nan_to_num(9))


def wanted(call: Call) -> list[Tensor]:
    tensors, function = tensors_of(call)
    return function(*tensors)


def differentiable(call: Call) -> tuple[list[Tensor], Callable[..., tuple[Tensor, ...]], list[Tensor], list[Tensor]]:
    """Leaves, the results as a function of them, a gradient for each, and the gradients of the leaves."""

    def function(*leaves):
        return tuple(each for each in call.results(list(leaves)) if each.is_floating_point())

    leaves = [each.requires_grad_() for each in call.tensors()]
    results = function(*leaves)
    given = seeds(list(results))
    return [each.detach() for each in leaves], function, given, list(torch.autograd.grad(results, leaves, given))


def autograd(call: Call) -> None:
    assert all(each is not None for each in differentiable(call)[3])


def many_gradients(call: Call) -> None:
    leaves, function, given, gradients = differentiable(call)
    leaves = [each.requires_grad_() for each in leaves]
    batch = [torch.stack([each, each]) for each in given]
    found = torch.autograd.grad(function(*leaves), leaves, batch, is_grads_batched=True)
    same([each[1] for each in found], gradients)


def reverse(call: Call) -> None:
    leaves, function, given, gradients = differentiable(call)
    same(list(torch.func.vjp(function, *leaves)[1](tuple(given))), gradients)


def forward(call: Call) -> None:
    leaves, function, given, gradients = differentiable(call)
    _, tangents = torch.func.jvp(function, tuple(leaves), tuple(map(torch.ones_like, leaves)))
    # <gradient, one> = <seed, tangent>, within the rounding of 16 bits
    one = sum(float(each.double().sum()) for each in gradients)
    other = sum(float((each.double() * seed.double()).sum()) for each, seed in zip(tangents, given))
    assert abs(one - other) <= 0.02 * (abs(one) + 10 * len(gradients)), (one, other)


def batched(call: Call) -> None:
    tensors, function = tensors_of(call)
    stacks = [torch.stack([each, each]) for each in tensors]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*performance drop")  # torch's own loop says so
        found = torch.func.vmap(lambda *given: tuple(function(*given)))(*stacks)
    same([each[1] for each in found], wanted(call))


def functionalized(call: Call) -> None:
    tensors, function = tensors_of(call)
    same(list(torch.func.functionalize(lambda *given: tuple(function(*given)))(*tensors)), wanted(call))


def traced(call: Call) -> None:
    tensors, function = tensors_of(call)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda *given: tuple(function(*given)))(*tensors)
    replays(graph, call)


def replays(graph: Callable[..., tuple[Tensor, ...]], call: Call) -> None:
    """A recorded graph gives the results of other values, too."""
    for turn in (copied, lambda tensors: [each.float().flip(0).to(each.dtype) if each.itemsize < 4 else each.clone()
                                          for each in tensors]):  # fmt: skip
        given = turn(tensors_of(call)[0])
        expected = tensors_of(call)[1](*copied(given))
        same(list(graph(*given)), expected)


def fake(call: Call) -> None:
    tensors, function = tensors_of(call)
    with torch._subclasses.FakeTensorMode() as mode:
        found = function(*map(mode.from_tensor, tensors))
    shapes(found, wanted(call))


def shapes(found: list[Tensor], expected: list[Tensor]) -> None:
    assert [(each.dtype, tuple(each.shape)) for each in found] == [(each.dtype, tuple(each.shape)) for each in expected]


def meta(call: Call) -> None:
    tensors, function = tensors_of(call)
    found = function(*(each.to("meta") for each in tensors))
    shapes(found, wanted(call))
    assert all(each.is_meta for each in found)


def compiled(call: Call) -> None:
    tensors, function = tensors_of(call)
    torch._dynamo.reset()
    found = torch.compile(lambda *given: function(*given), fullgraph=True, backend="aot_eager")(*tensors)
    same(found, wanted(call))


def exported(call: Call) -> None:
    tensors, function = tensors_of(call)

    class Module(torch.nn.Module):
        def forward(self, *given):
            return tuple(function(*given))

    program = torch.export.export(Module(), tuple(tensors), strict=False)
    replays(program.module(), call)


def scripted(call: Call) -> None:
    tensors, function = tensors_of(call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = torch.jit.trace(lambda *given: tuple(function(*given)), tuple(tensors), check_trace=False)
    replays(graph, call)


class Wrapper(Tensor):
    """A subclass with ``__torch_dispatch__`` that holds another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def inner(value):
            return value.inner if isinstance(value, Wrapper) else value

        result = function(*tree_map(inner, args), **tree_map(inner, kwargs or {}))
        return tree_map(lambda value: Wrapper(value) if isinstance(value, Tensor) else value, result)


def wrapped(call: Call) -> None:
    tensors, function = tensors_of(call)
    found = function(*map(Wrapper, tensors))
    same([each.inner if isinstance(each, Wrapper) else each for each in found], wanted(call))


class Named(Tensor):
    """A subclass with ``__torch_function__`` alone: the one that every subclass has."""


def named(call: Call) -> None:
    tensors, function = tensors_of(call)
    found = function(*(each.as_subclass(Named) for each in tensors))
    same([each.as_subclass(Tensor) for each in found], wanted(call))


def counted(call: Call) -> None:
    tensors, function = tensors_of(call)
    with FlopCounterMode(display=False) as counter:
        same(function(*tensors), wanted(call))
    assert counter.get_total_flops() > 0


CONTEXTS = {
    "backward": autograd,
    "batched gradients": many_gradients,
    "`vjp`": reverse,
    "`jvp`": forward,
    "`vmap`": batched,
    "`functionalize`": functionalized,
    "`make_fx`": traced,
    "fake": fake,
    "meta": meta,
    "`compile`": compiled,
    "`export`": exported,
    "`jit.trace`": scripted,
    "dispatch": wrapped,
    "function": named,
    "FLOPs": counted,
}
OF_DERIVATIVES = tuple(CONTEXTS)[:4]
MULTIPLY_NOTHING = (
    "quantize_1x128", "quantize_128x128", "group_sums", "shuffle_weight", "unshuffle_weight", "GroupLayout"
)  # fmt: skip
# Words of which a refusal's message has one, so that the user learns what to change. Contexts that refuse nothing yet
# have none.
SAYS = {
    "batched gradients": ("is_grads_batched",),
    "`vjp`": ("torch.func",),
    "`jvp`": ("forward-mode",),
    "`vmap`": ("torch.func",),
    "`functionalize`": ("torch.func", "functionalize"),
    "`make_fx`": ("make_fx", "traced"),
    "fake": ("fake", "FakeTensor"),
    "meta": ("meta",),
    "`compile`": ("call it without fullgraph=True",),
    "`export`": ("torch.export", "exported"),
    "`jit.trace`": ("jit.trace", "traced"),
    "dispatch": ("subclasses", "wrapper tensors", Wrapper.__name__),
}


def is_ours(error: BaseException, context: str) -> bool:
    """Whether the library refused a context, and says so: a ``raise`` of ours, or torch quotes our reason."""
    if not any(words in str(error) for words in SAYS.get(context, ())):
        return False
    library = str(Path(course_kernels.__file__).parent)
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    name = frame.tb_frame.f_code.co_filename
    raised = name.startswith(library) and linecache.getline(name, frame.tb_lineno).strip().startswith("raise")
    return raised or context == "`compile`"


def outcome(call: Call, context: str) -> tuple[str, str]:
    """What a call does in a context, and the error if there is one."""
    if context in OF_DERIVATIVES and not call.leaves:
        return "–", ""
    if context == "FLOPs" and call.name.split()[0] in MULTIPLY_NOTHING:
        return "–", ""
    try:
        CONTEXTS[context](call)
    except (TypeError, ValueError, RuntimeError) as error:
        return (REFUSES if is_ours(error, context) else NOT_OURS), f"{type(error).__name__}: {error}"
    except Exception as error:  # wrong results among them
        return NOT_OURS, f"{type(error).__name__}: {error}"
    return WORKS, ""


def table(found: dict[str, dict[str, str]]) -> str:
    """The table in Markdown; rows that are alike become one."""
    heads = list(CONTEXTS)
    alike: dict[tuple[str, ...], list[str]] = {}
    for label, outcomes in found.items():
        alike.setdefault(tuple(outcomes[head] for head in heads), []).append(label.strip())
    lines = ["| function | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(heads)]
    lines += [f"| {'; '.join(labels)} | " + " | ".join(row) + " |" for row, labels in alike.items()]
    return "\n".join(lines)


def everything() -> dict[str, dict[str, str]]:
    return {label: {head: outcome(call, head)[0] for head in CONTEXTS} for label, call in chosen().items()}


def rows_on_page() -> dict[str, list[str]]:
    """What the library's page says of each row."""
    text = PAGE.read_text(encoding="utf-8")
    lines = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {label: words for labels, *words in cells for label in labels.split("; ")}


if __name__ == "__main__":
    if sys.argv[1:] == ["errors"]:
        for label, call in chosen().items():
            for head in CONTEXTS:
                word, error = outcome(call, head)
                if word in (REFUSES, NOT_OURS):
                    print(f"{label} | {head} | {word} | {error[:300]!r}", flush=True)
    else:
        text = PAGE.read_text(encoding="utf-8")
        start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
        PAGE.write_text(text[:start] + "\n" + table(everything()) + "\n" + text[end:], encoding="utf-8")
