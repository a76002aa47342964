"""Cases of ``ranks`` for ``test_sharding``: grouped products with DTensor and FSDP2. Each takes a mesh of the world."""

from __future__ import annotations

import functools
import importlib
import itertools
import types
from pathlib import Path

import torch
import torch.nn.functional as F

import ranks

G, M, K, N, TOTAL = 4, 16, 32, 48, 32  # halves keep the strides that torch wants
SHAPES = {
    "m": ((TOTAL, K), (G, K, N)),
    "n": ((G, M, K), (K, TOTAL)),
    "k": ((M, TOTAL), (TOTAL, N)),
    "batch": ((G, M, K), (G, K, N)),
}
TRAINING = Path(__file__).with_name("fsdp_training.py")
FP8, ROW = torch.float8_e4m3fn, F.ScalingType.RowWise
THEIRS = "from torch.nn.functional import grouped_mm, one_hot\n"
OURS = "from course_kernels import grouped_mm\nfrom torch.nn.functional import one_hot\n"
CHECKPOINTED = "checkpoint(layer, x, use_reentrant=False)"


def matrices(mode, mesh, dtype=torch.bfloat16):
    """Small whole numbers: sums of parts are exact in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-1, 2, shape, generator=generator).to(mesh.device_type, dtype) for shape in SHAPES[mode])
    return a, b, None if mode == "batch" else ends(mesh)


def ends(mesh):
    return torch.tensor([8, 8, 16, TOTAL], dtype=torch.int32, device=mesh.device_type)


def put(mesh, tensor, placement=None):
    """A tensor on the mesh, replicated by default. As a partial sum, the first process has all of it."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

    if isinstance(placement, Partial):
        return DTensor.from_local(tensor * (mesh.get_rank() == 0), mesh, [placement])
    return None if tensor is None else distribute_tensor(tensor, mesh, [placement or Replicate()])


def derived(function, tensors):
    """The product, and the gradients of the tensors."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    product = function(*leaves)
    product.backward(torch.ones_like(product))
    return [product.detach(), *(leaf.grad for leaf in leaves)]


def full(tensors):
    return [t.full_tensor() for t in tensors]


def equal(got, wanted):
    """True, or a description of the first difference between two lists of tensors."""
    for i, (one, other) in enumerate(zip(got, wanted, strict=True)):
        if one.dtype != other.dtype or not torch.equal(one, other):
            return f"tensor {i} differs: {one.dtype} {tuple(one.shape)}, {other.dtype} {tuple(other.shape)}"
    return True


# ---- cases: each returns True or a description of the mistake


def compiled(mesh):
    """The compiler is the first caller of an operator with DTensors, so this case runs first."""
    from torch.distributed.tensor import Shard

    from course_kernels import grouped_mm

    a, b, offs = matrices("m", mesh)
    layer = torch.compile(lambda a, b, o: grouped_mm(a * 2, b, offs=o) + 1, fullgraph=True, backend="aot_eager")
    sharded = put(mesh, offs)
    got = derived(lambda a, b: layer(a, b, sharded), (put(mesh, a), put(mesh, b, Shard(2))))
    return equal(full(got), derived(lambda a, b: F.grouped_mm(a * 2, b, offs=offs) + 1, (a, b)))


def placements(mesh, mode):
    """Every placement of both operands: the values, and torch's placements of the result and of the gradients."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    from course_kernels import grouped_mm

    a, b, offs = matrices(mode, mesh)
    wanted, whole = derived(lambda a, b: F.grouped_mm(a, b, offs=offs), (a, b)), put(mesh, offs)
    choices = [[Replicate(), Partial(), *map(Shard, range(t.dim()))] for t in (a, b)]
    for place_a, place_b in itertools.product(*choices):
        operands = put(mesh, a, place_a), put(mesh, b, place_b)
        theirs, ours = (derived(lambda a, b, f=f: f(a, b, offs=whole), operands) for f in (F.grouped_mm, grouped_mm))
        if (found := equal(full(ours), wanted)) is not True:
            return f"{place_a} {place_b}: {found}"
        if [t.placements for t in ours] != [t.placements for t in theirs]:
            return f"{place_a} {place_b}: {[t.placements for t in ours]}, torch has {[t.placements for t in theirs]}"
    return True


