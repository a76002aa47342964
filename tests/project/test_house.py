"""The rules of the house that hold for every file: names, sizes, tests and imports. `lint-imports` holds the arrows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from torch.utils._device import _device_constructors

from places import ROOT

SOURCES, TESTS = ROOT / "src", ROOT / "tests"
PROGRAMS = (ROOT / "tools", ROOT / "benchmarks", ROOT / "examples")  # each file is a module of its own
# Functions of torch that a default device changes.
FACTORIES = sorted({function.__name__ for function in _device_constructors()})
PRIVATE = re.compile(r"_(?!_)")
MAX_LINES = 400
MAX_UNTESTED_LINES = 20

# The folders of exercises. Both halves of one are tested together, on its mutants.
EXERCISES = sorted(path.parent.name for path in (SOURCES / "gemm_course" / "exercises").glob("*/exercise.toml"))

# Drawings: a test of all figures looks at each of them, another at the data that they draw.
DRAWINGS = sorted(path.stem for path in (SOURCES / "gemm_course" / "figures").glob("*.py"))
TOOLS_OF_DRAWINGS = {"__init__", "shapes", "style"}

# Modules that cannot have a test file of their name, and the file that tests them.
TESTED_ELSEWHERE = {
    # Device code: it runs inside a launch only.
    "course_kernels.kernels.common": "course_kernels/lists/test_api.py",
    "course_kernels.kernels.naive": "course_kernels/lists/test_api.py",
    "course_kernels.kernels.round_robin": "course_kernels/lists/test_api.py",
    "course_kernels.kernels.tma": "course_kernels/lists/test_api.py",
    "course_kernels.kernels.contiguous": "course_kernels/packed/test_api.py",
    "course_kernels.kernels.group_sums": "course_kernels/packed/test_group_sums.py",
    "course_kernels.kernels.masked": "course_kernels/masked/test_api.py",
    "course_kernels.kernels.quantize": "course_kernels/fp8/test_quantize.py",
    "course_kernels.kernels.activation": "course_kernels/moe/test_steps.py",
    "course_kernels.kernels.gated": "course_kernels/moe/test_layer.py",
    "course_kernels.kernels.moe_few": "course_kernels/moe/test_few_tokens.py",
    "course_kernels.kernels.moe_float8": "course_kernels/moe/test_fp8_layer.py",
    "course_kernels.kernels.moe_routing": "course_kernels/moe/test_routing.py",
    "course_kernels.kernels.moe_rows": "course_kernels/moe/test_steps.py",
    "course_kernels.kernels.jagged": "course_kernels/jagged/test_triton_kernels.py",
    "course_kernels.kernels.transposed": "course_kernels/packed/test_api.py",
    "course_kernels.kernels.moe_sends": "course_kernels/distributed/test_plan.py",
    "course_kernels.kernels.peers": "course_kernels/distributed/transports/test_peers.py",
    # They need several ranks.
    "course_kernels.distributed.transports.symmetric": "course_kernels/distributed/test_expert_parallel.py",
    "course_kernels.distributed.wire": "course_kernels/distributed/test_chunks.py",
    "course_kernels.kernels.cute_sm90.compilation": "course_kernels/kernels/cute_sm90/test_kernel.py",
    "course_kernels.kernels.cute_sm90.block_scales": "course_kernels/kernels/cute_sm90/test_blockwise.py",
    "course_kernels.kernels.cute_sm90.epilogues.bias": "course_kernels/kernels/cute_sm90/test_layer.py",
    "course_kernels.kernels.cute_sm90.epilogues.gated": "course_kernels/kernels/cute_sm90/test_layer.py",
    "course_kernels.kernels.cute_sm90.epilogues.scaled": "course_kernels/kernels/cute_sm90/test_kernel.py",
    "course_kernels.kernels.cute_sm90.epilogues.store": "course_kernels/kernels/cute_sm90/test_kernel.py",
    "course_kernels.kernels.cute_sm90.epilogues.zeros": "course_kernels/kernels/cute_sm90/test_kernel_gpu.py",
    "course_kernels.kernels.cute_sm90.loads.gather": "course_kernels/kernels/cute_sm90/test_layer.py",
    "course_kernels.kernels.cute_sm90.loads.tma": "course_kernels/kernels/cute_sm90/test_kernel.py",
    "course_kernels.kernels.cute_sm90.mainloop": "course_kernels/kernels/cute_sm90/test_kernel_gpu.py",
    "course_kernels.kernels.cute_sm90.operands": "course_kernels/kernels/cute_sm90/test_layer_gpu.py",
    "course_kernels.kernels.cute_sm90.ragged_descriptor": "course_kernels/kernels/cute_sm90/test_kernel_gpu.py",
    "course_kernels.kernels.cute_sm90.stages": "course_kernels/kernels/cute_sm90/test_kernel_gpu.py",
    # Tuples and protocols, without computation.
    "course_kernels.moe.form": "course_kernels/moe/test_layer.py",
    "course_kernels.moe.parallel": "course_kernels/distributed/test_expert_parallel.py",
    # Code of other processes: its caller starts and tests it.
    "course_kernels.codegen.child": "course_kernels/codegen/test_builds.py",
    "gemm_course.exercises.judge_service": "gemm_course/exercises/test_judge_process.py",
    **{
        f"gemm_course.exercises.{name}.{half}": f"gemm_course/exercises/test_{name}.py"
        for name in EXERCISES
        for half in ("examine", "run")
    },
    **{
        f"gemm_course.figures.{name}": "gemm_course/figures/test_figures.py"
        for name in DRAWINGS
        if name not in TOOLS_OF_DRAWINGS
    },
}

# Imports of our own modules inside a function: why, who, and what.
LATE_IMPORTS = {
    "it imports Triton, which takes a second, and waits for the first kernel": """
        course_kernels.bench.providers course_kernels.bench.tutorial_peer
        course_kernels.codegen.builds course_kernels.lists.launch
        course_kernels.codegen.child course_kernels.kernels.contiguous
        course_kernels.codegen.child course_kernels.kernels.masked
        course_kernels.codegen.child course_kernels.kernels.transposed
        course_kernels.codegen.child course_kernels.lists.launch
        course_kernels.codegen.jagged course_kernels.jagged.triton_kernels
        course_kernels.codegen.packed course_kernels.kernels.contiguous
        course_kernels.codegen.packed course_kernels.kernels.masked
        course_kernels.codegen.packed course_kernels.kernels.transposed
        course_kernels.jagged.torch_op course_kernels.jagged.triton_kernels
        course_kernels.lists.api course_kernels.lists.launch
        course_kernels.engine.backend_choice course_kernels.engine.triton_launch
        course_kernels.packed.group_sums course_kernels.kernels.group_sums
        course_kernels.codegen.packed course_kernels.kernels.group_sums
        course_kernels.fp8.lines course_kernels.kernels.moe_float8
        course_kernels.fp8.quantize course_kernels.kernels.quantize
        course_kernels.engine.whole_blocks course_kernels.kernels.quantize
    """,
    "it imports Helion, which is optional and slow": """
        course_kernels.jagged.torch_op course_kernels.jagged.helion_kernels
    """,
    "it imports CuTe DSL, which is optional and slow": """
        course_kernels.engine.hopper.compiled_cache course_kernels.kernels.cute_sm90.compilation
    """,
    "it imports matplotlib, which is slow": """
        gemm_course.cli.bench gemm_course.figures.roofline
        gemm_course.notebook.check gemm_course.judging.picture
    """,
    "it imports torch, which takes seconds: commands that need none of it answer at once": """
        gemm_course.cli.app course_kernels
        gemm_course.cli.bench course_kernels.bench.grouped
        gemm_course.cli.bench course_kernels.bench.providers
        gemm_course.cli.bench course_kernels.bench.record
        gemm_course.cli.check gemm_course.judging.judge
        gemm_course.cli.doctor gemm_course.judging.judge
        gemm_course.cli.tune course_kernels.bench.record
        gemm_course.cli.tune course_kernels.bench.tuning.config_times
        gemm_course.cli.tune course_kernels.bench.tuning.tune
        gemm_course.cli.tune course_kernels.engine.tuning
        gemm_course.cli.tune course_kernels.engine.tuning.gpu_constants
        gemm_course.cli.tune course_kernels.runtime
    """,
    "it imports msgspec, which the library installed alone lacks": """
        gemm_course.cli.doctor gemm_course.exercises.manifest
        gemm_course.cli.doctor gemm_course.judging.isolation_report
    """,
    "the fork server and each of its templates import torch and Triton once, for the mode that they serve": """
        gemm_course.runner.fork_server gemm_course.isolation.landlock
        gemm_course.runner.fork_server gemm_course.runner.worker
    """,
    "`from gemm_course import check` starts a process; any other import must not": """
        gemm_course gemm_course.notebook.check
        gemm_course gemm_course.notebook.hint
        gemm_course gemm_course.notebook.solution
    """,
}


def modules(*folders: Path) -> dict[str, str]:
    """The source of every module in folders, by the name that imports it."""
    paths = [(path, path.relative_to(folder).with_suffix("")) for folder in folders for path in folder.rglob("*.py")]
    return {".".join(name.parts).removesuffix(".__init__"): path.read_text(encoding="utf-8") for path, name in paths}


PACKAGES = modules(SOURCES)
OURS = PACKAGES | modules(*PROGRAMS)


def imports(tree: ast.AST):
    """Imports of our modules, and of names in them: the statement, the local name, and the full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in OURS:
                    yield node, alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module in OURS:
            for alias in node.names:
                yield node, alias.asname or alias.name, f"{node.module}.{alias.name}"


