"""The project around the code: its environment files agree, its commands exist, its README is true."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import forked
from places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "site").glob("*.md"))  # of the site; read as files, too, by way of the README's links
NOTES = sorted((ROOT / "benchmarks" / "notes").glob("*.md"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()

CONDA_NAMES = {"matplotlib-base": "matplotlib"}  # without it, conda brings a Qt


def tool(name):
    """A module of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


bootstrap, lab, run_tests = tool("bootstrap"), tool("lab"), tool("run_tests")


def bounds(requirements):
    """Name → version bounds, without the environment markers."""
    parsed = map(Requirement, requirements)
    return {CONDA_NAMES.get(each.name, each.name): str(each.specifier) for each in parsed}


# pyproject.toml, environment.yml, dev container


def test_conda_and_pip_install_the_same():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    plain = bounds(each for each in conda["dependencies"] if isinstance(each, str))
    through_pip = next(each["pip"] for each in conda["dependencies"] if isinstance(each, dict))
    assert "--editable ." in through_pip, "the library itself"
    extras = PROJECT["optional-dependencies"]
    expected = bounds(extras["course"] + extras["cutlass"] + extras["helion"] + extras["site"] + extras["dev"])
    expected["python"], expected["pip"] = str(SpecifierSet(PROJECT["requires-python"])), ""
    assert plain | bounds(each for each in through_pip if not each.startswith("-")) == expected


def test_library_asks_for_torch_and_triton_only_and_the_course_pins_versions_that_it_admits():
    library = bounds(PROJECT["dependencies"])
    assert set(library) == {"torch", "triton"}
    pins = bounds(PROJECT["optional-dependencies"]["course"])
    for name, admitted in library.items():
        assert pins[name].startswith("=="), f"{name} is not pinned"
        assert pins[name].removeprefix("==") in SpecifierSet(admitted)
        assert bootstrap.pinned(name) == name + pins[name]


def test_library_imports_torch_and_triton_alone():
    """CuTe DSL and Helion have extras, an integration is of what it is named after, and their package checks versions;
    NumPy is the interpreter's own requirement, which runtime checks."""
    package = ROOT / "src" / "course_kernels"
    for path in package.rglob("*.py"):
        admitted = {"course_kernels", "torch", "triton"} | ({"numpy"} if path == package / "runtime.py" else set())
        admitted |= {"cutlass"} if {"cutlass_ops", "cute_sm90", "compiled_cache.py"} & set(path.parts) else set()
        if path.parent.name == "integrations":
            modules = path.parent.glob("*.py") if path.stem == "__init__" else [path]
            admitted |= {each.stem.removesuffix("_ep") for each in modules}
        admitted |= {"helion"} if path.name in ("helion_kernels.py", "helion_peer.py") else set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            others = {name.split(".")[0] for name in names} - sys.stdlib_module_names - admitted
            assert not others, f"{path.relative_to(package)} imports {others}"


