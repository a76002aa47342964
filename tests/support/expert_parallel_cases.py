"""Cases of expert parallelism for two and four processes; see ``ranks``."""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

import expert_parallel
import ranks
from course_kernels import moe_feed_forward, quantize_128x128
from course_kernels.distributed import ExpertParallel
from course_kernels.distributed.plan import Homes
from course_kernels.distributed.transports import peers
from course_kernels.distributed.transports import symmetric as symmetric_transport
from course_kernels.distributed.transports.symmetric import Symmetric
from course_kernels.integrations.torchtitan import TokenDispatcher
from course_kernels.moe import Experts, Lora, Routing
from course_kernels.moe.lora import NAMES

EXPERTS, HIDDEN, INNER, TOP_K = 8, 16, 24, 3
SIZES = (5, 0, 9, 2)  # tokens of each rank


def weights_of(device, dtype=torch.float32, experts=EXPERTS):
    generator = torch.Generator().manual_seed(1)
    shapes = (experts, 2 * INNER, HIDDEN), (experts, HIDDEN, INNER), (experts, 2 * INNER), (experts, HIDDEN)
    return [torch.randn(shape, generator=generator).mul(0.3).to(device, dtype) for shape in shapes]


def tokens_of(world, sizes=SIZES, dtype=torch.float32, experts=EXPERTS, top_k=TOP_K, seed=2):
    """All ranks' x, ids, weights and gradients of the result, as lists of each rank's."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [sizes[rank % len(sizes)] for rank in range(world.size)]
    total = sum(sizes)
    x = torch.randn(total, HIDDEN, generator=generator).to(world.device, dtype)
    ids = torch.randint(experts, (total, top_k), generator=generator).to(world.device)
    weights = torch.rand(total, top_k, generator=generator).to(world.device)
    grad = torch.randn(total, HIDDEN, generator=generator).to(world.device, dtype)
    return [each.split(sizes) for each in (x, ids, weights, grad)]


def mine(world, tensor):
    """This rank's experts."""
    each = tensor.shape[0] // world.size
    return tensor[world.rank * each : (world.rank + 1) * each]


def leaves(*tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def close(dtype, **pairs):
    """True, or the first pair that differs by more than a rounding or two of its dtype. Of float8: another order of
    sums may move an operand to its neighbour, 2**-3 of it, where one of 16 or more terms has it."""
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float8_e4m3fn: 2**-3 / HIDDEN}[dtype]
    for name, (got, wanted) in pairs.items():
        if got is None or got.shape != wanted.shape:
            return f"{name} is {got if got is None else tuple(got.shape)}, wanted {tuple(wanted.shape)}"
        if not torch.isfinite(got).all():
            return f"{name} is not finite"
        error = (got.float() - wanted.float()).abs().max().item() if got.numel() else 0.0
        scale = wanted.float().abs().max().item() if wanted.numel() else 0.0
        if error > tolerance * max(1.0, scale):
            return f"{name} differs by {error} of {scale}"
    return True


def same_as_one(world, ids=None, sizes=SIZES, dtype=torch.float32, parallel=None, transport=None, **options):
    """Result and gradients of tokens of all ranks equal those of one process that has everything, on the usual backend:
    in the interpreter that took as long as all else, on every rank."""
    x, chosen, weights, grad = tokens_of(world, sizes, dtype)
    if ids is not None:
        chosen = [ids(each) for each in chosen]
    parameters = weights_of(world.device, dtype)
    whole = leaves(torch.cat(x), torch.cat(weights), *parameters)

    def layer(x, w, gate_up, down, gate_up_bias, down_bias, ids, **options):
        return moe_feed_forward(x, gate_up, down, ids, w, gate_up_bias=gate_up_bias, down_bias=down_bias, **options)

    usual = {name: value for name, value in options.items() if name not in KERNELS}
    wanted = layer(*whole, torch.cat(chosen), **usual)
    wanted.backward(torch.cat(grad))
    own = leaves(x[world.rank], weights[world.rank], *(mine(world, each) for each in parameters))
    ep = ExpertParallel(world.group, EXPERTS, **(parallel or {}))
    ep.transport = transport or ep.transport
    got = layer(*own, chosen[world.rank], ep=ep, **options)
    got.backward(grad[world.rank])
    here = [each.shape[0] for each in x]
    pairs = {"result": (got, wanted.split(here)[world.rank])}
    for i, name in enumerate(("x", "weights")):
        pairs[f"the gradient of {name}"] = own[i].grad, whole[i].grad.split(here)[world.rank]
    for i, name in enumerate(("gate_up", "down", "gate_up_bias", "down_bias"), 2):
        pairs[f"the gradient of {name}"] = own[i].grad, mine(world, whole[i].grad)
    return close(torch.float8_e4m3fn if options.get("fp8_recipe") else dtype, **pairs)


