"""A tiny model of transformers whose experts are on two ranks, for two processes; see ``ranks``."""

from __future__ import annotations

import functools
import tempfile

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.distributed import DistributedConfig

import page_snippets
import ranks
from course_kernels.integrations import transformers_ep

CONFIG = dict(
    vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=3,
    norm_topk_prob=True, tie_word_embeddings=False,
)  # fmt: skip


@functools.cache
def saved(rank):
    folder = [None]
    if rank == 0:
        folder = [tempfile.mkdtemp()]
        torch.manual_seed(0)
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**CONFIG)).save_pretrained(folder[0])
    dist.broadcast_object_list(folder, src=0)
    return folder[0]


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gradients(model):
    return {
        name: full(value.grad)
        for name, value in model.named_parameters()
        if "layers.1" in name and ("experts." in name or "gate.weight" in name or "q_proj" in name)
    }


def trained(model, ids):
    out = model(ids, labels=ids)
    out.loss.backward()
    return full(out.loss.detach()), full(out.logits.detach())


def same_as_one(world, shares_batch, implementation="grouped_mm", **sizes):
    transformers_ep.register()
    folder = saved(world.rank)
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(64, (world.size, 2, 6), generator=generator)
    alone = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation="eager")
    config = DistributedConfig(ep_size=world.size, ep_implementation="course_kernels", **sizes)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, distributed_config=config, experts_implementation=implementation
    )
    mine = ids[0] if shares_batch else ids[world.rank]
    loss, logits = trained(model, mine)
    wanted = alone(mine, labels=mine)
    if not torch.allclose(loss, wanted.loss, atol=1e-5):
        return f"the loss is {loss}, wanted {wanted.loss}"
    if not torch.allclose(logits, wanted.logits, atol=1e-5):
        return f"logits differ by {(logits - wanted.logits).abs().max()}"
    if shares_batch:
        wanted.loss.backward()
    else:
        sum(alone(each, labels=each).loss for each in ids).div(world.size).backward()
    expected = gradients(alone)
    for name, grad in gradients(model).items():
        other = expected[name]
        if grad.shape != other.shape or not torch.allclose(grad, other, atol=1e-5, rtol=1e-4):
            return f"the gradient of {name} differs by {(grad - other).abs().max()} of {other.abs().max()}"
    return True


def other_batches(world):
    """A batch for each rank, the dense part in FSDP2."""
    return same_as_one(world, False, fsdp_size=world.size)


def one_batch(world):
    """The expert group is the tensor-parallel group, whose ranks share a batch."""
    return same_as_one(world, True, tp_size=world.size)


def page(world):
    """The library page's snippet."""
    folder = saved(world.rank)
    names = page_snippets.run("DistributedConfig(", AutoModelForCausalLM=AutoModelForCausalLM, name=folder)
    alone = AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager")
    ids = torch.randint(64, (2, 6), generator=torch.Generator().manual_seed(4))
    logits, wanted = (each(ids).logits for each in (names["model"], alone))
    return torch.allclose(full(logits), wanted, atol=1e-5) or "logits differ"


CASES = {"other_batches": other_batches, "one_batch": one_batch, "page": page}

if __name__ == "__main__":
    ranks.main(CASES)
