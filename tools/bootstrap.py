"""Create `.venv` and install what the course needs; with nothing missing, take a moment only.

    python3 tools/bootstrap.py lab     what `make lab` needs
    python3 tools/bootstrap.py site    what `make site` needs on top
    python3 tools/bootstrap.py test    what `make test` needs on top of both

Standard library only: it runs before anything is installed. uv installs, in the versions that constraints.txt lists.
"""

import sys

if not (3, 10) <= sys.version_info[:2] < (3, 15):  # before any line that an older Python could not execute
    sys.exit(
        "The course needs Python 3.10 to 3.14; this is {}.{} ({}).\n"
        "Install one of these and name it: make lab PYTHON=python3.12".format(*sys.version_info[:2], sys.executable)
    )

import ast
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.json"  # written after success only
LOCK = ROOT / ".venv.lock"
UNFINISHED = "unfinished"  # the lock's text while something is being installed
LOG = ROOT / ".venv.log"

LAB = ["course", "cutlass", "helion"]
EXTRAS = {"lab": LAB, "site": [*LAB, "site"], "test": [*LAB, "site", "dev"]}
PIP = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input"]
INSTALL = [str(VENV / "bin" / "uv"), "pip", "install", "--python", str(PYTHON)]
# Settings of pip and the variables in which uv reads the same: it does not read pip's own.
PIPS = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS",
        "trusted-host": "UV_INSECURE_HOST", "proxy": "ALL_PROXY", "cert": "SSL_CERT_FILE"}  # fmt: skip
# Parts of the output of pip and uv if no index answers.
SILENCE = r"(?:NewConnection|Proxy|SSL)Error|(?:Connect|Read)Timeout|error sending request|dns error|Connection refused"


class Failed(Exception):
    """A step that did not work; the message says what to do. `whole`: `.venv` holds no partial installation."""

    def __init__(self, message: str, whole: bool = False):
        super().__init__(message)
        self.whole = whole


def say(text: str) -> None:
    print(text, flush=True)


def settings_of_pip() -> dict[str, str]:
    """The user's settings for pip, as variables for uv."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
    lines = re.findall(r"^(global|install|:env:)\.([\w-]+)=('.*'|\".*\")$", listed, re.MULTILINE)
    lines.sort(key=lambda line: line[0] == ":env:")  # variables win over files
    found = {}
    for _, name, value in lines:
        if name in PIPS:
            found[PIPS[name]] = ("," if name == "find-links" else " ").join(ast.literal_eval(value).split())
    # pip takes the best version of all indexes, uv one of the first index that knows the package.
    found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "uv")
    if not os.access(next(path for path in (cache, *cache.parents) if path.exists()), os.W_OK):
        found["UV_NO_CACHE"] = "1"
    return {name: value for name, value in found.items() if name not in os.environ}


def run(title: str, command: list[str]) -> str:
    """Run a step: its output in the log, its progress on the screen. Returns the output; Failed carries its errors."""
    live = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 1 if live else 120
    started, heading = time.monotonic(), f"\n$ {' '.join(command)}\n"

    def show(text: str) -> None:
        print("\r" + text[:width].ljust(width) if live else text[:width], end="" if live else "\n", flush=True)

    def output() -> str:
        return LOG.read_text(encoding="utf-8", errors="replace").rpartition(heading)[2]

    with open(LOG, "a", encoding="utf-8") as log:
        log.write(heading)
        log.flush()
        # A user's settings for pip outside of virtual environments make it refuse to work inside of one.
        variables = {**os.environ, "PIP_USER": "0", "PYTHONNOUSERSITE": "1", "LC_ALL": "C.UTF-8"}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)  # images of containers set it; see `install`
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None:
            try:
                process.wait(timeout=1 if live else 30)
            except subprocess.TimeoutExpired:
                actions = re.findall(r"^\s*((?:Download|Install|Build|Prepar|Resolv)\w+ .*)", output(), re.MULTILINE)
                show(f"{title} ... {time.monotonic() - started:.0f} s  {actions[-1][:60] if actions else ''}".rstrip())
    except BaseException:
        process.kill()
        raise
    show(f"{title}: {time.monotonic() - started:.0f} s")
    if live:
        print()
    if process.returncode:
        raise failure(title, process.returncode, output())
    return output()


def failure(title: str, code: int, output: str) -> Failed:
    """The exception for a failed step, with the cause in a few lines."""
    details = f"All of it is in {LOG}."
    if code < 0:
        killed = f"{title} was ended by {signal.Signals(-code).name}."
        return Failed(f"{killed} If memory ran out, close other programs, and run the same command again.")
    lines = output.rstrip().splitlines()
    silence = re.findall(SILENCE, output)
    if silence or "(from versions: none)" in output:  # pip names no cause if it may not try again
        cause = f"does not answer ({silence[-1]})" if silence else "does not answer, or has no such package"
        return Failed(
            f"{title} failed: the package index {cause}. Is there a network? Behind a proxy,\n"
            f"or with a mirror of your own, set it for pip. When it answers, run the same command again. {details}",
            whole=True,
        )
    # Show the output from the first error on: its cause follows it.
    first = next((i for i, line in enumerate(lines) if re.match(r"\s*(ERROR|error|×)", line)), -15)
    errors = ["  " + line for line in lines[first:][:15]]
    return Failed("\n".join([f"{title} failed:", *errors, details]))


def inside(code: str) -> str | None:
    """What the environment's Python prints for `code`; None when it cannot run it."""
    try:
        done = subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def wanted_key() -> str:
    """Changes when the dependencies, the Python or the place of the environment do."""
    dependencies = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("\n[tool.")[0]
    versions = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return hashlib.sha256("\n".join([dependencies, versions, platform.machine(), str(ROOT)]).encode()).hexdigest()


