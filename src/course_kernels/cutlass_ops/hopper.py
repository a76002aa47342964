"""Our operator for Hopper: the Operator class by which the API finds, compiles and runs the kernel.

Importing this module registers it with NVIDIA's provider of CuTe DSL operators. The kernel is ``kernels.cute_sm90``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import cutlass
import cutlass.operators as ops
from cutlass.operators.metadata import (
    BLASDesignMetadata,
    DenseTensorConstraints,
    IndexPtrGroupedGemmOperandsMetadata,
    OperatorMetadata,
)
from cutlass.operators.mma import HopperWgmma
from cutlass.operators.providers.cutedsl.integration_utils.mma import get_max_active_clusters
from cutlass.operators.providers.cutedsl.operator import CuteDslOperator
from cutlass.operators.utils.device import to_cuda_stream

from course_kernels.kernels.cute_sm90.config import CONFIGS, CuteConfig
from course_kernels.kernels.cute_sm90.form import Form
from course_kernels.kernels.cute_sm90.kernel import HopperGroupedGemm

IN_DTYPES = (cutlass.Float16, cutlass.BFloat16)
OUT_DTYPES = (cutlass.Float16, cutlass.BFloat16, cutlass.Float32)
# The dimension with stride 1, group first: K in A and in B, which is stored (G, N, K); N in the result.
STRIDES = {"A": (0, 0, 1), "B": (0, 1, 0), "out": (0, 0, 1)}
ALIGNMENT_BYTES = 16  # TMA's rule, for addresses and for strides
FIXED = tuple(config for config in CONFIGS if not config.dynamic)


@dataclasses.dataclass(kw_only=True)
class HopperDesignMetadata(BLASDesignMetadata):
    """How one configuration differs from another.

    Attributes:
        schedule: "cooperative" or "pingpong": how warp groups share the work.
        other_tiles: rows and columns of narrow, flat and half tiles.
        config: the kernel's configuration.
    """

    schedule: str
    other_tiles: tuple[tuple[int, int], ...]
    config: CuteConfig


@ops.CuTeDSLProvider.register
class HopperGroupedGemmOperator(CuteDslOperator):
    """Groups packed along M, on wgmma: float16 or bfloat16 operands, sums in float32, zeros after the last group."""

    supported_args_type = ops.IndexPtrGroupedGemmArguments
    designed_for_min_cc = 90

    def __init__(self, metadata: OperatorMetadata):
        super().__init__(metadata)
        self.impl = HopperGroupedGemm(metadata.design.config, Form())

    def _supports(self, args: ops.IndexPtrGroupedGemmArguments, target_sm=None) -> ops.Status:
        """Check the extents, which metadata cannot describe: they fit one another, and none is 0."""
        (total_m, K), (groups, _, N) = args.A.shape, args.B.shape
        if args.B.shape[1] != K or args.offsets.shape[0] != groups or tuple(args.out.shape) != (total_m, N):
            shapes = [tuple(each.shape) for each in (args.A, args.B, args.out, args.offsets)]
            return ops.Status.fail(f"A, B, out and offsets do not fit: {', '.join(map(str, shapes))}")
        if 0 in (total_m, N, K, groups):
            return ops.Status.fail(f"total_m, N, K and G must be at least 1, got {total_m}, {N}, {K} and {groups}")
        return ops.Status.success()

    def _compile(self, args: ops.IndexPtrGroupedGemmArguments, target_sm=None) -> ops.CompiledArtifact:
        stream = cutlass.cute.runtime.make_fake_stream()
        clusters = get_max_active_clusters(self.metadata.design.cluster_shape)
        artifact = self.cute_compile(self.impl, *_tensors(args), cutlass.Int32(1), stream, target_sm=target_sm)
        artifact.clusters = clusters  # an argument of each launch
        return artifact

    def _run(self, args: ops.IndexPtrGroupedGemmArguments, compiled_artifact, stream, workspace=None) -> None:
        code, clusters = compiled_artifact.compiled_obj, compiled_artifact.clusters
        self.cute_run(code, *_tensors(args), clusters, to_cuda_stream(stream))

    @classmethod
    def _generate_operators(
        cls,
        metadata_filter: Callable[[OperatorMetadata], bool],
        epilogue_args=None,
        target_sm=None,
        args: ops.IndexPtrGroupedGemmArguments | None = None,
    ) -> list[HopperGroupedGemmOperator]:
        """One operator for each configuration and combination of dtypes that passes the filter. None has a dynamic
        order: an operator has no place for the counter."""
        if epilogue_args is not None:
            return []
        found = []
        for operands, config in itertools.product(_operands(), FIXED):
            design = HopperDesignMetadata(
                mma_instruction_type=HopperWgmma,
                tile_shape=(config.tile_m, config.tile_n, config.tile_k),
                cluster_shape=(config.cluster, 1, 1),
                num_smem_stages=config.stages,
                schedule=config.schedule,
                other_tiles=tuple((shape.tile_m, shape.tile_n) for shape in config.shapes[1:]),
                config=config,
            )
            metadata = OperatorMetadata(
                operator_name=f"course_kernels.HopperGroupedGemm_{operands.A.dtype}_{operands.out.dtype}_{config.name}",
                operator_class=cls,
                supported_targets=ops.TargetSm.get_supported_targets(design, operands),
                operands=operands,
                design=design,
            )
            if metadata_filter(metadata):
                found.append(cls(metadata))
        return found


def _tensors(args: ops.IndexPtrGroupedGemmArguments) -> tuple:
    return args.A.tensor, args.B.tensor, args.out.tensor, args.offsets.tensor


def _operands() -> Iterator[IndexPtrGroupedGemmOperandsMetadata]:
    """Constraints on the operands, for each combination of dtypes."""
    for dtype, out_dtype in itertools.product(IN_DTYPES, OUT_DTYPES):
        dtypes = {"A": dtype, "B": dtype, "out": out_dtype}
        yield IndexPtrGroupedGemmOperandsMetadata(
            **{
                name: DenseTensorConstraints(each, STRIDES[name], ALIGNMENT_BYTES * 8 // each.width)
                for name, each in dtypes.items()
            },
            offsets=DenseTensorConstraints(cutlass.Int32, (1,), 1),
            offsets_along="m",
            accumulator_type=cutlass.Float32,
        )
