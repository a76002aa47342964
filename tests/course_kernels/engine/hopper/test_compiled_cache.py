"""Kernels in CuTe DSL kept across processes: what is loaded, what is compiled again, and what is never touched."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import forked
from course_kernels.engine.hopper import compiled_cache, cute
from course_kernels.engine.product import Product
from course_kernels.kernels.cute_sm90.config import PINGPONG, CuteConfig
from course_kernels.kernels.cute_sm90.form import Form

CONFIG = CuteConfig(64, 64, 64, 1, 2, PINGPONG)
ASKED = CONFIG, Form(), "bfloat16", "bfloat16"
# What a function says to tensors of the CPU. Where there is no GPU they pass for a GPU's, so that it gets as far as
# loading its kernel, and that is what fails.
CALL = """
import ctypes
import torch

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)

class OnGpu:
    def __init__(self, tensor):
        self.tensor, self.dtype = tensor, tensor.dtype

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **options):
        capsule = self.tensor.__dlpack__()
        ctypes.c_int.from_address(pointer_of(capsule, b"dltensor") + 8).value = 2
        return capsule

def said(function):
    a, b, c = torch.zeros(8, 64), torch.zeros(1, 64, 64).mT, torch.zeros(8, 64)
    tensors = [a.bfloat16(), b.bfloat16(), c.bfloat16(), torch.zeros(1).int()]
    if not torch.cuda.is_available():
        tensors = map(OnGpu, tensors)
    try:
        function(*tensors, 132, None, None, None)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
