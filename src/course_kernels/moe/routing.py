"""Which rows each expert gets: the order of tokens' choices by expert, made on the device."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from course_kernels import runtime
from course_kernels.contexts import is_plain, is_profiling
from course_kernels.dtypes import MAX_EXTENT
from course_kernels.engine.plans import PlanCache
from course_kernels.engine.product_checks import check_backend
from course_kernels.engine.signature import forms_of
from course_kernels.moe.launching import Launch
from course_kernels.type_checks import check_dense, is_number

FEW = 2048  # entries that are compared with each other, all with all
FEW_BLOCKS = 4, 512  # entries of a program there, and those that it compares them with at a time
CHUNK = 128  # entries that a program counts or places
FEW_CHUNKS = 128  # whose counts each program that places sums on its own
_sortings = PlanCache()


class Routing(NamedTuple):
    """The choices of all tokens in the order of experts. Made by ``Routing.of``.

    A choice has the number ``token * top_k + j``. Its row is its place among all choices sorted by expert; choices of
    one expert keep their order. Rows of choices that no expert here has come after the last end; ``shortened`` leaves
    them out.

    Attributes:
        ends: int32 (E,), the exclusive end of each expert's rows.
        tokens: int32 (T * k,), the token of each row.
        choices: int32 (T * k,), the number of the choice of each row.
        rows: int32 (T, k), the row of each choice; -1 for those that no expert here has.
    """

    ends: Tensor
    tokens: Tensor
    choices: Tensor
    rows: Tensor

    @classmethod
    def of(cls, top_k_index: Tensor, num_experts: int, *, backend: str = "auto") -> Routing:
        """Sort the choices by expert.

        Args:
            top_k_index: int32 or int64 (T, k), the experts that each token chose; any strides. Numbers outside of
                [0, num_experts) are experts of other ranks, or none.
            num_experts: E.
            backend: "triton" runs kernels (in Triton's interpreter on CPU tensors), "torch" sorts with torch; "auto" is
                "torch" on CPU tensors. "cute" is "triton".

        Returns:
            The routing, on the device of ``top_k_index``; the same bits from all backends. The host reads nothing.

        Raises:
            TypeError, ValueError: naming the argument, what it got and what it wants.
            RuntimeError: the process cannot run kernels.
        """
        check_ids(top_k_index, num_experts)
        check_backend(backend)
        return route(top_k_index, num_experts, backend)

    def shortened(self, count: int) -> Routing:
        """Return this routing without its rows from ``count`` on, at least one row. Buffers of the layer then have
        ``count`` rows instead of T * k. All rows up to the last end must be among them."""
        count = max(count, 1)
        return self._replace(tokens=self.tokens[:count], choices=self.choices[:count])


def route(top_k_index: Tensor, num_experts: int, backend: str) -> Routing:
    """``Routing.of`` for checked arguments, past the dispatcher where that can be."""
    if is_plain(top_k_index) and not is_profiling():
        return Routing(*sort_choices(top_k_index, num_experts, backend))
    return Routing(*torch.ops.course_kernels.moe_routing(top_k_index, num_experts, backend))


def check_ids(top_k_index, num_experts) -> None:
    """Raise unless these are the choices of tokens, and a number of experts."""
    check_dense("top_k_index", top_k_index)
    if top_k_index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"top_k_index must be torch.int32 or torch.int64, got {top_k_index.dtype}")
    if top_k_index.dim() != 2:
        raise ValueError(f"top_k_index must be 2-D, (tokens, k), got shape {tuple(top_k_index.shape)}")
    if isinstance(num_experts, bool) or not isinstance(num_experts, (int, torch.SymInt)):
        raise TypeError(f"num_experts must be an int, got {type(num_experts).__name__}")
    if is_number(num_experts) and not 0 <= num_experts < 2**20:
        raise ValueError(f"num_experts must be from 0 to 2**20 - 1, got {num_experts}")
    tokens, top_k = top_k_index.shape
    if is_number(tokens) and is_number(top_k) and tokens * top_k > MAX_EXTENT:
        raise ValueError(
            f"top_k_index must have fewer than 2**31 - 2**16 choices, got shape {tuple(top_k_index.shape)}"
        )


def sort_choices(
    top_k_index: Tensor, num_experts: int, backend: str, apart: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The fields of ``Routing``; ``apart``, as an operator returns them, each with memory of its own."""
    device = top_k_index.device
    if backend == "torch" or (backend == "auto" and device.type == "cpu"):
        return _sorted_by_torch(top_k_index, num_experts)
    runtime.check_can_launch(device)
    key = forms_of(top_k_index), num_experts
    sorting = _sortings.get(key)
    if sorting is None:
        sorting = Sorting(top_k_index, num_experts)
        if key[0] is not None:
            _sortings.put(key, sorting)
    return sorting(top_k_index, apart)


class Sorting:
    """The launches that sort the choices of tensors of ids that have the form of ``ids``: shape, strides, device."""

    def __init__(self, ids: Tensor, num_experts: int):
        (tokens, top_k), (stride_t, stride_k) = ids.shape, ids.stride()
        self._count, self._device = tokens * top_k, ids.device
        self._shape = tokens, top_k
        self._few = self._count <= FEW
        chunks = -(-self._count // CHUNK)
        self._results = _Parts(num_experts, self._count, self._count, self._count)
        self._counts = (chunks + 1) * num_experts
        summed = chunks > FEW_CHUNKS
        common = dict(stride_t=stride_t, stride_k=stride_k, TOP_K=top_k, EXPERTS=num_experts)
        order = ("slots_ptr", "tokens_ptr", "positions_ptr")

        def step(name: str, programs: int, tensors: tuple[str, ...], **numbers) -> Launch:
            return Launch("moe_routing", f"{name}_kernel", programs, tokens, tensors, **numbers)

        if self._few:
            block, others = FEW_BLOCKS
            programs = -(-self._count // block) + -(-num_experts // block)
            tensors = ("ids_ptr", "offs_ptr", *order)
            self._sort = step("sort_few", programs, tensors, **common, BLOCK=block, BLOCK_J=others)
            return
        block_e = min(128, max(16, 1 << (num_experts - 1).bit_length()))
        self._count_ids = step(
            "count", chunks, ("ids_ptr", "counts_ptr"), **common, CHUNK=CHUNK, BLOCK_E=min(block_e, 64)
        )  # fmt: skip
        self._sum_counts = summed and step(
            "sum_counts", -(-num_experts // 4), ("counts_ptr",), TOP_K=top_k, EXPERTS=num_experts, CHUNK=CHUNK,
            BLOCK_C=256, BLOCK_E=4,
        )  # fmt: skip
        self._place = step(
            "place", chunks, ("ids_ptr", "counts_ptr", "offs_ptr", *order), **common, CHUNK=CHUNK, BLOCK_J=32,
            BLOCK_C=64, BLOCK_E=block_e, SUMMED=summed,
        )  # fmt: skip

    def __call__(self, ids: Tensor, apart: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The fields of ``Routing``, in one buffer unless ``apart``. The device is the current one."""
        ends, of_row, choices, rows = self._results.apart(self._device) if apart else self._results(self._device)
        rows = rows.view(self._shape)
        if not self._count:
            ends.zero_()
        elif self._few:
            self._sort(ids, ends, choices, of_row, rows)
        else:
            counts = _numbers(self._counts, self._device)
            self._count_ids(ids, counts)
            if self._sum_counts:
                self._sum_counts(counts)
            self._place(ids, counts, ends, choices, of_row, rows)
        return ends, of_row, choices, rows


class _Parts:
    """int32 numbers for several uses: how many of each. One allocation of all takes less host time than one of each."""

    def __init__(self, *sizes: int):
        self._sizes, self._rooms = sizes, [-(-size // 4) * 4 for size in sizes]  # each at a multiple of 16 bytes

    def __call__(self, device: torch.device) -> list[Tensor]:
        """The parts of one allocation."""
        parts = _numbers(sum(self._rooms), device).split_with_sizes(self._rooms)
        return [part if size == room else part[:size] for part, size, room in zip(parts, self._sizes, self._rooms)]

    def apart(self, device: torch.device) -> list[Tensor]:
        """An allocation of each."""
        return [_numbers(size, device) for size in self._sizes]


def _numbers(size: int, device: torch.device) -> Tensor:
    return torch.empty_strided((size,), (1,), dtype=torch.int32, device=device)


def _sorted_by_torch(top_k_index: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    top_k = top_k_index.shape[1]
    flat = top_k_index.reshape(-1)
    expert = torch.where((flat < 0) | (flat >= num_experts), num_experts, flat)
    sorted_experts, choices = torch.sort(expert, stable=True)
    experts = torch.arange(num_experts, dtype=expert.dtype, device=flat.device)
    ends = torch.searchsorted(sorted_experts, experts, right=True).int()
    number = torch.arange(flat.shape[0], dtype=torch.int32, device=flat.device)
    rows = torch.empty_like(number).scatter_(0, choices, number)
    rows = torch.where(expert < num_experts, rows, -1)
    return ends, (choices // max(1, top_k)).int(), choices.int(), rows.view(top_k_index.shape)


_library = torch.library.Library("course_kernels", "FRAGMENT")
_library.define(
    "moe_routing(Tensor top_k_index, SymInt num_experts, str backend) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("moe_routing", functools.partial(sort_choices, apart=True), "CompositeExplicitAutograd")


@torch.library.register_fake("course_kernels::moe_routing", lib=_library)
def _fake(top_k_index, num_experts, backend):
    check_ids(top_k_index, num_experts)
    count = top_k_index.shape[0] * top_k_index.shape[1]
    sizes = (num_experts,), (count,), (count,), top_k_index.shape
    return tuple(top_k_index.new_empty(size, dtype=torch.int32) for size in sizes)
