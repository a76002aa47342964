"""How a process decides between compiler, interpreter and neither; each case in a process of its own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import forked
from course_kernels import runtime

INTERPRETED = runtime.mode() == "interpreter"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def python(code: str, **environment) -> subprocess.CompletedProcess:
    """Run a program without TRITON_INTERPRET, unless given. A fork starts where torch is imported, and nothing else."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if 'sys.modules["numpy"] = None' not in code:  # torch has not met that one, either
        return forked.run(textwrap.dedent(code), {**kept, **environment})
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=120, env={**kept, **environment},
    )  # fmt: skip


def output(code: str, **environment) -> str:
    done = python(code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


INDENT = "\n" + " " * 8
MULTIPLY = """
    import torch
    a = torch.ones(16, 16)
    def multiply(method="round_robin"):
        return course_kernels.group_gemm([a], [a], method=method)[0]
"""


# ---- importing


def test_import_is_cheap():
    """Neither Triton nor what only the interpreter or the figures need; the names are there all the same."""
    loaded = output("""
        import sys
        import torch
        before = set(sys.modules)
        import course_kernels
        assert callable(course_kernels.group_gemm) and course_kernels.GemmConfig and course_kernels.GroupGemmPlan
        new = {name.split(".")[0] for name in set(sys.modules) - before}
        print(*sorted(new & {"triton", "numpy", "matplotlib", "jupyterlab", "course"}))
    """)
    assert loaded == ""


def test_cpu_products_and_gradients_run_without_numpy():
    assert (
        output("""
        import sys
        sys.modules["numpy"] = None  # what `import numpy` finds when it is not installed
        import torch
        from torch.nn.functional import ScalingType
        from course_kernels import (
            deepgemm, gmm, group_gemm, grouped_gemm_jagged, grouped_mm, quantize_1x128, scaled_grouped_mm,
        )
        a, b = torch.ones(4, 16, requires_grad=True), torch.ones(1, 16, 16, requires_grad=True)
        ends, row = torch.tensor([4]), ScalingType.RowWise
        (grouped_mm(a, b, offs=ends).sum() + group_gemm([a], [b[0]])[0].sum()).backward()
        grouped_gemm_jagged(a, b[0], torch.tensor([0, 4]))
        gmm(a.detach().bfloat16(), b.detach().bfloat16(), ends)
        deepgemm(a.detach().half()[None], b.detach().half(), torch.empty(1, 4, 16), torch.tensor([4]))
        q, w = (quantize_1x128(each.detach())[0] for each in (a, b))
        scaled_grouped_mm(q, w, torch.ones(4), row, torch.ones(1, 16), row, offs=ends)
        print(a.grad[0, 0].item())
    """)
        == "32.0"
    )


@without_gpu
def test_compiling_without_numpy_says_what_to_install():
    done = python("""
        import sys
        sys.modules["numpy"] = None
        from course_kernels import codegen
        codegen.compile_kernel("tma", "sm_90")
    """)
    assert done.stderr.splitlines()[-1].startswith("RuntimeError: Triton's interpreter needs numpy"), done.stderr


@without_gpu
def test_a_gpu_that_is_not_there():
    for ask in (runtime.num_sms, runtime.capability, runtime.shared_memory_limit, runtime.supports_fp8):
        with pytest.raises(RuntimeError, match="torch sees no GPU, got device 'cuda'"):
            ask("cuda")


@without_gpu
def test_kernels_without_numpy_say_what_to_install():
    done = python(f"""
        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "numpy" else find(name, *rest)
        import course_kernels
        {textwrap.dedent(MULTIPLY).replace(chr(10), INDENT)}
        multiply()
    """)
    assert done.returncode != 0
    assert "RuntimeError: Triton's interpreter needs numpy" in done.stderr


def test_import_changes_nothing_in_the_process():
    changed = output("""
        import os, sys
        import torch
        before = dict(os.environ), list(sys.meta_path)
        import course_kernels
        print((dict(os.environ), list(sys.meta_path)) != before)
    """)
    assert changed == "False"


@without_gpu
def test_a_kernel_leaves_the_environment_to_child_processes():
    """A worker that sees a GPU decides by itself, though its parent interprets kernels."""
    done = output(f"""
        import os, subprocess, sys
        import course_kernels
        {textwrap.dedent(MULTIPLY).replace(chr(10), INDENT)}
        before = dict(os.environ)
        print(multiply()[0, 0].item(), course_kernels.runtime.mode(), dict(os.environ) == before)
        code = "import torch; torch.cuda.device_count = lambda: 1; import course_kernels.runtime as r; print(r.mode())"
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    """)
    assert done.splitlines() == ["16.0 interpreter True", "gpu"]


@pytest.mark.parametrize(
    "triton_version, numpy_version, problem",
    [("3.6.0", "2.4.1", True), ("3.6.0", "2.3.5", False), ("3.7.1", "2.4.1", False), ("3.10.0", "2.10.0", False)],
)
def test_pair_of_triton_and_numpy_that_cannot_loop(monkeypatch, triton_version, numpy_version, problem):
    import numpy
    import triton

    monkeypatch.setattr(triton, "__version__", triton_version)
    monkeypatch.setattr(numpy, "__version__", numpy_version)
    runtime.interpreter_problem.cache_clear()
    try:
        found = runtime.interpreter_problem()
    finally:
        runtime.interpreter_problem.cache_clear()
    assert (found is not None) is problem
    if problem:
        assert triton_version in found
        assert numpy_version in found
        assert "numpy<2.4" in found


# ---- between graphs


OUTSIDE = """
    import sys
    import torch
    from course_kernels.runtime import outside_graphs
    @outside_graphs("a test looks at memory")
    def function(x):
        return torch.full((2,), x.data_ptr() * 0 + 3.0)
    class Owner:
        method = outside_graphs("a test looks at memory")(lambda self, x: function(x))
    def compiled(call, **options):
        torch._dynamo.reset()
        try:
            return torch.compile(call, backend="eager", **options)(torch.ones(2)).tolist()
        except torch._dynamo.exc.Unsupported as error:
            return "a test looks at memory: call it without fullgraph=True" in str(error) or str(error)
"""


@pytest.mark.parametrize("call", ["Owner().method", "lambda x: function(x) + 1"])
def test_whole_graphs_are_refused_with_the_reason_from_the_first_call_on(call):
    """In a process that has compiled nothing before, and again once it has."""
    found = output(f"""
        {textwrap.dedent(OUTSIDE).replace(chr(10), INDENT)}
        assert "torch._dynamo" not in sys.modules
        print([compiled({call}, fullgraph=whole) for whole in (True, False, True)])
    """)
    assert found == f"[True, {[4.0, 4.0] if '+ 1' in call else [3.0, 3.0]}, True]"


# ---- the decision

MODE = "import course_kernels; print(course_kernels.runtime.mode(), course_kernels.runtime.device().type)"


@without_gpu
@pytest.mark.parametrize("flag", [None, "1", "true", "ON", " yes "])
def test_without_a_gpu_kernels_are_interpreted(flag):
    assert output(MODE, **({} if flag is None else {"TRITON_INTERPRET": flag})) == "interpreter cpu"


@without_gpu
@pytest.mark.parametrize("flag", ["0", "false"])
def test_interpreter_can_be_refused(flag):
    assert output(MODE, TRITON_INTERPRET=flag) == "compile-only cpu"
    done = python(f"import course_kernels\n{textwrap.dedent(MULTIPLY)}\nmultiply()", TRITON_INTERPRET=flag)
    assert done.returncode != 0
    assert "RuntimeError: this process has no GPU and TRITON_INTERPRET=0" in done.stderr
    auto = f"import course_kernels\n{textwrap.dedent(MULTIPLY)}\nprint(multiply('auto')[0, 0].item())"
    assert output(auto, TRITON_INTERPRET=flag) == "16.0"


@without_gpu
def test_triton_imported_first_with_the_interpreter_is_fine():
    code = f"""
import triton, triton.language
import course_kernels
print(course_kernels.runtime.mode())
{textwrap.dedent(MULTIPLY)}
print(multiply()[0, 0].item())
"""
    assert output(code, TRITON_INTERPRET="1").splitlines() == ["interpreter", "16.0"]


@pytest.mark.gpu
def test_with_a_gpu_a_flag_that_is_set_after_triton_was_imported_comes_too_late():
    code = """
import os
import triton, triton.language
os.environ["TRITON_INTERPRET"] = "1"
import course_kernels
print(course_kernels.runtime.mode())
"""
    assert output(code) == "compile-only"
    assert "Start the process with TRITON_INTERPRET=1" in runtime.TOO_LATE


@pytest.mark.gpu
def test_with_a_gpu_kernels_are_compiled_whenever_triton_was_imported():
    assert output(MODE) == "gpu cuda"
    assert output(f"import triton, triton.language; {MODE}") == "gpu cuda"


@pytest.mark.gpu
def test_with_a_gpu_the_interpreter_can_be_asked_for():
    assert output(MODE, TRITON_INTERPRET="1") == "interpreter cpu"
    if problem := runtime.interpreter_problem():
        pytest.skip(problem)
    code = f"""
import course_kernels
{textwrap.dedent(MULTIPLY)}
print(multiply()[0, 0].item())
a = a.cuda()
try:
    multiply()
except ValueError as error:
    print("wants tensors on the CPU" in str(error))
"""
    assert output(code, TRITON_INTERPRET="1").splitlines() == ["16.0", "True"]


# ---- questions about a device


def test_a_cpu_has_no_sms_and_everything_works_on_it():
    cpu = torch.device("cpu")
    assert runtime.num_sms(cpu) is None
    assert runtime.capability(cpu) is None
    assert runtime.shared_memory_limit(cpu) is None
    assert runtime.supports_descriptors(cpu)
    assert runtime.supports_fp8(cpu)
    assert runtime.supports_bf16(cpu)
    assert runtime.supports_tf32(cpu)


@pytest.mark.parametrize(
    "capability, tensor_types, fp8, descriptors",
    [((7, 5), False, False, False), ((8, 0), True, False, False), ((8, 9), True, True, False),
     ((9, 0), True, True, True), ((12, 0), True, True, True)],
)  # fmt: skip
def test_what_a_gpu_can_do_follows_from_its_capability(monkeypatch, capability, tensor_types, fp8, descriptors):
    class Properties:
        major, minor = capability
        multi_processor_count = 10
        shared_memory_per_block_optin = 100
        shared_memory_per_block = 50

    monkeypatch.setattr(runtime, "_properties", lambda index: Properties)
    gpu = torch.device("cuda", 0)
    assert runtime.capability(gpu) == capability
    assert runtime.num_sms(gpu) == 10
    assert runtime.shared_memory_limit(gpu) == 100
    assert (runtime.supports_bf16(gpu), runtime.supports_tf32(gpu)) == (tensor_types, tensor_types)
    assert (runtime.supports_fp8(gpu), runtime.supports_descriptors(gpu)) == (fp8, descriptors)


def test_the_clock_of_a_gpus_memory_is_asked_for_once(monkeypatch):
    """Each time takes hundreds of microseconds."""
    asked = []

    class Properties:
        major, minor, multi_processor_count, memory_bus_width = 9, 0, 132, 5120
        shared_memory_per_block = shared_memory_per_block_optin = 232448

        @property
        def memory_clock_rate(self):
            asked.append("clock")
            return 2_000_000

    monkeypatch.setattr(runtime, "has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties())
    monkeypatch.setattr(runtime, "_properties", functools.cache(runtime._properties.__wrapped__))
    found = {runtime.Device.of(torch.device("cuda", 0)) for _ in range(3)}
    assert found == {runtime.Device((9, 0), (9, 0), 132, 232448, True, 2.56)}
    assert asked == ["clock"]


@pytest.mark.skipif(not INTERPRETED, reason="says what the interpreter refuses")
@pytest.mark.parametrize("device", ["cuda:0", "meta"])
def test_interpreter_refuses_other_devices(device):
    with pytest.raises(ValueError, match=device):
        runtime.check_can_launch(torch.device(device))


@pytest.mark.gpu
def test_this_gpu_is_described():
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    assert runtime.device().type == "cuda"
    assert runtime.num_sms() == properties.multi_processor_count
    assert runtime.capability() == (properties.major, properties.minor)
    assert runtime.shared_memory_limit() >= properties.shared_memory_per_block
    runtime.check_can_launch(runtime.device())
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        runtime.check_can_launch(torch.device("cpu"))


# ---- Triton's allocator


def test_allocator_is_set_once_in_every_thread_and_never_over_the_users():
    import contextvars
    import threading

    from triton.runtime import _allocation

    def current():
        return _allocation._allocator.get()

    def fresh():
        assert isinstance(current(), _allocation.NullAllocator)
        runtime.ensure_allocator()
        assert current() is runtime._scratch
        runtime.ensure_allocator()
        assert current() is runtime._scratch

    def users():
        def mine(size, alignment, stream):
            raise AssertionError("not called here")

        _allocation.set_allocator(mine)
        runtime.ensure_allocator()
        assert current() is mine

    for body in (fresh, users):
        failures = []

        def guarded(body=body, failures=failures):
            try:
                contextvars.Context().run(body)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        thread.join()
        assert not failures, failures
