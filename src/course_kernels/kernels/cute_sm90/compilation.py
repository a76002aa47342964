"""The Hopper kernel compiled for a target: its arguments are tensors of which no extent and no address is known."""

import cutlass
from cutlass import Float32, Int32, cute

from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.kernels.cute_sm90.kernel import HopperGroupedGemm

IN_DTYPES = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16, "float8_e4m3fn": cutlass.Float8E4M3FN}
OUT_DTYPES = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16, "float32": cutlass.Float32}


def compile_for(
    config: CuteConfig,
    dtype: str,
    out_dtype: str | None = None,
    *,
    offsets_along: str = "m",
    b_major: str | None = None,
    scaled: bool = False,
    accumulate: bool = False,
    masked: bool = False,
    group_scales: bool = False,
    block_scaled: bool = False,
    whole_rounds: bool = False,
    sm: str = "90a",
    multiprocessors: int = 132,
    options: tuple = (),
):
    """Compile for a target, GPU or not: sizes, strides and offsets are known only when the result is called.

    Args:
        config: tiles, cluster, stages, schedule.
        dtype: of the operands, "float16", "bfloat16" or "float8_e4m3fn".
        out_dtype: of the result, "float16", "bfloat16" or "float32"; by default ``dtype``, "bfloat16" for 8 bits.
        offsets_along: "m", or "k" for the gradient of a weight.
        b_major: the contiguous dimension of B: "k" or "n" along "m", by default "k"; along "k" it is "n". With 8-bit
            operands it is "k".
        scaled: whether rows and columns of the product are multiplied with factors; along "k" of 8-bit operands.
        accumulate: whether the product is added to what the result holds; along "k", of a float32 result.
        masked: whether groups lie at equal distances and ``offs`` says how many rows of each count; along "m".
        group_scales: where scaled, whether one factor serves all columns of a group.
        block_scaled: whether blocks of 8-bit operands are, of 128 along K and 1 row of A, or 128 columns of B, along
            "k" 1 column.
        whole_rounds: whether K surely is a multiple of the stages' blocks; where ``config.in_rounds``.
        sm: the target.
        multiprocessors: of the GPU; each holds one CTA.
        options: more of ``cute.compile``'s options, ``cute.KeepPTX`` for one.

    Returns:
        A callable of torch tensors ``(a, b, c, offs, scale_a, scale_b, counter)``, the last three None where there are
        none, as in ``HopperGroupedGemm.__call__``. It launches on torch's current stream. No extent may be 0, or over
        2**30 where groups divide it. Extents of contiguous dimensions are multiples of 8, but not that which groups
        divide; pointers, and strides of the others, of 16 bytes. For scale_a, and scales of blocks, these two rules do
        not hold.

    Raises:
        ValueError: if no kernel can be built from ``config``, or for such operands.

    Notes:
        Sums of 8-bit operands leave the tensor cores' few bits after every block of K, see ``mainloop.multiply_apart``.
    """
    element = IN_DTYPES[dtype]
    b_major = b_major or ("n" if offsets_along == "k" and element.width > 8 else "k")
    if scaled and offsets_along != "m" and element.width > 8:
        raise ValueError(f"offsets_along must be 'm' where operands of 16 bits are scaled, got {offsets_along!r}")
    out = OUT_DTYPES[out_dtype or ("bfloat16" if element.width == 8 else dtype)]
    if accumulate and out is not Float32:
        raise ValueError(f"out_dtype must be 'float32' where accumulate is set, got {out_dtype or dtype!r}")
    if scaled and block_scaled:
        raise ValueError("scaled must be False where block_scaled: factors are those of rows and columns, or of blocks")
    kind = dict(offsets_along=offsets_along, b_major=b_major, operand_bytes=element.width // 8)
    of_scales = dict(block_scaled=block_scaled, whole_rounds=whole_rounds)
    gemm = HopperGroupedGemm(config, **kind, accumulate=accumulate, masked=masked, **of_scales)
    groups, total = cute.sym_int(), cute.sym_int()
    M, N, K = (cute.sym_int(divisibility=8) for _ in range(3))
    if element.width == 8 and offsets_along == "k":
        M = cute.sym_int()

    def fake(kind, shape, contiguous):
        pitch = 128 // kind.width
        strides = [1 if i == contiguous else cute.sym_int64(divisibility=pitch) for i in range(len(shape))]
        return cute.runtime.make_fake_tensor(kind, shape, stride=tuple(strides), assumed_align=16)

    if offsets_along == "k":
        across = int(b_major == "k")  # depth is contiguous, not lines
        tensors = fake(element, (M, total), across), fake(element, (total, N), 1 - across), fake(out, (groups, M, N), 2)
    else:
        tensors = (
            fake(element, (total, K), 1),
            fake(element, (groups, K, N), 1 if b_major == "k" else 2),
            fake(out, (total, N), 1),
        )
    scales = ()
    if scaled:
        shape = (total,) if offsets_along == "m" else (groups, M)
        strides = tuple(cute.sym_int64() for _ in shape[1:])
        rows = cute.runtime.make_fake_tensor(Float32, shape, stride=(*strides, 1), assumed_align=4)
        of_groups = cute.runtime.make_fake_tensor(Float32, (groups,), stride=(1,), assumed_align=4)
        scales = rows, of_groups if group_scales else fake(Float32, (groups, N), 1)
    elif block_scaled:
        blocks, wide = cute.sym_int(), cute.sym_int()
        for shape in ((M, blocks), (N, blocks)) if offsets_along == "k" else ((total, blocks), (groups, blocks, wide)):
            strides = tuple(cute.sym_int64() for _ in shape)
            scales += (cute.runtime.make_fake_tensor(Float32, shape, stride=strides, assumed_align=4),)
    if config.dynamic:
        counter = cute.runtime.make_fake_tensor(cutlass.Float64, (1,), stride=(1,), assumed_align=8)
        scales = *(scales or (None, None)), counter
    return cute.compile[(cute.GPUArch(f"sm_{sm}"), cute.EnableTVMFFI(True), *options)](
        gemm,
        *tensors,
        cute.runtime.make_fake_tensor(Int32, (groups,), stride=(1,), assumed_align=4),
        multiprocessors // config.cluster,
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
        *scales,
    )