# ---- the layer equals one process's


def unequal(world):
    return same_as_one(world)


def bfloat16(world):
    return same_as_one(world, dtype=torch.bfloat16)


def weights_on_input(world):
    return same_as_one(world, weights_on="input", activation="geglu_tanh")


def one_rank_has_all_tokens(world):
    return same_as_one(world, sizes=(0, 7, 0, 0))


def all_go_to_one_rank(world):
    return same_as_one(world, ids=lambda each: each % (EXPERTS // world.size))


def no_rank_has_tokens(world):
    return same_as_one(world, sizes=(0,))


def one_expert_thrice(world):
    return same_as_one(world, ids=lambda each: each[:, :1].expand(-1, TOP_K))


def ids_that_are_no_expert(world):
    """Sentinels, on either side; a token with nothing else gets zeros."""
    for sentinel in (EXPERTS, -1, 2**31 - 1):

        def some(ids, sentinel=sentinel):
            ids = ids.clone()
            ids[::2, 1], ids[1:2] = sentinel, sentinel
            return ids

        if (found := same_as_one(world, ids=some)) is not True:
            return f"{sentinel}: {found}"
    return True


def narrow_ids(world):
    return same_as_one(world, ids=lambda each: each.int().repeat_interleave(2, 1)[:, ::2])


def in_chunks(world):
    """More chunks than some ranks have tokens."""
    for chunks in (2, 3):
        if (found := same_as_one(world, parallel=dict(chunks=chunks))) is not True:
            return f"{chunks}: {found}"
    ep = ExpertParallel(world.group, 128)
    if ep.suggest_chunks(16384, 2048, 768, 8).chunks < 2 or ep.suggest_chunks(64, 2048, 768, 8).chunks != 1:
        return "suggested: few chunks of many tokens, or many of few"
    return same_as_one(world, ids=lambda each: each.int(), parallel=dict(chunks=2), dtype=torch.bfloat16)


# ---- what travels


def with_adapters(world):
    """Each rank has the adapters of its experts; the result and the factors' gradients are those of one process."""
    x, ids, weights, grad = tokens_of(world)
    gate_up, down, *_ = weights_of(world.device)
    generator = torch.Generator().manual_seed(3)
    shapes = (4, HIDDEN), (2 * INNER, 4), (4, INNER), (HIDDEN, 4)
    factors = [torch.randn(EXPERTS, *shape, generator=generator).mul(0.5).to(world.device) for shape in shapes]
    whole, own = leaves(*factors), leaves(*(mine(world, each) for each in factors))
    wanted = moe_feed_forward(
        torch.cat(x), gate_up, down, torch.cat(ids), torch.cat(weights), lora=Lora(*whole, scale=0.5)
    )
    wanted.backward(torch.cat(grad))
    got = moe_feed_forward(
        x[world.rank], mine(world, gate_up), mine(world, down), ids[world.rank], weights[world.rank],
        lora=Lora(*own, scale=0.5), ep=ExpertParallel(world.group, EXPERTS),
    )  # fmt: skip
    got.backward(grad[world.rank])
    pairs = {"result": (got, wanted.split([len(each) for each in x])[world.rank])}
    pairs |= {f"the gradient of {name}": (own[i].grad, mine(world, whole[i].grad)) for i, name in enumerate(NAMES)}
    return close(torch.float32, **pairs)


def in_float8(world):
    """Weights that are rounded on the way, and weights that are float8 already, with sharded factors."""
    for recipe in ("rowwise", "blockwise"):
        if (found := same_as_one(world, fp8_recipe=recipe)) is not True:
            return f"{recipe}: {found}"
    x, ids, weights, _ = tokens_of(world)
    gate_up, down = (quantize_128x128(each) for each in weights_of(world.device)[:2])
    ep = ExpertParallel(world.group, EXPERTS)

    def layer(x, ids, weights, gate_up, down, **options):
        scales = dict(gate_up_scale=gate_up[1], down_scale=down[1])
        return moe_feed_forward(x, gate_up[0], down[0], ids, weights, **scales, **options)

    def own(values, scale):
        return mine(world, values), DTensor.from_local(mine(world, scale), ep.mesh, [Shard(0)])

    wanted = layer(torch.cat(x), torch.cat(ids), torch.cat(weights), gate_up, down)
    got = layer(x[world.rank], ids[world.rank], weights[world.rank], own(*gate_up), own(*down), ep=ep)
    return close(torch.float8_e4m3fn, result=(got, wanted.split([len(each) for each in x])[world.rank]))


def each_token_once(world):
    """Rows that arrive: one for each pair of a token and a rank; in the order of sources; with the right choices."""
    x, ids, weights, _ = tokens_of(world)
    ep = ExpertParallel(world.mesh(), EXPERTS)
    rows, choices, handle = ep.dispatch(x[world.rank], ids[world.rank], weights[world.rank])
    local, wanted, of_weights, of_ids = ep.num_local_experts, [], [], []
    for source in range(world.size):
        for token, chosen, each in zip(x[source], ids[source], weights[source]):
            here = chosen // local == world.rank
            if here.any():
                wanted.append(token)
                of_ids.append(torch.where(here, chosen - world.rank * local, -1))
                of_weights.append(torch.where(here, each, 0.0))
    if rows.shape[0] != len(wanted):
        return f"{rows.shape[0]} rows arrived, wanted {len(wanted)}"
    if wanted and not torch.equal(rows, torch.stack(wanted)):
        return "other rows arrived"
    if wanted and not torch.equal(choices.index.long(), torch.stack(of_ids).long()):
        return "other ids arrived"
    if wanted and not torch.equal(choices.weights, torch.stack(of_weights)):
        return "other weights arrived"
    if sum(line[world.rank] for line in handle.matrix) != len(wanted):
        return f"the matrix is {handle.matrix}"
    held = int((choices.index >= 0).sum())
    if choices.routing.tokens.shape[0] != max(1, held):
        return f"the layer's buffers have {choices.routing.tokens.shape[0]} rows for {held} choices"
    return True


def one_sum_a_rank(world):
    """combine adds in the order of ranks, in float32, and rounds once."""
    x, ids, weights, _ = tokens_of(world, sizes=(6,), dtype=torch.bfloat16)
    ep = ExpertParallel(world.group, EXPERTS)
    rows, _, handle = ep.dispatch(x[world.rank], ids[world.rank], weights[world.rank])
    scale = torch.tensor([1.0, 2**-9, 2**-9, 3.0])[:, None].to(world.device)
    out = ep.combine((rows.float() * scale[world.rank]).to(rows.dtype), handle)
    wanted = torch.zeros(6, HIDDEN, device=world.device)
    for rank in range(world.size):
        goes = (ids[world.rank] // ep.num_local_experts == rank).any(1, keepdim=True)
        part = (x[world.rank].float() * scale[rank]).to(torch.bfloat16).float()
        wanted += torch.where(goes, part, 0.0)
    return torch.equal(out, wanted.to(torch.bfloat16)) or "the sums differ"


def deterministic(world):
    x, ids, weights, grad = tokens_of(world, sizes=(64, 31))
    gate_up, down, *_ = (mine(world, each) for each in weights_of(world.device))
    ep, found = ExpertParallel(world.group, EXPERTS), []
    for _ in range(2):
        tensors = leaves(x[world.rank], weights[world.rank], gate_up, down)
        out = moe_feed_forward(tensors[0], *tensors[2:], ids[world.rank], tensors[1], ep=ep)
        out.backward(grad[world.rank])
        found.append([out, *(each.grad for each in tensors)])
    return all(map(torch.equal, *found)) or "two runs differ"


def pending(world):
    """Results of functional collectives, which may still be on their way."""
    import torch.distributed._functional_collectives as functional

    sizes = (4,)
    x, ids, weights, _ = tokens_of(world, sizes)
    gate_up, down, *_ = (mine(world, each) for each in weights_of(world.device))
    ep = ExpertParallel(world.group, EXPERTS)
    arguments = x[world.rank], ids[world.rank], weights[world.rank]
    wanted = moe_feed_forward(arguments[0], gate_up, down, *arguments[1:], ep=ep)
    gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
    late = [gather(each, 0, world.group) for each in arguments]
    kinds = {type(each).__name__ for each in late}
    if kinds != {"AsyncCollectiveTensor"}:
        return f"nothing is pending: {kinds}"
    got = moe_feed_forward(late[0], gate_up, down, *late[1:], ep=ep)
    return close(torch.float32, result=(got[world.rank * 4 :][:4], wanted)) if type(got) is torch.Tensor else type(got)


def unrouted(world):
    """top_k_weights alone, or x alone, has a gradient; nothing has one."""
    x, ids, weights, grad = tokens_of(world)
    gate_up, down, *_ = (mine(world, each) for each in weights_of(world.device))
    ep = ExpertParallel(world.group, EXPERTS)
    results = []
    for wanted in ((True, True), (True, False), (False, True), (False, False)):
        tensors = [each[world.rank].clone().requires_grad_(need) for each, need in zip((x, weights), wanted)]
        out = moe_feed_forward(tensors[0], gate_up, down, ids[world.rank], tensors[1], ep=ep)
        if out.requires_grad != any(wanted):
            return f"{wanted}: requires_grad is {out.requires_grad}"
        if any(wanted):
            out.backward(grad[world.rank])
        results.append([each.grad for each in tensors])
    both = results[0]
    if not (torch.equal(results[1][0], both[0]) and torch.equal(results[2][1], both[1])):
        return "gradients differ"
    return (results[1][1], results[2][0]) == (None, None) or "a gradient that nobody asked for"


def torchtitan_dispatcher(world):
    """Rows in the order of experts, through their own products and back: values and gradients of the layer's."""
    x, ids, weights, grad = (each[world.rank] for each in tokens_of(world))
    matrices = torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(5)).to(world.device)
    found = []
    for spread in (False, True):
        own, scores = leaves(x, weights)
        if spread:
            dispatcher = TokenDispatcher(EXPERTS)
            dispatcher.wire_meshes(ep_mesh=world.mesh())
            routed, counts, metadata = dispatcher.dispatch(own, scores, ids, None)
            if sum(counts.tolist()) != routed.shape[0]:
                return f"{routed.shape[0]} rows for {counts.tolist()}"
            parts = [
                rows @ matrix for rows, matrix in zip(routed.split(counts.tolist()), mine(world, matrices), strict=True)
            ]
            out = dispatcher.combine(torch.cat(parts), metadata, own)
        else:
            out = torch.einsum("td,tkdh,tk->th", own, matrices[ids], scores)
        out.backward(grad)
        found.append((out, own.grad, scores.grad))
    return close(torch.float32, **dict(zip(("out", "x", "scores"), zip(*found[::-1]))))


def benchmark(world):
    """The measurement runs at a tiny size; by hand is checked against one process, too."""
    if world.device.type != "cpu":  # it multiplies float32 by torch's grouped_mm
        return True
    rows = expert_parallel.measure(expert_parallel.TINY, 24, "zipf", world.device, torch.float32)
    by_way = {row["way"]: row for row in rows}
    ours, hand = by_way["all_to_all"], by_way["by hand, our products"]
    if not ours["deduplicated_bytes"] < ours["bytes_one_way"] or not ours["deduplicated_bytes"] < hand["bytes_one_way"]:
        return f"bytes: {ours}, by hand {hand['bytes_one_way']}"
    return ours["error"] < 1e-4 or f"error {ours['error']}"


# ---- refused, in words


def with_tangent(call, tensor):
    """Call with a dual tensor."""
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        call(forward.make_dual(tensor, tensor))


def refused(world):
    x, ids, weights, _ = (each[world.rank] for each in tokens_of(world, sizes=(4,)))
    gate_up, down, *_ = weights_of(world.device)
    ep = ExpertParallel(world.group, EXPERTS)
    own = mine(world, gate_up), mine(world, down)
    other, wider = ep.plan(ids[:2]), ExpertParallel(world.group, 2 * EXPERTS).plan(ids)
    symmetric = ep.plan(ids)._replace(sends=Homes(ids, ids))
    layer = functools.partial(moe_feed_forward, x, *own, None, weights, ep=ep)
    flat = world.mesh(1, world.size, names=("dp", "ep"))
    calls = {
        "num_experts must be a multiple": lambda: ExpertParallel(world.group, EXPERTS + 1),
        "num_experts must be an int": lambda: ExpertParallel(world.group, 8.0),
        "mesh_or_group must be a 1-D mesh": lambda: ExpertParallel(flat, EXPERTS),
        "mesh_or_group must be a DeviceMesh": lambda: ExpertParallel("ep", EXPERTS),
        "mesh_or_group must be a DeviceMesh or a ProcessGroup, got Tensor": lambda: ExpertParallel(ids, EXPERTS),
        "chunks must be an int": lambda: ExpertParallel(world.group, EXPERTS, chunks=0),
        "max_tokens must be None": lambda: ExpertParallel(world.group, EXPERTS, max_tokens=4),
        "max_tokens must be an int": lambda: ExpertParallel(world.group, EXPERTS, transport="symmetric"),
        "transport must be one of": lambda: ExpertParallel(world.group, EXPERTS, transport="pigeons"),
        "gate_up must have this rank's": lambda: moe_feed_forward(x, gate_up, down, ids, weights, ep=ep),
        "top_k_weights must have the shape": lambda: moe_feed_forward(x, *own, ids, weights[:, :2], ep=ep),
        "top_k_index must be torch.int32": lambda: moe_feed_forward(x, *own, weights, weights, ep=ep),
        "x must be 2-D": lambda: ep.dispatch(x[0], ids, weights),
        "x and top_k_weights must be of the tokens of plan": lambda: ep.dispatch(x, None, weights, plan=other),
        "x and top_k_weights must be of the tokens of routing": lambda: layer(routing=other),
        "routing must be a Plan, from ExpertParallel.plan": lambda: layer(routing=Routing.of(ids, EXPERTS)),
        f"routing must be of the same ExpertParallel, {EXPERTS // world.size} experts": lambda: layer(routing=wider),
        "plan must be of the same ExpertParallel": lambda: ep.dispatch(x, None, weights, plan=symmetric),
        "handle must be of the same ExpertParallel": lambda: ep.combine(x, wider),
        "handle must be that of dispatch": lambda: ep.combine(x, ids),
        "plan must be a Plan": lambda: ep.dispatch(x, None, weights, plan=Routing.of(ids, EXPERTS)),
        "y must have a row": lambda: ep.combine(x[:0], other) if other.local_index.shape[0] else ep.combine(x, other),
        "ep must be of num_experts": lambda: Experts(EXPERTS + world.size, HIDDEN, INNER, ep=ep),
        "ep must be an ExpertParallel": lambda: moe_feed_forward(x, *own, ids, weights, ep=flat["ep"]),
        "experts must be a torch.nn.Module": lambda: ep.shard(None),
        "experts must be the module whose own": lambda: ep.shard(torch.nn.Sequential(Experts(EXPERTS, HIDDEN, INNER))),
        f"gate_up_proj must have {EXPERTS} experts": lambda: ep.shard(Experts(2 * EXPERTS, HIDDEN, INNER)),
        "mesh_or_group must be a DeviceMesh or a ProcessGroup, got int: this rank is not": lambda: ExpertParallel(
            dist.GroupMember.NON_GROUP_MEMBER, EXPERTS
        ),
    }
    transformed = (
        lambda: torch.func.grad(lambda x: moe_feed_forward(x, *own, ids, weights, ep=ep).sum())(x),
        lambda: torch.func.vjp(lambda x: ep.dispatch(x, ids, weights).rows, x),
        lambda: torch.func.grad(lambda y: ep.combine(y, other).sum())(x),
        lambda: torch.func.vmap(ep.plan)(ids[None]),
    )
    dual = (
        lambda: with_tangent(lambda x: ep.dispatch(x, ids, weights), x),
        lambda: with_tangent(lambda y: ep.combine(y, other), x),
    )
    pairs = [*calls.items()]
    pairs += [("expert parallelism has no rules for torch.func: use backward()", call) for call in transformed]
    pairs += [("expert parallelism has no forward-mode derivative", call) for call in dual]
    for text, call in pairs:
        try:
            call()
        except (TypeError, ValueError, RuntimeError) as error:
            if not str(error).startswith(text):
                return f"{text}: {error}"
        else:
            return f"{text}: not refused"
    try:
        ep.plan(ids[:, : 2 + world.rank % 2])
    except ValueError as error:
        return "as many columns k on all ranks" in str(error) or str(error)
    return "other numbers of choices are not refused"


def dead_rank(world):
    """A rank that does not make the call: the others end in the time-out of their group, with the context."""
    seconds = 1 if world.device.type == "cpu" else 6
    group = dist.new_group(timeout=timedelta(seconds=60), backend=dist.get_backend())
    ep = ExpertParallel(group, EXPERTS)
    _, ids, *_ = tokens_of(world)
    ep.plan(ids[world.rank])  # the ranks connect, which takes seconds where other tests keep the host busy
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)
    if world.rank == 1:
        time.sleep(1.5 * seconds)
        return True
    try:
        ep.plan(ids[world.rank])
    except RuntimeError as error:
        text = str(error)
        said = "could not exchange the counts of tokens", "a rank without tokens", "raised an error before its call"
        return all(each in text for each in said) or text
    return "it did not end"


def other_gradients(world):
    """A rank whose x needs no gradient: the others' backward waits for its rows, and the time-out says so."""
    if world.device.type != "cpu":  # NCCL's watchdog ends the process
        return True
    dist.barrier()  # after the time-out of the case before
    group = dist.new_group(timeout=timedelta(seconds=1))
    x, ids, weights, grad = (each[world.rank].clone() for each in tokens_of(world, sizes=(4,)))
    gate_up, down = leaves(*(mine(world, each) for each in weights_of(world.device)[:2]))
    x.requires_grad_(world.rank != 1)
    out = moe_feed_forward(x, gate_up, down, ids, weights, ep=ExpertParallel(group, EXPERTS))
    try:
        out.backward(grad)
    except RuntimeError as error:
        text = str(error)
        return (world.rank != 1 and "for gradients of the same ones of x and weights" in text) or text
    time.sleep(1.3 if world.rank == 1 else 0)
    return world.rank == 1 or "it did not end"


# ---- the symmetric transport


class SharedMemory(Symmetric):
    """The transport on CPUs: memory is a file that all processes map, and the group has a barrier. The kernels run in
    Triton's interpreter."""

    folder, sent, arrived = None, (), torch.zeros(9, dtype=torch.int32)

    def _allocate(self, size, device):
        if self.folder is None:
            found = [tempfile.mkdtemp() if self.group.rank() == 0 else None]
            dist.broadcast_object_list(found, group=self.group, group_src=0)
            self.folder = Path(found[0])
        files = [str(self.folder / f"{rank} {size}") for rank in range(self.group.size())]
        self.memories = [torch.from_file(file, shared=True, size=size, dtype=torch.uint8) for file in files]
        self.memories[self.group.rank()].fill_(255)  # NaN
        self.addresses = torch.tensor([each.data_ptr() for each in self.memories])
        dist.barrier(self.group)

    def _barrier(self):
        dist.barrier(self.group)

    def _signal(self, rank):
        token = torch.zeros(1)
        self.sent = [(dist.isend(token, group=self.group, group_dst=rank), token), *self.sent[:9]]

    def _await(self, step):
        dist.recv(torch.zeros(1), group=self.group, group_src=(self.group.rank() - step) % self.group.size())


KERNELS = dict(backend="triton", num_sms=None if torch.cuda.is_available() else 1)  # interpreted, one program is enough


@contextlib.contextmanager
def copying(always):
    """Let copy engines bring all rows, or none."""
    before = symmetric_transport.COPIED_SHARE, symmetric_transport.COPIED_BYTES
    symmetric_transport.COPIED_SHARE, symmetric_transport.COPIED_BYTES = (0.0, 0) if always else (2.0, 0)
    try:
        yield
    finally:
        symmetric_transport.COPIED_SHARE, symmetric_transport.COPIED_BYTES = before


def both_ways(case):
    """A case of the symmetric transport, with kernels that write rows, and with copies of them."""

    @functools.wraps(case)
    def run(world):
        for always in (False, True):
            with copying(always):
                if (found := case(world)) is not True:
                    return f"{'copies' if always else 'kernels'}: {found}"
        return True

    return run


@both_ways
def symmetric_in_shared_memory(world):
    """Values and gradients of a layer, with sentinels, a rank without tokens and more memory than tokens."""
    if world.device.type != "cpu":
        return True
    for options in ({}, KERNELS, KERNELS | dict(weights_on="input")):
        way = SharedMemory(world.group, EXPERTS // world.size, 10)
        found = same_as_one(world, ids=lambda each: torch.where(each == 3, EXPERTS, each), transport=way, **options)
        if found is not True:
            return f"{options}: {found}"
    return True


@both_ways
def symmetric_forward(world):
    """Without gradients, the last step sums into other ranks' memory, and rows are read where they lie: the bits of
    the two halves around a layer, which copy; also where one rank has the halves, and call after call in one buffer."""
    on_cpu = world.device.type == "cpu"
    dtype = torch.float32 if on_cpu else torch.bfloat16
    x, ids, weights, _ = (each[world.rank] for each in tokens_of(world, dtype=dtype))
    ids = torch.where(ids == 3, EXPERTS, ids)
    gate_up, down, *_ = (mine(world, each) for each in weights_of(world.device, dtype))
    ep, pushed, push = ExpertParallel(world.group, EXPERTS, **({} if on_cpu else SYMMETRIC)), [], peers.push
    ep.transport = SharedMemory(world.group, EXPERTS // world.size, 12) if on_cpu else ep.transport

    def noting(*given, **options):
        pushed.append(options.get("of_experts", False))
        push(*given, **options)

    peers.push = noting
    try:
        for options in ({}, dict(weights_on="input"), dict(fp8_recipe="rowwise")):
            options |= KERNELS
            wanted = None
            for by_halves in (range(world.size), (), (0,), ()):
                pushed.clear()
                if world.rank in by_halves:
                    rows, choices, handle = ep.dispatch(x, ids, weights)
                    given = dict(routing=choices.routing, **options)
                    out = ep.combine(moe_feed_forward(rows, gate_up, down, None, choices.weights, **given), handle)
                else:
                    out = moe_feed_forward(x, gate_up, down, ids, weights, ep=ep, **options)
                wanted = out if wanted is None else wanted
                if not torch.equal(out, wanted):
                    return f"{options}, ranks {by_halves} have the halves: other bits"
                if pushed != [world.rank not in by_halves]:
                    return f"{options}, ranks {by_halves} have the halves: pushed rows of experts: {pushed}"
    finally:
        peers.push = push
    return len(ep.plans) == (2 if len(x) else 0) or f"{len(ep.plans)} plans are left"  # float8 has none


@both_ways
def symmetric_gradients(world):
    """With gradients, too: those of the two halves around a layer, also where the first rank takes the halves."""
    on_cpu = world.device.type == "cpu"
    dtype = torch.float32 if on_cpu else torch.bfloat16
    x, ids, weights, grad = (each[world.rank] for each in tokens_of(world, dtype=dtype))
    gate_up, down, *_ = (mine(world, each) for each in weights_of(world.device, dtype))
    ep = ExpertParallel(world.group, EXPERTS, **({} if on_cpu else SYMMETRIC))
    ep.transport = SharedMemory(world.group, EXPERTS // world.size, 12) if on_cpu else ep.transport
    for weights_on in ("output", "input"):
        options, found = dict(weights_on=weights_on, **KERNELS), []
        for halves in (True, False, world.rank == 0):
            leaves = [each.detach().clone().requires_grad_() for each in (x, gate_up, down, weights)]
            if halves:
                rows, choices, handle = ep.dispatch(leaves[0], ids, leaves[3])
                routed = dict(routing=choices.routing, **options)
                y = moe_feed_forward(rows, *leaves[1:3], None, choices.weights, **routed)
                out = ep.combine(y, handle)
            else:
                out = moe_feed_forward(*leaves[:3], ids, leaves[3], ep=ep, **options)
            out.backward(grad)
            found.append([out.detach(), *(each.grad for each in leaves)])
        for each in found[1:]:
            if not all(map(torch.equal, each, found[0])):
                return f"{weights_on}: other bits"
    return len(ep.plans) == (2 if len(x) else 0) or f"{len(ep.plans)} plans are left"


def other_rows(world):
    """A rank whose x has another dtype or width: all ranks raise, and say what they have."""
    x, ids, weights, _ = (each[world.rank] for each in tokens_of(world, sizes=(4,)))
    shared, last = SharedMemory(world.group, EXPERTS // world.size, 10), world.size - 1
    for transport in (None, shared) if world.device.type == "cpu" else (None,):
        for change in (lambda x: x.bfloat16(), lambda x: x[:, :8]):
            ep = ExpertParallel(world.group, EXPERTS)
            ep.transport = transport or ep.transport
            of_last = world.rank == last
            own, theirs, rank = (change(x), x, 0) if of_last else (x, change(x), last)
            try:
                ep.dispatch(own, ids, weights)
                return "other rows are not refused"
            except ValueError as error:
                here, there = (f"{each.dtype} of width {each.shape[1]} on rank" for each in (own, theirs))
                words = f"x must have the same dtype and width on all ranks, got {here} {world.rank} and {there} {rank}"
                if str(error) != words:
                    return str(error)
    return True


def other_numbers(world):
    """A rank with another number of experts, or of tokens at most: all ranks raise, and say what they have."""
    x, ids, weights, _ = (each[world.rank] for each in tokens_of(world, sizes=(4,)))
    local, last = EXPERTS // world.size, world.rank == world.size - 1
    experts = EXPERTS * (1 + last)
    cases = [(None, "num_experts", EXPERTS, 2 * EXPERTS)]
    if world.device.type == "cpu":
        cases.append((SharedMemory(world.group, local * (1 + last), 10), "num_experts", EXPERTS, 2 * EXPERTS))
        cases.append((SharedMemory(world.group, local, 10 + last), "max_tokens", 10, 11))
    for transport, name, usual, of_last in cases:
        ep = ExpertParallel(world.group, experts if name == "num_experts" else EXPERTS)
        ep.transport = transport or ep.transport
        try:
            ep.dispatch(x, ids, weights)
            return f"another {name} is not refused"
        except ValueError as error:
            mine, other = (of_last, f"{usual} on rank 0") if last else (usual, f"{of_last} on rank {world.size - 1}")
            words = f"{name} must be the same on all ranks, got {mine} on rank {world.rank} and {other}"
            if str(error) != words:
                return str(error)
    return True


SYMMETRIC = dict(transport="symmetric", max_tokens=12)


@both_ways
def symmetric(world):
    """Every layer of the cases above."""
    local = EXPERTS // world.size
    for name, case in {
        "unequal": {},
        "bfloat16": dict(dtype=torch.bfloat16),
        "one rank has all": dict(sizes=(0, 7)),
        "all go to one rank": dict(ids=lambda each: each % local),
        "no tokens": dict(sizes=(0,)),
        "one expert thrice": dict(ids=lambda each: each[:, :1].expand(-1, TOP_K)),
        "no experts": dict(ids=lambda each: torch.where(each % 2 == 0, each, EXPERTS)),
        "full": dict(sizes=(12,)),
        "chunks": dict(parallel=dict(chunks=2)),
    }.items():
        case = case | dict(parallel=SYMMETRIC | case.get("parallel", {}))
        if (found := same_as_one(world, **case)) is not True:
            return f"{name}: {found}"
    return True


@both_ways
def symmetric_graph(world):
    """Nothing is read on the host, and one graph serves every routing and every number of tokens' worth of ids."""
    gate_up, down, *_ = (mine(world, each) for each in weights_of(world.device, torch.bfloat16))
    static = [each[world.rank].clone() for each in tokens_of(world, (12,), torch.bfloat16)[:3]]
    ep, other = ExpertParallel(world.group, EXPERTS, **SYMMETRIC), ExpertParallel(world.group, EXPERTS)

    def layer(ep, x, ids, weights):
        return moe_feed_forward(x, gate_up, down, ids, weights, ep=ep, backend="triton")

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            layer(ep, *static)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.no_grad():
            layer(ep, *static)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
        out = layer(ep, *static)
    for seed in range(3):
        new = [each[world.rank] for each in tokens_of(world, (12,), torch.bfloat16, seed=seed)[:3]]
        new[1][seed + 1 :: 3] = EXPERTS
        for old, each in zip(static, new):
            old.copy_(each)
        graph.replay()
        if (found := close(torch.bfloat16, out=(out, layer(other, *new)))) is not True:
            return f"seed {seed}: {found}"
    return True


def symmetric_checks(world):
    ep = ExpertParallel(world.group, EXPERTS, **SYMMETRIC)
    try:
        ep.plan(torch.zeros(13, TOP_K, dtype=torch.int64, device=world.device))
    except ValueError as error:
        return "at most max_tokens = 12 rows, got 13" in str(error) or str(error)
    return "more tokens than max_tokens are not refused"


BOTH = {
    function.__name__: function
    for function in (
        unequal, bfloat16, weights_on_input, one_rank_has_all_tokens, all_go_to_one_rank, no_rank_has_tokens,
        one_expert_thrice, ids_that_are_no_expert, narrow_ids, in_chunks, with_adapters, in_float8, each_token_once,
        one_sum_a_rank, deterministic, pending, unrouted, torchtitan_dispatcher, symmetric_in_shared_memory,
        symmetric_forward, symmetric_gradients, other_rows, other_numbers, benchmark, refused,
    )
}  # fmt: skip
LAST = {"dead_rank": dead_rank, "other_gradients": other_gradients}
ON_GPUS = {each.__name__: each for each in (symmetric_checks, symmetric, symmetric_graph)}


def prepare():
    """Import what the kernels, DTensors and forward-mode derivatives import when they are first used."""
    import torch._decomp.decompositions_for_jvp
    import torch._dynamo

    x, ids, weights = torch.ones(1, HIDDEN), torch.zeros(1, TOP_K, dtype=torch.int64), torch.ones(1, TOP_K)
    moe_feed_forward(x, *weights_of("cpu")[:2], ids, weights, **KERNELS)


if __name__ == "__main__":
    ranks.main(BOTH | (ON_GPUS if sys.argv[1] == "cuda" else {}) | LAST, prepare)
