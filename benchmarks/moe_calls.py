"""Calls of a layer of experts: the layer with its gradients, its routing, and the steps of expert parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import course_kernels as ck
from calls import Call, Memory, bits
from course_kernels.distributed.plan import Sends, of_choices, sends_of, to_choices
from course_kernels.distributed.rows import total
from course_kernels.distributed.transports import peers
from course_kernels.distributed.transports.peers import Peers
from course_kernels.dtypes import FP8
from course_kernels.fp8.lines import quantize_lines
from course_kernels.moe import ACTIVATIONS, Lora, Routing
from course_kernels.moe import moe_feed_forward as judged_by
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
        rows = torch.where(expert < experts, torch.argsort(order), -1)
        ends = torch.bincount(expert, minlength=experts)[:experts].cumsum(0)
        for (name, one), other in zip(found._asdict().items(), (ends, order // self.top_k, order, rows)):
            same(one, other.int(), name)


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
        plans = [self._plan(memory, rank, backend) for rank in range(len(self.sizes))]
        tokens, sent, weights, given = [], [], [], dict(x=[], weights=[], ids=[])
        for size, (sends, wanted) in zip(self.sizes, plans):
            x = memory.numbers((size, self.columns), self.dtype)
            tokens.append(x.cpu()[wanted.routing.tokens[: wanted.routing.ends[-1]].long()])
            given["x"].append(memory.give("x", x, self.layout))
            factors = memory.factors((size, self.top_k))
            weights.append(of_choices(memory.give("weights", factors, self.layout), sends, backend))
            sent.append(of_choices(factors.cpu(), wanted, "torch"))
            same(weights[-1], sent[-1], "weights of sends")
            unread = sent[-1].masked_fill(wanted.local_index < 0, torch.nan)
            returned = to_choices(memory.give("values", unread.to(memory.device)), sends, backend)
            same(returned, to_choices(sent[-1], wanted, "torch"), "values of choices")
        ids, found_ids = [wanted.local_index for _, wanted in plans], [sends.local_index for sends, _ in plans]
        self._put(memory, given["x"], tokens, plans, by_token=True)
        self._put(memory, weights, sent, plans, by_token=False, fill=0)
        self._put(memory, found_ids, ids, plans, by_token=False, fill=-1)
        self._return(memory, self._arrived(ids, plans, -1), plans, backend)

    def _return(self, memory: Memory, arrived, plans, backend: str) -> None:
        """The way home: of a row and of values for each token that has arrived, and of the sums of experts' rows."""
        routings, results, experts, summed, values, factors = [], [], [], [], [], []
        for ids in arrived:
            given = memory.give("ids that arrived", ids.to(memory.device))
            routings.append(Routing.of(given, self.local, backend=backend))
            filled, count = (ids >= 0).any(1)[:, None].to(memory.device), ids.numel()
            for found, columns, dtype in ((results, self.columns, self.dtype), (values, self.top_k, torch.float32)):
                drawn = memory.numbers((len(ids), columns), dtype).masked_fill(~filled, torch.nan)
                found.append(memory.give("results", drawn, self.layout))
            rows = memory.numbers((count, self.columns), self.dtype)
            rows[routings[-1].ends[-1] :] = torch.nan
            experts.append(memory.give("rows of experts", rows))
            weights = memory.factors(ids.shape).masked_fill(given < 0, torch.nan)
            factors.append(memory.give("factors", weights))
            summed.append(combine(experts[-1], routings[-1], len(ids), factors[-1]))
        homes = [peers.returning(sends, self.most) for sends, _ in plans]
        for home, (_, sends) in zip(homes, plans):
            self._judge_places(home.routing.rows, sends.routing.rows, sends.routing.ends)
            self._judge_places(home.carriers, sends.carriers, sends.routing.ends)
        there, returned = self._push(memory, results, results, routings, plans), self._returned(results, plans)
        for size, home, held, (_, sends), rows in zip(self.sizes, homes, there, plans, returned):
            same(total(held, home.routing, size), total(rows, sends.routing, size), "sums of rows that came back")
        there, returned = self._push(memory, values, values, routings, plans), self._returned(values, plans)
        for home, held, (_, sends), rows in zip(homes, there, plans, returned):
            same(to_choices(held, home, backend), to_choices(rows, sends, "torch"), "values that came back")
        self._push(memory, experts, summed, routings, plans, factors)

    def _judge_places(self, found: Tensor, sends: Tensor, ends: Tensor) -> None:
        """Check the rows where sends come home; ends of each rank's sends."""
        rank = torch.bucketize(sends, ends, right=True)
        starts = torch.cat([ends.new_zeros(1), ends])
        same(found, torch.where(sends < 0, -1, sends - starts[rank] + rank * self.most).int(), "places of sends")

    def _push(self, memory: Memory, rows, wanted, routings, plans, weights=None) -> list[Tensor]:
        """Push each rank's rows home; with ``weights`` the sums of experts' rows. Compare with what is ``wanted`` of
        the tokens that have arrived. Returns all ranks' memory."""
        there = [
            memory.result(f"memory of rank {rank}", wanted[0].shape, wanted[0].dtype) for rank in range(len(plans))
        ]
        expected = [each.clone().cpu() for each in there]
        for rank, view in enumerate(self._peers(there, memory)):
            if weights is None:
                peers.push(rows[rank], routings[rank], view)
            else:
                peers.push(rows[rank], routings[rank], view, of_experts=True, weights=weights[rank])
        for home, part in enumerate(expected):
            for rank, each in enumerate(wanted):
                count = self._count(plans, home, rank)
                part[rank * self.most :][:count] = each[home * self.most :][:count].cpu()
            same(there[home], part, f"memory of rank {home}")
        return there

    def _returned(self, rows, plans) -> list[Tensor]:
        """For each rank, the rows of its sends at their ranks, in their order, on the CPU."""
        ranks = range(len(plans))
        return [
            torch.cat([rows[rank][home * self.most :][: self._count(plans, home, rank)].cpu() for rank in ranks])
            for home in ranks
        ]

    def _count(self, plans, source: int, rank: int) -> int:
        """How many tokens a rank sends to another."""
        return int(plans[source][1].counts[rank, 0])

    def _plan(self, memory: Memory, rank: int, backend: str) -> tuple[Sends, Sends]:
        """The sends of a rank, compared with those by torch; and these, on the CPU."""
        ranks = len(self.sizes)
        generator = torch.Generator().manual_seed(self.seed * ranks + rank)
        ids = torch.randint(-1, ranks * self.local + 1, (self.sizes[rank], self.top_k), generator=generator)
        given = memory.give("top_k_index", ids.to(memory.device, self.index), self.layout)
        found = sends_of(given, self.local, ranks, backend)
        wanted = sends_of(ids, self.local, ranks, "torch")
        for (name, one), other in zip(found.routing._asdict().items(), wanted.routing):
            same(one, other, f"the routing's {name}")
        for name in ("carriers", "local_index", "counts"):
            same(getattr(found, name), getattr(wanted, name), name)
        return found, wanted

    def _put(self, memory: Memory, rows, wanted, plans, by_token: bool, fill: int | None = None) -> None:
        """Put each rank's rows into all ranks' memory. Compare with the ``wanted`` rows of sends, on the CPU."""
        ranks, columns = len(self.sizes), rows[0].shape[1]
        shape = ranks * self.most, columns
        there = [memory.result(f"memory of rank {rank}", shape, rows[0].dtype) for rank in range(ranks)]
        before = [each.clone().cpu() for each in there]
        for each, view, (sends, _) in zip(rows, self._peers(there, memory), plans):
            peers.put(each, sends, view, by_token=by_token, fill=fill)
        for rank, expected in enumerate(self._arrived(wanted, plans, fill, before)):
            same(there[rank], expected, f"memory of rank {rank}")

    def _arrived(self, rows, plans, fill: float | None, memory: list[Tensor] | None = None) -> list[Tensor]:
        """Each rank's ``memory`` after all ranks' rows of sends are put there, on the CPU; by default new memory."""
        shape = len(plans) * self.most, rows[0].shape[1]
        found = [torch.empty(shape, dtype=rows[0].dtype) for _ in plans] if memory is None else memory
        for source, (each, (_, sends)) in enumerate(zip(rows, plans)):
            ends = [0, *sends.routing.ends.tolist()]
            for rank, place in enumerate(found):
                part = place[source * self.most : (source + 1) * self.most]
                count = ends[rank + 1] - ends[rank]
                part[:count] = each[ends[rank] : ends[rank + 1]]
                if fill is not None:
                    part[count:] = fill
        return found

    def _peers(self, there: list[Tensor], memory: Memory) -> list[Peers]:
        """Each rank's view of all ranks' memory."""
        addresses = memory.ends("addresses", [each.data_ptr() for each in there], torch.int64)
        return [Peers(addresses, rank, self.most) for rank in range(len(there))]