def private_names(source: str) -> list[str]:
    """Private names of other modules that a source imports, or reaches through what it imports; each with its line."""
    tree = ast.parse(source)
    statements = list(imports(tree))
    known = {local: target for _, local, target in statements}
    found = [(node, target) for node, _, target in statements if PRIVATE.match(target.rpartition(".")[2])]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and PRIVATE.match(node.attr):
            through = ast.unparse(node.value)
            start = next((local for local in known if f"{through}.".startswith(f"{local}.")), None)
            if start is not None and re.fullmatch(r"[\w.]+", through):
                found.append((node, f"{known[start]}{through[len(start) :]}.{node.attr}"))
    return [f"{target} in line {node.lineno}" for node, target in found]


def late_imports(source: str) -> set[str]:
    """Modules of ours that a source imports inside a function."""
    functions = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef)]
    targets = {target for function in functions for _, _, target in imports(function)}
    return {target if target in OURS else target.rpartition(".")[0] for target in targets}


def has_tests(name: str) -> bool:
    *folders, module = name.split(".")
    return any(re.fullmatch(rf"test_{module}(_\w+)?\.py", path.name) for path in TESTS.joinpath(*folders).glob("*.py"))


def test_no_module_reaches_a_private_name_of_another():
    found = [f"{name}: {what}" for name, source in OURS.items() for what in private_names(source)]
    assert not found, "\n".join(found)


