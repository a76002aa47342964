"""Calls of a layer of experts: the layer with its gradients, its routing, and the steps of expert parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import course_kernels as ck
from calls import Call, Memory, bits
from course_kernels.distributed.plan import Homes, of_choices, sends_of, to_choices
from course_kernels.distributed.rows import total
from course_kernels.distributed.transports import peers
from course_kernels.distributed.transports.peers import Peers
from course_kernels.dtypes import FP8
from course_kernels.engine.product import Pieces
from course_kernels.fp8.lines import quantize_lines
from course_kernels.moe import ACTIVATIONS, Lora, Routing, layer
from course_kernels.moe import moe_feed_forward as judged_by
from course_kernels.moe.form import Arriving, Form, Operands
from course_kernels.moe.lora import NAMES as ADAPTERS
from course_kernels.moe.steps import combine
from course_kernels.testing.tolerance import compare, compare_exact

# Roundings happen in the same places with kernels and by torch alone. Sums have another order, so a number may be
# rounded to its other neighbour, and what is computed from it is off by as much.
EPSILON = {torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6, torch.float32: 2e-5}
IN_FLOAT8 = 2.0**-4  # the distance of such neighbours, as a part of the number
SCALES = {
    "rowwise": lambda weight: quantize_lines(weight, FP8),
    "blockwise": lambda weight: ck.quantize_128x128(weight, backend="torch"),
}


def chosen(sizes, tail: int, top_k: int, seed: int) -> Tensor:
    """The ids (T, k), on the CPU, of choices: as many of each expert as ``sizes`` says, at least ``tail`` of none,
    shuffled: a token may choose an expert twice."""
    count = sum(sizes) + tail
    tokens = max(1, -(-count // top_k))
    elsewhere = torch.tensor([-1, len(sizes), 2**31 - 1]).repeat(tokens * top_k)[: tokens * top_k - sum(sizes)]
    of_experts = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64))
    order = torch.randperm(tokens * top_k, generator=torch.Generator().manual_seed(seed))
    return torch.cat([of_experts, elsewhere])[order].reshape(tokens, top_k)


def same(found: Any, wanted: Any, what: str) -> None:
    """Raise AssertionError unless integers, or the bits of floats, are those of a tensor on the CPU."""
    found = found.detach().cpu()
    if found.shape != wanted.shape or not torch.equal(bits(found), bits(wanted)):
        raise AssertionError(f"{what}: wrong")


@dataclass(frozen=True)
class FeedForward(Call):
    """``moe_feed_forward`` with the gradients of all that can have one. sizes: rows of each expert; tail: at least as
    many choices are of no expert here. rank: of adapters, 0 for none. scales: "rowwise" or "blockwise", of float8
    weights; recipe likewise, of products in float8. Torch alone, on the CPU, says what is right: to the last bit of
    "integers", for which the activation must be exact; but the gradient of weights sums longer numbers."""

    api = "moe_feed_forward"
    values: str = "normal"
    tail: int = 5
    top_k: int = 2
    hidden: int = 24
    inner: int = 40
    activation: str = "swiglu"
    concatenated: bool = True
    bias: torch.dtype | None = None
    weights_on: Literal["output", "input"] = "output"
    main_grads: bool = False
    rank: int = 0
    scales: str | None = None
    recipe: str | None = None
    layout_x: str = "row"
    layout_w: str = "row"
    index: torch.dtype = torch.int64
    with_grads: bool = True

    def _run(self, memory: Memory, backend: str) -> None:
        ids = chosen(self.sizes, self.tail, self.top_k, self.seed)
        tensors, fixed = self._operands(memory, ids)
        here, mine, other = memory.ends("top_k_index", ids.tolist(), self.index), {}, {}
        for name, tensor in (tensors | fixed).items():
            layout = {"x": self.layout_x, "gate_up": self.layout_w, "down": self.layout_w}.get(name, "row")
            mine[name] = memory.give(name, tensor, layout).requires_grad_(self.with_grads and name in tensors)
            other[name] = tensor.cpu().requires_grad_(self.with_grads and name in tensors)
        held, kept = self._main_grads(memory, tensors)
        out = self._call(ck.moe_feed_forward, mine, here, held, backend)
        wanted = self._call(judged_by, other, ids, kept, "torch")
        self._judge(out, wanted, "the result", 1)
        if not self.with_grads:
            return
        grad = memory.give("grad", memory.numbers(out.shape, self.dtype))
        out.backward(grad)
        wanted.backward(grad.cpu())
        for name in tensors:
            if held is not None and name in held:
                empty = torch.tensor(self.sizes) == 0
                same(held[name][empty], kept[name][empty], f"main_grads of {name} for experts without rows")
                self._judge(held[name][~empty], kept[name][~empty], f"main_grads of {name}", 2)
                if mine[name].grad is not None:
                    raise AssertionError(f"{name} got a gradient beside its main gradient")
            else:
                self._judge(mine[name].grad, other[name].grad, f"the gradient of {name}", 2)

    def _operands(self, memory: Memory, ids: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tensors that have a gradient, and those that have none. What nothing may read is NaN."""
        experts, tokens = len(self.sizes), ids.shape[0]
        width = self.inner * (1 + ACTIVATIONS[self.activation].gated)

        def of_experts(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
            drawn = memory.numbers((experts, *shape), dtype or self.dtype) / 8
            drawn[torch.tensor(self.sizes) == 0] = torch.nan
            return drawn

        found = dict(x=memory.numbers((tokens, self.hidden), self.dtype), weights=memory.factors((tokens, self.top_k)))
        elsewhere = ((ids < 0) | (ids >= experts)).to(memory.device)
        found["x"][elsewhere.all(1)] = torch.nan
        found["weights"][elsewhere] = torch.nan
        found |= dict(gate_up=of_experts(width, self.hidden), down=of_experts(self.hidden, self.inner))
        fixed = {}
        if self.bias is not None:
            found |= dict(gate_up_bias=of_experts(width, dtype=self.bias))
            found |= dict(down_bias=of_experts(self.hidden, dtype=self.bias))
        if self.rank:
            found |= dict(gate_up_a=of_experts(self.rank, self.hidden), gate_up_b=of_experts(width, self.rank))
            found |= dict(down_a=of_experts(self.rank, self.inner), down_b=of_experts(self.hidden, self.rank))
        for name in ("gate_up", "down") if self.scales else ():
            weight = found.pop(name).cpu().nan_to_num(0.5)  # a factor may be of a NaN, which other experts do not read
            values, factors = SCALES[self.scales](weight)
            fixed |= {name: values.to(memory.device), f"{name}_scale": factors.to(memory.device)}
        return found, fixed

    def _main_grads(self, memory: Memory, tensors: dict[str, Tensor]):
        """Tensors that gradients are added to, and their copies on the CPU."""
        if not self.main_grads:
            return None, None
        shapes = {name: tensors[name].shape[1:] for name in ("gate_up", "down")}
        held = {
            n: memory.held(f"main_grads of {n}", self.sizes, s, torch.float32, "pitched") for n, s in shapes.items()
        }
        return held, {name: each.clone().cpu() for name, each in held.items()}

    def _call(self, function, tensors: dict[str, Tensor], ids: Tensor, main_grads, backend: str) -> Tensor:
        given = dict(tensors)
        x, gate_up, down, weights = (given.pop(name) for name in ("x", "gate_up", "down", "weights"))
        factors = [given.pop(name, None) for name in ADAPTERS]
        return function(
            x, gate_up, down, ids, weights, activation=self.activation, concatenated=self.concatenated,
            weights_on=self.weights_on, main_grads=None if main_grads is None else tuple(main_grads.values()),
            lora=Lora(*factors, scale=(0.5, 2.0)) if self.rank else None, fp8_recipe=self.recipe, backend=backend,
            **given,
        )  # fmt: skip

    def _judge(self, found: Tensor, wanted: Tensor, what: str, roundings: int) -> None:
        found, wanted = found.detach().cpu(), wanted.detach()
        if found.dtype != wanted.dtype:
            raise AssertionError(f"{what} has dtype {found.dtype}, wanted {wanted.dtype}")
        if self.values == "integers" and not what.endswith("weights"):
            compare_exact(found, wanted, what)
            return
        off = IN_FLOAT8 if self.scales or self.recipe else EPSILON[self.dtype]
        largest = wanted.double().abs().max() if wanted.numel() else 0.0
        compare(found, wanted.double(), torch.full(found.shape, 1e-6 + roundings * off * largest).double(), what)


@dataclass(frozen=True)
class Route(Call):
    """``Routing.of``, bit for bit. sizes, which are repeated ``times`` times, and tail as for ``FeedForward``."""

    api = "moe_routing"
    times: int = 1
    tail: int = 5
    top_k: int = 2
    layout: str = "row"
    index: torch.dtype = torch.int64

    def _run(self, memory: Memory, backend: str) -> None:
        experts = len(self.sizes) * self.times
        ids = chosen(self.sizes * self.times, self.tail, self.top_k, self.seed).to(self.index)
        given = memory.give("top_k_index", ids.to(memory.device), self.layout)
        found = ck.moe.Routing.of(given, experts, backend=backend)
        expert = torch.where((ids < 0) | (ids >= experts), experts, ids).flatten()
        order = torch.argsort(expert, stable=True)
        rows = torch.where(expert < experts, torch.argsort(order), -1).view(-1, self.top_k)
        ends = torch.bincount(expert, minlength=experts)[:experts].cumsum(0)
        for (name, one), other in zip(found._asdict().items(), (ends, order // self.top_k, order, rows)):
            same(one, other.int(), name)


@dataclass(frozen=True)
class InPieces(Call):
    """A layer and its gradients on rows that come in two pieces of each expert, which are there. The layer of whole
    rows says what is right, to the last bit. sizes, tail: as for ``FeedForward``."""

    api = "expert_parallel"
    tail: int = 5
    top_k: int = 2
    hidden: int = 24
    inner: int = 40

    def _run(self, memory: Memory, backend: str) -> None:
        ids = chosen(self.sizes, self.tail, self.top_k, self.seed)
        layer_of = dict(sizes=self.sizes, dtype=self.dtype, values=self.values, hidden=self.hidden, inner=self.inner)
        drawn, _ = FeedForward(**layer_of)._operands(memory, ids)
        x, weights, gate_up, down = (memory.give(name, each) for name, each in drawn.items())
        there = memory.ends("top_k_index", ids.tolist(), torch.int64)
        routing = Routing.of(there, len(self.sizes), backend="auto" if backend == "cute" else backend)
        ends = routing.ends.cpu()
        begins = torch.cat([ends.new_zeros(1), ends[:-1]])
        middles = (begins + ends) // 2
        starts, stops = torch.cat([begins, middles]).tolist(), torch.cat([middles, ends]).tolist()
        parts = (memory.ends(*each, torch.int32) for each in (("starts", starts), ("ends", stops), ("arrived", [0, 1])))
        pieces = Pieces(*parts, milliseconds=60_000)
        operands, form = Operands(x, gate_up, down, weights), Form(ACTIVATIONS["swiglu"], backend=backend)
        grad, needs = memory.give("grad", memory.numbers(x.shape, self.dtype)), (True,) * 4 + (False,) * 2
        found = []
        for arriving in (None, Arriving(lambda columns: pieces, lambda: None)):
            out, pre = layer.forward(operands, routing, form, True, arriving=arriving)
            grads = layer.backward(grad, operands, pre, routing, form, needs, arriving=arriving)
            found.append([out, pre[: int(ends[-1])], *grads[:4]])
        gradients = (f"the gradient of {name}" for name in ("x", "gate_up", "down", "weights"))
        names = ("the result", "the activation's argument", *gradients)
        for name, whole, in_pieces in zip(names, *found, strict=True):
            same(in_pieces, whole.cpu(), f"{name} in pieces")


@dataclass(frozen=True)
class Journey(Call):
    """The plan of a dispatch, and the rows' way into other ranks' memory and home. One process has the memory of all
    ranks, and launches each rank's kernels in turn. sizes: tokens of each rank; local: experts of each."""

    api = "expert_parallel"
    sizes: tuple[int, ...] = (7, 0, 4)
    local: int = 2
    top_k: int = 4
    columns: int = 21
    most: int = 9
    layout: str = "row"
    index: torch.dtype = torch.int64

    def _run(self, memory: Memory, backend: str) -> None:
        ranks = len(self.sizes)
        ids, given = [], []
        for rank, size in enumerate(self.sizes):
            generator = torch.Generator().manual_seed(self.seed * ranks + rank)
            ids.append(torch.randint(-1, ranks * self.local + 1, (size, self.top_k), generator=generator))
            given.append(memory.give("top_k_index", ids[-1].to(memory.device, self.index), self.layout))
            self._judge_sends(memory, ids[-1], given[-1], backend)
        homes = [peers.homes_of(each, self.local, ranks, self.most) for each in given]
        for each, of_tokens in zip(ids, homes):
            self._judge_homes(each, of_tokens)
        arrived = torch.full((ranks, ranks, self.most, self.top_k), -1, dtype=torch.int32)
        for source, each in enumerate(ids):
            for rank in range(ranks):
                local = each - rank * self.local
                arrived[rank, source, : len(each)] = torch.where((local >= 0) & (local < self.local), local, -1)
        self._tell(memory, given, homes, arrived)
        self._put(memory, homes, arrived)
        self._return(memory, homes, arrived, ids, backend)

    def _judge_sends(self, memory: Memory, ids: Tensor, given: Tensor, backend: str) -> None:
        """The sends of a rank, and the way of weights to sends and back."""
        ranks = len(self.sizes)
        found, wanted = sends_of(given, self.local, ranks, backend), sends_of(ids, self.local, ranks, "torch")
        for (name, one), other in zip(found.routing._asdict().items(), wanted.routing):
            same(one, other, f"the routing's {name}")
        for name in ("carriers", "local_index", "counts"):
            same(getattr(found, name), getattr(wanted, name), name)
        factors = memory.factors(ids.shape)
        sent = of_choices(factors.cpu(), wanted, "torch")
        same(of_choices(memory.give("weights", factors, self.layout), found, backend), sent, "weights of sends")
        unread = sent.masked_fill(wanted.local_index < 0, torch.nan)
        returned = to_choices(memory.give("values", unread.to(memory.device)), found, backend)
        same(returned, to_choices(sent, wanted, "torch"), "values of choices")

    def _judge_homes(self, ids: Tensor, homes: Homes) -> None:
        ranks = len(self.sizes)
        rank = torch.where((ids >= 0) & (ids < ranks * self.local), ids // self.local, ranks)
        token = torch.arange(len(ids))[:, None]
        same(homes.carriers, torch.where(rank < ranks, rank * self.most + token, -1).int(), "rows of choices")
        chosen = (rank[:, :, None] == torch.arange(ranks)).any(1)
        order = torch.where(chosen, torch.arange(ranks), ranks).sort(1).values[:, : min(self.top_k, ranks)]
        rows = torch.where(order < ranks, order * self.most + token, -1).int()
        same(homes.rows, rows, "rows where results come home")

    def _tell(self, memory: Memory, given: list[Tensor], homes: list[Homes], arrived: Tensor) -> None:
        """Ids and weights, in two parts of each rank's memory."""
        ranks, *_, top_k = arrived.shape
        there = self._memories(memory, 2 * ranks * self.most, top_k, torch.int32)
        weights = torch.zeros(ranks, self.most, top_k)
        for source, (each, of_tokens, view) in enumerate(zip(given, homes, self._peers(there, memory))):
            factors = memory.factors(each.shape)
            weights[source, : len(each)] = factors.cpu()
            after = view._replace(offset=4 * ranks * self.most * top_k)
            factors = memory.give("weights", factors, self.layout)
            peers.tell(of_tokens, self.local, each, factors, view, after)
        for rank, found in enumerate(there):
            of_choices = torch.where(arrived[rank] >= 0, weights, 0.0).view(torch.int32)
            same(found, torch.cat([arrived[rank], of_choices]).reshape(-1, top_k), f"memory of rank {rank}")

    def _put(self, memory: Memory, homes: list[Homes], arrived: Tensor) -> None:
        there = self._memories(memory, len(arrived) * self.most, self.columns, self.dtype)
        expected = [each.clone().cpu() for each in there]
        for source, (size, of_tokens, view) in enumerate(zip(self.sizes, homes, self._peers(there, memory))):
            x = memory.numbers((size, self.columns), self.dtype)
            for part, ids in zip(expected, arrived[:, source, :size]):
                rows = part[source * self.most :][:size]
                rows.copy_(torch.where((ids >= 0).any(1)[:, None], x.cpu(), rows))
            peers.put(memory.give("x", x, self.layout), of_tokens, view)
        for rank, part in enumerate(expected):
            same(there[rank], part, f"memory of rank {rank}")

    def _return(self, memory: Memory, homes: list[Homes], arrived: Tensor, ids: list[Tensor], backend: str) -> None:
        """The way home: of a row and of values for each token that has arrived, and of the sums of experts' rows."""
        routings, results, experts, summed, values, factors = [], [], [], [], [], []
        for each in arrived.flatten(1, 2):
            given = memory.give("ids that arrived", each.to(memory.device))
            routings.append(Routing.of(given, self.local, backend=backend))
            filled = (given >= 0).any(1)[:, None]
            for found, columns, dtype in ((results, self.columns, self.dtype), (values, self.top_k, torch.float32)):
                drawn = memory.numbers((len(each), columns), dtype).masked_fill(~filled, torch.nan)
                found.append(memory.give("results", drawn, self.layout))
            rows = memory.numbers((each.numel(), self.columns), self.dtype)
            rows[routings[-1].ends[-1] :] = torch.nan
            experts.append(memory.give("rows of experts", rows))
            weights = memory.factors(each.shape).masked_fill(given < 0, torch.nan)
            factors.append(memory.give("factors", weights))
            summed.append(combine(experts[-1], routings[-1], len(each), factors[-1]))
        self._judge_pieces(memory, routings)
        there = self._push(memory, results, results, routings, arrived)
        for home, held in enumerate(there):
            wanted = torch.zeros(self.sizes[home], self.columns)
            for rank, rows in enumerate(results):
                here = (arrived[rank, home] >= 0).any(1)[:, None]
                part = torch.where(here, rows.cpu()[home * self.most :][: self.most].float(), 0.0)
                wanted += part[: self.sizes[home]]
            same(total(held, homes[home], self.sizes[home]), wanted.to(self.dtype), "sums of rows that came back")
        for home, held in enumerate(self._push(memory, values, values, routings, arrived)):
            wanted = torch.zeros(ids[home].shape)
            for rank, rows in enumerate(values):
                part = rows.cpu()[home * self.most :][: self.sizes[home]]
                wanted = torch.where(arrived[rank, home, : self.sizes[home]] >= 0, part, wanted)
            same(to_choices(held, homes[home], backend), wanted, "values that came back")
        self._push(memory, experts, summed, routings, arrived, factors)

    def _judge_pieces(self, memory: Memory, routings: list[Routing]) -> None:
        """The pieces of experts' rows. Together they must have every row of every expert, and none twice. Rows of the
        first expert are divided among ranks; rows of the others wait for all tokens."""
        words = self._memories(memory, 1, len(routings), torch.int32)
        for routing, view in zip(routings, self._peers(words, memory)):
            pieces = peers.pieces_of(routing, view, self.top_k, words[view.here][0], 1, 1)
            begins, ends = (each.cpu().reshape(-1, self.local) for each in pieces[:2])
            sizes = (ends - begins).sum(0, dtype=torch.int32)
            last = routing.ends.cpu()
            same(sizes, last.diff(prepend=last.new_zeros(1)), "rows of pieces")
            same(ends.max(0).values, torch.where(sizes > 0, last, 0), "ends of pieces")

    def _push(self, memory: Memory, rows, wanted, routings, arrived: Tensor, weights=None) -> list[Tensor]:
        """Push each rank's rows home; with ``weights`` the sums of experts' rows. Compare with what is ``wanted`` of
        the tokens that have arrived. Returns all ranks' memory."""
        there = self._memories(memory, *wanted[0].shape, wanted[0].dtype)
        expected = [each.clone().cpu().unflatten(0, (-1, self.most)) for each in there]
        for rank, view in enumerate(self._peers(there, memory)):
            if weights is None:
                peers.push(rows[rank], routings[rank], view)
            else:
                peers.push(rows[rank], routings[rank], view, of_experts=True, weights=weights[rank])
        for home, parts in enumerate(expected):
            for rank, part in enumerate(parts):
                of_home = wanted[rank].cpu()[home * self.most :][: self.most]
                part.copy_(torch.where((arrived[rank, home] >= 0).any(1)[:, None], of_home, part))
            same(there[home], parts.flatten(0, 1), f"memory of rank {home}")
        return there

    def _memories(self, memory: Memory, rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
        """Each rank's memory."""
        return [memory.result(f"memory of rank {rank}", (rows, columns), dtype) for rank in range(len(self.sizes))]

    def _peers(self, there: list[Tensor], memory: Memory) -> list[Peers]:
        """Each rank's view of all ranks' memory."""
        addresses = memory.ends("addresses", [each.data_ptr() for each in there], torch.int64)
        return [Peers(addresses, rank, self.most) for rank in range(len(there))]
