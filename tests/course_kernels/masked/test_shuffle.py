"""Shuffled weights: the permutation, its inverse, and a mark that nothing loses silently."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from course_kernels import runtime, shuffle_weight, unshuffle_weight
from course_kernels.masked.shuffle import DTYPES, ShuffledWeight, plain
from course_kernels.testing import STRIDES, strided_like
from masked_operands import DEVICE

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


def numbered(shape, dtype, device=DEVICE):
    """A weight whose elements all have other bits, as far as there are bits."""
    bits = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 7 % 251 if dtype.itemsize == 1 else torch.arange(count)).to(bits).to(device).view(
        dtype
    ).reshape(shape)  # fmt: skip


def bits_of(weight):
    weight = plain(weight)
    return weight.view({1: torch.uint8, 2: torch.int16}[weight.element_size()])


def permuted(w):
    """The place of every element by the formula, one by one."""
    N, K = w.shape[-2:]
    pack = 16 // w.element_size()
    flat, source = bits_of(w).new_empty(w.numel()), bits_of(w).reshape(-1, N, K).tolist()
    for g, lines in enumerate(source):
        for n, line in enumerate(lines):
            for k, value in enumerate(line):
                at = ((n // 16) * (K // pack) + k // pack) * 16 * pack + n % 16 * pack + k % pack
                flat[g * N * K + at] = value
    return flat.reshape(w.shape)


def as_aiter(w, layout=(16, 16)):
    """AITER's steps: tiles of 16 lines and 32 elements, of which the packs of 16 bytes come first."""
    tile_n, tile_k = layout[0], 2 * layout[1]
    pack = 16 // w.element_size()
    parts = bits_of(w).reshape(-1, w.shape[-2] // tile_n, tile_n, w.shape[-1] // tile_k, tile_k // pack, pack)
    return parts.permute(0, 1, 3, 4, 2, 5).contiguous().reshape(w.shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(16, 32), (48, 96), (3, 32, 64)], ids=str)
def test_places(shape, dtype):
    w = numbered(shape, dtype)
    shuffled = shuffle_weight(w)
    assert torch.equal(bits_of(shuffled), permuted(w))
    assert torch.equal(bits_of(shuffled), as_aiter(w))
    assert plain(shuffled).is_contiguous()
    back = unshuffle_weight(shuffled)
    assert type(back) is torch.Tensor
    assert torch.equal(bits_of(back), bits_of(w))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(0, 4), st.integers(0, 4), st.sampled_from(DTYPES))
def test_round_trip(groups, lines, depth, dtype):
    shape = (groups, 16 * lines, 32 * depth)
    w = numbered(shape, dtype)
    assert torch.equal(bits_of(unshuffle_weight(shuffle_weight(w))), bits_of(w))
    assert torch.equal(bits_of(shuffle_weight(unshuffle_weight(w))), bits_of(w))
    assert torch.equal(bits_of(unshuffle_weight(plain(shuffle_weight(w)))), bits_of(w))


@pytest.mark.parametrize("how", [how for how in STRIDES if how != "expanded"])
def test_any_strides(how):
    w = numbered((2, 16, 64), torch.float16).abs()
    assert torch.equal(bits_of(shuffle_weight(strided_like(w, how))), bits_of(shuffle_weight(w)))


