"""Exercise 07, keys of configurations: the tests of any exercise."""

from __future__ import annotations

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
