"""The choice of a product's configuration, and the reason for it.

``chooser.choose`` chooses for the Triton kernels: by ``time_model`` with ``gpu_constants``, else by
``fallback_rules``. ``choice_log.explain`` says why, and ``log_choice`` logs what a call gets. ``configs_by_kind``:
the configurations that are measured.
"""

from course_kernels.engine.tuning.choice_log import explain, log_choice
from course_kernels.engine.tuning.chooser import Choice, choose
from course_kernels.engine.tuning.gpu_distance import Gpu
from course_kernels.engine.tuning.kinds import Extents, Kind

__all__ = ["Choice", "Extents", "Gpu", "Kind", "choose", "explain", "log_choice"]