def test_nobody_is_told_to_install_a_name_that_is_not_published():
    """Anyone could register it."""
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "notebooks").rglob("*.py"), ROOT / "README.md", *PAGES]
    texts += [ROOT / "docs" / "package.md", *(ROOT / "tools").glob("*.py")]
    name = re.escape(PROJECT["name"])
    told = re.compile(rf"{name}\[|install ['\"]?{name}")
    assert [path for path in texts if told.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.skipif(importlib.util.find_spec("helion") is None, reason="helion is not installed")
def test_helion_leaves_torch_alone_and_its_extra_cute_excludes_our_cutlass():
    """What pyproject.toml says of the extra `helion`."""
    assert PROJECT["optional-dependencies"]["helion"] == ["helion>=1.5"], "not helion[cute]"
    requirements = [Requirement(each) for each in importlib.metadata.requires("helion")]
    plain = {each.name for each in requirements if each.marker is None}
    assert not {name for name in plain if name in ("torch", "triton") or name.startswith(("nvidia", "cuda"))}
    dsl = "nvidia-cutlass-dsl"
    (theirs,) = (each.specifier for each in requirements if each.name == dsl and 'extra == "cute"' in str(each.marker))
    ours = SpecifierSet(bounds(PROJECT["optional-dependencies"]["cutlass"])[dsl])
    assert not any(each.version in ours for each in theirs if each.operator == "=="), "they can be installed together"


def test_package_version_is_written_once_more_and_the_same():
    import course_kernels

    assert course_kernels.__version__ == PROJECT["version"]


def test_dev_container_opens_the_same_course():
    lines = (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8").splitlines()
    settings = json.loads("\n".join(line for line in lines if not line.lstrip().startswith("//")))
    assert "tools/bootstrap.py" in settings["postCreateCommand"]
    assert settings["postAttachCommand"] == "make lab"
    assert f"PORT ?= {settings['forwardPorts'][0]}\n" in MAKEFILE
    assert settings["postCreateCommand"].endswith("course lab --copies"), "for an editor that opens them itself"
    assert settings["customizations"]["codespaces"]["openFiles"] == [f"my_course/{lab.FIRST}"]
    dockerfile = (ROOT / ".devcontainer" / settings["build"]["dockerfile"]).read_text(encoding="utf-8")
    assert re.search(r"python:([\d.]+)", dockerfile)[1] in SpecifierSet(PROJECT["requires-python"])
    assert "chromium" in dockerfile


# Makefile and README


def test_make_help_names_every_target():
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make (\w+) +\S", shown, re.MULTILINE) == TARGETS
    assert subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout == shown


def test_readme_names_every_target_and_no_other():
    commands = re.findall(r"^make (\w+)|`make (\w+)", README, re.MULTILINE)
    assert {first or second for first, second in commands} == set(TARGETS)


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *PAGES, *NOTES], ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_links_lead_somewhere(path):
    text = re.sub(r"`[^`\n]+`", "", path.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text) + re.findall(r'<img src="([^"]+)"', text)
    links = [link for link in links if "://" not in link]
    assert links or path.parent.name in ("site", "notes")
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_notes_are_found_from_their_first_page_and_can_be_read_as_text():
    first = ROOT / "benchmarks" / "notes" / "README.md"
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.md\)", first.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted([*listed, "README"]) == [path.stem for path in NOTES]
    for path in NOTES:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == [], path.name


def test_readme_maps_every_notebook():
    listed = re.findall(r"\(notebooks/(\w+)\.ipynb\)", README)
    assert listed == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "docs" / "package.md", ROOT / "site" / "library.md"], ids=lambda path: path.name
)
def test_examples_run(path):
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    if importlib.util.find_spec("cutlass") is None:
        blocks = [block for block in blocks if "cutlass_ops" not in block]
    done = forked.run("\n".join(blocks))
    assert done.returncode == 0, done.stderr


def test_the_library_page_names_each_public_name():
    import course_kernels

    page = (ROOT / "site" / "library.md").read_text(encoding="utf-8")
    assert [
        name for name in course_kernels.__all__ if not re.search(rf"`[^`]*\b{name}\b|^from .*\b{name}\b", page, re.M)
    ] == []


# tools/bootstrap.py


def test_bootstrap_can_be_read_by_a_python_that_it_turns_away():
    source = (ROOT / "tools" / "bootstrap.py").read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 7))
    kinds = [type(node) for node in tree.body]
    first_statement = kinds.index(ast.If)
    assert set(kinds[:first_statement]) <= {ast.Expr, ast.Import}, "nothing runs before the version is checked"
    condition = ast.unparse(tree.body[first_statement].test)
    oldest, first_without_wheels = re.fullmatch(
        r"not \(3, (\d+)\) <= sys.version_info\[:2\] < \(3, (\d+)\)", condition
    ).groups()
    assert PROJECT["requires-python"] == f">=3.{oldest},<3.{first_without_wheels}"


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_pointed_to_the_dev_container(monkeypatch, system):
    monkeypatch.setattr(sys, "platform", system)
    with pytest.raises(bootstrap.Failed, match=r"\.devcontainer") as raised:
        bootstrap.check_platform()
    assert "\n" not in str(raised.value)


