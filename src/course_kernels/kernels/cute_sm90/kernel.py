"""Grouped GEMM for Hopper: the kernel, with all its roles.

A block has three warp groups. The warps of the first one load and write zeros: ``form.Form.loading_warps`` says which
does what. The other two groups multiply and store. All walk the same tiles (``scheduler``), a cluster of CTAs together.
Cooperative warp groups share a tile. Ping-pong ones take every other tile, and a pair of barriers lets one at a time
multiply: so one's stores hide behind the other's products, and the order in which stages are used is that in which they
were filled.
"""

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync

from course_kernels.kernels.cute_sm90 import dynamic_order
from course_kernels.kernels.cute_sm90.block_scales import BlockScales, StageScales, load_all_scales, stage_scales_of
from course_kernels.kernels.cute_sm90.blockwise import multiply_blocks, multiply_lines
from course_kernels.kernels.cute_sm90.config import COOPERATIVE, PINGPONG, WARP_GROUP, CuteConfig
from course_kernels.kernels.cute_sm90.dynamic_order import SLOTS, Order, Place
from course_kernels.kernels.cute_sm90.epilogues.bias import add_bias, load_bias
from course_kernels.kernels.cute_sm90.epilogues.gated import Gated, GatedBackward, Others
from course_kernels.kernels.cute_sm90.epilogues.scaled import Scales
from course_kernels.kernels.cute_sm90.epilogues.store import Add, Store
from course_kernels.kernels.cute_sm90.epilogues.zeros import write_zeros
from course_kernels.kernels.cute_sm90.form import GATED, GATED_BACKWARD, GATED_PRE, GATHER, LOAD, SCALES, ZEROS, Form
from course_kernels.kernels.cute_sm90.loads.gather import gather_all
from course_kernels.kernels.cute_sm90.loads.tma import load_tile
from course_kernels.kernels.cute_sm90.mainloop import (
    ShapeOps,
    finish_tile,
    make_ops,
    multiply_apart,
    multiply_tile,
    stages_of,
)
from course_kernels.kernels.cute_sm90.operands import Layer
from course_kernels.kernels.cute_sm90.ragged_descriptor import make_ragged
from course_kernels.kernels.cute_sm90.scheduler import LANES, Problem, Tile, Window, blocks_at, find_tile, first_window
from course_kernels.kernels.cute_sm90.stages import make_ring, skip_stages

# A thread's registers where it loads, and where it multiplies: 40 and twice 232, or 56 and twice 224, times 128
# threads, are what a launch gets, no more than an SM's 65,536. Warps that gather rows need the more, except beside one
# epilogue, which needs them itself.
REGISTERS, REGISTERS_WITH_GATHERING = (40, 232), (56, 224)
# Named barriers from here on give ping-pong's warp groups their turns; those below belong to the epilogue.
TURN = 3

EPILOGUES = {"store": Store, "add": Add, GATED: Gated, GATED_PRE: Gated, GATED_BACKWARD: GatedBackward}


