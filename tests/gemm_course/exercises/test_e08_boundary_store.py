"""Exercise 08, stores of boundary tiles: the tests of any exercise."""

from __future__ import annotations

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