def biases(mesh):
    """Column- and row-parallel with a bias, replicated or sharded. Partial sums have the bias once. Uneven shards."""
    from torch.distributed.tensor import Replicate, Shard

    from course_kernels import grouped_mm

    a, b, offs = matrices("m", mesh, torch.float32)
    a, b = a[:, :31].contiguous(), b[:, :31, :23].contiguous()
    bias, whole = torch.arange(G * 23, device=a.device).view(G, 23) % 5 - 2.0, put(mesh, offs)
    wanted = derived(lambda a, b, c: grouped_mm(a, b, offs=offs, bias=c), (a, b, bias))
    for place in (
        (None, Shard(2), Shard(1)),
        (None, Shard(2), None),
        (Shard(1), Shard(1), None),
        (None, None, Shard(0)),
    ):
        operands = [put(mesh, t, where or Replicate()) for t, where in zip((a, b, bias), place)]
        ours = derived(lambda a, b, c: grouped_mm(a, b, offs=whole, bias=c), operands)
        if (found := equal(full(ours), wanted)) is not True:
            return f"{place}: {found}"
    return True


def other_products(mesh):
    """Sums of groups, scaled products, lists. A DTensor that an operator would write to is refused."""
    from torch.distributed.tensor import Shard

    from course_kernels import (
        deepgemm,
        group_gemm,
        group_sums,
        grouped_gemm_jagged,
        grouped_mm,
        scaled_grouped_mm,
        shuffle_weight,
    )
    from course_kernels import to_fp8_then_scaled_grouped_mm as layer

    a, b, offs = matrices("m", mesh)
    whole, row = put(mesh, offs), F.ScalingType.RowWise
    pairs = [(group_sums(put(mesh, a, Shard(1)), whole), group_sums(a, offs))]
    if pairs[0][0].placements != (Shard(1),):
        return f"sums of columns are {pairs[0][0].placements}"
    pairs.append((group_gemm([put(mesh, a, Shard(0))], [put(mesh, b[0])])[0], a @ b[0]))
    if mesh.device_type == "cpu":
        factors = torch.full((TOTAL,), 2.0), torch.full((G, N), 0.5)
        quantized = [put(mesh, t).to(torch.float8_e4m3fn) for t in (a, b)]  # gloo sends no float8
        scale_a, scale_b = (put(mesh, factor) for factor in factors)
        scaled = scaled_grouped_mm(*quantized, scale_a, row, scale_b, row, offs=whole)
        pairs.append((scaled, grouped_mm(a, b, offs=offs)))
    for name, call in (
        ("out", lambda a, b: grouped_mm(a, b, offs=whole, out=put(mesh, torch.zeros(TOTAL, N, dtype=a.dtype)))),
        ("main_grad", lambda a, b: grouped_mm(a, b, offs=whole, main_grad=put(mesh, torch.zeros(G, K, N)))),
        ("out", lambda a, b: group_sums(a, whole, out=put(mesh, torch.zeros(G, K)))),
        ("out", lambda a, b: group_gemm([a], [b[0]], out=[put(mesh, torch.zeros(TOTAL, N))])),
    ):
        try:
            call(put(mesh, a), put(mesh, b))
            return f"{name} was taken"
        except ValueError as error:
            if f"{name} must be None where tensors are DTensors" not in str(error):
                return str(error)
    for name, call in (
        ("mat_b", lambda a, b: layer(a, put(mesh, b), offs=offs)),
        ("XQ", lambda a, b: deepgemm(put(mesh, a[None]), b[:1].mT, torch.zeros(1, TOTAL, N), offs[:1])),
        ("A_packed", lambda a, b: grouped_gemm_jagged(put(mesh, a), b[0], offs, implementation="triton")),
        ("w", lambda a, b: shuffle_weight(put(mesh, b.mT.half()))),
    ):
        try:
            call(a, b)
            return f"{name} was taken"
        except TypeError as error:
            if f"{name} must be a local tensor, from to_local(), got a DTensor" not in str(error):
                return str(error)
    return equal([t.full_tensor() for t, _ in pairs], [t for _, t in pairs])


def scaled(mesh):
    """Products with factors of rows and columns take the shardings of ``grouped_mm``: the placements of the results."""
    if mesh.device_type != "cpu":
        return True
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    from course_kernels import scaled_grouped_mm
    from course_kernels.packed.sharding import SHARDED

    for mode in SHAPES:
        a, b, offs = matrices(mode, mesh)
        groups = () if mode == "m" else (G,), () if mode == "n" else (G,)
        lines = a.shape[-2], b.shape[-1]
        scales = [torch.full((*batch, extent), 2.0) for batch, extent in zip(groups, lines)]
        scales[1][..., 1::2] = 0.5
        wide = scaled_grouped_mm(
            a.to(FP8), b.to(FP8), scales[0], ROW, scales[1], ROW, offs=offs, output_dtype=torch.float32
        )
        for out, *sides, _ in SHARDED[a.dim(), b.dim()]:
            shards = [put(mesh, t, None if dim is None else Shard(dim)).to(FP8) for t, dim in zip((a, b), sides)]
            # Factors of whole tensors are cut without sending any.
            whole = [distribute_tensor(scale, mesh, [Replicate()]) for scale in scales]
            found = scaled_grouped_mm(
                *shards, whole[0], ROW, whole[1], ROW, offs=put(mesh, offs), output_dtype=torch.float32
            )
            if found.placements != (Partial() if out == "+" else Shard(out),):
                return f"{mode} {sides}: {found.placements}"
            if (same := equal(full([found]), [wide])) is not True:
                return f"{mode} {sides}: {same}"
    return True


