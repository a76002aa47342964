"""A layer of few tokens: products of weights and vectors, which read each choice's weights once and need no routing.

With so few choices almost every one has its expert to itself. What counts is that all SMs keep many bytes on their way:
a program has a few lines of one weight, sums over the whole depth, and loads a block while it multiplies the one
before.
"""

from __future__ import annotations

from course_kernels.kernels.activation import activated
from course_kernels.kernels.language import tl, triton


@triton.jit
def scales_of(scale_ptr, lines, k, there, stride_n, stride_k, SCALES: tl.constexpr):
    """The factors of lines of a weight, for a block that begins at depth ``k``. ``there``: which lines exist."""
    return tl.load(scale_ptr + lines // SCALES * stride_n + k // SCALES * stride_k, mask=there, other=0.0)


@triton.jit
def first_kernel(
    x_ptr, ids_ptr, weights_ptr, gate_up_ptr, scale_ptr, bias_ptr, activated_ptr, stride_xt, stride_xh, stride_it,
    stride_ik, stride_wt, stride_wk, stride_e, stride_n, stride_h, stride_scale_e, stride_scale_n, stride_scale_k,
    stride_bias_e, stride_bias_n,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr, FUNCTION: tl.constexpr,
    GATED: tl.constexpr, STEP: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, SHIFT: tl.constexpr,
    SCALES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """activated[c] = activation(gate_up[e] @ x[c // TOP_K]), e being choice c's expert; nothing for ids of no expert. A
    program has BLOCK_N columns of a choice.

    Args:
        x_ptr: (tokens, HIDDEN); ids_ptr, weights_ptr: (tokens, TOP_K); gate_up_ptr: (EXPERTS, GATED ? 2 * INNER :
            INNER, HIDDEN); bias_ptr: its first two extents, or None. Any strides.
        weights_ptr: multiply x, which is rounded then; None for none.
        scale_ptr: float32 factors of gate_up: with SCALES 1 one for each line, with 128 one for each 128 lines and 128
            of its depth, which BLOCK_K divides then; with 0 None.
        activated_ptr: (tokens * TOP_K, INNER), contiguous.
    """
    tiles = tl.cdiv(INNER, BLOCK_N)
    choice = tl.program_id(0) // tiles
    token, place = (choice // TOP_K).to(tl.int64), choice % TOP_K
    expert = tl.load(ids_ptr + token * stride_it + place * stride_ik).to(tl.int64)
    if (expert >= 0) & (expert < EXPERTS):
        cols = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
        there = cols < INNER
        lines = cols.to(tl.int64) * (STEP if GATED else 1)
        to_up: tl.constexpr = INNER if STEP == 1 else 1
        base, scale = gate_up_ptr + expert * stride_e, scale_ptr
        if SCALES:
            scale += expert * stride_scale_e
        gate = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
        up = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
        depth = tl.arange(0, BLOCK_K)
        at = base + lines[:, None] * stride_n + depth.to(tl.int64)[None, :] * stride_h
        inside = there[:, None] & (depth < HIDDEN)[None, :]
        of_gate = tl.load(at, mask=inside, other=0.0)
        of_up = tl.load(at + to_up * stride_n, mask=inside, other=0.0) if GATED else of_gate
        for k in range(0, HIDDEN, BLOCK_K):
            depth = k + tl.arange(0, BLOCK_K)
            x = tl.load(x_ptr + token * stride_xt + depth.to(tl.int64) * stride_xh, mask=depth < HIDDEN, other=0.0)
            if weights_ptr is not None:
                weight = tl.load(weights_ptr + token * stride_wt + place * stride_wk).to(tl.float32)
                x = (x.to(tl.float32) * weight).to(x.dtype)
            x = x.to(tl.float32)[None, :]
            of_gate, of_up = of_gate.to(tl.float32), of_up.to(tl.float32)
            if SCALES > 1:
                of_gate *= scales_of(scale, lines, k, there, stride_scale_n, stride_scale_k, SCALES)[:, None]
                if GATED:
                    of_up *= scales_of(scale, lines + to_up, k, there, stride_scale_n, stride_scale_k, SCALES)[:, None]
            gate += of_gate * x
            if GATED:
                up += of_up * x
            at += BLOCK_K * stride_h
            inside = there[:, None] & (depth + BLOCK_K < HIDDEN)[None, :]
            of_gate = tl.load(at, mask=inside, other=0.0)
            of_up = tl.load(at + to_up * stride_n, mask=inside, other=0.0) if GATED else of_gate
        sums = tl.sum(gate, 1)
        up_sums = tl.sum(up, 1) if GATED else None
        if SCALES == 1:
            sums *= scales_of(scale, lines, 0, there, stride_scale_n, stride_scale_k, SCALES)
            if GATED:
                up_sums *= scales_of(scale, lines + to_up, 0, there, stride_scale_n, stride_scale_k, SCALES)
        if bias_ptr is not None:
            at_bias = bias_ptr + expert * stride_bias_e + lines * stride_bias_n
            sums += tl.load(at_bias, mask=there, other=0.0).to(tl.float32)
            if GATED:
                up_sums += tl.load(at_bias + to_up * stride_bias_n, mask=there, other=0.0).to(tl.float32)
        value = activated(sums, up_sums, FUNCTION, ALPHA, LIMIT, SHIFT)
        out = activated_ptr + choice.to(tl.int64) * INNER + cols
        tl.store(out, value.to(activated_ptr.dtype.element_ty), mask=there)


@triton.jit
def second_kernel(
    activated_ptr, ids_ptr, weights_ptr, down_ptr, scale_ptr, bias_ptr, out_ptr, stride_it, stride_ik, stride_wt,
    stride_wk, stride_e, stride_n, stride_k, stride_scale_e, stride_scale_n, stride_scale_k, stride_bias_e,
    stride_bias_n,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, PLACES: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr,
    SCALES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[t] = the sum of down[e] @ activated[c] over token t's choices c: each is rounded, multiplied by its weight,
    and added in float32, in their order; then the sum is rounded. A program has BLOCK_N columns of a token.

    Args:
        activated_ptr: of ``first_kernel``. ids_ptr, weights_ptr: as there, or None for weights of 1.
        down_ptr: (EXPERTS, HIDDEN, INNER); scale_ptr: its factors, as there; bias_ptr: (EXPERTS, HIDDEN) or None. Any
            strides.
        out_ptr: (tokens, HIDDEN), contiguous.
        PLACES: the power of two from TOP_K on.
    """
    tiles = tl.cdiv(HIDDEN, BLOCK_N)
    token = (tl.program_id(0) // tiles).to(tl.int64)
    cols = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    there = cols < HIDDEN
    place = tl.arange(0, PLACES)
    expert = tl.load(ids_ptr + token * stride_it + place * stride_ik, mask=place < TOP_K, other=-1).to(tl.int64)
    valid = (expert >= 0) & (expert < EXPERTS)
    expert = tl.where(valid, expert, 0)
    acc = tl.zeros((PLACES, BLOCK_N, BLOCK_K), dtype=tl.float32)
    lines = down_ptr + (expert * stride_e)[:, None] + (cols.to(tl.int64) * stride_n)[None, :]
    kept = valid[:, None] & there[None, :]
    if SCALES:
        of_line, of_cols = scale_ptr + (expert * stride_scale_e)[:, None], cols.to(tl.int64)[None, :]
    rows = activated_ptr + (token * TOP_K + place) * INNER
    at = lines[:, :, None] + (tl.arange(0, BLOCK_K).to(tl.int64) * stride_k)[None, None, :]
    weight = tl.load(at, mask=kept[:, :, None] & (tl.arange(0, BLOCK_K) < INNER)[None, None, :], other=0.0)
    for k in range(0, INNER, BLOCK_K):
        depth = k + tl.arange(0, BLOCK_K)
        hidden = tl.load(rows[:, None] + depth[None, :], mask=valid[:, None] & (depth < INNER)[None, :], other=0.0)
        weight = weight.to(tl.float32)
        if SCALES > 1:
            weight *= scales_of(of_line, of_cols, k, kept, stride_scale_n, stride_scale_k, SCALES)[:, :, None]
        acc += weight * hidden.to(tl.float32)[:, None, :]
        at += BLOCK_K * stride_k
        weight = tl.load(at, mask=kept[:, :, None] & (depth + BLOCK_K < INNER)[None, None, :], other=0.0)
    result = tl.sum(acc, 2)
    if SCALES == 1:
        result *= scales_of(of_line, of_cols, 0, kept, stride_scale_n, stride_scale_k, SCALES)
    if bias_ptr is not None:
        at_bias = bias_ptr + (expert * stride_bias_e)[:, None] + (cols.to(tl.int64) * stride_bias_n)[None, :]
        result += tl.load(at_bias, mask=kept, other=0.0).to(tl.float32)
    result = result.to(out_ptr.dtype.element_ty).to(tl.float32)
    if weights_ptr is not None:
        factors = tl.load(weights_ptr + token * stride_wt + place * stride_wk, mask=valid, other=0.0).to(tl.float32)
        result *= factors[:, None]
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for j in tl.static_range(TOP_K):
        total += tl.sum(tl.where((place == j)[:, None], result, 0.0), 0)
    tl.store(out_ptr + token * HIDDEN + cols, total.to(out_ptr.dtype.element_ty), mask=there)
