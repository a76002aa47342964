"""Grading a class: the students of a folder, their files and answers, grades, the cache of results, Gradescope."""
