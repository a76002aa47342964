"""What a measurement depends on: modules of its process and of its children, and data files that they read."""

from __future__ import annotations

import os
import textwrap

import forked
from course_kernels.bench import loaded
from places import ROOT


def files_of(body):
    """The files that a program depends on, as it prints them; its last line is ``watch.files()``."""
    places = [str(ROOT / "src"), str(ROOT / "benchmarks")]
    program = f"import subprocess, sys\nsys.path[1:1] = {places}\nfrom course_kernels.bench import loaded\n"
    program += "with loaded.Watch() as watch:\n" + textwrap.indent(textwrap.dedent(body), "    ")
    program += "\n    print('FILES', *watch.files())\n"
    # In a fork that has torch, of which no file counts; its children start anew.
    done = forked.run(program, {**os.environ, "PYTHONPATH": os.pathsep.join(places)})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def rooms(files):
    return {file.split("/")[1] for file in files if file.startswith("course_kernels/")}


def test_programs_of_the_list_api_do_not_depend_on_the_packed_one():
    """Though the package itself imports both."""
    files = files_of("import timelines")
    wanted = "../benchmarks/list_api.py ../benchmarks/timelines.py course_kernels/bench/timing.py"
    assert {*wanted.split(), "course_kernels/lists/api.py", "course_kernels/bench/verified_timing.py"} <= {*files}
    assert not rooms(files) & {"engine", "packed", "masked", "gmm", "jagged"}
    assert "course_kernels/bench/record.py" not in files, "it writes records, and decides no number"


def test_programs_of_the_packed_api_do_not_depend_on_the_list_api():
    files = files_of("import zoo_api")
    wanted = "bench/grouped.py bench/zoo.py packed/api.py engine/hopper/cute.py engine/tuning/time_model.py runtime.py"
    assert {f"course_kernels/{name}" for name in wanted.split()} <= {*files}
    assert not rooms(files) & {"lists", "masked", "gmm", "jagged"}


def test_what_is_loaded_late_and_read_counts():
    constants = "course_kernels/engine/tuning/constants/h200.json"
    files = files_of(f"""
        import importlib, pathlib
        importlib.import_module("course_kernels.jagged.api")  # the package has loaded it
        importlib.import_module("course_kernels.schedule.orders")
        (loaded.ROOT / "{constants}").read_text()
        (loaded.ROOT / "course_kernels/files.py").read_text()
    """)
    assert {constants, "course_kernels/schedule/orders.py"} <= {*files}
    assert rooms(files) == {"engine", "schedule"}


def test_children_tell_what_they_have_loaded_and_read():
    constants = "course_kernels/engine/tuning/constants/h100.json"
    child = (
        "from course_kernels.bench import loaded; import shapes; loaded.share();"
        f"(loaded.ROOT / '{constants}').read_text(); loaded.share()"
    )
    files = files_of(f"""
        subprocess.run([sys.executable, "-c", {child!r}], check=True)
    """)
    assert files == ["../benchmarks/shapes.py", constants]


def test_nothing_is_shared_where_nobody_watches(monkeypatch, tmp_path):
    monkeypatch.delenv("COURSE_KERNELS_LOADED", raising=False)
    monkeypatch.chdir(tmp_path)
    loaded.share()
    assert list(tmp_path.iterdir()) == []
