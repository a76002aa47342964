"""Exercise 11a, a tile of the weight gradient: the tests of any exercise, and answers that only look right."""

from __future__ import annotations

import random

import pytest

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_diagnoses import test_no_mutant_passes_by_luck  # noqa: F401 (a stricter one)
