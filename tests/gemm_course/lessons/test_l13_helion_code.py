"""The Triton that Helion writes: which Helion line each line came from, its launch, its text, and its compilation."""

from __future__ import annotations

import re

import pytest
import torch

from course_kernels import codegen, runtime
from gemm_course.lessons import l13_helion_code as helion_code
from jagged_cases import DEVICE, needs_helion

pytestmark = [needs_helion] + ([pytest.mark.gpu] if runtime.mode() == "gpu" else [])

CONFIG = {"block_sizes": [64, 64, 64], "num_warps": 4, "num_stages": 2, "group_m": 8, "workers_per_sm": 1}


def call(kernel):
    """A kernel of the library, and arguments for a product of 640 rows in four groups."""
    from course_kernels.jagged import helion_kernels

    A_packed, B = (torch.empty(shape, dtype=torch.float16, device=DEVICE) for shape in ((640, 256), (256, 128)))
    offsets = torch.empty(5, dtype=torch.int32, device=DEVICE)
    config = {name: CONFIG[name] for name in CONFIG if kernel == "persistent" or "_" not in name or "num" in name}
    config["block_sizes"] = CONFIG["block_sizes"]
    made = helion_kernels.make_kernel(kernel, A_packed, B, config)
    return made, helion_kernels.arguments(kernel, A_packed, B, offsets)


@pytest.fixture(scope="module")
def simple():
    made, arguments = call("simple")
    yield helion_code.generated(made, *arguments)
    codegen.close()


def test_each_line_has_its_helion_line(simple):
    assert simple.name == "_helion_jagged"
    assert simple.helion[0].startswith("def jagged(")
    by_text = {line.strip(): at for at, line in simple.lines}
    (dot,) = (at for text, at in by_text.items() if "tl.dot(" in text)
    assert "hl.dot(" in simple.helion[dot]
    (loop,) = (at for text, at in by_text.items() if "in tl.range(" in text)
    assert simple.helion[loop].strip() == "for tile_k in hl.tile(K):"
    assert sum(helion_code.lines_from(simple).values()) <= len(simple.lines)
    assert all(0 <= at < len(simple.helion) for at in helion_code.lines_from(simple))


def test_the_launch_is_that_of_the_configuration(simple):
    assert simple.programs == (640 // 64 + 4) * (128 // 64)
    assert (simple.num_warps, simple.num_stages) == (4, 2)
    assert simple.signature["A_packed"] == "*fp16"
    assert simple.signature["group_offsets"] == "*i32"
    assert "A_packed" in simple.divisible_by_16
    assert len(simple.loops()) == 1


def test_the_text_is_stable_and_has_no_copies_and_no_comments(simple):
    assert not re.search(r"_copy\b|_copy_\d|src\[|#", simple.text)
    assert max(map(len, simple.text.splitlines())) <= 116
    assert "/" not in simple.text.replace("//", ""), "no path"
    assert "import helion_kernels" not in simple.module
    assert "_source_module" not in simple.module
    made, arguments = call("simple")
    assert helion_code.generated(made, *arguments) == simple
    lines = helion_code.kernel_lines(made, *arguments)
    assert "".join("".join(lines).split()) == "".join(simple.text.split())


def test_compiles_for_hopper_without_a_gpu(simple):
    persistent, arguments = call("persistent")
    found = helion_code.compile_all({"a": simple, "b": helion_code.generated(persistent, *arguments)})
    assert list(found) == ["a", "b"]
    assert all(one.instructions["wgmma"] for one in found.values())


def documented(x):
    """One line of documentation."""
    # A comment.
    return (
        x + 1
    )  # fmt: skip


def test_source_lines_are_only_code():
    assert helion_code.source_lines(documented) == 2
    assert helion_code.source_lines(documented, documented) == 4