def test_the_installed_versions_are_those_that_pyproject_admits():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "://" not in text, "it names no host"
    assert re.findall(r"--extra (\w+)", text.splitlines()[1]) == bootstrap.EXTRAS["test"], "how it was made"
    listed: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition(";")[0].strip().partition("==")
            listed.setdefault(name, []).append(version)
    for extra in bootstrap.EXTRAS["test"]:
        for each in map(Requirement, PROJECT["optional-dependencies"][extra]):
            assert [v for v in listed[each.name] if v not in each.specifier] == [], each


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """The bootstrap over an empty folder; nothing is installed, the commands of its steps are kept."""
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for name in ("ROOT", "VENV", "PYTHON", "STAMP", "LOCK", "LOG"):
        monkeypatch.setattr(bootstrap, name, tmp_path / getattr(bootstrap, name).relative_to(ROOT))
    bootstrap.LOCK.touch()
    bootstrap.VENV.mkdir()
    monkeypatch.setattr(bootstrap, "inside", lambda code: "99 0")
    monkeypatch.setattr(bootstrap, "settings_of_pip", dict)
    monkeypatch.setattr(bootstrap, "has_nvidia_gpu", lambda: True)
    commands = []
    monkeypatch.setattr(bootstrap, "run", lambda title, command: commands.append((title, command)) or "")
    return commands


FRESH = ["Creating .venv", "Installing uv", "Installing the course", "Trying it"]
KEPT = FRESH[1:]


def titles(installation):
    shown = [title for title, _ in installation]
    installation.clear()
    return shown


def failing(monkeypatch, step, error):
    """An installation whose step of this title fails."""

    def run(title, command):
        if title.startswith(step):
            raise error
        return " + nvidia-cublas==13.1" if "Asking" in title else ""

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "run", run)
        with pytest.raises(type(error)) as raised:
            bootstrap.install(["course"])
    return str(raised.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), bootstrap.Failed("disk full")])
def test_an_installation_that_did_not_finish_is_made_again(installation, monkeypatch, capsys, error):
    bootstrap.install(["course"])
    assert titles(installation) == KEPT
    failing(monkeypatch, "Installing the course", error)
    capsys.readouterr()
    bootstrap.install(["course"])
    assert "did not finish: making .venv again" in capsys.readouterr().out
    assert "--clear" in installation[0][1], "half a package is worse than none"
    assert titles(installation) == FRESH
    bootstrap.install(["course"])
    assert titles(installation) == KEPT


PIP_WITHOUT_NETWORK = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip.HTTPSConnection object at 0x7f>:
ERROR: Could not find a version that satisfies the requirement uv>=0.7 (from versions: none)
ERROR: No matching distribution found for uv>=0.7
"""
UV_WITHOUT_NETWORK = """\
error: Request failed after 3 retries in 10.3s
  cause: error sending request for url
  cause: dns error
