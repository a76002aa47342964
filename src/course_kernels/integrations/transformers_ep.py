"""Expert parallelism for transformers: ``DistributedConfig(ep_size=..., ep_implementation="course_kernels")``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.functional import pad

from course_kernels.distributed import ExpertParallel
from course_kernels.integrations import check_transformers

check_transformers()

from transformers.distributed.expert_parallel import (  # noqa: E402 (after the check)
    EPImplementation,
    EPImplementationInterface,
)


class CourseKernelsEP(EPImplementation):
    """Sends each token once to each rank that has experts of it, with ``ExpertParallel``. Any of transformers' experts
    implementations computes there, on local ids; of other ranks' choices the id is the number of local experts and the
    weight 0. Ranks of one tensor-parallel group share a batch: each sends its part of it.
    """

    def __init__(self, experts: nn.Module, ep_mesh: DeviceMesh, tp_mesh: DeviceMesh):
        super().__init__(experts, ep_mesh, tp_mesh)
        self.ep = ExpertParallel(ep_mesh, self.num_local_experts * ep_mesh.size())

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Compute the experts of this rank's tokens (T, H), with global ids (T, k) and weights (T, k): (T, H)."""
        count, shared = hidden_states.shape[0], self.tp_mesh.size() > 1
        if shared:
            hidden_states, top_k_index, top_k_weights = (
                DTensor.from_local(each, self.tp_mesh, [Replicate()], run_check=False)
                .redistribute(placements=[Shard(0)])
                .to_local()
                for each in (hidden_states, top_k_index, top_k_weights)
            )
        rows, choices, handle = self.ep.dispatch(hidden_states, top_k_index, top_k_weights)
        index = torch.where(choices.index < 0, self.num_local_experts, choices.index).to(top_k_index.dtype)
        weights = choices.weights.to(top_k_weights.dtype)
        arrived = rows.shape[0]
        if not arrived:  # not every implementation takes no rows; a padded one stays part of the backward
            rows, index, weights = (pad(each, (0, 0, 0, 1)) for each in (rows, index, weights))
        results = self.ep.combine(self.experts_forward(rows, index, weights)[:arrived], handle)
        if not shared:
            return results
        shape = count, results.shape[1]
        parts = DTensor.from_local(results, self.tp_mesh, [Shard(0)], shape=shape, stride=(shape[1], 1))
        return parts.full_tensor()


def register(name: str = "course_kernels") -> None:
    """Make ``CourseKernelsEP`` known to transformers, as ``DistributedConfig(ep_implementation=name)``."""
    EPImplementationInterface.register(name, CourseKernelsEP)
