"""Isolation of the processes that run answers: Landlock, seccomp, limits, and a static check of the source."""
