"""AITER's grouped matrix multiplications, ``gmm``, ``ptgmm`` and ``nptgmm``, on this library's packed products.

``course_kernels.gmm`` is also the function, which has these names as well: ``import course_kernels.gmm`` binds it.
"""

from course_kernels.gmm.api import gmm, nptgmm, ptgmm
from course_kernels.gmm.configs import get_config

__all__ = ["get_config", "gmm", "nptgmm", "ptgmm"]

vars(gmm).update((name, globals()[name]) for name in __all__)