def is_ready(extras: list[str]) -> bool:
    """Whether an earlier run installed all this, and the environment's Python still starts."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if stamp.get("key") != wanted_key() or not set(extras) <= set(stamp.get("extras", [])):
        return False
    return inside("import sys; print(sys.version)") == stamp.get("python")


def is_moved() -> bool:
    """Whether the environment was made in another place, which its commands and its `activate` still name."""
    try:
        return str(VENV) not in (VENV / "bin" / "activate").read_text(encoding="utf-8")
    except OSError:
        return False


def note_other_python() -> None:
    """Say that an environment keeps the Python that it was made with, where another one was asked for."""
    kept = inside("import sys; print('.'.join(map(str, sys.version_info[:2])))")
    asked = ".".join(map(str, sys.version_info[:2]))
    if kept and kept != asked:
        say(f".venv keeps its Python {kept}; to use {asked} ({sys.executable}), delete .venv first")


def check_platform() -> None:
    """Triton has wheels for Linux with glibc, on two processors."""
    machine = platform.machine().lower()
    if sys.platform != "linux":
        raise Failed(
            f"Triton has no wheels for {platform.system()}: open this folder in its dev container "
            "(.devcontainer/), for example with VS Code's 'Reopen in Container'."
        )
    if machine not in {"x86_64", "amd64", "aarch64", "arm64"} or platform.libc_ver()[0] != "glibc":
        raise Failed(
            f"Triton has wheels for glibc Linux on x86-64 and arm64, not for this one ({machine}, "
            f"{platform.libc_ver()[0] or 'no glibc'}): use the dev container (.devcontainer/)."
        )


def ensure_venv(again: bool) -> None:
    """Ensure an environment with a working Python, pip and uv. With `again`, make a new one."""
    version = None if again else inside("import pip, sys; print(*sys.version_info[:2])")
    if version is None or tuple(map(int, version.split())) < (3, 10):
        if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
            raise Failed(
                f"This Python ({sys.executable}) has no venv module. On Debian and Ubuntu: "
                "apt install python{}.{}-venv".format(*sys.version_info[:2]),
                whole=True,
            )
        run("Creating .venv", [sys.executable, "-m", "venv", "--clear", str(VENV)])
    run("Installing uv", [*PIP, "install", "--progress-bar=off", "uv>=0.7"])
    os.environ.update(settings_of_pip())


def has_nvidia_gpu() -> bool:
    """Whether this machine has an NVIDIA driver with a GPU."""
    if Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists():
        return True
    tool = shutil.which("nvidia-smi") or "/usr/lib/wsl/lib/nvidia-smi"
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def pinned(package: str) -> str:
    """The course's exact requirement of a package, read from where it is written."""
    match = re.search(rf'"({package}==[\w.]+)', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if match is None:
        raise Failed(f"pyproject.toml pins no {package} in its extra `course`")
    return match[1]


def ensure_cpu_torch() -> None:
    """Install the pinned torch in a CPU build if the index would give one with CUDA. For machines without a GPU."""
    requirement = pinned("torch")
    plan = run("Asking which torch is there", [*INSTALL, "--dry-run", requirement])
    if not re.search(r"^ \+ (nvidia|cuda)[-_]", plan, re.MULTILINE):
        return
    say("No NVIDIA GPU: installing torch's CPU build instead of gigabytes of CUDA")
    try:
        run(f"Installing {requirement} for the CPU", [*INSTALL, "--torch-backend=cpu", requirement])
    except Failed as error:
        raise Failed(
            f"{error}\nInstall the CPU build of {requirement} yourself, then run this again:\n"
            f"  {PYTHON} -m pip install ...   (PyTorch's web site, Get Started, Compute Platform: CPU)",
            whole=True,  # a new .venv would lose what the reader installs now
        ) from None


def install(extras: list[str]) -> None:
    """Install into `.venv`. One that was left unfinished, or made in another place, is made again."""
    unfinished, moved = LOCK.read_text() == UNFINISHED, is_moved()
    if unfinished:
        say("The last installation did not finish: making .venv again")
    elif moved:
        say("This folder was moved or copied, and .venv still names its old place: making .venv again")
    LOCK.write_text(UNFINISHED)
    try:
        ensure_venv(again=unfinished or moved)
        if has_nvidia_gpu():
            say("NVIDIA GPU found: torch comes with CUDA (several gigabytes)")
        else:
            ensure_cpu_torch()
        listed = ["--constraint", "constraints.txt", "--editable", f".[{','.join(extras)}]"]
        run("Installing the course", [*INSTALL, *listed])
        for path in VENV.glob("lib/python*/site-packages/__editable__.*.pth"):
            # Python reads it in the locale's encoding, which may lack letters of the whole path.
            path.write_text(os.path.relpath(ROOT / "src", path.parent))
        # Python compiles what it imports. Where learners' code runs, the result could not be stored.
        run(
            "Trying it",
            [str(PYTHON), "-c", "import gemm_course.cli.app, torch, triton, jupyterlab.labapp, ipykernel.kernelapp"],
        )
    except Failed as error:
        LOCK.write_text("" if error.whole else UNFINISHED)
        raise
    stamp = {"key": wanted_key(), "extras": extras, "python": inside("import sys; print(sys.version)")}
    STAMP.write_text(json.dumps(stamp, indent=1), encoding="utf-8")
    LOCK.write_text("")


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in EXTRAS:
        say(f"usage: python3 tools/bootstrap.py {{{','.join(EXTRAS)}}}")
        return 2
    extras = EXTRAS[sys.argv[1]]
    try:
        check_platform()
        if is_ready(extras):
            note_other_python()
            return 0
        import fcntl  # not on every system that check_platform turns away

        with open(LOCK, "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("Another installation is running in this folder: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if is_ready(extras):
                return 0
            install(extras)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"Nothing can be installed in {ROOT}, which has to be a folder that you can write: {error}", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Run the same command again.", file=sys.stderr)
        return 130
    say("Everything is installed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
