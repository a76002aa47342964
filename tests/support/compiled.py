"""What every shipped kernel compiles to, on record: compiling it all takes five minutes, looking it up takes none.

    python tests/support/compiled.py    compile everything again, and write compiled.json

The record belongs to the kernels, the code that compiles them and the version of Triton. Where any of these differ,
``facts`` compiles; and a test compiles some of it in every run, other ones each time. Limits on what compilers may
spill belong to the same version of Triton: see ``check_limits``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from course_kernels.codegen import Build, Compiled, CompileError, close, compile_many
from course_kernels.provenance import digest
from places import ROOT

RECORD = Path(__file__).with_suffix(".json")
# Each says with ``recorded_pairs`` what it looks up. ``test_spills`` judges all of it.
MODULES = ("test_builds", "test_packed", "test_masked", "test_jagged", "test_quantizers")
SOURCES = (
    "course_kernels/kernels/*.py",
    *(f"course_kernels/codegen/{name}.py" for name in ("child", "compiled", "compiler")),
)
Pair = tuple[Build, str]


class Facts(NamedTuple):
    """What is asked of a compiled kernel; numbers are None where the compiler refuses it."""

    registers: int | None
    spilled: int | None
    shared: int | None
    error: str = ""

    @classmethod
    def of(cls, compiled: Compiled | CompileError) -> Facts:
        """Of a result of ``compile_many``."""
        if isinstance(compiled, CompileError):
            return cls(None, None, None, str(compiled))
        return cls(compiled.registers, compiled.spills.bytes, compiled.shared_bytes)


def compile_all(pairs: Iterable[Pair]) -> list[Facts]:
    """Compile, two at a time."""
    return list(map(Facts.of, compile_many(pairs, workers=2, return_errors=True)))


def facts(pairs: Iterable[Pair]) -> list[Facts]:
    """From the record where it has them, else from the compiler, once in a process."""
    pairs = list(pairs)
    known = recorded()
    missing = [pair for pair in pairs if key(pair) not in known]
    known.update(zip(map(key, missing), compile_all(missing), strict=True))
    return [known[key(pair)] for pair in pairs]


def key(pair: Pair) -> str:
    """A pair's name in the record: what one reads, and a digest of what is compiled."""
    spec, target = pair
    return f"{target} {spec} {hashlib.sha256(repr(spec._key()).encode()).hexdigest()[:8]}"


def made_from() -> dict[str, str]:
    """What a record belongs to: Triton's version, and the code of the kernels and of what compiles them."""
    import triton  # not before course_kernels, which decides how it is set up

    return {"triton": triton.__version__, "sources": digest(SOURCES)}


def recorded_triton() -> str:
    """The version of Triton that the record, and every limit on spills, was read from."""
    return json.loads(RECORD.read_text(encoding="utf-8"))["made from"]["triton"]


def check_limits(beyond: Iterable[str]) -> None:
    """Fail for what is beyond the limits of the record's Triton; another one's is only named, in a warning."""
    import triton

    beyond = list(beyond)
    if triton.__version__ == recorded_triton():
        assert not beyond, "\n".join(beyond)
    elif beyond:
        text = f"limits are Triton {recorded_triton()}'s; with {triton.__version__}:"
        warnings.warn("\n".join([text, *beyond]), stacklevel=2)


@functools.cache
def recorded() -> dict[str, Facts]:
    """The record; empty where it was made from something else."""
    if not RECORD.exists():
        return {}
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    if record.pop("made from") != made_from():
        return {}
    return {name: Facts(*values) for name, values in record.items()}


@functools.cache
def every_pair() -> dict[str, Pair]:
    """Everything that the tests look up, by its key."""
    pairs = []
    for name in MODULES:
        spec = importlib.util.spec_from_file_location(
            name, ROOT / "tests" / "course_kernels" / "codegen" / f"{name}.py"
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        pairs += module.recorded_pairs()
    return {key(pair): pair for pair in pairs}


def main() -> None:
    """Write the record, a line for each kernel."""
    pairs = dict(sorted(every_pair().items()))
    lines = [f'"made from": {json.dumps(made_from())}']
    for name, found in zip(pairs, compile_all(pairs.values()), strict=True):
        lines.append(f"{json.dumps(name, ensure_ascii=False)}: {json.dumps([*found] if found.error else found[:3])}")
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    close()
    print(f"{len(pairs)} kernels")


if __name__ == "__main__":
    main()
