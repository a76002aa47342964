"""The course's exercises. In a notebook: `from course_kernels.course import check`.

Importing that name starts, in the background, the process that checks answers.
"""

from __future__ import annotations

__all__ = ["check"]


def __getattr__(name: str):
    if name != "check":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from course_kernels.course import notebook

    notebook.start()
    return notebook.check