W = numbered((3, 32, 64), torch.bfloat16)
BAD = {
    "no tensor": (lambda: shuffle_weight([1.0]), TypeError, "w must be a torch.Tensor, got list"),
    "sparse": (lambda: shuffle_weight(W.float().to_sparse()), TypeError, "got layout torch.sparse_coo"),
    "dtype": (lambda: shuffle_weight(W.float()), TypeError, "got torch.float32"),
    "rank": (lambda: shuffle_weight(W[0, 0]), ValueError, "w must be \\(N, K\\) or \\(G, N, K\\)"),
    "N": (lambda: shuffle_weight(W[:, :24]), ValueError, "got N = 24 and K = 64"),
    "K": (lambda: shuffle_weight(W[:, :, :48]), ValueError, "K in multiples of 32 .* K = 48"),
    "layout, one number": (lambda: shuffle_weight(W, 16), ValueError, "layout must be \\(16, 16\\), got 16"),
    "layout": (lambda: shuffle_weight(W, (32, 16)), ValueError, "layout must be \\(16, 16\\), got \\(32, 16\\)"),
    "twice": (lambda: shuffle_weight(shuffle_weight(W)), TypeError, "shuffled already"),
    "back": (lambda: unshuffle_weight(W[:, :24]), ValueError, "got N = 24"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_weights(what):
    call, error, words = BAD[what]
    with pytest.raises(error, match=words):
        call()


def reloaded(weight):
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


KEPT = {
    "detach": lambda s: s.detach(), "clone": lambda s: s.clone(), "torch.clone": torch.clone, "cpu": lambda s: s.cpu(),
    "to device": lambda s: s.to(s.device), "to dtype": lambda s: s.to(torch.bfloat16),
    "to both": lambda s: s.to("cpu", torch.bfloat16, copy=True), "contiguous": lambda s: s.contiguous(),
    "data": lambda s: s.data, "copy": copy.copy, "deepcopy": copy.deepcopy, "saved": reloaded,
    "pickled": lambda s: pickle.loads(pickle.dumps(s)), "parameter": torch.nn.Parameter,
    "frozen parameter": lambda s: torch.nn.Parameter(s, requires_grad=False),
}  # fmt: skip
GROUPS = {
    "one": (lambda s: s[1], lambda w: w[1]), "last": (lambda s: s[-1], lambda w: w[-1]),
    "some": (lambda s: s[1:], lambda w: w[1:]), "every other": (lambda s: s[::2], lambda w: w[::2]),
    "list": (lambda s: s[[2, 0]], lambda w: w[[2, 0]]),
    "tensor": (lambda s: s[torch.tensor([2, 0])], lambda w: w[[2, 0]]),
    "mask": (lambda s: s[torch.tensor([True, False, True])], lambda w: w[::2]),
    "unbind": (lambda s: s.unbind(0)[2], lambda w: w[2]), "iterate": (lambda s: list(s)[1], lambda w: w[1]),
    "of a clone": (lambda s: s[::2].clone(), lambda w: w[::2]),
}  # fmt: skip


@pytest.mark.parametrize("how", KEPT)
def test_the_mark_is_kept(how):
    kept = KEPT[how](shuffle_weight(W))
    assert type(kept) is ShuffledWeight
    assert kept.is_shuffled
    assert torch.equal(bits_of(unshuffle_weight(kept)).cpu(), bits_of(W).cpu())


@pytest.mark.parametrize("how", GROUPS)
def test_groups_of_a_marked_weight(how):
    take, of_plain = GROUPS[how]
    taken = take(shuffle_weight(W))
    assert type(taken) is ShuffledWeight
    assert torch.equal(bits_of(unshuffle_weight(taken)), bits_of(of_plain(W)))


REFUSED = {
    "add": lambda s: s + 1, "radd": lambda s: 1 + s, "plain on the left": lambda s: W * s, "equal": lambda s: s == s,
    "iadd": lambda s: s.__iadd__(1), "neg": lambda s: -s, "matmul": lambda s: W @ s, "in place": lambda s: s.mul_(2),
    "linear": lambda s: torch.nn.functional.linear(W[0], s[0]), "einsum": lambda s: torch.einsum("gnk->gn", s),
    "float": lambda s: s.float(), "to dtype": lambda s: s.to(torch.float16), "half": lambda s: s.half(),
    "type": lambda s: s.type(torch.float16),
    "view": lambda s: s.view(-1), "bits": lambda s: s.view(torch.int16), "reshape": lambda s: s.reshape(96, 64),
    "mT": lambda s: s.mT, "transpose": lambda s: s.transpose(1, 2), "lines": lambda s: s[:, :16],
    "element": lambda s: s[0, 0, 0], "line of a group": lambda s: s[0][0], "new axis": lambda s: s[None],
    "write": lambda s: s.__setitem__(0, 0), "zero": lambda s: s.zero_(), "cat": lambda s: torch.cat([s, s]),
    "lines by unbind": lambda s: s.unbind(1), "lines by iteration": lambda s: list(s[0]), "sum": lambda s: s.sum(),
    "numpy": lambda s: s.numpy(), "list": lambda s: s.tolist(), "torch.equal": lambda s: torch.equal(s, W),
    "from plain": lambda s: s.copy_(W), "into plain": lambda s: W.clone().copy_(s),
    "from another shape": lambda s: s.copy_(s[:1]), "data": lambda s: setattr(s, "data", W),
    "chunk": lambda s: s.chunk(2, 1),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_nothing_computes_with_a_marked_weight(what):
    shuffled = shuffle_weight(W)
    with pytest.raises(TypeError, match="unshuffle_weight first"):
        REFUSED[what](shuffled)
    assert torch.equal(bits_of(unshuffle_weight(shuffled)), bits_of(W)), "nothing was written"


class Experts(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.register_buffer("spare", weight.clone())


def test_modules_keep_move_and_load_it():
    module = Experts(shuffle_weight(W)).to("cpu").to(torch.bfloat16)
    state = reloaded(module.state_dict())
    for assign in (False, True):
        other = Experts(shuffle_weight(torch.zeros_like(W).cpu()))
        other.load_state_dict(state, assign=assign)
        for tensor in (other.weight, other.spare):
            assert type(tensor) is ShuffledWeight
            assert torch.equal(bits_of(unshuffle_weight(tensor)), bits_of(W).cpu())
    with pytest.raises(TypeError, match="unshuffle_weight first"):
        module.to(torch.float16)
    # Into a module of plain weights it does not load: torch reports the error of every parameter.
    with pytest.raises(RuntimeError, match="unshuffle_weight first"):
        Experts(torch.zeros_like(W).cpu()).load_state_dict(dict(state))
    assert type(module.to("meta").weight) is ShuffledWeight


def test_it_says_what_it_is():
    assert repr(shuffle_weight(W)) == f"ShuffledWeight(shape=(3, 32, 64), dtype=torch.bfloat16, device='{W.device}')"
    assert len({shuffle_weight(W), shuffle_weight(W)}) == 2
    assert shuffle_weight(W).shape == W.shape


@pytest.mark.gpu
def test_memory_of_the_host_and_the_gpu():
    shuffled = shuffle_weight(W.cpu()).pin_memory()
    assert shuffled.is_pinned()
    assert type(shuffled) is type(shuffled.cuda(non_blocking=True)) is ShuffledWeight
    assert torch.equal(bits_of(unshuffle_weight(shuffled.cuda())).cpu(), bits_of(W).cpu())


def test_a_fake_tensor_is_refused_in_our_words():
    weight = torch.zeros(16, 32, dtype=torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for fake in (torch.zeros(16, 32, dtype=torch.bfloat16), weight):
            with pytest.raises(TypeError, match=r"^w must have memory, or be a meta tensor, got a FakeTensor"):
                shuffle_weight(fake)
    assert shuffle_weight(weight.to("meta")).is_meta
