"""Shapes that tests of tuning share."""

from __future__ import annotations

import itertools

from course_kernels.engine.tuning import Extents

SHAPES = [
    Extents(m, n, k, g)
    for m, n, k in itertools.product((1, 20, 64, 500, 8192), (16, 1536, 8192), (64, 768, 7168))
    for g in (1, 12, 256)
]
PROVENANCE = {"gpu": "no GPU", "capability": "9.0", "date": "2026-01-01", "commit": "0"}