class HopperGroupedGemm:
    """Groups along "m": C[start:end] = A[start:end] @ B[g] for every group g, and zeros after the last group.
    Groups along "k": C[g] = A[:, start:end] @ B[start:end], which is zeros where the group is empty.

    Args:
        config: tiles, cluster, stages, schedule.
        form: of the product.

    Raises:
        ValueError: there is no kernel of this form, or none with this configuration.
    """

    def __init__(self, config: CuteConfig, form: Form):
        form.check()
        reason = config.why_not(form)
        if reason is not None:
            raise ValueError(f"config: {reason}")
        self.config, self.form, self.epilogue = config, form, EPILOGUES[form.epilogue](config, form)
        self.warps, self.skips_stages = form.loading_warps, config.in_rounds(form) and not form.whole_rounds
        self.gatherers = self.warps.count(GATHER)
        # The warps that write zeros for empty groups follow the progress of the loads.
        self.counts_loads = form.along == "k" and form.writes_zeros
        # Which operands have their lines contiguous, not their depth.
        self.a_across, self.b_across = form.along == "k" and form.b_major == "n", form.b_major == "n"

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        offs: cute.Tensor,
        clusters: Int32,
        stream,
        scale_a: cute.Tensor | None = None,
        scale_b: cute.Tensor | None = None,
        counter: cute.Tensor | None = None,
    ):
        """Make the descriptors and launch. No extent may be 0: an empty result needs no launch, and the caller writes
        the zeros of a result without depth or groups. Offsets may have any values.

        Args:
            a: (total_m, K), K contiguous; along "k" (M, total_k), M contiguous, total_k where operands have 8 bits;
                float16, bfloat16 or float8_e4m3fn.
            b: (G, K, N), along "k" (total_k, N), ``b_major`` contiguous; of a's dtype. If gate and up are multiplied,
                (G, K, 2, N).
            c: (total_m, N); along "k" (G, M, N); N contiguous; float16, bfloat16 or float32. With an activation,
                nothing is written to rows after the last group.
            offs: (G,) int32, or int64 where ``index_bytes`` is 8: rows, or lines along K, at which the groups end; or
                counts, how many rows of each group count, of the total_m / G that it has; or (pieces * G,) ends of
                pieces, see ``operands.Layer``.
            clusters: that are launched, from 1 up to as many as the GPU holds at one time. With fewer, other kernels
                have the other SMs.
            stream: where to launch.
            scale_a, scale_b: both or neither: (total_m,), along "k" (G, M), and (G, N) float32 factors of the product's
                rows and columns, before it is rounded; scale_b (G,) for one factor of all of a group's columns. Where
                blocks have factors (total_m, ceil(K / 128)) and (G, ceil(K / 128), ceil(N / 128)) of blocks, along "k"
                (M, ceil(total_k / 128)) and (N, ceil(total_k / 128)), with any strides.
            counter: (1,) float64, 0, used by no other launch meanwhile, where the order is dynamic; 0 again afterwards.
        """
        self.launch(a, b, c, offs, clusters, stream, scale_a, scale_b, counter, None)

    @cute.jit
    def launch(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        offs: cute.Tensor,
        clusters: Int32,
        stream,
        scale_a: cute.Tensor | None,
        scale_b: cute.Tensor | None,
        counter: cute.Tensor | None,
        layer: Layer | None,
    ):
        """Do what ``__call__`` says, also with a layer's tensors."""
        config, form = self.config, self.form
        kind = BlockScales if cutlass.const_expr(form.scaling == "blocks") else Scales
        scales = None if cutlass.const_expr(scale_a is None) else kind(scale_a, scale_b)
        total, M, K = cute.size(c, mode=[0]), cute.size(c, mode=[0]), cute.size(a, mode=[1])
        if cutlass.const_expr(form.along == "k"):
            total, M, a_lines = K, cute.size(c, mode=[1]), a
            if cutlass.const_expr(form.gathered is not None):
                total = K = cute.size(layer.index)
            b_lines = cute.make_tensor(b.iterator, cute.select(b.layout, [1, 0]))
            if cutlass.const_expr(self.a_across):
                a_lines, b_lines = make_ragged(a_lines, 1), make_ragged(b_lines, 1)
        elif cutlass.const_expr(form.halves == 2):
            a_lines, b_lines = a, cute.make_tensor(b.iterator, cute.select(b.layout, [3, 1, 2, 0]))
        else:
            a_lines, b_lines = a, cute.make_tensor(b.iterator, cute.select(b.layout, [2, 1, 0]))
        pitch = config.stage_lines * config.tile_k
        operands = a_lines, b_lines, self.a_across, self.b_across
        shapes = tuple(
            make_ops(each, pitch, *operands, each.product_cols(form), form.gathered, form.halves)
            for each in config.shapes
        )
        c_layout, c_atom, c_coords = self.epilogue.describe(c)
        others = self.epilogue.describe_others(layer, c_layout)
        numbers = config.stages * config.stage_scales * form.stages_scales
        group_pitch = total // cute.size(offs) if cutlass.const_expr(form.rows == "counts") else None
        N = cute.size(b, mode=[cute.rank(b) - 1]) * form.halves
        starts = arrivals = groups = None
        if cutlass.const_expr(form.rows == "pieces"):
            starts, groups, arrivals = layer.starts, cute.size(b, mode=[0]), (layer.arrived, layer.milliseconds)
        problem = Problem(offs, total, M, N, K, group_pitch, starts, groups)

        @cute.struct
        class Shared:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * config.stages]
            slots: cute.struct.MemRange[cutlass.Int64, 2 * SLOTS * config.dynamic]
            sent: cute.struct.MemRange[Int32, SLOTS * config.dynamic]
            loaded: cute.struct.MemRange[Int32, 1]
            read_by_epilogue: cute.struct.MemRange[cutlass.Int64, self.epilogue.barrier_count]
            scales: cute.struct.Align[cute.struct.MemRange[Float32, numbers], 16]
            stages: cute.struct.Align[cute.struct.MemRange[a.element_type, config.stages * pitch], 1024]
            c_blocks: cute.struct.Align[cute.struct.MemRange[c.element_type, cute.cosize(c_layout)], 1024]

        self.shared = Shared
        rows, bias = None, layer.bias if cutlass.const_expr(form.bias_bytes) else None
        if cutlass.const_expr(form.gathered is not None):
            rows = b if cutlass.const_expr(form.gathered == "b") else a, layer.index
            if cutlass.const_expr(form.along == "k" and form.gathered == "a"):
                rows = cute.make_tensor(a.iterator, cute.select(a.layout, [1, 0])), layer.index
        self.kernel(
            shapes, c_atom, c_coords, c, problem, scales, counter, c_layout, others, bias, rows, arrivals
        ).launch(
            grid=(config.cluster, 1, clusters),
            block=(3 * WARP_GROUP, 1, 1),
            cluster=(config.cluster, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,  # "programmatic dependent launch": blocks begin before the stream's last kernel has ended
        )

    @cute.kernel
    def kernel(
        self,
        shapes: tuple[ShapeOps, ...],
        c_atom: cute.CopyAtom,
        c_coords: cute.Tensor,
        c: cute.Tensor,
        problem: Problem,
        scales: Scales | BlockScales | None,
        counter: cute.Tensor | None,
        c_layout: cute.ComposedLayout,
        others: Others | None,
        bias: cute.Tensor | None,
        rows: tuple[cute.Tensor, cute.Tensor] | None,
        arrivals: tuple[cute.Tensor, Int32] | None,
    ):
        """What every block does."""
        config, form, thread = self.config, self.form, cute.arch.thread_idx()[0]
        along = form.along
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        if warp == 0:
            # Those of most tiles; others fetch theirs with their first loads.
            loads = tuple(each for each in (shapes[0].a, shapes[0].b) if each is not None)
            atoms = *(each.atom for each in loads), *(each.half_atom for each in loads)
            for atom in atoms[: len(loads) * config.cluster]:
                cpasync.prefetch_descriptor(atom)
            cpasync.prefetch_descriptor(c_atom)

        storage = cutlass.memory.SmemAllocator().allocate(self.shared)
        shared = tuple(stages_of(ops, storage.stages.data_ptr()) for ops in shapes)
        c_shared = storage.c_blocks.get_tensor(c_layout.outer, swizzle=c_layout.inner)
        ring = make_ring(config, storage.barriers.data_ptr(), LANES * (self.warps.count(SCALES) + self.gatherers))
        staged = stage_scales_of(config, storage.scales.data_ptr()) if form.stages_scales else None
        order = dynamic_order.make_order(
            config, counter, storage.sent.data_ptr(), storage.slots.data_ptr(), self.gatherers
        )
        # Tiles whose loads have begun. Before this zero other warps may read an old value, and write zeros too early.
        loaded = storage.loaded.data_ptr()
        if cutlass.const_expr(self.counts_loads) and thread == 0:
            cute.arch.store(loaded, Int32(0), sem="relaxed", scope="cta", ss="cta")
        self.epilogue.set_up(storage.read_by_epilogue.data_ptr())
        # No CTA may write to the other's stages, or count on its barriers, before they are set up.
        cluster = (config.cluster, 1)
        pipeline.pipeline_init_arrive(cluster_shape_mn=cluster, is_relaxed=True)
        cute.arch.griddepcontrol_wait()  # up to here no memory is touched that the kernel before may write
        window = first_window(config, along, problem)  # reads the first groups' ends meanwhile
        pipeline.pipeline_init_wait(cluster_shape_mn=cluster)

        place = Place(cute.arch.block_idx()[2], Int32(0))
        gathers = self.gatherers and form.epilogue != GATED_BACKWARD
        registers = REGISTERS_WITH_GATHERING if gathers else REGISTERS
        if group == 0:
            cute.arch.setmaxregister_decrease(registers[0])
            if warp == self.warps.index(LOAD):
                state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
                window, tile = find_tile(config, along, problem, window, place.number)
                while tile.found:
                    if cutlass.const_expr(self.counts_loads) and thread == 0:
                        cute.arch.atomic_add(loaded, Int32(1), sem="relaxed", scope="cta")
                    for i in cutlass.range_constexpr(len(shapes)):
                        if cutlass.const_expr(len(shapes) == 1) or tile.shape == i:
                            state, window, place = load_tile(
                                config, i, along, tile, ring, state, (shapes[i].a, shapes[i].b), shared[i], problem,
                                order, window, place,
                            )  # fmt: skip
                    if cutlass.const_expr(self.skips_stages):
                        state = skip_stages(ring, state)
                    window, tile, place = dynamic_order.next_to_load(config, along, problem, order, window, place)
                # The next kernel's blocks may begin where these end. Not earlier: they would take SMs that are left to
                # others, and here a block may wait for what those others send.
                cute.arch.griddepcontrol_launch_dependents()
                if cutlass.const_expr(config.dynamic and self.counts_loads) and thread == 0:
                    cute.arch.atomic_add(loaded, Int32(2**30), sem="relaxed", scope="cta")
                # A CTA that ends while the other still reports to its barriers would be written to after its end.
                ring.producer_tail(state)
                dynamic_order.leave_loading(config, order, place)
            else:
                if cutlass.const_expr(SCALES in self.warps):
                    load_all_scales(
                        config, problem, window, place.number, ring, scales, staged, self.warps.index(SCALES)
                    )
                if cutlass.const_expr(self.gatherers):
                    stages = storage.stages.data_ptr()
                    gather_all(config, form, problem, order, window, place, ring, *rows, stages, arrivals)
                if cutlass.const_expr(ZEROS in self.warps):
                    write_zeros(config, along, self.warps.count(ZEROS), c, problem, loaded)
        else:
            cute.arch.setmaxregister_increase(registers[1])
            consumer = group - 1
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)
            turns = tuple(
                pipeline.NamedBarrier(barrier_id=TURN + each, num_threads=2 * WARP_GROUP)
                for each in (consumer, 1 - consumer)
            )
            if cutlass.const_expr(config.schedule == PINGPONG) and consumer == 1:
                # First: the next number comes when the first tile is loaded, and that may take its products.
                turns[1].arrive()
                window, blocks = blocks_at(config, along, problem, window, place.number)
                state.advance(blocks)
                place = dynamic_order.following(config, order, place)

            window, tile = find_tile(config, along, problem, window, place.number)
            while tile.found:
                for i in cutlass.range_constexpr(len(shapes)):
                    if cutlass.const_expr(len(shapes) == 1) or tile.shape == i:
                        state, window, place = self.compute_tile(
                            config.shapes[i], shapes[i], shared[i], tile, ring, state, turns, problem, window,
                            order, place, scales, staged, c_atom, c_coords, c_shared, others, bias,
                        )  # fmt: skip
                place = dynamic_order.following(config, order, place)
                window, tile = find_tile(config, along, problem, window, place.number)
            dynamic_order.leave(config, order, place)
            self.epilogue.end()

    @cute.jit
    def compute_tile(
        self,
        shape: cutlass.Constexpr,
        ops: ShapeOps,
        shared: tuple[cute.Tensor, cute.Tensor],
        tile: Tile,
        ring: pipeline.PipelineAsync,
        state: pipeline.PipelineState,
        turns: tuple[pipeline.NamedBarrier, pipeline.NamedBarrier],
        problem: Problem,
        window: Window,
        order: Order,
        place: Place,
        scales: Scales | BlockScales | None,
        staged: StageScales | None,
        c_atom: cute.CopyAtom,
        c_coords: cute.Tensor,
        c_shared: cute.Tensor,
        others: Others | None,
        bias: cute.Tensor | None,
    ) -> tuple[pipeline.PipelineState, Window, Place]:
        """Multiply and store a tile of one shape of ``CuteConfig.shapes``. Returns the state, the window of
        groups and the place after the tile; in ping-pong after the one that follows, the other warp group's."""
        config, form, epilogue = self.config, self.form, self.epilogue
        mma, (a_shared, b_shared), (my_turn, other_turn) = ops.mma, shared, turns
        consumer = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_GROUP) - 1
        thread_mma = mma.get_slice(consumer * WARP_GROUP if config.schedule == COOPERATIVE else 0)
        a_fragments = mma.make_fragment_A(thread_mma.partition_A(a_shared))
        b_parts = b_shared
        if cutlass.const_expr(form.operand_bytes == 1):
            # A part is what one product covers: (columns, depth, part, stage).
            cols = shape.product_cols(form)
            b_parts = cute.flat_divide(b_shared, (cols, config.tile_k))[None, None, None, 0, None]
        b_fragments = mma.make_fragment_B(thread_mma.partition_B(b_parts))
        acc = cute.make_rmem_tensor(mma.partition_shape_C((shape.tile_m, shape.tile_n)), Float32)
        epilogue.prepare(shape, tile, c_shared, others)
        if cutlass.const_expr(config.schedule == PINGPONG):
            my_turn.arrive_and_wait()
        if cutlass.const_expr(form.stages_scales):
            state = multiply_lines(shape, tile, ring, state, mma, acc, a_fragments, b_fragments, staged)
        elif cutlass.const_expr(form.scaling == "blocks"):
            state = multiply_blocks(
                config, shape, form.whole_rounds, tile, ring, state, mma, acc, a_fragments, b_fragments, scales
            )
        elif cutlass.const_expr(form.operand_bytes == 1):
            state = multiply_apart(ring, state, mma, acc, a_fragments, b_fragments, tile.blocks)
        else:
            state, done = multiply_tile(
                ring, state, mma, acc, a_fragments, b_fragments, tile.blocks, self.gatherers > 0
            )
        if cutlass.const_expr(config.schedule == PINGPONG):
            other_turn.arrive()
            place = dynamic_order.following(config, order, place)
            window, blocks = blocks_at(config, form.along, problem, window, place.number)
            state.advance(blocks)
        if cutlass.const_expr(form.bias_bytes):
            biases = load_bias(shape, form.halves, tile, bias)
        if cutlass.const_expr(form.operand_bytes > 1):
            finish_tile(ring, done)
        if cutlass.const_expr(form.bias_bytes):
            add_bias(shape, acc, biases)
        epilogue.begin(shape, tile, acc, scales)
        epilogue.store_tile(shape, tile, acc, c_atom, c_coords, c_shared, others)
        return state, window, place


class HopperLayerGemm(HopperGroupedGemm):
    """A product that has other tensors: the form gathers lines of an operand, stores or reads an activation's argument,
    or adds a bias."""

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        offs: cute.Tensor,
        clusters: Int32,
        stream,
        scale_a: cute.Tensor | None,
        scale_b: cute.Tensor | None,
        counter: cute.Tensor | None,
        layer: Layer,
    ):
        """As for any product; ``layer`` has all that the form asks for. C is (total_m, 1 or 2, columns) for
        "gated_backward". An operand whose lines are gathered has any number of them."""
        self.launch(a, b, c, offs, clusters, stream, scale_a, scale_b, counter, layer)