def quantized(mesh):
    """Quantizers keep every sharding that cuts no block, and gather what others cut."""
    from torch.distributed.tensor import Replicate, Shard

    from course_kernels import quantize_1x128, quantize_128x128

    generator = torch.Generator(mesh.device_type).manual_seed(0)
    x = torch.randn(4, 6, 200, generator=generator, device=mesh.device_type)
    for function, kept in ((quantize_1x128, (0, 1)), (quantize_128x128, (0,))):
        wanted = [t.float() for t in function(x)]
        for dim in range(3):
            found = function(put(mesh, x, Shard(dim)))
            place = Shard(dim) if dim in kept else Replicate()
            if any(t.placements != (place,) for t in found):
                return f"{function.__name__} of shards {dim}: {[t.placements for t in found]}"
            if (same := equal([t.float().full_tensor() for t in found], wanted)) is not True:
                return f"{function.__name__} of shards {dim}: {same}"
    offs = torch.tensor([3, 140], device=mesh.device_type)
    found = quantize_1x128(put(mesh, x[0], Shard(0)), offs=put(mesh, offs))
    if any(t.placements != (Shard(0),) for t in found):
        return f"with offs: {[t.placements for t in found]}"
    return equal([t.float().full_tensor() for t in found], [t.float() for t in quantize_1x128(x[0], offs=offs)])


def layouts(mesh):
    """GroupLayout moves local rows, and says so."""
    from course_kernels import GroupLayout

    sizes = torch.tensor([1, 2], device=mesh.device_type)
    rows, slots = torch.ones(3, 2, device=mesh.device_type), torch.ones(2, 2, 2, device=mesh.device_type)
    local, sharded = GroupLayout.from_sizes(sizes), GroupLayout.from_sizes(put(mesh, sizes))
    for name, refused in {
        "packed": lambda: local.pad(put(mesh, rows), 2),
        "padded": lambda: local.pack(put(mesh, slots), 3),
        "sizes": lambda: sharded.pad(rows, 2),
        "sizes ": lambda: sharded.pack(slots, 3),
        "sizes of row_groups": lambda: sharded.row_groups(3),
        "sizes of masked": lambda: sharded.masked(2),
    }.items():
        try:
            refused()
        except TypeError as error:
            if not str(error).startswith(f"{name.split()[0]} must be a local tensor, from to_local(), got a DTensor"):
                return f"{name}: {error}"
        else:
            return f"{name} is accepted"
    return equal([full([sharded.offsets])[0]], [local.offsets])


def training(mesh):
    """The same script with either function: the same losses, falling, and the same weights, bit for bit."""
    text, found = TRAINING.read_text(encoding="utf-8"), []
    if (text.count(THEIRS), text.count(CHECKPOINTED)) != (1, 1):
        return "the script imports grouped_mm, or is checkpointed, in another way"
    if torch.__version__ < (2, 12):  # FSDP2 of torch 2.11 does not cast the inputs of what is computed again
        text = text.replace(CHECKPOINTED, "layer(x)")
    for source in (text, text.replace(THEIRS, OURS)):
        torch._dynamo.reset()
        script = types.ModuleType("training")
        exec(compile(source, str(TRAINING), "exec"), vars(script))
        found.append(script.train(mesh, "aot_eager" if mesh.device_type == "cpu" else "inductor"))
    (theirs, weights), (ours, same_weights) = found
    if not ours[-1] < ours[0]:
        return f"it does not learn: {ours}"
    if mesh.device_type == "cpu":
        return equal(same_weights, weights) if ours == theirs else f"losses are {ours}, torch's {theirs}"
    return all(abs(x - y) < 0.02 * y for x, y in zip(ours, theirs)) or f"losses are {ours}, torch's {theirs}"


CASES = {
    "compiled": compiled,
    **{f"placements of mode {mode}": functools.partial(placements, mode=mode) for mode in SHAPES},
    "biases": biases,
    "other products": other_products,
    "scaled": scaled,
    "quantized": quantized,
    "layouts": layouts,
    "training": training,
}


def on_mesh(case, world):
    """A case of ``ranks``."""
    return case(world.mesh())


def prepare():
    """Import what the compiler imports when it is first used."""
    of_torch = ("_dynamo", "_functorch.aot_autograd", "_inductor.lowering", "distributed.tensor")
    for name in of_torch:
        importlib.import_module(f"torch.{name}")


if __name__ == "__main__":
    ranks.main({name: functools.partial(on_mesh, case) for name, case in CASES.items()}, prepare)
