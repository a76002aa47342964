"""AITER's grouped matrix multiplications, ``gmm``, ``ptgmm`` and ``nptgmm``, on this library's packed products.

``course_kernels.gmm`` is also the function: import other names with ``from course_kernels.gmm import get_config``.
"""

from course_kernels.gmm.api import gmm, nptgmm, ptgmm
from course_kernels.gmm.configs import get_config

__all__ = ["get_config", "gmm", "nptgmm", "ptgmm"]
