"""The confinement of a process that uses a GPU: what CUDA and Triton ask of the kernel is granted, and nothing more.

CUDA itself is not here. What its driver and Triton's do when they start has been read in traces and sources: each of
these steps is tried from inside, in one process.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import types
from pathlib import Path

import pytest

from confined_steps import BY_FILTER, BY_FILTER_IN_OTHER_WORDS, BY_LANDLOCK, BY_LIMIT, BY_RIGHTS, GRANTED
from gemm_course.isolation import landlock

NEEDS = {
    "c_compiler": Path(sysconfig.get_path("include"), "Python.h"),
    "list_of_libraries": Path("/sbin/ldconfig"),
}  # fmt: skip


@pytest.mark.parametrize("step", GRANTED)
def test_what_a_gpus_driver_needs_is_granted(outcomes, step):
    if step == "c_compiler" and not (shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("no C compiler here, which Triton needs on a GPU")
    if step in NEEDS and not NEEDS[step].exists():
        pytest.skip(f"{NEEDS[step]} is not here, which Triton needs on a GPU")
    assert outcomes[step] == ""


@pytest.mark.skipif(not landlock.landlock_version(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("step", BY_LANDLOCK)
def test_files_of_others_are_refused(outcomes, step):
    assert outcomes[step].startswith("PermissionError")


@pytest.mark.parametrize("step", BY_RIGHTS)
def test_what_root_may_do_is_refused(outcomes, step):
    assert outcomes[step].startswith("PermissionError")


@pytest.mark.parametrize(("step", "says"), BY_LIMIT.items())
def test_memory_and_files_have_limits(outcomes, step, says):
    assert says in outcomes[step]


def test_every_step_was_looked_at(outcomes):
    assert set(outcomes) == {*GRANTED, *BY_LANDLOCK, *BY_RIGHTS, *BY_FILTER, *BY_FILTER_IN_OTHER_WORDS, *BY_LIMIT}


@pytest.mark.parametrize(("above", "readable"), [("site-packages", True), ("home", False)])
def test_packages_in_a_folder_of_the_users_do_not_open_it(monkeypatch, tmp_path, above, readable):
    """As `pip install --target` puts them there."""
    place = tmp_path / above
    module = types.ModuleType("numpy")
    module.__file__ = str(place / "numpy" / "__init__.py")
    monkeypatch.setitem(sys.modules, "numpy", module)
    found = {Path(each) for each in landlock._installed()}
    assert (place in found) == readable
    assert {place / "numpy", place / "numpy.libs", place / "nvidia"} <= found or readable
    assert not {tmp_path, tmp_path.parent} & found


@pytest.mark.parametrize("name", ["cutlass", "tvm_ffi", "nvidia_cutlass_dsl"])
@pytest.mark.parametrize("namespace", [False, True])
def test_a_package_that_is_not_imported_yet_can_be_read(monkeypatch, tmp_path, name, namespace):
    """CuTe DSL, where a path leads to it: its functions are compiled from their source. It needs TVM's calls."""
    (tmp_path / name).mkdir()
    if not namespace:
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, name, raising=False)
    others = [entry for entry in sys.path if not Path(entry, name).exists()]  # a package goes before a namespace
    monkeypatch.setattr(sys, "path", [str(tmp_path), *others])
    found = set(landlock._installed())
    assert str(tmp_path / name) in found
    assert str(tmp_path) not in found
    assert name not in sys.modules


def test_our_code_is_closed_where_it_is_installed_among_others(tmp_path, monkeypatch):
    site = tmp_path / "lib" / "site-packages"
    for name in ("torch", "gemm_course/exercises"):
        (site / name).mkdir(parents=True)
    (site / "six.py").touch()
    (site / "link").symlink_to(site / "gemm_course")
    monkeypatch.setattr(landlock, "_HIDDEN", (str(site / "gemm_course"),))
    rules = dict(landlock._around_hidden(str(tmp_path)))
    folders, open_ones = landlock._READ_FOLDER, landlock._READ
    assert rules == {
        str(tmp_path): folders, str(tmp_path / "lib"): folders, str(site): folders,
        str(site / "torch"): open_ones, str(site / "six.py"): open_ones,
    }  # fmt: skip
    assert dict(landlock._around_hidden(str(site / "gemm_course" / "exercises"))) == {}
    assert dict(landlock._around_hidden(str(site / "torch"))) == {str(site / "torch"): open_ones}