"""
SECOND_PROCESS = f"""{CALL}
from cutlass import cute
cute.compile = None
from course_kernels.engine.hopper import compiled_cache
from course_kernels.kernels.cute_sm90.config import CuteConfig
from course_kernels.kernels.cute_sm90.form import Form
print(said(compiled_cache.compiled(*{ASKED})))
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The smallest kernel, compiled and kept, once for all tests: the function and its file."""
    pytest.importorskip("cutlass", reason="needs the cutlass extra")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return get(), *files()


@pytest.fixture
def compiles(original, monkeypatch, tmp_path):
    """A cache directory of its own, and the arguments of each compilation, which takes no time here."""
    from course_kernels.kernels.cute_sm90 import compilation

    asked, code = [], original[1].read_bytes().rpartition(b"\n")[0]
    again = SimpleNamespace(export_to_c=lambda to, name: Path(to).write_bytes(code))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compilation, "compile_for", lambda *args, **options: asked.append((args, options)) or again)
    compiled_cache._warn.cache_clear()
    return asked


def get():
    return compiled_cache.compiled(*ASKED)


def files():
    return sorted(compiled_cache.directory().iterdir())


def test_another_process_loads_what_one_compiled(original):
    function, path = original
    here = {}
    exec(CALL, here)
    said = here["said"](function)
    assert said.startswith("ValueError: " if torch.cuda.is_available() else "RuntimeError: Got Cuda Runtime Error: ")
    child = forked.run(SECOND_PROCESS, dict(os.environ, XDG_CACHE_HOME=str(path.parents[2])))
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == said
    plan = cute.Plan(function, 132)
    assert here["said"](lambda a, b, c, offs, *_: plan.run(Product.packed(a, b, offs), c)) == said


def test_the_kernel_behind_grouped_mm_is_kept(compiles):
    wide = Form(index_bytes=8)
    for form in (Form(), Form(), wide, Form()):
        cute.compiled.__wrapped__(CONFIG, form, torch.bfloat16, torch.bfloat16, torch.device("cuda", 0))
    assert compiles == [(ASKED, {}), ((CONFIG, wide, *ASKED[2:]), {})]


def test_what_is_kept_is_said(compiles, caplog):
    assert compiled_cache.kept() == []
    with caplog.at_level(logging.INFO, "course_kernels"):
        get(), get()
    (path,) = files()
    (entry,) = compiled_cache.kept()
    assert entry.path == path
    assert entry.size == path.stat().st_size
    assert 0 <= entry.seconds < 1
    assert CONFIG.name in entry.name
    assert "b_major=k" in entry.name
    first, second = caplog.messages
    assert first == f"compiled {entry.name} in {entry.seconds:.1f} s; kept in {path}"
    assert second.startswith(f"loaded {entry.name} in ")
    assert second.endswith(f"compiling it took {entry.seconds:.1f} s")


def test_seconds_are_those_of_compiling(compiles, monkeypatch):
    from course_kernels.kernels.cute_sm90 import compilation

    compile_for = compilation.compile_for
    monkeypatch.setattr(compilation, "compile_for", lambda *args, **options: time.sleep(0.2) or compile_for())
    get()
    assert 0.2 <= compiled_cache.kept()[0].seconds < 2


# ---- the key


@pytest.mark.parametrize(
    "changes",
    [
        dict(config=CuteConfig(64, 64, 64, 1, 3, PINGPONG)),
        dict(config=CuteConfig(64, 64, 64, 1, 2, PINGPONG, stream_b=True)),
        dict(dtype="float16"),
        dict(out_dtype="float32"),
        *(dict(form=Form(**{field: "another"})) for field in Form._fields),
    ],
    ids=str,
)
def test_every_argument_is_part_of_the_key(changes):
    arguments = dict(zip(("config", "form", "dtype", "out_dtype"), ASKED))
    assert compiled_cache.key(**{**arguments, **changes}) != compiled_cache.key(**arguments)


def test_sources_packages_machine_and_settings_are_part_of_the_key(monkeypatch, tmp_path):
    keys = []

    def note():
        keys.append(compiled_cache.key(*ASKED))

    note()
    for path in compiled_cache._SOURCES.rglob("*.py"):
        copy = tmp_path / path.relative_to(compiled_cache._SOURCES)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    with monkeypatch.context() as patched:
        patched.setattr(compiled_cache, "_SOURCES", tmp_path)
        note()
        assert keys[0] == keys.pop(), "where the sources lie does not matter"
        for path in sorted(tmp_path.rglob("*.py")):
            path.write_bytes(path.read_bytes() + b"\n")
            note()
    have = compiled_cache.importlib.metadata.version
    for package in compiled_cache.PACKAGES:
        with monkeypatch.context() as patched:
            patched.setattr("importlib.metadata.version", lambda name: "0" if name == package else have(name))  # noqa: B023
            note()
    for machine in ("aarch64", "riscv64"):
        with monkeypatch.context() as patched:
            patched.setattr("platform.machine", lambda: machine)  # noqa: B023
            compiled_cache._machine.cache_clear()
            note()
    compiled_cache._machine.cache_clear()
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
    note()
    assert len(set(keys)) == len(keys) > 12


def test_the_kernel_has_no_source_but_that_of_the_key():
    for path in compiled_cache._SOURCES.rglob("*.py"):
        for line in path.read_text().splitlines():
            if "course_kernels" in line and line.startswith(("from", "import")):
                of_key = "from course_kernels.kernels.cute_sm90", "from course_kernels.kernels.codes "
                assert line.startswith(of_key), f"{path}: {line}"
    assert not re.search(r"^(from|import) course_kernels", compiled_cache._CODES.read_text(), re.MULTILINE)


def test_sources_that_changed_since_they_were_imported_are_not_what_is_compiled(compiles, monkeypatch):
    get()
    monkeypatch.setattr(compiled_cache, "_SOURCES_IMPORTED", "of an hour ago")
    get()
    assert len(compiles) == 2
    assert len(files()) == 1


# ---- files that are no good


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def garbage(path):
    path.write_bytes(os.urandom(1000))


def no_code(path):
    path.write_bytes(b"\n" + path.read_bytes().rpartition(b"\n")[2])


def no_object(path):
    """Written whole, and nothing that the loader takes."""
    export = SimpleNamespace(export_to_c=lambda to, name: Path(to).write_text("void"))
    assert compiled_cache._keep(export, path, "nothing", 1)


def no_name(path):
    code = path.read_bytes().rpartition(b"\n")[0]
    path.write_bytes(code + b'\n{"sha256": "%s"}' % hashlib.sha256(code).hexdigest().encode())


@pytest.mark.parametrize("damage", [no_name, cut, garbage])
def test_what_is_kept_is_listed_without_broken_files(compiles, damage):
    get()
    damage(*files())
    assert compiled_cache.kept() == []


def test_what_never_loads_is_told(compiles, monkeypatch):
    monkeypatch.setattr("cutlass.cute.runtime.load_module", lambda *_, **__: {})
    with pytest.warns(RuntimeWarning, match="cannot be loaded here, and every process compiles anew"):
        assert get()


@pytest.mark.parametrize("setting", ["CUTE_DSL_DISABLE_FILE_CACHING", "CUTE_DSL_KEEP"])
def test_who_wants_everything_compiled_gets_it_compiled(compiles, monkeypatch, setting):
    monkeypatch.setenv(setting, "1")
    get()
    get()
    assert len(compiles) == 2
    assert not compiled_cache.directory().exists()


def test_a_folder_in_the_directory_is_left_alone(compiles, monkeypatch):
    monkeypatch.setattr(compiled_cache, "MOST_FILES", 1)
    other = compiled_cache.directory() / "of somebody else"
    other.mkdir(parents=True, mode=0o700)
    compiled_cache.directory().chmod(0o700)
    os.utime(other, (0, 0))
    no_warnings()
    assert len(compiles) == 1
    assert other.is_dir()


@pytest.mark.parametrize(
    "damage", [cut, flip, garbage, no_code, no_name, no_object, lambda path: path.write_bytes(b"")]
)
def test_a_broken_file_is_compiled_again(compiles, damage):
    get()
    (path,) = files()
    damage(path)
    get()
    assert len(compiles) == 2
    get()
    assert len(compiles) == 2
    assert files() == [path]


def test_a_broken_file_is_removed_also_where_none_takes_its_place(compiles, monkeypatch):
    get()
    cut(*files())
    monkeypatch.setattr(compiled_cache, "_keep", lambda *args: False)
    get()
    assert files() == []


def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get()


def test_files_are_the_users_own(compiles):
    before = os.umask(0)
    try:
        get()
    finally:
        os.umask(before)
    assert compiled_cache.directory().stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in files()] == [0o600]


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_directory_that_others_may_write_to_is_not_used(compiles, mode):
    get()
    compiled_cache.directory().chmod(mode)
    before = [path.stat() for path in files()]
    with pytest.warns(RuntimeWarning, match="others may write to it"):
        get()
    no_warnings()
    assert len(compiles) == 3
    assert [path.stat() for path in files()] == before


def test_a_directory_of_another_user_is_not_used(compiles, monkeypatch):
    get()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        get()
    no_warnings()
    assert len(compiles) == 3


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_to_is_not_loaded_but_replaced(compiles, mode):
    get()
    (path,) = files()
    path.chmod(mode)
    with pytest.warns(RuntimeWarning, match="files of another user, or that others may write to"):
        get()
    assert len(compiles) == 2
    assert path.stat().st_mode & 0o777 == 0o600
    no_warnings()
    assert len(compiles) == 2


def test_without_a_directory_kernels_are_compiled(compiles, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    with pytest.warns(RuntimeWarning, match="compiled kernels cannot be kept: .*Not a directory"):
        get()
    no_warnings()
    assert len(compiles) == 2
    assert compiled_cache.kept() == []


def test_without_a_home_kernels_are_compiled(compiles, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(compiled_cache.Path, "home", homeless)
    with pytest.warns(RuntimeWarning, match="Could not determine home"):
        get()
    assert compiled_cache.kept() == []


def test_a_directory_that_can_only_be_read_is_read(compiles, monkeypatch):
    def refuse(*args, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    get()
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    no_warnings()
    assert len(compiles) == 1
    compiled_cache.directory().joinpath(files()[0]).unlink()
    with pytest.warns(RuntimeWarning, match=r"cannot be kept in .*: Read-only file system"):
        get()
    no_warnings()
    assert len(compiles) == 3


# ---- writing


def test_a_file_appears_at_once_and_whole(compiles, monkeypatch):
    from course_kernels.kernels.cute_sm90 import compilation

    seen, compiled = [], compilation.compile_for()

    def export(to, name):
        compiled.export_to_c(to, name)
        seen.extend(path.name for path in files() if path.suffix == ".o")

    monkeypatch.setattr(compilation, "compile_for", lambda *args, **options: SimpleNamespace(export_to_c=export))
    get()
    assert seen == []
    assert [path.suffix for path in files()] == [".o"]


def test_a_full_disk_leaves_nothing_behind(compiles, monkeypatch):
    from course_kernels.kernels.cute_sm90 import compilation

    def export(to, name):
        with open(to, "wb") as file:
            file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    half = SimpleNamespace(export_to_c=export)
    monkeypatch.setattr(compilation, "compile_for", lambda *args, **options: half)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert get() is half
    assert files() == []


def test_many_at_a_time_do_not_disturb_each_other(compiles):
    everyone = threading.Barrier(8)

    def start(number):
        everyone.wait()
        return get()

    with warnings.catch_warnings(), ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("error")
        assert all(pool.map(start, range(8)))
    assert [path.suffix for path in files()] == [".o"]
    before = len(compiles)
    get()
    assert len(compiles) == before


def test_kernels_not_used_for_longest_make_room(compiles, monkeypatch):
    monkeypatch.setattr(compiled_cache, "MOST_FILES", 3)

    def use(number):
        compiled_cache.compiled(CONFIG, Form(), "bfloat16", f"type {number}")
        for path in files():  # as if a second passed
            os.utime(path, ns=(path.stat().st_mtime_ns - 10**9,) * 2)

    for number in (1, 2, 3, 1, 4):
        use(number)
    assert len(files()) == 3
    assert len(compiles) == 4
    assert [re.search(r"type (.)", entry.name)[1] for entry in compiled_cache.kept()] == ["4", "1", "3"]
    use(1)
    assert len(compiles) == 4
    use(2)
    assert len(compiles) == 5


# ---- on Hopper

ON_A_GPU = """
import sys