def test_no_module_is_long():
    lines = {name: len(source.splitlines()) for name, source in PACKAGES.items()}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_every_module_has_tests_of_its_name():
    files = {".".join(path.relative_to(SOURCES).with_suffix("").parts) for path in SOURCES.rglob("*.py")}
    tested = {name for name in files & set(PACKAGES) if has_tests(name)}
    long = {name for name in files & set(PACKAGES) if len(PACKAGES[name].splitlines()) > MAX_UNTESTED_LINES}
    untested = sorted(long - tested - set(TESTED_ELSEWHERE))
    assert not untested, "\n".join(untested)
    assert set(TESTED_ELSEWHERE) <= files - tested, "it has tests of its name, or is gone: take it off the list"
    assert [path for path in TESTED_ELSEWHERE.values() if not (TESTS / path).is_file()] == []


def test_imports_are_at_the_top():
    found = {f"{name} {target}" for name in PACKAGES for target in late_imports(PACKAGES[name])}
    listed = {line.strip() for lines in LATE_IMPORTS.values() for line in lines.strip().splitlines()}
    late, gone = sorted(found - listed), sorted(listed - found)
    assert not late, "\n".join(["import these at the top, or list them with the reason:", *late])
    assert not gone, "\n".join(["take these off the list, they are no more:", *gone])


