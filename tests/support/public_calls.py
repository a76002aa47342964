"""One small call or more of every public function, as tests use them that hold for all functions alike."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import ScalingType

import course_kernels as library
from course_kernels import codegen, runtime
from course_kernels.fp8.quantize import quantize_whole_blocks
from course_kernels.gmm import get_config
from course_kernels.jagged import packing, tritonbench
from course_kernels.masked.shuffle import plain as in_plain_order
from course_kernels.moe import Lora
from course_kernels.testing import integers

FP8 = torch.float8_e4m3fn
SIZES, ENDS = (3, 0, 4), (3, 3, 7)
TOTAL, G, K, N = 7, 3, 16, 6


@dataclass(frozen=True)
class Call:
    """A call by keywords.

    Attributes:
        name: of the public function, and what is special about the call.
        function: that function, or a small one around it.
        arguments: by name; tensors are never written to by a caller of ``run``.
        leaves: names of tensors that get a gradient; lists of tensors count as one.
        orders: how often the function can be differentiated.
    """

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any] = field(repr=False)
    leaves: tuple[str, ...] = ()
    orders: int = 2

    def __str__(self) -> str:
        return self.name

    def with_(self, **changes: Any) -> Call:
        """The call with other arguments."""
        return replace(self, arguments=self.arguments | changes)

    def tensors(self) -> list[Tensor]:
        """Copies of the tensors that get a gradient."""
        return [copied(each) for name in self.leaves for each in flat(self.arguments[name])]

    def results(self, tensors: list[Tensor]) -> list[Tensor]:
        """The results as a function of the tensors that get a gradient."""
        remaining, arguments = iter(tensors), copied(self.arguments)
        for name in self.leaves:
            given = self.arguments[name]
            arguments[name] = [next(remaining) for _ in given] if isinstance(given, list) else next(remaining)
        found = self.function(**arguments)
        return [*flat(found), *flat([arguments[name] for name in WRITTEN if name in arguments])]


CALLS_WITHOUT_TENSORS = [
    Call("get_config", get_config, dict(gmm_type="ptgmm", M=64, K=32, N=16, G=2)),
    Call("build", codegen.build, dict(kernel="round_robin")),
]
WRITTEN = ("out", "existing_out", "bias_grad", "main_grad", "Y")


def flat(value: Any) -> Iterator[Tensor]:
    """The tensors of nested lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from flat(each)


def copied(value: Any) -> Any:
    """Nested lists and dicts with other tensors in place of these, of the same strides."""
    if isinstance(value, Tensor):
        return value if getattr(value, "is_shuffled", False) else value.detach().clone()
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    return type(value)(map(copied, value)) if type(value) in (list, tuple) else value


def seeds(results: list[Tensor]) -> list[Tensor]:
    """A gradient for each result that can have one."""
    floating = [each for each in results if each.is_floating_point() and each.itemsize > 1]
    return [integers(each.shape, each.dtype, seed, device=each.device) for seed, each in enumerate(floating)]


