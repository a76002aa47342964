"""Expert parallelism on ``torch.distributed``: tokens travel to the ranks of their experts, and results back.

``ExpertParallel`` belongs to a process group. Its ``dispatch`` sends each token once to each rank that has experts of
it; ``combine`` returns the sums of a rank's results. ``moe_feed_forward(..., ep=...)`` and ``moe.Experts(..., ep=...)``
call both around the layer.
"""

from course_kernels.distributed.expert_parallel import ExpertParallel
from course_kernels.distributed.motion import Choices
from course_kernels.distributed.plan import Plan, Sends

__all__ = ["Choices", "ExpertParallel", "Plan", "Sends"]