def of_the_course(source: str) -> list[str]:
    """The modules of the course that a source imports."""
    return [target for _, _, target in imports(ast.parse(source)) if target.startswith("gemm_course")]


def test_benchmarks_and_examples_need_the_library_alone():
    paths = [path for folder in ("benchmarks", "examples") for path in (ROOT / folder).glob("*.py")]
    found = {path.name: of_the_course(path.read_text()) for path in paths}
    assert {name: targets for name, targets in found.items() if targets} == {}


def made_by_default(source: str) -> list[str]:
    """Calls of torch's factories that leave dtype or device to the defaults of the process, which a user may change."""
    tree = ast.parse(source)
    froms = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and each.module == "torch"]
    bare = {alias.asname or alias.name for each in froms for alias in each.names if alias.name in FACTORIES}
    aliases = [alias for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names]
    modules = {"torch", *(alias.asname or alias.name for alias in aliases if alias.name.partition(".")[0] == "torch")}
    made = bare | {f"{module}.{name}" for module in modules for name in FACTORIES}
    found = []
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).replace(".fft.", ".fft_") in made:
            lacking = sorted({"dtype", "device"} - {keyword.arg for keyword in call.keywords})
            found += [f"{ast.unparse(call.func)} in line {call.lineno} names no {name}" for name in lacking]
    return found


def test_tensors_of_the_library_name_their_dtype_and_device():
    modules = {name: source for name, source in PACKAGES.items() if name.startswith("course_kernels")}
    device_code = {name for name in modules if name.startswith("course_kernels.kernels.")}
    found = [f"{name}: {what}" for name in modules.keys() - device_code for what in made_by_default(modules[name])]
    assert not found, "\n".join(sorted(found))


def test_the_rules_notice_what_breaks_them():
    runtime = "course_kernels.runtime"
    assert private_names(f"from {runtime} import _x, __doc__, mode") == [f"{runtime}._x in line 1"]
    assert private_names(f"import {runtime} as r\nr._x.y") == [f"{runtime}._x in line 2"]
    assert private_names(f"import {runtime}\n{runtime}.a._x()") == [f"{runtime}.a._x in line 2"]
    assert private_names("from course_kernels import runtime\nruntime.__file__, self._y, runtime2._z") == []
    assert private_names("import torch\nfrom torch import _C\ntorch._C") == []
    late = "import course_kernels\ndef f():\n    import torch\n    from course_kernels import runtime, group_gemm"
    assert late_imports(late) == {"course_kernels", runtime}
    assert made_by_default("torch.zeros(3, dtype=d)") == ["torch.zeros in line 1 names no device"]
    assert made_by_default("from torch import ones\nones(1, device=e)") == ["ones in line 2 names no dtype"]
    assert len(made_by_default("x = [torch.tensor(1).cos()]")) == 2
    assert len(made_by_default("import torch as th\nth.zeros(3)")) == 2
    assert len(made_by_default("torch.fft.fftfreq(3)")) == 2
    assert made_by_default("torch.zeros_like(x), x.new_zeros(3), torch.full((), 1, dtype=d, device=e)") == []
    assert of_the_course("def f():\n    from gemm_course.cli import bench") == ["gemm_course.cli.bench"]
    assert has_tests(runtime)
    assert not has_tests("course_kernels.run")