"""


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (PIP_WITHOUT_NETWORK, " (NewConnectionError)"),
        (PIP_WITHOUT_NETWORK.split("\n", 1)[1], ", or has no such package"),
        (UV_WITHOUT_NETWORK, " (dns error)"),
    ],
    ids=["pip", "pip without retries", "uv"],
)
def test_without_a_network_the_cause_comes_first_and_nothing_is_made_again(
    installation, monkeypatch, capsys, output, cause
):
    error = bootstrap.failure("Installing uv", 1, output)
    assert str(error).startswith(f"Installing uv failed: the package index does not answer{cause}")
    assert "from versions" not in str(error)
    assert len(str(error).splitlines()) == 2
    failing(monkeypatch, "Installing uv", error)
    bootstrap.install(["course"])
    assert titles(installation) == KEPT
    assert "again" not in capsys.readouterr().out


def test_an_environment_in_another_place_is_made_again(installation, monkeypatch, capsys):
    activate = bootstrap.VENV / "bin" / "activate"
    activate.parent.mkdir()
    activate.write_text(f"VIRTUAL_ENV={bootstrap.VENV}")
    bootstrap.install(["course"])
    assert titles(installation) == KEPT
    activate.write_text("VIRTUAL_ENV=/where/it/was/.venv")
    bootstrap.install(["course"])
    assert titles(installation) == FRESH
    assert "This folder was moved or copied" in capsys.readouterr().out


def test_the_course_is_found_by_a_path_without_letters_that_a_locale_may_lack(installation):
    packages = bootstrap.VENV / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    path = packages / "__editable__.grouped_gemm_course-0.1.0.pth"
    path.write_text("/home/käse/src", encoding="utf-8")
    bootstrap.install(["course"])
    assert (packages / path.read_text(encoding="ascii")).resolve() == bootstrap.ROOT / "src"


@pytest.mark.parametrize(
    ("gpu", "plan", "added"),
    [
        (True, "", []),
        (False, "Would install\n + filelock==3.13\n + torch==2.13.0+cpu\n", ["Asking which torch"]),
        (False, " + nvidia-cublas==13.1\n + torch==2.13.0\n", ["Asking which torch", "Installing torch=="]),
        (False, " + cuda-toolkit==13.0.2\n", ["Asking which torch", "Installing torch=="]),
    ],
)
def test_without_a_gpu_torch_is_a_cpu_build(installation, monkeypatch, gpu, plan, added):
    monkeypatch.setattr(bootstrap, "has_nvidia_gpu", lambda: gpu)
    record = bootstrap.run
    monkeypatch.setattr(bootstrap, "run", lambda title, command: record(title, command) or plan)
    bootstrap.install(["course"])
    backends = [title for title, command in installation if "--torch-backend=cpu" in command]
    assert [each.partition(" ")[0] for each in backends] == [each.partition(" ")[0] for each in added[1:]]
    shown = titles(installation)
    assert shown[0] == KEPT[0]
    assert shown[-2:] == KEPT[1:]
    assert [title.startswith(each) for title, each in zip(shown[1:-2], added, strict=True)] == [True] * len(added)


def test_without_a_cpu_build_the_reader_installs_one_and_keeps_it(installation, monkeypatch):
    monkeypatch.setattr(bootstrap, "has_nvidia_gpu", lambda: False)
    message = failing(monkeypatch, "Installing torch", bootstrap.Failed("403 Forbidden"))
    assert message.startswith("403 Forbidden\nInstall the CPU build")
    bootstrap.install(["course"])
    assert "Creating .venv" not in titles(installation)


def test_a_step_that_fails_shows_its_error_and_names_the_log(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bootstrap, "LOG", tmp_path / "log")
    assert bootstrap.run("First", [sys.executable, "-c", "print('ERROR: of an earlier step')"]).strip()
    code = "import sys; print('Collecting a'); print('ERROR: no such thing'); print('because'); sys.exit(3)"
    with pytest.raises(bootstrap.Failed) as raised:
        bootstrap.run("Second", [sys.executable, "-c", code])
    expected = ["Second failed:", "  ERROR: no such thing", "  because", f"All of it is in {tmp_path / 'log'}."]
    assert str(raised.value).splitlines() == expected
    code = "import os, signal; print('Downloading', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(bootstrap.Failed, match=r"^Third was ended by SIGKILL\. If memory ran out[^\n]*$") as raised:
        bootstrap.run("Third", [sys.executable, "-c", code])
    assert not raised.value.whole
    assert re.fullmatch(r"(\w+: \d+ s\n){3}", capsys.readouterr().out)


def test_what_a_step_imports_is_stored_as_bytecode(tmp_path, monkeypatch):
    """Where learners' code runs, nothing is stored: each check would compile torch's source."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(bootstrap, "LOG", tmp_path / "log")
    assert bootstrap.run("Trying it", [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]) == "False\n"


