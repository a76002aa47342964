"""What an answer's exception becomes: a message, or the exercise's hole; and what is done before every fork."""

from __future__ import annotations

import linecache
import os

import pytest
import torch

import forked
from gemm_course.runner import worker

HOLE = '    raise NotImplementedError("TODO 12b: put every pack back in its place")'
# torch raises the hole's class from C++, so the learner's line is the last one of either.
REFUSED = "    return x.gather(0, x.long())"


@pytest.mark.parametrize(("line", "kind"), [(HOLE, "todo"), ("    raise NotImplementedError", "todo"),
                                            (REFUSED, "exception")])  # fmt: skip
def test_only_a_hole_is_a_hole(tmp_path, line, kind):
    path = tmp_path / "answer.py"
    path.write_text(f"def answer(x):\n{line}\n")
    linecache.checkcache(str(path))
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(NotImplementedError) as raised:
        names["answer"](torch.zeros(4).to(torch.float8_e4m3fn))
    told = worker.describe(raised.value, str(path))
    assert (told["kind"], told["line"], told["code"]) == (kind, 2, line.strip())


@pytest.mark.parametrize(("mode", "times"), [("run", 0), ("compile", 1)])
def test_tritons_own_files_are_read_before_the_fork_and_only_to_compile(mode, times):
    """All of them, for the name of what is compiled: as long as ten small kernels take."""
    code = f"""
from gemm_course.runner import worker
worker.preload({mode!r})
from triton.runtime.cache import triton_key
print(triton_key.cache_info().currsize)
"""
    done = forked.run(code, {**os.environ, "TRITON_INTERPRET": str(int(mode == "run"))})
    assert (done.stdout, done.stderr) == (f"{times}\n", "")
