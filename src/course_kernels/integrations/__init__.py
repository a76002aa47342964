"""Adapters to other projects, each imported by whoever uses it."""

from course_kernels import runtime


def check_transformers() -> None:
    """Raise ImportError unless a version of transformers is installed that the adapters know, 5.24 or later."""
    try:
        from transformers.utils.versions import require_version

        require_version("transformers>=5.24")
    except ImportError as error:
        found = str(error).strip().splitlines()[0]
        raise ImportError(
            f"course_kernels.integrations needs transformers 5.24 ({found}): "
            + runtime.INSTALL_EXTRA.format("transformers")
        ) from error