def test_uv_takes_the_settings_for_pip(tmp_path, monkeypatch):
    if not [
        *importlib.metadata.distributions(name="pip")
    ]:  # not imported: that would turn off setuptools' distutils, which Inductor needs
        pytest.skip("needs pip")
    settings = tmp_path / "pip.conf"
    several = "extra-index-url =\n  file:///b\n  file:///c\nfind-links = /f /g\n"
    settings.write_text(f"[global]\nproxy = http://loses\nindex-url = file:///a\n{several}")
    monkeypatch.setattr(bootstrap, "PIP", [sys.executable, "-m", "pip"])
    for name in list(bootstrap.os.environ):
        if name.startswith(("PIP_", "UV_")) or name == "ALL_PROXY":
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_PROXY", "http://wins")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = bootstrap.settings_of_pip()
    assert found["UV_DEFAULT_INDEX"] == "file:///a"
    assert found["UV_INDEX"] == "file:///b file:///c"
    assert found["UV_FIND_LINKS"] == "/f,/g"
    assert found["ALL_PROXY"] == "http://wins"
    assert "UV_NO_CACHE" not in found
    monkeypatch.setenv("UV_FIND_LINKS", "/mine")
    monkeypatch.setattr(bootstrap.os, "access", lambda path, mode: False)
    found = bootstrap.settings_of_pip()
    assert "UV_FIND_LINKS" not in found, "settings for uv itself stay"
    assert found["UV_NO_CACHE"] == "1", "its cache is not needed"


def test_a_folder_that_cannot_be_written_is_told_in_one_line(installation, monkeypatch, capsys):
    monkeypatch.setattr(bootstrap, "LOCK", bootstrap.ROOT / "pyproject.toml" / "lock")
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "lab"])
    assert bootstrap.main() == 1
    assert re.fullmatch(r"Nothing can be installed in [^\n]+\n", capsys.readouterr().err)


def test_environment_is_ready_only_after_success_and_for_these_dependencies(tmp_path, monkeypatch):
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "installed.json")
    monkeypatch.setattr(bootstrap, "PYTHON", Path(sys.executable))
    assert not bootstrap.is_ready(["course"])
    stamp = {"key": bootstrap.wanted_key(), "extras": ["course"], "python": sys.version}
    bootstrap.STAMP.write_text(json.dumps(stamp))
    assert bootstrap.is_ready(["course"])
    assert not bootstrap.is_ready(["course", "dev"])
    bootstrap.STAMP.write_text(json.dumps({**stamp, "key": "of other dependencies"}))
    assert not bootstrap.is_ready(["course"])
    bootstrap.STAMP.write_text(json.dumps(stamp)[:20])
    assert not bootstrap.is_ready(["course"])


