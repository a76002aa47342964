"""Training with expert parallelism, for two and four processes; see ``ranks``."""

from __future__ import annotations

import copy
import functools
import tempfile

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.utils.checkpoint import checkpoint

import page_snippets
import ranks
import train_experts
from course_kernels import moe_feed_forward
from course_kernels.distributed import ExpertParallel
from course_kernels.moe import Experts
from expert_parallel_cases import EXPERTS, HIDDEN, INNER, TOP_K, close, leaves, mine, tokens_of, weights_of

GIVEN = train_experts.parse(["--steps", "20"])  # the loss is a third then


@functools.cache
def alone(world, most=1.0):
    """Losses and norms of one process that has all tokens, step by step. The first rank tells the others."""
    found = [None]
    if world.rank == 0:
        torch.manual_seed(0)
        whole = train_experts.Model(**train_experts.SIZES).to(world.device)
        data = train_experts.batches(GIVEN.steps, GIVEN.tokens, GIVEN.hidden, 0, 1)
        found = [list(train_experts.train(whole, data, world.device, most=most))]
    dist.broadcast_object_list(found, src=0, device=world.device)
    return found[0]


def same_training(got, wanted):
    """True, or the first step whose loss or norm differs."""
    for step, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        for value, other in zip(ours, theirs, strict=True):
            if value != other and not abs(value - other) < 1e-3 * other:
                return f"step {step}: {ours}, wanted {theirs}"
    return True


def part(world, steps=GIVEN.steps):
    """This rank's tokens."""
    return train_experts.batches(steps, GIVEN.tokens, GIVEN.hidden, world.rank, world.size)


def fsdp_and_experts(world):
    """The example: FSDP2 over one dimension of a mesh, experts over the other, FSDP of the dense part over both. Then a
    few steps with experts over all ranks, where FSDP2 has one rank to shard them over."""
    for wrong in (0, 3):
        try:
            train_experts.build(train_experts.parse(["--expert-ranks", str(wrong)]), world.device)
            return f"{wrong} expert ranks of {world.size} are not refused"
        except ValueError as error:
            if not str(error).startswith("expert_ranks must divide the number of ranks"):
                return str(error)
    wanted = alone(world)
    for expert_ranks, steps in ((2, GIVEN.steps), (world.size, 4)):
        model = train_experts.build(train_experts.parse(["--expert-ranks", str(expert_ranks)]), world.device)
        local, whole = train_experts.stored(model)
        if local * world.size != whole:
            return f"a rank stores {local} weights of {whole}"
        got = train_experts.train(model, part(world, steps), world.device, world.size)
        if (found := same_training(got, wanted[:steps])) is not True:
            return f"experts over {expert_ranks}: {found}"
    return wanted[-1][0] < 0.5 * wanted[0][0] or f"one process does not learn: {wanted[0]} to {wanted[-1]}"


def ddp_and_experts(world):
    """DDP of the dense part; the experts' gradients are divided as DDP divides its own."""
    torch.manual_seed(0)
    ep, model = ExpertParallel(world.group, GIVEN.experts), train_experts.Model(**train_experts.SIZES).to(world.device)
    ignored = []

    def average(parameter):
        parameter.grad /= world.size

    for i, layer in enumerate(model.layers):
        experts = Experts(GIVEN.experts, GIVEN.hidden, GIVEN.inner, ep=ep, device=world.device)
        for name, value in experts.named_parameters():
            value.data.to_local().copy_(mine(world, getattr(layer.experts, name).data))
            value.register_post_accumulate_grad_hook(average)
            ignored.append(f"layers.{i}.experts.{name}")
        layer.experts = experts
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    wrapped = nn.parallel.DistributedDataParallel(model)
    losses = torch.tensor([loss for loss, _ in train_experts.train(wrapped, part(world), world.device, most=None)])
    dist.all_reduce(losses := losses.to(world.device))
    mean = [(loss, None) for loss in (losses / world.size).tolist()]
    return same_training(mean, alone(world, most=None))