import torch

from course_kernels import grouped_mm
from course_kernels.testing import assert_grouped_exact, integers

if sys.argv[1:] == ["loads"]:
    from cutlass import cute

    cute.compile = None
ends = torch.tensor([140, 140, 400], dtype=torch.int32, device="cuda")
for dtype in (torch.bfloat16, torch.float16):
    a, b = (integers(shape, dtype, 1, device="cuda") for shape in ((440, 64), (3, 96, 64)))
    out = grouped_mm(a, b.mT, offs=ends, backend="cute")
    assert_grouped_exact(out, a, b.mT, ends)
    weights = grouped_mm(a.mT, out, offs=ends, backend="cute")
    assert torch.equal(weights[2], (a[140:400].mT.float() @ out[140:400].float()).to(dtype))
"""


@pytest.mark.gpu
def test_another_process_computes_with_what_one_compiled(monkeypatch, tmp_path):
    if not (cute.runs_on(torch.device("cuda", 0)) and cute.installed()):
        pytest.skip("needs a GPU of compute capability 9.0 and the packages of the extra cutlass")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for argument in ("compiles", "loads"):
        child = subprocess.run(
            [sys.executable, "-c", ON_A_GPU, argument], capture_output=True, text=True, timeout=300
        )  # fmt: skip
        assert child.returncode == 0, child.stderr
        assert len(compiled_cache.kept()) == 4
