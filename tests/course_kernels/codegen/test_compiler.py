"""Kernels from a file, the compiler's messages, and children that fail, hang and end."""

from __future__ import annotations

import os
import textwrap

import pytest

import forked
from course_kernels import codegen, runtime
from course_kernels.codegen import CompileError, build, compile_kernel, compile_many

LEARNERS_FILE = """
import triton
import triton.language as tl

@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr, TIMES: tl.constexpr = 2):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * TIMES, mask=i < n)

@triton.jit
def broken(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), no_such_name)

def plain(x):
    return x

tuned = triton.autotune([triton.Config({"BLOCK": 64})], key=["n"])(double)
"""
SIGNATURE = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}


@pytest.fixture
def learners_file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(LEARNERS_FILE)
    return path


def test_a_learners_kernel_is_compiled_from_its_file_and_again_when_it_changes(learners_file, monkeypatch):
    options = {"signature": SIGNATURE, "constexprs": {"BLOCK": 256}, "num_warps": 2}
    narrow = compile_kernel(f"{learners_file}:double", "sm_80", **options)
    assert narrow.widths["ld.global"] == {4: 4}
    wide = compile_kernel(f"{learners_file}:double", "sm_80", divisible_by_16=tuple(SIGNATURE), **options)
    assert wide.widths["ld.global"] == {16: 1}
    assert "mul" in wide.ptx or "add" in wide.ptx
    learners_file.write_text(LEARNERS_FILE.replace("* TIMES", "* TIMES * TIMES + 77.0"))
    monkeypatch.chdir(learners_file.parent)
    changed = compile_kernel("kernel.py:double", "sm_80", **options)
    assert "0f429A0000" in changed.ptx  # 77.0
    assert "0f429A0000" not in narrow.ptx
    assert compile_kernel("kernel.py:tuned", "gfx942", **options).registers > 0


def test_a_module_is_found_where_the_caller_finds_it(learners_file, monkeypatch):
    """As one beside a script is, and one in the folder of a prompt."""
    options = {"signature": SIGNATURE, "constexprs": {"BLOCK": 256}}
    learners_file.rename(learners_file.with_name("beside_the_script.py"))
    monkeypatch.syspath_prepend(learners_file.parent)
    assert compile_kernel("beside_the_script:double", "sm_80", **options).registers > 0


def test_errors_carry_the_compilers_message_and_the_worker_goes_on(learners_file):
    options = {"signature": {"x_ptr": "*fp32"}, "constexprs": {"BLOCK": 64}}
    with pytest.raises(CompileError, match=r"no_such_name is not defined") as caught:
        compile_kernel(f"{learners_file}:broken", "sm_90", **options)
    assert len(str(caught.value).splitlines()) < 50
    processes = [worker.pid for worker in codegen.compiler._idle]
    assert compile_kernel("naive", "sm_90").registers > 0
    assert [worker.pid for worker in codegen.compiler._idle] == processes
    wrong = {"double": "missing: ", "plain": "not", "absent": "no 'absent'"}
    for function, message in wrong.items():
        with pytest.raises(CompileError, match=message):
            compile_kernel(f"{learners_file}:{function}", "sm_90", **options)
    with pytest.raises(CompileError, match="does not have"):
        compile_kernel(f"{learners_file}:broken", "sm_90", signature=SIGNATURE, constexprs={"BLOCK": 64})
    with pytest.raises(CompileError, match="exists"):
        compile_kernel("/nowhere/kernel.py:double", "sm_90")


def test_a_compiler_that_dies_or_hangs_is_reported_and_replaced(tmp_path):
    (tmp_path / "dies.py").write_text("import os, sys\nprint('last words', file=sys.stderr, flush=True)\nos._exit(7)\n")
    with pytest.raises(CompileError, match=r"(?s)died \(exit 7\).*last words"):
        compile_kernel(f"{tmp_path}/dies.py:f", "sm_90")
    (tmp_path / "exits.py").write_text("raise SystemExit('gone')\n")
    with pytest.raises(CompileError, match="gone"):
        compile_kernel(f"{tmp_path}/exits.py:f", "sm_90")
    (tmp_path / "hangs.py").write_text("while True: pass\n")
    with pytest.raises(CompileError, match="not compiled within 1 s"):
        compile_kernel(f"{tmp_path}/hangs.py:f", "sm_90", timeout=1)
    assert compile_kernel("naive", "sm_90").registers > 0


def test_a_file_that_compiles_its_own_kernel_without_a_guard_is_told_so(tmp_path):
    """The compiler imports the file to read the kernel, which would compile it again, and so on."""
    (tmp_path / "whole.py").write_text(
        "from course_kernels import codegen\nprint(codegen.compile_kernel('naive', 'sm_80').registers)\n"
    )
    says = r"(?s)whole\.py must be a file that can be imported.*__main__.*compile_kernel was called in a file"
    with pytest.raises(CompileError, match=says):
        compile_kernel(f"{tmp_path}/whole.py:f", "sm_90", timeout=30)


def test_a_process_that_ends_takes_its_compilers_along():
    script = textwrap.dedent("""
        from course_kernels import codegen
        from course_kernels import runtime
        codegen.compile_kernel("naive", "sm_80")
        print(runtime.mode(), codegen.compiler._idle[0].pid)
    """)
    done = forked.run(script)
    mode, pid = done.stdout.split()
    assert mode == runtime.mode()
    assert done.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="target must be one of sm_75"):
        compile_kernel("naive", "sm_87")
    with pytest.raises(ValueError, match="kernel must be one of"):
        compile_kernel("fast", "sm_90")
    with pytest.raises(TypeError, match="no further options"):
        compile_kernel(build("naive"), "sm_90", dtype="float16")
    with pytest.raises(TypeError, match="kernel must be"):
        compile_kernel(3, "sm_90")
    scope = {}
    exec("def made_here(x): pass", scope)
    with pytest.raises(ValueError, match="must have source"):
        compile_kernel(scope["made_here"], "sm_90")
    with pytest.raises(ValueError, match="workers"):
        compile_many([], workers=0)
