"""Grading a class: what was handed in, archives, grades, the cache of results, Gradescope."""
