"""The process that compiles: a ``child_process`` with Triton's compiler instead of its interpreter.

A request is a ``Build``, a target, and where the asking process finds modules. The answer is ("ok", artefacts) or
("error", message). Both are pickled.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import linecache
import pickle
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from course_kernels.child_process import answer_all
from course_kernels.kernels.codes import FunctionName

ARTEFACTS = ("ttir", "ttgir", "llir", "ptx", "amdgcn", "cubin", "hsaco")
_MAX_MESSAGE_LINES = 30


def find_kernel(name: str):
    """The ``@triton.jit`` function that a ``Build.kernel`` names. A changed file is read again."""
    from triton.runtime.jit import JITFunction

    if ":" not in name:
        from course_kernels.kernels import contiguous, masked, transposed
        from course_kernels.lists import launch

        others = {
            "contiguous": contiguous.contiguous_kernel, "transposed": transposed.transposed_kernel,
            "masked": masked.masked_kernel,
        }  # fmt: skip
        return (launch.KERNELS | others)[name]
    place, _, function = name.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    kernel = getattr(module, function, None)
    if kernel is None:
        raise ValueError(f"kernel must name a function of {place}, which has no {function!r}")
    while not isinstance(kernel, JITFunction) and hasattr(kernel, "fn"):
        kernel = kernel.fn  # autotune and heuristics wrap the function
    if not isinstance(kernel, JITFunction):
        raise ValueError(f"kernel must name a function decorated with @triton.jit, {name!r} is not")
    return kernel


def _load_file(path: Path):
    path = path.resolve()
    if not path.is_file():
        raise ValueError(f"kernel must name a file that exists, got {str(path)!r}")
    digest = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:16]
    name = f"_compiled_from_file_{digest}"
    if name not in sys.modules:
        linecache.checkcache(str(path))  # Triton reads the source through it, and the file may have changed
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, str(path.parent))
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            raise ImportError(
                f"{path.name} must be a file that can be imported, since the compiler reads the kernel from it: "
                'put what the file runs under `if __name__ == "__main__":`'
            ) from error
        finally:
            sys.path.remove(str(path.parent))
    return sys.modules[name]


def compile_build(build, target) -> dict:
    """Compile for a target. Returns every artefact by name, and "shared", "name" from the metadata."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = find_kernel(build.kernel)
    module = sys.modules[kernel.fn.__module__]
    constexprs = {
        name: getattr(module, value.name) if isinstance(value, FunctionName) else value
        for name, value in build.constexprs.items()
    }
    for parameter in kernel.params:
        given = parameter.name in constexprs or parameter.name in build.signature
        if not given and parameter.has_default:
            constexprs[parameter.name] = parameter.default
    names = kernel.arg_names
    given = constexprs.keys() | build.signature.keys()
    if missing := [name for name in names if name not in given]:
        raise ValueError(f"signature or constexprs must have every argument of the kernel; missing: {missing}")
    if extra := sorted(given - set(names)):
        raise ValueError(f"signature and constexprs name arguments that the kernel does not have: {extra}")
    signature = {name: "constexpr" if name in constexprs else build.signature[name] for name in names}
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in build.divisible_by_16}
    kernel.hash = None  # computed once per function by Triton; a helper in another module may have changed
    result = triton.compile(
        ASTSource(kernel, signature, constexprs, attrs),
        target=GPUTarget(target.backend, target.arch, target.warp_size),
        options={"num_warps": build.num_warps, "num_stages": build.num_stages, **build.options},
    )
    artefacts = {name: result.asm[name] for name in ARTEFACTS if name in result.asm}
    return {**artefacts, "shared": result.metadata.shared, "name": result.metadata.name}


def describe(error: BaseException) -> str:
    """The messages of an exception and its causes, each once, outermost first, shortened."""
    messages: list[str] = []
    while error is not None:
        text = str(error).strip()
        if text and not any(text in message for message in messages):
            messages.append(f"{type(error).__name__}: {text}")
        error = error.__cause__
    lines = "\n".join(messages).splitlines() or ["no message"]
    if len(lines) > _MAX_MESSAGE_LINES:
        half = _MAX_MESSAGE_LINES // 2
        lines = lines[:half] + [f"... {len(lines) - 2 * half} lines ..."] + lines[-half:]
    return "\n".join(line[:300] for line in lines)


def serve(connection: Connection) -> None:
    """Answer requests until the other end is closed."""
    answer_all(connection, _answer)


def _answer(request: bytes) -> bytes:
    try:
        spec, target, path = pickle.loads(request)
        sys.path += [entry for entry in path if entry not in sys.path]
        answer = ("ok", compile_build(spec, target))
    except BaseException as error:  # a learner's module may even call sys.exit
        answer = ("error", describe(error))
    return pickle.dumps(answer)
