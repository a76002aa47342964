"""What every test module shares: the interpreter chosen before Triton is imported, and GPU tests skipped."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import signal
from pathlib import Path

import pytest
import torch

import guards

# Before anything imports Triton: it decides between the compiler and the interpreter.
from course_kernels import runtime
from gemm_course.runner import interpreter

# The library's tests, those on a GPU among them, need torch, Triton and pytest. Those of the course need its packages.
if importlib.util.find_spec("msgspec") is None:
    left_out = ("browser", "browser_exercise", "environment", "explore", "site", "site_lessons_page")
    collect_ignore = ["gemm_course", *(f"project/test_{name}.py" for name in left_out)]


def pytest_report_header():
    """What is left out."""
    if left_out := globals().get("collect_ignore"):
        return f"without the packages of the extra course: left out {', '.join(left_out)}"


def refuse_masks_of_numbers() -> None:
    """Refuse masks that are not of truth values, as the interpreter of Triton 3.9 does: older ones accept them."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder

    def checked(genuine, place):
        @functools.wraps(genuine)
        def access(self, *args, **options):
            elements = np.asarray(args[place].data).dtype.name
            assert elements == "bool", f"the mask's elements must be bool, got {elements}"
            return genuine(self, *args, **options)

        return access

    for name, place in (("create_masked_load", 1), ("create_masked_store", 2), ("create_atomic_rmw", 3)):
        setattr(InterpreterBuilder, name, checked(getattr(InterpreterBuilder, name), place))


if runtime.mode() == "interpreter":
    interpreter.prepare_once()  # as in the processes that check exercises
    refuse_masks_of_numbers()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in what a shell started in the background; all that tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What Inductor compiles here is small: headers compiled ahead, trials of vector instructions and a pool of processes
# take 10 s, and save less. It reads these when it is imported.
for name, value in (("COMPILE_THREADS", "1"), ("CPP_CACHE_PRECOMPILE_HEADERS", "0"), ("VEC_ISA_OK", "1")):
    os.environ.setdefault(f"TORCHINDUCTOR_{name}", value)
guards.time_nothing()

# The threads of a pool wait for each other by spinning, and fight over the cores with answers' processes and with the
# pools of other workers: the tests of exercise 06 took 156 s on two busy cores, and 30 s with one thread.
torch.set_num_threads(1)


if runtime.mode() == "gpu":

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown():
        """Give the GPU's memory back that torch keeps: other workers share it. Fail if the test has left another GPU or
        another stream the current one: kernels that later tests launch would not wait for their operands."""
        if not torch.cuda.is_initialized():
            return
        if torch.cuda.memory_reserved() > 2**30:
            torch.cuda.empty_cache()
        first = torch.cuda.default_stream(0)
        left = torch.cuda.current_device(), torch.cuda.current_stream()
        torch.cuda.set_stream(first)
        assert left == (0, first), f"GPU {left[0]} and {left[1]} are the current ones after it"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exclude modules and tests from garbage collection: going through them takes 0.7 s each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
        if not torch.cuda.is_available():
            # By default it begins after 700 new objects, and took 16 of 206 s of tests that compile with torch or draw
            # figures. On a GPU, garbage may hold memory, which some tests measure.
            gc.set_threshold(20_000)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU: torch.cuda.is_available() is False")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="module", autouse=True)
def no_compiled_code_left():
    """Fail if code for a GPU, such as ``name.sm_90a.ptx``, is in the working directory: left by a test, or committed.

    CuTe DSL puts the code that it keeps there, unless ``DumpDir`` names another folder.
    """
    yield
    here = Path.cwd()
    left = sorted(path.name for path in here.glob("*.sm_*"))
    assert not left, f"in {here}: {', '.join(left)}"