def calls() -> list[Call]:
    """All calls, with operands of the default device of kernels."""
    device = runtime.device()

    def some(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return integers(shape, dtype, sum(shape), device=device)

    def ints(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    def ones(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=torch.float32, device=device)

    groups = dict(sizes=ints(*SIZES), row_groups=ints(0, 1, 1, -1), packed=some(TOTAL, 2))
    return [
        *_packed(some, ints, ones), *_float8(some, ints, ones), *_lists(some), *_aiter(some, ints, ones),
        *_jagged(some, ints), *_experts(some, ints, ones),
        Call("GroupLayout", layouts, groups, ("packed",)),
    ]  # fmt: skip


def _packed(some, ints, ones) -> Iterator[Call]:
    rows, weights, offs = some(TOTAL, K), some(G, N, K).mT, ints(*ENDS)
    modes = {
        "m": dict(mat_a=rows, mat_b=weights, offs=offs, bias=some(G, N)),
        "n": dict(mat_a=some(G, N, K), mat_b=rows.mT, offs=offs),
        "k": dict(mat_a=rows.mT, mat_b=some(TOTAL, N), offs=offs),
        "batch": dict(mat_a=some(G, N, K), mat_b=weights, check=True),
    }
    for backend in ("torch", "triton"):
        for mode, arguments in modes.items():
            leaves = tuple(name for name in ("mat_a", "mat_b", "bias") if name in arguments)
            yield Call(f"grouped_mm {mode} {backend}", library.grouped_mm, arguments | dict(backend=backend), leaves)
        sums = dict(matrix=rows, offs=offs, backend=backend)
        yield Call(f"group_sums {backend}", library.group_sums, sums, ("matrix",))
        into = dict(out=ones(G, K), accumulate=True)
        yield Call(f"group_sums out {backend}", library.group_sums, sums | into)
        added = modes["k"] | dict(backend=backend, out=ones(G, K, N), out_dtype=torch.float32, accumulate=True)
        yield Call(f"grouped_mm accumulate {backend}", library.grouped_mm, added)
        collecting = modes["m"] | dict(backend=backend, main_grad=ones(G, K, N))
        yield Call(f"grouped_mm main_grad {backend}", collected, collecting)


def collected(mat_a: Tensor, mat_b: Tensor, **arguments: Any) -> list[Tensor]:
    """A result whose backward adds to ``main_grad``, and the other gradient."""
    for each in flat([mat_a, mat_b]):
        each.requires_grad_()
    result = library.grouped_mm(mat_a, mat_b, **arguments)
    result.backward(torch.ones_like(result))
    return [result.detach(), mat_a.grad]


def _float8(some, ints, ones) -> Iterator[Call]:
    rows, weights, offs = some(TOTAL, K, dtype=FP8), some(G, N, K, dtype=FP8).mT, ints(*ENDS)
    kinds = ScalingType
    scales = {
        "rows": (ones(TOTAL), kinds.RowWise, ones(G, N), kinds.RowWise),
        "tensors": (ones(1), kinds.TensorWise, ones(1), kinds.TensorWise),
        "blocks": (ones(TOTAL, 1), kinds.BlockWise1x128, ones(G, 1, 1), kinds.BlockWise128x128),
    }
    wide, matrix = some(TOTAL, K), some(G, N, K)
    for backend in ("torch", "triton"):
        for name, (scale_a, recipe_a, scale_b, recipe_b) in scales.items():
            factors = dict(scale_a=scale_a, scale_recipe_a=recipe_a, scale_b=scale_b, scale_recipe_b=recipe_b)
            operands = dict(mat_a=rows, mat_b=weights, offs=offs, backend=backend)
            yield Call(f"scaled_grouped_mm {name} {backend}", library.scaled_grouped_mm, operands | factors)
        for recipe in ("rowwise", "blockwise"):
            layer = dict(mat_a=wide, mat_b=matrix.mT, offs=offs, recipe=recipe, backend=backend, power_of_two=True)
            function = library.to_fp8_then_scaled_grouped_mm
            yield Call(f"to_fp8_then_scaled_grouped_mm {recipe} {backend}", function, layer, ("mat_a", "mat_b"), 1)
        lines = dict(x=wide.mT, offs=offs, backend=backend, power_of_two=True)
        yield Call(f"quantize_1x128 offs {backend}", library.quantize_1x128, lines)
        yield Call(f"quantize_1x128 {backend}", library.quantize_1x128, dict(x=wide, backend=backend))
        yield Call(f"quantize_128x128 {backend}", library.quantize_128x128, dict(w=matrix, backend=backend))
        yield Call(f"quantize_whole_blocks {backend}", quantize_whole_blocks, lines)
        masked = dict(XQ=some(G, 4, 32), WQ=some(G, 16, 32), Y=some(G, 4, 16), group_layout=ints(*SIZES))
        yield Call(f"deepgemm {backend}", library.deepgemm, masked | dict(backend=backend))
        eight = {name: masked[name].to(FP8) for name in ("XQ", "WQ")} | dict(x_scale=ones(G, 4), w_scale=ones(G))
        yield Call(f"deepgemm float8 {backend}", library.deepgemm, masked | eight | dict(backend=backend))
        shuffled = dict(WQ=library.shuffle_weight(masked["WQ"]), check=True)
        yield Call(f"deepgemm shuffled {backend}", library.deepgemm, masked | shuffled | dict(backend=backend))
    yield Call("shuffle_weight", lambda w: in_plain_order(library.shuffle_weight(w)), dict(w=some(G, 16, 32)))
    yield Call("unshuffle_weight", library.unshuffle_weight, dict(w=some(G, 16, 32)))


def _lists(some) -> Iterator[Call]:
    shapes = ((5, 3, 16), (1, 8, 32))
    pairs = dict(group_A=[some(M, K) for M, _, K in shapes], group_B=[some(K, N) for _, N, K in shapes])
    for method in ("auto", "naive", "round_robin", "tma"):
        leaves = ("group_A", "group_B")
        yield Call(f"group_gemm {method}", library.group_gemm, pairs | dict(method=method), leaves)
        yield Call(f"GroupGemmPlan {method}", planned, pairs | dict(method=method))


def planned(**arguments: Any) -> list[Tensor]:
    """The results of a plan."""
    return library.GroupGemmPlan(**arguments).run()


def _aiter(some, ints, ones) -> Iterator[Call]:
    sizes, leaves = ints(*SIZES), ("lhs", "rhs")
    forward = dict(lhs=some(TOTAL, K), rhs=some(G, N, K), group_sizes=sizes, bias=some(G, N))
    backward = dict(lhs=some(TOTAL, K), rhs=some(TOTAL, N), group_sizes=sizes)
    for backend in ("torch", "triton"):
        options = dict(backend=backend, check=True)
        yield Call(f"gmm {backend}", library.gmm, forward | options, (*leaves, "bias"))
        for name in ("ptgmm", "nptgmm"):
            sums = dict(bias_grad=ones(G, K), preferred_element_type=torch.float32)
            function = getattr(library, name)
            yield Call(f"{name} {backend}", function, backward | options, leaves)
            added = dict(existing_out=ones(G, K, N), accumulate=True)
            yield Call(f"{name} accumulate {backend}", function, backward | sums | added | options)
    yield Call("gmm stealing", library.gmm, forward | dict(work_stealing=True, backend="triton"))


def _jagged(some, ints) -> Iterator[Call]:
    operands = dict(A_packed=some(TOTAL, K), B=some(K, N), group_offsets=ints(0, *ENDS), check=True)
    lists = dict(group_A=[some(3, K), some(4, K)], group_B=[operands["B"]] * 2)
    helion = ("helion",) if importlib.util.find_spec("helion") else ()
    for name in ("grouped_gemm_jagged", "grouped_gemm_jagged_persistent"):
        for kind in ("auto", "triton", *helion):
            options = dict(implementation=kind)
            yield Call(f"{name} {kind}", getattr(library, name), operands | options, ("A_packed", "B"))
        timed = dict(tb_op=None, pack_in_timed_region=True)
        adapter = getattr(tritonbench, f"{name}_tritonbench")
        yield Call(f"{name}_tritonbench", adapted, lists | timed | dict(adapter=adapter))
    yield Call("pack_group_inputs", packing.pack_group_inputs, lists)


def _experts(some, ints, ones) -> Iterator[Call]:
    layer = dict(
        x=some(4, K), gate_up=some(G, 2 * N, K), down=some(G, K, N), top_k_weights=ones(4, 2) / 2,
        top_k_index=ints(0, 2, 1, 7, -1, 0, 2, 2).reshape(4, 2), gate_up_bias=some(G, 2 * N), down_bias=some(G, K),
    )  # fmt: skip
    for backend in ("torch", "triton"):
        for name in ("swiglu", "gelu"):
            changed = {} if name == "swiglu" else dict(gate_up=some(G, N, K), gate_up_bias=some(G, N))
            options = dict(backend=backend, activation=name, concatenated=False)
            yield Call(f"moe_feed_forward {name} {backend}", trained, layer | changed | options)
        plain = {name: value for name, value in layer.items() if "bias" not in name} | dict(backend=backend)
        shapes = (2, K), (2 * N, 2), (2, N), (K, 2)
        adapters = {name: some(G, *shape) for name, shape in zip(Lora._fields, shapes)}
        yield Call(f"moe_feed_forward lora {backend}", trained_adapters, plain | adapters)
        one = {name: plain[name][:1] for name in ("x", "top_k_weights", "top_k_index")}
        yield Call(f"moe_feed_forward few {backend}", unwatched, plain | one)
        for recipe in ("rowwise", "blockwise"):
            yield Call(f"moe_feed_forward {recipe} {backend}", trained, plain | dict(fp8_recipe=recipe))


def trained(**arguments: Any) -> list[Tensor]:
    """The result of a layer of experts, and every gradient, of the first order alone."""
    leaves = [each for each in arguments.values() if isinstance(each, Tensor) and each.is_floating_point()]
    for each in leaves:
        each.requires_grad_()
    result = library.moe_feed_forward(**arguments)
    result.backward(torch.ones_like(result))
    return [result.detach(), *(each.grad for each in leaves)]


def trained_adapters(**arguments: Any) -> list[Tensor]:
    """The result of a layer of frozen experts with adapters, and the gradients of the adapters."""
    factors = [arguments.pop(name) for name in Lora._fields[:4]]
    for each in flat(factors):
        each.requires_grad_()
    result = library.moe_feed_forward(**arguments, lora=Lora(*factors))
    result.backward(torch.ones_like(result))
    return [result.detach(), *(each.grad for each in factors)]


def unwatched(**arguments: Any) -> Tensor:
    """The result of a layer without gradients: of few tokens, by kernels of its own."""
    with torch.no_grad():
        return library.moe_feed_forward(**arguments)


def adapted(adapter: Callable[..., Callable[[], Tensor]], **arguments: Any) -> Tensor:
    """What an adapter's function returns."""
    return adapter(**arguments)()


def layouts(sizes: Tensor, row_groups: Tensor, packed: Tensor) -> list[Tensor]:
    """Every description of the same groups, and rows that are moved."""
    layout, total, slots = library.GroupLayout.from_sizes(sizes), TOTAL, 4
    again = library.GroupLayout.from_row_groups(layout.row_groups(total), layout.G).validate(total, slots)
    padded = layout.pad(packed, slots, fill=-1)
    return [
        layout.ends, layout.offsets, layout.masked(slots), layout.pad_indices(slots), again.sizes, padded,
        layout.pack_indices(total, slots), layout.pack(padded, total, fill=0.5), again.row_groups(),
        library.GroupLayout.sort_order(row_groups), library.GroupLayout.from_row_groups(row_groups, 2).ends,
    ]  # fmt: skip