def checkpointed(world):
    """A router with noise: its plan is made once, and the recomputation takes it and routes nothing."""
    x, _, _, grad = tokens_of(world)
    parameters = [mine(world, each) for each in weights_of(world.device)[:2]]
    ep = ExpertParallel(world.group, EXPERTS)
    routed, plan = [], ep.transport.plan
    ep.transport = type("Counted", (), {name: getattr(ep.transport, name) for name in METHODS})()
    ep.transport.plan = lambda ids: routed.append(ids) or plan(ids)
    results = []
    for again in (False, True):
        own, scores, *weights = leaves(
            x[world.rank], torch.ones(x[world.rank].shape[0], EXPERTS, device=world.device), *parameters
        )
        generator = torch.Generator().manual_seed(world.rank)
        noisy = scores + torch.rand(scores.shape, generator=generator).to(world.device)
        chosen, ids = noisy.topk(TOP_K)
        handle = ep.plan(ids)

        def layer(own, chosen, *weights, handle=handle):
            return moe_feed_forward(own, *weights, None, chosen, ep=ep, routing=handle)

        arguments = own, chosen, *weights
        out = checkpoint(layer, *arguments, use_reentrant=False) if again else layer(*arguments)
        out.backward(grad[world.rank])
        results.append([out, own.grad, scores.grad, *(each.grad for each in weights)])
    if len(routed) != 2:
        return f"{len(routed)} plans were made for two passes"
    return all(map(torch.equal, *results)) or "gradients differ"


METHODS = ("scatter", "collect")


