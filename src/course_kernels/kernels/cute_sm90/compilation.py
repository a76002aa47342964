"""The Hopper kernel compiled for a target: its arguments are tensors of which no extent and no address is known."""

import cutlass
from cutlass import Float32, Int32, Int64, cute

from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.kernels.cute_sm90.form import GATED_BACKWARD, Form
from course_kernels.kernels.cute_sm90.kernel import HopperGroupedGemm, HopperLayerGemm
from course_kernels.kernels.cute_sm90.operands import Layer

IN_DTYPES = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16, "float8_e4m3fn": cutlass.Float8E4M3FN}
OUT_DTYPES = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16, "float32": cutlass.Float32}


def compile_for(
    config: CuteConfig, form: Form, dtype: str, out_dtype: str | None = None, *, sm: str = "90a", options: tuple = ()
):
    """Compile for a target, GPU or not: sizes, strides and offsets are known only when the result is called.

    Args:
        config: tiles, cluster, stages, schedule.
        form: of the product.
        dtype: of the operands, "float16", "bfloat16" or "float8_e4m3fn"; it has the form's ``operand_bytes``.
        out_dtype: of the result, "float16", "bfloat16" or "float32"; by default ``dtype``, "bfloat16" for 8 bits. To
            "float32" alone a product can be added.
        sm: the target.
        options: more of ``cute.compile``'s options, ``cute.KeepPTX`` for one.

    Returns:
        A callable of torch tensors ``(a, b, c, offs, clusters, scale_a, scale_b, counter)``, the last three None where
        there are none, as in ``HopperGroupedGemm.__call__``; if the form has others, one more, a tuple with the fields
        of ``operands.Layer``. It launches ``clusters``, an int, on torch's current stream; each SM holds one CTA. No
        extent may be 0, or over 2**30 where groups divide it. Extents of contiguous dimensions are multiples of 8, but
        not that which groups divide; pointers, and strides of the others, of 16 bytes. For scale_a, and scales of
        blocks, these two rules do not hold.

    Raises:
        ValueError: there is no kernel of this form, or none with this configuration, or for these dtypes.

    Notes:
        Sums of 8-bit operands leave the tensor cores' few bits after every block of K, see ``mainloop.multiply_apart``.
    """
    element = IN_DTYPES[dtype]
    gemm = (HopperLayerGemm if form.has_others else HopperGroupedGemm)(config, form)
    if form.operand_bytes != element.width // 8:
        raise ValueError(
            f"operand_bytes must be {element.width // 8} where dtype is {dtype!r}, got {form.operand_bytes}"
        )
    out = OUT_DTYPES[out_dtype or ("bfloat16" if element.width == 8 else dtype)]
    if form.epilogue == "add" and out is not Float32:
        raise ValueError(f"out_dtype must be 'float32' where epilogue is 'add', got {out_dtype or dtype!r}")
    index = Int64 if form.index_bytes == 8 else Int32
    groups, total = cute.sym_int(), cute.sym_int()
    ends = cute.sym_int() if form.rows == "pieces" else groups
    M, N, K = (cute.sym_int(divisibility=8) for _ in range(3))
    if element.width == 8 and form.along == "k":
        M = cute.sym_int()

    def fake(kind, shape, contiguous):
        pitch = 128 // kind.width
        strides = [1 if i == contiguous else cute.sym_int64(divisibility=pitch) for i in range(len(shape))]
        return cute.runtime.make_fake_tensor(kind, shape, stride=tuple(strides), assumed_align=16)

    if form.along == "k":
        across = int(form.b_major == "k")  # depth is contiguous, not lines
        lines = {form.gathered: cute.sym_int()}  # a gathered operand's own
        a_shape, b_shape = (M, lines.get("a", total)), (lines.get("b", total), N)
        tensors = fake(element, a_shape, across), fake(element, b_shape, 1 - across), fake(out, (groups, M, N), 2)
    else:
        rows = cute.sym_int() if form.gathered else total
        b_shape = (groups, K, 2, N) if form.halves == 2 else (groups, K, N)
        tensors = (
            fake(element, (rows, K), 1),
            fake(element, b_shape, 1 if form.b_major == "k" else len(b_shape) - 1),
            fake(out, (total, form.pre_halves, N), 2) if form.epilogue == GATED_BACKWARD else fake(out, (total, N), 1),
        )
    scales = ()
    if form.scaling in ("lines", "groups"):
        shape = (total,) if form.along == "m" else (groups, M)
        strides = tuple(cute.sym_int64() for _ in shape[1:])
        rows = cute.runtime.make_fake_tensor(Float32, shape, stride=(*strides, 1), assumed_align=4)
        of_groups = cute.runtime.make_fake_tensor(Float32, (groups,), stride=(1,), assumed_align=4)
        scales = rows, of_groups if form.scaling == "groups" else fake(Float32, (groups, N), 1)
    elif form.scaling == "blocks":
        blocks, wide = cute.sym_int(), cute.sym_int()
        for shape in ((M, blocks), (N, blocks)) if form.along == "k" else ((total, blocks), (groups, blocks, wide)):
            strides = tuple(cute.sym_int64() for _ in shape)
            scales += (cute.runtime.make_fake_tensor(Float32, shape, stride=strides, assumed_align=4),)
    if config.dynamic:
        counter = cute.runtime.make_fake_tensor(cutlass.Float64, (1,), stride=(1,), assumed_align=8)
        scales = *(scales or (None, None)), counter
    if form.has_others:
        scales = (
            *scales,
            *(None,) * (3 - len(scales)),
            _layer(form, groups, total, N, ends, element, lambda *shape: fake(out, shape, len(shape) - 1)),
        )
    return cute.compile[(cute.GPUArch(f"sm_{sm}"), cute.EnableTVMFFI(True), *options)](
        gemm,
        *tensors,
        cute.runtime.make_fake_tensor(index, (ends,), stride=(1,), assumed_align=form.index_bytes),
        Int32(1),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
        *scales,
    )


def _layer(form: Form, groups, total, columns, ends, element, fake_result) -> Layer:
    """The tensors of a layer's product; operands are of dtype ``element``, and ``fake_result`` makes a tensor of the
    result's."""
    vector = dict(stride=(1,), assumed_align=4)
    found = Layer()
    if form.gathered:
        found = found._replace(index=cute.runtime.make_fake_tensor(Int32, (total,), **vector))
    if form.rows == "pieces":
        pieces = (cute.runtime.make_fake_tensor(Int32, (size,), **vector) for size in (ends, cute.sym_int()))
        found = found._replace(**dict(zip(("starts", "arrived"), pieces)), milliseconds=Int32(1))
    if form.bias_bytes:
        shape = (groups, 2, columns) if form.halves == 2 else (groups, columns)
        kind, strides = Float32 if form.bias_bytes == 4 else element, tuple(cute.sym_int64() for _ in shape)
        bias = cute.runtime.make_fake_tensor(kind, shape, stride=strides, assumed_align=form.bias_bytes)
        found = found._replace(bias=bias)
    if form.stores > 1:
        found = found._replace(pre=fake_result(total, form.pre_halves, columns))
    if form.epilogue == GATED_BACKWARD:
        dots = (total, cute.sym_int())
        found = found._replace(
            weights=cute.runtime.make_fake_tensor(Float32, (total,), **vector),
            activated=fake_result(total, columns),
            dots=cute.runtime.make_fake_tensor(Float32, dots, stride=(cute.sym_int64(), 1), assumed_align=4),
        )
    return found
