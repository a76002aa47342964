"""Importing the course: the interpreter is the default where no GPU is visible, and only there."""

from __future__ import annotations

import os

import pytest

import forked


def after_import(before: str = "", **environment: str) -> tuple[str, str]:
    """What TRITON_INTERPRET is in a new process that has imported the course, and what it printed on stderr."""
    script = f"import os\n{before}\nimport gemm_course\nprint(os.environ.get('TRITON_INTERPRET'))"
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    # As on a machine without a GPU.
    environment = {**inherited, "CUDA_VISIBLE_DEVICES": "", **environment}
    done = forked.run(script, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_without_a_gpu_kernels_are_interpreted_here_and_in_children():
    assert after_import() == ("1", "")


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_a_users_own_value_is_left_alone(value):
    assert after_import(TRITON_INTERPRET=value)[0] == value


def test_with_a_gpu_nothing_is_set():
    assert after_import("import torch.cuda\ntorch.cuda.device_count = lambda: 1") == ("None", "")


def test_a_learners_kernel_runs_though_triton_was_imported_before():
    assert after_import("import triton") == ("1", "")
    before = "import triton, triton.language"
    after = "print(type(triton.jit(os.getcwd)).__name__, type(triton.language.zeros).__name__)"
    done = forked.run(f"import os\n{before}\nimport gemm_course\n{after}")
    assert done.stdout.split() == ["InterpretedFunction"] * 2, done.stderr


def test_it_has_check_and_nothing_by_other_names():
    script = "import gemm_course\ntry: gemm_course.chek\nexcept AttributeError as error: print(error)"
    done = forked.run(script)
    assert "'gemm_course' has no attribute 'chek'" in done.stdout, done.stderr