def another_group(world):
    """Experts over the inner dimension of a mesh: each group of ranks equals one process that has its tokens."""
    inner = world.mesh(world.size // 2, 2, names=("dp", "ep"))["ep"]
    x, ids, weights, grad = tokens_of(world)
    first = world.rank // 2 * 2
    own = slice(first, first + 2)
    parameters = weights_of(world.device)[:2]
    whole = leaves(torch.cat(x[own]), *parameters)
    wanted = moe_feed_forward(*whole, torch.cat(ids[own]), torch.cat(weights[own]))
    wanted.backward(torch.cat(grad[own]))
    half = EXPERTS // 2
    at = slice(world.rank % 2 * half, world.rank % 2 * half + half)
    tensors = leaves(x[world.rank], *(each[at] for each in parameters))
    ep = ExpertParallel(inner.get_group(), EXPERTS)
    out = moe_feed_forward(*tensors, ids[world.rank], weights[world.rank], ep=ep)
    out.backward(grad[world.rank])
    sizes = [each.shape[0] for each in x[own]]
    return close(
        torch.float32,
        result=(out, wanted.split(sizes)[world.rank % 2]),
        x=(tensors[0].grad, whole[0].grad.split(sizes)[world.rank % 2]),
        gate_up=(tensors[1].grad, whole[1].grad[at]),
        down=(tensors[2].grad, whole[2].grad[at]),
    )


def sharded_weights(world):
    """DTensors stay sharded, and their gradients are: neither doubled nor partial sums."""
    x, ids, weights, grad = tokens_of(world)
    torch.manual_seed(0)
    whole = Experts(EXPERTS, HIDDEN, INNER, bias=True).to(world.device)
    wanted = whole(torch.cat(x), torch.cat(ids), torch.cat(weights))
    wanted.backward(torch.cat(grad))
    torch.manual_seed(world.rank)  # values come from the first rank
    spread = Experts(EXPERTS, HIDDEN, INNER, bias=True).to(world.device)
    if world.rank == 0:
        spread.load_state_dict(whole.state_dict())
    ep = ExpertParallel(world.group, EXPERTS)
    ep.shard(spread)
    out = spread(x[world.rank], ids[world.rank], weights[world.rank])
    out.backward(grad[world.rank])
    pairs = {"result": (out, wanted.split([each.shape[0] for each in x])[world.rank])}
    for name, value in spread.named_parameters():
        if value.grad.placements != (Shard(0),) or value.grad.to_local().shape[0] != ep.num_local_experts:
            return f"the gradient of {name} is {value.grad.placements}"
        pairs[name] = value.grad.full_tensor(), whole.get_parameter(name).grad
    try:
        moe_feed_forward(x[world.rank], spread.down_proj, spread.down_proj, ids[world.rank], weights[world.rank])
    except TypeError as error:
        if not str(error).startswith("gate_up is a DTensor: ep must be"):
            return str(error)
    replicated = DTensor.from_local(spread.down_proj.to_local(), ep.mesh, run_check=False)
    try:
        ep.local(down=replicated)
        return "a replicated weight is not refused"
    except ValueError as error:
        return close(torch.float32, **pairs) if str(error).startswith("down must be a DTensor") else str(error)


def main_grads_and_autocast(world):
    """Gradients of local weights into float32 accumulators; and autocast, which sends bfloat16."""
    x, ids, weights, grad = tokens_of(world)
    gate_up, down = leaves(*(mine(world, each) for each in weights_of(world.device)[:2]))
    ep, rank = ExpertParallel(world.group, EXPERTS), world.rank
    sums = [torch.ones_like(each) for each in (gate_up, down)]
    wanted = moe_feed_forward(x[rank], gate_up, down, ids[rank], weights[rank], ep=ep)
    wanted.backward(grad[rank])
    expected = [1 + each.grad for each in (gate_up, down)]
    gate_up.grad = down.grad = None
    out = moe_feed_forward(x[rank], gate_up, down, ids[rank], weights[rank], ep=ep, main_grads=sums)
    out.backward(grad[rank])
    if gate_up.grad is not None:
        return "the weight has a gradient besides"
    with torch.autocast(world.device.type, torch.bfloat16):
        narrow = moe_feed_forward(x[rank], gate_up, down, ids[rank], weights[rank], ep=ep)
    if narrow.dtype != torch.bfloat16:
        return f"autocast gives {narrow.dtype}"
    found = close(torch.float32, gate_up=(sums[0], expected[0]), down=(sums[1], expected[1]), result=(out, wanted))
    return found if found is not True else close(torch.bfloat16, autocast=(narrow, wanted))


def compiled(world):
    """A graph ends at the layer and another begins after it."""
    x, ids, weights, _ = (each[world.rank] for each in tokens_of(world))
    gate_up, down = (mine(world, each) for each in weights_of(world.device)[:2])
    ep = ExpertParallel(world.group, EXPERTS)

    def model(x):
        return moe_feed_forward(x * 2, gate_up, down, ids, weights, ep=ep) + 1

    got = torch.compile(model, backend="aot_eager")(x)
    return close(torch.float32, result=(got, model(x)))


def compiled_shards(world):
    """A module after ``shard``: results and gradients; and under ``fullgraph`` the reason why it cannot be one graph,
    not a mesh that cannot be read. Nothing is sent for that: one half of the ranks asks for each of the two."""
    x, ids, weights, grad = (each[world.rank] for each in tokens_of(world))
    torch.manual_seed(0)
    found = []
    experts = Experts(EXPERTS, HIDDEN, INNER, bias=True).to(world.device)
    for i, target in enumerate((world.mesh(), world.group)):
        spread = ExpertParallel(target, EXPERTS).shard(copy.deepcopy(experts))
        for function in (spread, torch.compile(spread, backend="aot_eager")):
            spread.zero_grad()
            out = function(x, ids, weights)
            out.backward(grad)
            found.append([out.detach(), *(each.grad.to_local() for each in spread.parameters())])
        torch._dynamo.reset()
        if world.rank % 2 != i:
            continue
        try:
            torch.compile(spread, backend="aot_eager", fullgraph=True)(x, ids, weights)
            return "one graph"
        except torch._dynamo.exc.Unsupported as error:
            if "expert parallelism, whose splits the host reads, runs between two graphs" not in str(error):
                return str(error)
    pairs = [{str(i): pair for i, pair in enumerate(zip(each, found[0], strict=True))} for each in found[1:]]
    return next((each for each in (close(torch.float32, **each) for each in pairs) if each is not True), True)


def page_trains(world):
    """The library page: sharded, trained with clipped gradients, saved and loaded; the losses are one process's."""
    torch.manual_seed(0)
    model = train_experts.Model(**train_experts.SIZES).to(world.device)
    mesh = world.mesh(world.size // 2, 2, names=("dp", "ep"))
    page_snippets.run(".shard(layer.experts)", model=model, mesh=mesh, everyone=world.mesh())
    optimizer, losses, steps = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False), [], 6
    for x, target in part(world, steps):
        loss = (model(x.to(world.device)) - target.to(world.device)).square().mean()
        given = dict(nn=nn, dist=dist, model=model, loss=loss, optimizer=optimizer)
        square = page_snippets.run("(loss / dist", **given)["square"]
        optimizer.zero_grad()
        dist.all_reduce(loss := loss.detach())
        losses.append(((loss / world.size).item(), square.sqrt().item()))
    if (found := same_training(losses, alone(world)[:steps])) is not True:
        return found
    before = {name: value.full_tensor() for name, value in model.state_dict().items()}
    folder = [tempfile.mkdtemp() if world.rank == 0 else None]
    dist.broadcast_object_list(folder, src=0, device=world.device)
    names = page_snippets.run("set_model_state_dict(", model=model, folder=folder[0])
    whole = names["get_model_state_dict"](model, options=names["whole"])
    for name, value in before.items():
        if not torch.equal(whole[name], value):
            return f"{name}: another value"
    return True


def page_trains_by_hand(world):
    """The library page: without FSDP2, experts over all ranks and over two; the losses are one process's."""
    for expert_ranks in sorted({2, world.size}):
        mesh = world.mesh(world.size // expert_ranks, expert_ranks, names=("dp", "ep"))
        torch.manual_seed(0)
        model = train_experts.Model(**train_experts.SIZES).to(world.device)
        for layer in model.layers:
            ExpertParallel(mesh["ep"], GIVEN.experts).shard(layer.experts)
        optimizer, losses, steps = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False), [], 6
        for x, target in part(world, steps):
            loss = (model(x.to(world.device)) - target.to(world.device)).square().mean() / world.size
            loss.backward()
            given = dict(nn=nn, dist=dist, DTensor=DTensor, model=model, mesh=mesh, optimizer=optimizer)
            norm = page_snippets.run("of_experts", **given)["norm"]
            optimizer.zero_grad()
            dist.all_reduce(loss := loss.detach())
            losses.append((loss.item(), norm.item()))
        if (found := same_training(losses, alone(world)[:steps])) is not True:
            return f"{mesh.shape}: {found}"
    return True


def shards_stay(world):
    """``shard`` of a module that is spread over the same ranks changes no parameter; over other ranks it raises."""
    experts = ExpertParallel(world.group, EXPERTS).shard(Experts(EXPERTS, HIDDEN, INNER).to(world.device))
    before = [*experts.parameters()]
    again = ExpertParallel(world.mesh(1, world.size, names=("dp", "ep"))["ep"], EXPERTS)
    if any(each is not other for each, other in zip(again.shard(experts).parameters(), before, strict=True)):
        return "parameters are new ones"
    one = ExpertParallel(world.mesh(world.size, 1, names=("dp", "ep"))["ep"], EXPERTS)
    try:
        one.shard(experts)
        return "shards of other ranks are not refused"
    except ValueError as error:
        return str(error).startswith("gate_up_proj must be a DTensor with placements") or str(error)


def page_dispatches(world):
    """The library page: torchtitan's dispatcher."""
    x, ids, weights, _ = (each[world.rank] for each in tokens_of(world))
    names = page_snippets.run(
        "TokenDispatcher(", mesh={"ep": world.mesh()}, x=x, scores=weights, ids=ids, experts=lambda rows, counts: rows
    )
    return close(torch.float32, out=(names["out"], x * weights.sum(1, keepdim=True)))


def page_passes_local_weights(world):
    """The library page: each rank's own weights, and ids of all experts, give what one process computes."""
    (x, ids, weights, _), parameters = tokens_of(world), weights_of(world.device)[:2]
    gate_up, down = (mine(world, each) for each in parameters)
    given = dict(x=x[world.rank], top_k_index=ids[world.rank], top_k_weights=weights[world.rank], gate_up=gate_up)
    names = page_snippets.run(
        "ExpertParallel(dist.group.WORLD",
        dist=dist,
        ExpertParallel=ExpertParallel,
        moe_feed_forward=moe_feed_forward,
        down=down,
        **given,
    )
    wanted = moe_feed_forward(x[world.rank], *parameters, ids[world.rank], weights[world.rank])
    return close(torch.float32, out=(names["out"], wanted))


class Own(nn.Module):
    """A layer of one's own, of this rank's experts."""

    def __init__(self, down_proj):
        super().__init__()
        self.down_proj = nn.Parameter(down_proj)


def ddp_of_everything(world):
    """As the library page says: it refuses shards, and copies the first rank's local weights to all."""
    torch.manual_seed(world.rank)
    ep = ExpertParallel(world.group, EXPERTS)
    local = torch.randn(EXPERTS // world.size, HIDDEN, INNER, device=world.device)
    wrapped = nn.parallel.DistributedDataParallel(Own(local.clone()))
    if torch.equal(local, wrapped.module.down_proj) != (world.rank == 0):
        return "experts are those of their rank"
    for module in (Own(ep.of_all(local)), Experts(EXPERTS, HIDDEN, INNER, ep=ep)):
        try:
            nn.parallel.DistributedDataParallel(module)
        except RuntimeError:
            continue
        return f"shards of {type(module).__name__} are not refused"
    return True


def saved_and_loaded(world):
    """torch.distributed.checkpoint: experts that two ranks made are loaded by all, who made or spread theirs, and by
    one."""
    folder = [tempfile.mkdtemp() if world.rank == 0 else None]
    dist.broadcast_object_list(folder, src=0, device=world.device)
    pairs = [dist.new_group([2 * i, 2 * i + 1]) for i in range(world.size // 2)]
    torch.manual_seed(0)
    wanted = dict(Experts(EXPERTS, HIDDEN, INNER, bias=True, device=world.device).named_parameters())
    torch.manual_seed(0)
    experts = Experts(EXPERTS, HIDDEN, INNER, bias=True, ep=ExpertParallel(pairs[world.rank // 2], EXPERTS))
    if experts.down_proj.to_local().shape[0] != EXPERTS // 2:
        return "a rank has another's experts"
    if world.rank < 2:
        dcp.save(experts.state_dict(), checkpoint_id=folder[0], process_group=pairs[0])
    dist.barrier()
    ep = ExpertParallel(world.group, EXPERTS)
    spread = ep.shard(Experts(EXPERTS, HIDDEN, INNER, bias=True).to(world.device))
    made, later = (Experts(EXPERTS, HIDDEN, INNER, bias=True, ep=ep, device=each) for each in (None, "meta"))
    later.to_empty(device=world.device)
    torch.manual_seed(0)
    later.reset_parameters()
    for module in (spread, made):
        dcp.load(state := module.state_dict(), checkpoint_id=folder[0])
        module.load_state_dict(state)
    alone = Experts(EXPERTS, HIDDEN, INNER, bias=True).to(world.device)
    dcp.load(state := alone.state_dict(), checkpoint_id=folder[0], no_dist=True)
    alone.load_state_dict(state)
    for name, value in wanted.items():
        for how, module in dict(spread=spread, made=made, drawn_later=ep.shard(later)).items():
            if not torch.equal(module.get_parameter(name).full_tensor(), value):
                return f"{name} of {world.size} ranks differs: {how}"
        if not torch.equal(alone.get_parameter(name), value):
            return f"{name}, loaded by one, differs"
    return True


CASES = {
    function.__name__: function
    for function in (
        sharded_weights, main_grads_and_autocast, checkpointed, another_group, compiled, compiled_shards,
        saved_and_loaded, page_trains, page_trains_by_hand, shards_stay, page_dispatches, page_passes_local_weights,
        ddp_of_everything, ddp_and_experts, fsdp_and_experts,
    )
}  # fmt: skip


def prepare():
    """Compile a layer: four processes that each imported and looked up all that this needs took 6 s longer."""
    layer = torch.compile(Experts(EXPERTS, HIDDEN, INNER, bias=True), backend="aot_eager")
    layer(torch.ones(1, HIDDEN), torch.zeros(1, TOP_K, dtype=torch.int64), torch.ones(1, TOP_K))
    torch._dynamo.reset()


if __name__ == "__main__":
    ranks.main(CASES, prepare)
