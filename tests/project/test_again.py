"""Each cell of a lesson once more after all of them: what `again` finds. (The lessons themselves: `pytest --nbval`.)"""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import again
from course_kernels import runtime

pytest.importorskip("IPython", reason="needs IPython: pip install '.[course]'")


@pytest.fixture
def lesson():
    """A function that runs cells and then each of them again; returns what it finds."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell()

    def run(*sources, tags=()):
        cells = []
        for source in sources:
            with capture_output() as captured:
                result = shell.run_cell(source)
            outputs = [{"output_type": "stream", "text": captured.stdout if result.success else ""}]
            if error := result.error_in_exec:
                outputs += [{"output_type": "error", "ename": type(error).__name__, "evalue": str(error)}]
            cells.append({"source": source, "outputs": outputs, "metadata": {"tags": list(tags)}})
        return again.different(shell, cells)

    return run


def test_cells_that_give_the_same_again_are_none_of_its_business(lesson):
    assert lesson("a = [1]", "print(len(a))", "1 / 0", "b = 2\nprint(b)") == []


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (("a = 'one'", "print(a.upper())", "a = 2"), "cell 1 ('print(a.upper())'): \"AttributeError"),
        (("a = 1", "print(a)", "a = 2"), "cell 1 ('print(a)'): '2', at first '1'"),
        (("a = [1]", "print(a.pop())"), "cell 1 ('print(a.pop())'): 'IndexError"),
        (("a = 0", "print(1 / a)", "a = 1"), "cell 1 ('print(1 / a)'): '1.0', at first 'ZeroDivisionError"),
    ],
)
def test_a_name_that_means_something_else_by_then_is_found(lesson, cells, found):
    (line,) = lesson(*cells)
    assert found in line


def test_where_the_output_does_not_count_an_error_does(lesson):
    cells = "a = 'one'", "print(len(a))", "a = 'three'"
    assert lesson(*cells, tags=["nbval-ignore-output"]) == []
    assert len(lesson(*cells[:2], "a = 3", tags=["nbval-ignore-output"])) == 1


@triton.jit
def _fill(out, table, n, BLOCK: tl.constexpr, BY_TABLE: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if BY_TABLE:
        out = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out + i, i.to(tl.float32), mask=i < n)


@pytest.mark.skipif(runtime.mode() != "interpreter", reason="needs Triton's interpreter")
@pytest.mark.parametrize("by_table", [False, True])
def test_a_store_past_a_tensor_is_an_error_and_not_carried_out(by_table):
    out = torch.zeros(10)
    table = torch.tensor([out.data_ptr()])
    with again.guarded():
        _fill[(1,)](out, table, 10, 16, by_table)
        assert out.tolist() == list(range(10))
        with pytest.raises(Exception, match="past the memory of its tensors"):
            _fill[(1,)](out.fill_(7), table, 16, 16, by_table)
    assert out.tolist() == [7] * 10
