"""Expert parallelism of a process group: its checks, its two halves, and the layer between them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from course_kernels import runtime
from course_kernels.contexts import refuse_tangents, refuse_transforms
from course_kernels.distributed.chunks import overlapped
from course_kernels.distributed.motion import Choices, ThroughPlan, combine, dispatch, settled, through
from course_kernels.distributed.plan import Homes, Plan
from course_kernels.distributed.transports import TRANSPORTS, Transport
from course_kernels.distributed.transports.transport import Direct
from course_kernels.engine.plans import PlanCache
from course_kernels.moe.parallel import Kernels, Layer
from course_kernels.moe.routing import check_ids
from course_kernels.schedule import Cluster, ExpertLayer, LayerTime, layer_time
from course_kernels.type_checks import check_dense

_BETWEEN_GRAPHS = "expert parallelism, whose splits the host reads, runs between two graphs"
_TRANSFORMS = "expert parallelism", "use backward()"  # for ``refuse_transforms``
_SMS_OF_EXCHANGES = 16  # while products run; a kernel of NCCL has one for each channel


def _ranks_of(mesh: DeviceMesh) -> list[int]:
    """The ranks of a 1-D mesh. While a graph is traced, the mesh's tensor is data, which must not be read: its group
    has the same ranks, in ascending order."""
    if torch.compiler.is_compiling():
        return dist.get_process_group_ranks(mesh.get_group())
    return mesh.mesh.tolist()


class Dispatched(NamedTuple):
    """What ``ExpertParallel.dispatch`` returns.

    Attributes:
        rows: (R, H) of x's dtype, the tokens that have arrived, those of rank 0 first. Differentiable.
        choices: of those tokens.
        handle: for ``combine``; and for another ``dispatch`` of the same routing.
    """

    rows: Tensor
    choices: Choices
    handle: Plan


class ExpertParallel:
    """The experts of a layer, spread evenly over the ranks of a group. Rank r has the experts from r * E / ranks on.

    Each rank has its own tokens, of any number. A token travels once to each rank that has experts of it. That rank
    sums its experts' results in float32, rounds the sum once, and sends it back. The token's rank adds these sums in
    the order of ranks, in float32, and rounds once. Deterministic bit for bit.

    Args:
        mesh_or_group: a 1-D ``DeviceMesh``, such as ``mesh["ep"]``, or a process group.
        num_experts: E, of all ranks together; a multiple of the number of ranks.
        transport: "all_to_all" uses ``all_to_all_single``, on NCCL or gloo, and reads the counts of tokens on the host,
            once a layer. "auto" is the same. "symmetric" is for GPUs that reach each other's memory (NVLink): kernels
            write rows into other ranks' memory, the host reads nothing, and a CUDA graph captures the layer once it has
            run.
        max_tokens: with "symmetric", the most tokens that a rank has in a call; the same on all ranks.
        chunks: into how many parts ``feed_forward`` cuts a rank's tokens, the same on all ranks. Exchanges run on a
            second stream, so one part is on the wire while another is computed; products leave 16 SMs to them, unless
            ``moe_feed_forward`` gets ``num_sms``. Measure before you use it: each chunk has launches and a read of its
            own, and on the one host that was measured they cost more than the overlap gained. ``suggest_chunks`` has a
            model of time without these. A weight's gradient is computed for each chunk, and the sum is rounded each
            time. With a plan there is one chunk.

    Raises:
        TypeError, ValueError: naming the argument, what it got and what it wants.

    Notes:
        All methods but ``local`` and ``of_all`` are collective: every rank of the group calls them in the same order,
        also a rank without tokens. All ranks or none run the backward, for gradients of the same ones of x and weights.
        Where a rank does not, the others' wait ends at the group's time-out, with an error that says what they waited
        for.
        The gradient of this rank's weights is that of the sum of all ranks' losses. It is not divided by their number,
        and must not be reduced over the group. Where the dense part's gradients are averages over ranks (DDP, FSDP),
        divide the experts' by as many; or let FSDP2 add (``set_gradient_divide_factor(1.0)`` and
        ``set_force_sum_reduction_for_comms(True)`` of each of its modules), and divide the loss by the ranks.
        Beside rows there travel 8 bytes for each choice, k a row: its id and its weight. A layer's buffers: the sends
        (at most min(k, ranks) * T rows of H), the rows that arrive, and a result for each. With "symmetric": one buffer
        of ranks * max_tokens rows with their weights and ids, shared by all calls; and the layer's own buffers for
        ranks * max_tokens * min(k, E / ranks) choices. With gradients, chunks or adapters, or from ``dispatch``, also a
        copy of the rows that arrive and as many results. Unfilled rows are never read.
        With "symmetric", kernels write a token to its ranks alone. But where at least 0.9 of the tokens go to each
        rank, if their experts are drawn alike, and ``max_tokens`` rows are 32 MiB or more, copy engines bring all of a
        rank's tokens to each other rank, without SMs. On Hopper, the first product of the layer then begins with the
        rank's own tokens while others arrive, and so does that of its backward; without chunks and adapters.
        All ranks have the same arguments, and the same dtype and width of x. "all_to_all" checks it whenever it plans
        with x, "symmetric" only where it allocates its buffer.

    Examples:
        >>> from course_kernels.distributed import ExpertParallel  # doctest: +SKIP
        >>> ep = ExpertParallel(mesh["ep"], num_experts=128)  # doctest: +SKIP
        >>> out = moe_feed_forward(x, gate_up, down, top_k_index, top_k_weights, ep=ep)  # doctest: +SKIP
    """

    def __init__(
        self,
        mesh_or_group: DeviceMesh | dist.ProcessGroup,
        num_experts: int,
        *,
        transport: str = "auto",
        max_tokens: int | None = None,
        chunks: int = 1,
    ):
        if transport not in TRANSPORTS:
            raise ValueError(f"transport must be one of {tuple(TRANSPORTS)}, got {transport!r}")
        if isinstance(mesh_or_group, DeviceMesh):
            if mesh_or_group.ndim != 1:
                names = mesh_or_group.mesh_dim_names
                called = "" if names is None else f", {names}"
                raise ValueError(
                    f"mesh_or_group must be a 1-D mesh, got one of {mesh_or_group.ndim} dimensions{called}: "
                    'select the one that experts are spread over, such as mesh["ep"]'
                )
            self.group = mesh_or_group.get_group()
            self._mesh: DeviceMesh | None = mesh_or_group
        elif isinstance(mesh_or_group, dist.ProcessGroup):
            self.group, self._mesh = mesh_or_group, None
        else:
            kind = type(mesh_or_group).__name__
            left_out = isinstance(mesh_or_group, int) and mesh_or_group == dist.GroupMember.NON_GROUP_MEMBER
            outside = ": this rank is not in the group" * left_out
            raise TypeError(f"mesh_or_group must be a DeviceMesh or a ProcessGroup, got {kind}{outside}")
        if not isinstance(num_experts, int) or isinstance(num_experts, bool):
            raise TypeError(f"num_experts must be an int, got {type(num_experts).__name__}")
        ranks = self.group.size()
        if num_experts < 1 or num_experts % ranks:
            raise ValueError(
                f"num_experts must be a multiple of the group's {ranks} ranks, so that each has as many, got "
                f"{num_experts}"
            )
        if not isinstance(chunks, int) or isinstance(chunks, bool) or chunks < 1:
            raise ValueError(f"chunks must be an int of at least 1, got {chunks!r}")
        self.num_experts, self.num_local_experts, self.chunks = num_experts, num_experts // ranks, chunks
        self.rank, self.plans = self.group.rank(), PlanCache()
        self.transport: Transport = TRANSPORTS[transport].of(self.group, self.num_local_experts, max_tokens)

    def __repr__(self) -> str:
        return f"ExpertParallel({self.num_experts} experts over {self.group.size()} ranks)"

    def __deepcopy__(self, memo):
        return self  # process groups cannot be copied, and a copied module belongs to the same one

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks as a 1-D mesh."""
        if self._mesh is None:
            kind = "cuda" if "nccl" in dist.get_backend(self.group) else "cpu"
            self._mesh = DeviceMesh.from_group(self.group, kind)
        return self._mesh

    # ---- the two halves

    @runtime.outside_graphs(_BETWEEN_GRAPHS)
    def plan(self, top_k_index: Tensor) -> Plan:
        """Route tokens to ranks, once for any number of calls of ``dispatch``: for recomputation in activation
        checkpointing, make the plan outside of the part that is checkpointed.

        Args:
            top_k_index: int32 or int64 (T, k), ids of all ranks' experts. Others, such as a sentinel, count nothing.
                k is the same on all ranks, T is not.
        """
        return self.transport.plan(self._checked(top_k_index))

    def _checked(self, top_k_index: Tensor) -> Tensor:
        refuse_transforms(*_TRANSFORMS)
        check_ids(top_k_index, self.num_experts)
        if not top_k_index.shape[1]:
            raise ValueError(f"top_k_index must have at least one column, got shape {tuple(top_k_index.shape)}")
        return settled(top_k_index)

    def dispatch(
        self, x: Tensor, top_k_index: Tensor | None, top_k_weights: Tensor, *, plan: Plan | None = None
    ) -> Dispatched:
        """Send tokens to the ranks of their experts.

        Args:
            x: (T, H) float16, bfloat16 or float32.
            top_k_index: int32 or int64 (T, k), as for ``plan``; None where ``plan`` is given.
            top_k_weights: (T, k) of any floating dtype. They travel in float32.
            plan: of ``plan``, or the handle of an earlier call.

        Returns:
            The rows, choices and handle. Weights and rows are differentiable: x's gradient is the sum over ranks, in
            float32, rounded once.

        Raises:
            TypeError, ValueError: naming the argument, what it got and what it wants; before rows are sent.
            RuntimeError: another rank did not make the call in time.
        """
        return self._dispatched(x, top_k_index, top_k_weights, plan, "plan")

    @runtime.outside_graphs(_BETWEEN_GRAPHS)
    def _dispatched(
        self, x: Tensor, top_k_index: Tensor | None, top_k_weights: Tensor, plan: Any, name: str
    ) -> Dispatched:
        journey = self._journey(x, top_k_index, top_k_weights, plan, name)
        rows, weights, plan = dispatch(x, top_k_weights.float(), self.transport, journey)
        return Dispatched(rows, Choices(plan.local_index, weights, plan.routing), plan)

    def _journey(
        self, x: Tensor, top_k_index: Tensor | None, top_k_weights: Tensor, plan: Any, name: str
    ) -> Plan | Tensor:
        """The plan or the ids of a call of ``dispatch``, whose arguments it checks; errors call the plan ``name``."""
        refuse_transforms(*_TRANSFORMS)
        refuse_tangents("expert parallelism", x, top_k_weights, instead="use backward()")
        check_dense("x", x)
        check_dense("top_k_weights", top_k_weights)
        if x.dim() != 2:
            raise ValueError(f"x must be 2-D, (T, H), got shape {tuple(x.shape)}")
        if not top_k_weights.dtype.is_floating_point:
            raise TypeError(f"top_k_weights must have a floating dtype, got {top_k_weights.dtype}")
        if plan is None:
            name = "top_k_index"
            check_dense(name, top_k_index)
        elif not isinstance(plan, Plan):
            raise TypeError(f"{name} must be a Plan, from ExpertParallel.plan, got {type(plan).__name__}")
        else:
            self._check_own(name, plan)
        shape = tuple(top_k_index.shape if plan is None else plan.sends.carriers.shape)
        if tuple(top_k_weights.shape) != shape or x.shape[0] != shape[0]:
            raise ValueError(
                f"x and top_k_weights must be of the tokens of {name}, (T, k) = {shape}, got shapes "
                f"{tuple(x.shape)} and {tuple(top_k_weights.shape)}"
            )
        return self._checked(top_k_index) if plan is None else plan

    def _check_own(self, name: str, plan: Plan) -> None:
        """Raise where a plan cannot be of these experts, ranks and transport."""
        ranks, local = self.group.size(), plan.routing.ends.shape[0]
        sources = ranks if plan.matrix is None else len(plan.matrix)
        direct = isinstance(plan.sends, Homes)
        if (sources, local) != (ranks, self.num_local_experts) or direct != isinstance(self.transport, Direct):
            of_ranks = "" if plan.matrix is None else f" over {sources} ranks"
            raise ValueError(
                f"{name} must be of the same ExpertParallel, {self.num_local_experts} experts a rank over {ranks} "
                f"ranks, got another's plan, of {local} experts a rank{of_ranks}"
                + (' with transport "symmetric"' if direct else "")
            )

    @runtime.outside_graphs(_BETWEEN_GRAPHS)
    def combine(self, y: Tensor, handle: Plan) -> Tensor:
        """Return results to the ranks of their tokens.

        Args:
            y: (R, H), a result for each of ``dispatch``'s rows: the sum over this rank's experts.
            handle: of ``dispatch``.

        Returns:
            (T, H) of y's dtype: for each token the sum over ranks, in their order, in float32, rounded once. Zeros for
            a token without any.
        """
        refuse_transforms(*_TRANSFORMS)
        refuse_tangents("expert parallelism", y, instead="use backward()")
        check_dense("y", y)
        if not isinstance(handle, Plan):
            raise TypeError(f"handle must be that of dispatch, got {type(handle).__name__}")
        self._check_own("handle", handle)
        if y.dim() != 2 or y.shape[0] != handle.local_index.shape[0]:
            raise ValueError(
                f"y must have a row for each of the {handle.local_index.shape[0]} that arrived, got shape "
                f"{tuple(y.shape)}"
            )
        return combine(y, self.transport, handle)

    def feed_forward(
        self, layer: Layer, x: Tensor, top_k_index: Tensor | None, top_k_weights: Tensor, *, plan: Any = None,
        kernels: Kernels | None = None,
    ) -> Tensor:  # fmt: skip
        """Apply ``layer(rows, weights, routing)`` between ``dispatch`` and ``combine``, to one chunk after another.
        Errors call the plan "routing", as ``moe_feed_forward`` does.
        Where ``kernels`` are the same layer, there is one chunk and ranks reach each other's memory, results are summed
        on their way."""
        if plan is None and self.chunks > 1:
            return overlapped(self, layer, x, settled(top_k_index), top_k_weights, self.chunks)
        if kernels is not None and isinstance(self.transport, Direct):
            return through(kernels, self.transport, self._journey(x, top_k_index, top_k_weights, plan, "routing"))
        rows, choices, handle = self._dispatched(x, top_k_index, top_k_weights, plan, "routing")
        return self.combine(layer(rows, choices.weights, choices.routing), handle)

    def plan_calls(self, kernels: Kernels) -> ThroughPlan | None:
        """A plan of calls of ``feed_forward`` like one that was made, for ``moe_feed_forward``."""
        planned = self.chunks == 1 and isinstance(self.transport, Direct) and kernels.float8 is None
        return ThroughPlan(kernels, self.transport) if planned else None

    def products_sms(self, device: torch.device, num_sms: int | None) -> int | None:
        """The SMs that products may use, as ``moe_feed_forward`` asks before ``feed_forward``: ``num_sms`` if given;
        with chunks all but those that exchanges take at the same time; else None, for all."""
        if num_sms is not None or self.chunks == 1 or device.type != "cuda":
            return num_sms
        return max(1, runtime.num_sms(device) - _SMS_OF_EXCHANGES)

    def suggest_chunks(
        self, tokens: int, hidden: int, inner: int, top_k: int, cluster: Cluster | None = None
    ) -> LayerTime:
        """Predict the forward of a layer (H, I) of ``tokens`` tokens a rank with the best number of chunks, which is
        the result's ``chunks``. It communicates nothing: give all ranks the same numbers.

        Args:
            cluster: the GPUs and their links; None takes as many H100, eight a node.
        """
        layer = ExpertLayer(hidden, inner, self.num_experts, top_k)
        return layer_time(layer, tokens, cluster or Cluster(self.group.size()))

    # ---- weights

    def local(self, **weights: Tensor | None) -> list[Tensor | None]:
        """Return this rank's part of weights: of DTensors with ``Shard(0)`` over the group their local tensors, others
        as they are. Their gradients stay where they are.

        Raises:
            ValueError: naming the weight that has not this rank's experts alone.
        """
        return [None if weight is None else self._local(name, weight) for name, weight in weights.items()]

    def _local(self, name: str, weight: Tensor) -> Tensor:
        check_dense(name, weight)
        if isinstance(weight, DTensor):
            ranks = dist.get_process_group_ranks(self.group)
            mesh = weight.device_mesh
            if weight.placements != (Shard(0),) or _ranks_of(mesh) != ranks:
                raise ValueError(
                    f"{name} must be a DTensor with placements (Shard(0),) over ranks {ranks}, got "
                    f"{weight.placements} over {mesh.mesh.tolist()}"
                )
            weight = weight.to_local()
        if weight.dim() and weight.shape[0] != self.num_local_experts:
            raise ValueError(
                f"{name} must have this rank's {self.num_local_experts} experts, of {self.num_experts} over "
                f"{self.group.size()} ranks, got shape {tuple(weight.shape)}; num_experts counts those of all ranks"
            )
        return weight

    def of_all(self, weight: Tensor) -> DTensor:
        """Make this rank's part of a weight the DTensor with ``Shard(0)`` of all ranks', which shares its memory if
        that is on the group's kind of device. Nothing is communicated."""
        return DTensor.from_local(weight, self.mesh, [Shard(0)], run_check=False)

    def shard(self, experts: nn.Module) -> nn.Module:
        """Spread a module that has all experts, such as ``moe.Experts``: its own parameters become DTensors with
        ``Shard(0)``, whose values come from the first rank, and its attribute ``ep`` this object. Those of modules in
        it stay as they are, and so do those that are spread over these ranks already. Returns the module.

        Notes:
            The parameters are new objects: make the optimizer after it. It comes before FSDP2's ``fully_shard``.

        Raises:
            TypeError: this is no module.
            ValueError: it has no parameters of its own, one's first extent is not the number of experts, or one is a
                DTensor of other ranks.
        """
        if not isinstance(experts, nn.Module):
            raise TypeError(f"experts must be a torch.nn.Module, got {type(experts).__name__}")
        own = list(experts.named_parameters(recurse=False))
        if not own:
            raise ValueError(
                "experts must be the module whose own parameters are the experts', such as model.layers[0].experts, "
                f"got {type(experts).__name__} without parameters of its own"
            )
        for name, value in own:
            if not value.dim() or value.shape[0] != self.num_experts:
                raise ValueError(f"{name} must have {self.num_experts} experts, got shape {tuple(value.shape)}")
        self.local(**{name: value for name, value in own if isinstance(value, DTensor)})
        for name, value in own:
            if isinstance(value, DTensor):
                continue
            sharded = distribute_tensor(value.detach(), self.mesh, [Shard(0)])
            setattr(experts, name, nn.Parameter(sharded, requires_grad=value.requires_grad))
        experts.ep = self
        return experts