# tools/lab.py and tools/run_tests.py


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_terminal_has_the_users_shell_and_the_courses_commands_first(monkeypatch, tmp_path, name):
    """Even if the shell's own settings replace PATH."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    monkeypatch.setenv("SHELL", found)
    settings = tmp_path / {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/config.fish"}[name]
    settings.parent.mkdir(parents=True, exist_ok=True)
    if name != "zsh":  # only zsh has no option for a command that runs after its settings
        settings.write_text(
            {"bash": "PATH=/usr/bin:/bin; MINE=1", "fish": "set -gx PATH /usr/bin /bin; set MINE 1"}[name]
        )
    command = [*lab.shell(), "-i", "-c", "echo $MINE; command -v python"]
    shown = subprocess.run(
        command,
        env={**lab.environment(), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    ).stdout.split()
    assert shown[-1] == str(Path(sys.executable).with_name("python"))
    assert name == "zsh" or shown[0] == "1"


@pytest.mark.parametrize("shell", ["/usr/sbin/nologin", "/nowhere/bash", ""])
def test_a_terminal_runs_bash_if_the_users_shell_is_unknown(monkeypatch, shell):
    monkeypatch.setenv("SHELL", shell)
    assert Path(lab.shell()[0]).name in ("bash", "sh")


def test_lab_sets_only_options_that_this_jupyterlab_has():
    """JupyterLab ignores unknown options, so one that it has dropped would have no effect."""
    schemas = Path(sys.prefix) / "share" / "jupyter" / "lab" / "schemas"
    if not schemas.is_dir():
        pytest.skip("JupyterLab is not installed in this environment")
    for name, values in json.loads((lab.SETTINGS / "overrides.json").read_text()).items():
        package, _, plugin = name.rpartition(":")
        schema = json.loads((schemas / package / f"{plugin}.json").read_text())
        for key, value in values.items():
            assert key in schema["properties"]
            if isinstance(value, dict) and key != "defaultViewers":
                assert value.keys() <= schema["properties"][key]["default"].keys()


def test_each_clone_keeps_its_own_open_tabs_out_of_sight_of_git(tmp_path):
    labapp = pytest.importorskip("jupyterlab.labapp")
    kept = []
    for clone in (tmp_path / "one", tmp_path / "two", lab.ROOT):
        app, command = labapp.LabApp(), lab.command(8888, clone / lab.locations.COPIES)
        app.parse_command_line([each for each in command if each.startswith("--LabApp.")])
        kept.append(app.workspaces_dir)
        assert Path(app.workspaces_dir).is_relative_to(clone / lab.locations.COPIES)
    assert len(set(kept)) == 3
    assert subprocess.run(["git", "check-ignore", "--quiet", kept[-1]], cwd=lab.ROOT).returncode == 0


def test_the_side_bar_is_closed_until_the_reader_has_a_layout(tmp_path):
    handler = pytest.importorskip("jupyterlab_server.workspaces_handler")
    lab.first_layout(tmp_path)
    (kept,) = (tmp_path / lab.WORKSPACES).iterdir()
    layout = handler.WorkspacesManager(tmp_path / lab.WORKSPACES).load("default")["data"]["layout-restorer:data"]
    assert layout["left"]["collapsed"]
    assert layout["right"]["collapsed"]
    assert "current" not in layout["left"], "JupyterLab opens what is current"
    kept.write_text("the reader's")
    lab.first_layout(tmp_path)
    assert kept.read_text() == "the reader's"


def test_lab_takes_the_next_port_when_one_is_taken():
    with socket.socket() as taken:
        taken.bind((lab.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        found, mark = lab.free_port(port)
        assert found > port
        mark.close()


def test_two_labs_that_start_at_one_moment_take_two_ports():
    with socket.socket() as probe:
        probe.bind((lab.HOST, 0))
        port = probe.getsockname()[1]
    found, mark = lab.free_port(port)
    second, other = lab.free_port(port)
    with mark, other:
        assert second > found, "nobody listens on the first one yet"
        assert mark.get_inheritable(), "the server, which replaces the program, keeps it"
    with lab.free_port(found)[1] as again:
        assert again.getsockname() == f"\0grouped-gemm-course-{found}".encode()


@pytest.mark.parametrize("port", ["abc", "80", "70000", "-1"])
def test_lab_refuses_a_bad_port(port):
    with pytest.raises(SystemExit, match=re.escape(repr(port))):
        lab.port_from(port)


def test_summary_ends_with_the_sum(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite><testcase/><testcase><skipped/></testcase><testcase><failure/></testcase>"
        "<testcase><error/></testcase></testsuite></testsuites>"
    )
    assert run_tests.counts(report) == (1, 2, 1)
    outcomes = [run_tests.Outcome("a", 0.5, 1, 2, 1), run_tests.Outcome("b", 1.0, 10, 0, 3)]
    assert run_tests.summary(outcomes).splitlines()[-1] == "11 passed, 2 failed, 4 skipped"


def test_a_part_that_collects_nothing_is_a_failure(tmp_path, capfd):
    assert run_tests.pytest("nothing", "-p", "no:nbval", str(tmp_path)).failed == 1
    assert "no tests ran" in capfd.readouterr().out


@pytest.mark.parametrize("gpu", [False, True])
def test_a_part_sees_gpus_only_if_it_is_told_to(monkeypatch, gpu):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    asks = f"import os, sys; sys.exit(os.environ['CUDA_VISIBLE_DEVICES'] != {'0' if gpu else ''!r})"
    assert run_tests.part("asks", sys.executable, "-c", asks, gpu=gpu).failed == 0


def test_what_a_part_imports_is_stored_as_bytecode(monkeypatch):
    """A second less for each process that imports torch."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    asks = "import sys; sys.exit(sys.dont_write_bytecode)"
    assert run_tests.part("asks", sys.executable, "-c", asks).failed == 0


def test_the_tests_of_the_library_need_no_package_of_the_course():
    """On a machine that lends its GPU there is torch, Triton and pytest."""
    program = "import sys; sys.modules['msgspec'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["--collect-only", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-c", program, *options, "tests", "--ignore", "tests/course_kernels"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "tests/project/test_calls.py::test_what_sanitizers_run" in done.stdout
    assert "tests/gemm_course" not in done.stdout
