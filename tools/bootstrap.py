"""Create `.venv` and install what the course needs; with nothing missing, take a moment only.

    python3 tools/bootstrap.py lab     what `make lab` needs
    python3 tools/bootstrap.py site    what `make site` needs on top
    python3 tools/bootstrap.py test    what `make test` needs on top of both

Standard library only: it runs before anything is installed.
"""

import sys

if sys.version_info < (3, 10):  # before any line that an older Python could not execute
    sys.exit(
        "The course needs Python 3.10 or newer; this is {}.{} ({}).\n"
        "Install a newer one and name it: make lab PYTHON=python3.12".format(*sys.version_info[:2], sys.executable)
    )

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
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
OLDEST_PIP = (25, 0)  # from here on, a dry run asks for a wheel's metadata only, not for the wheel
PIP = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input"]
INSTALL = [*PIP, "install", "--progress-bar=off"]


class Failed(Exception):
    """A step that did not work; the message says what to do."""


def say(text: str) -> None:
    print(text, flush=True)


def short(action: str) -> str:
    """An action of pip in few words: the number of packages instead of a list, and only the last part of an address."""
    listed = re.match(r"Installing collected packages: (.*)", action)
    if listed:
        return f"Installing {len(listed[1].split(','))} packages"
    return " ".join(word.rpartition("/")[2] if "://" in word else word for word in action.split())[:80]


def run(title: str, command: list[str]) -> None:
    """Run a step: its output in the log, its progress on the screen. Failed carries the lines that matter."""
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
        environment = {**os.environ, "PIP_USER": "0", "PYTHONNOUSERSITE": "1"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None:
            try:
                process.wait(timeout=1 if live else 30)
            except subprocess.TimeoutExpired:
                actions = re.findall(r"^\s*((?:Downloading|Installing|Building|Preparing)\b.*)", output(), re.MULTILINE)
                show(
                    f"{title} ... {time.monotonic() - started:.0f} s  {short(actions[-1]) if actions else ''}".rstrip()
                )
    except BaseException:
        process.kill()
        raise
    show(f"{title}: {time.monotonic() - started:.0f} s")
    if live:
        print()
    if process.returncode:
        # From the first error on: what follows it is its cause.
        lines = output().rstrip().splitlines()
        first = next((i for i, line in enumerate(lines) if re.match(r"\s*(ERROR|error|×)", line)), -15)
        errors = ["  " + line for line in lines[first:][:15]]
        raise Failed("\n".join([f"{title} failed:", *errors, f"All of it is in {LOG}."]))


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
    return hashlib.sha256("\n".join([dependencies, platform.machine(), str(ROOT)]).encode()).hexdigest()


def is_ready(extras: list[str]) -> bool:
    """Whether an earlier run installed all this, and the environment's Python still starts."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if stamp.get("key") != wanted_key() or not set(extras) <= set(stamp.get("extras", [])):
        return False
    return inside("import sys; print(sys.version)") == stamp.get("python")


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
    """An environment whose Python starts and has a pip that is new enough; a new one where asked for."""
    version = None if again else inside("import sys; print(*sys.version_info[:2])")
    if version is None or tuple(map(int, version.split())) < (3, 10):
        if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
            raise Failed(
                f"This Python ({sys.executable}) has no venv module. On Debian and Ubuntu: "
                "apt install python{}.{}-venv".format(*sys.version_info[:2])
            )
        run("Creating .venv", [sys.executable, "-m", "venv", "--clear", str(VENV)])
    if inside("import pip") is None:
        run("Adding pip to .venv", [str(PYTHON), "-m", "ensurepip"])
    pip = inside("import pip; print(pip.__version__)") or "0"
    if tuple(map(int, re.findall(r"\d+", pip)[:2])) < OLDEST_PIP:
        run("Updating pip", [*PIP, "install", "--upgrade", "pip>={}.{}".format(*OLDEST_PIP)])


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


def is_cuda_build(report: dict) -> bool:
    """Whether pip would install a torch that requires CUDA packages, by its report of a dry run."""
    required = report["install"][0]["metadata"].get("requires_dist", [])
    return any(re.match(r"(nvidia|cuda)[-_]", name) for name in required)


def ensure_torch() -> None:
    """The pinned torch: whatever pip finds with a GPU, a CPU build without one."""
    requirement = pinned("torch")
    wanted = requirement.partition("==")[2]
    found = inside("import importlib.metadata as m; print(m.version('torch'))")
    if found and found.partition("+")[0] == wanted:
        return
    if has_nvidia_gpu():
        say("NVIDIA GPU found: installing torch with CUDA (several gigabytes)")
        run(f"Installing {requirement}", [*INSTALL, requirement])
        return
    report = VENV / "plan.json"
    plan = [*INSTALL, "--dry-run", "--ignore-installed", "--no-deps", "--report", str(report), requirement]
    run("Asking pip which torch it would install", plan)
    if not is_cuda_build(json.loads(report.read_text(encoding="utf-8"))):
        run(f"Installing {requirement}", [*INSTALL, requirement])
        return
    say("No NVIDIA GPU: installing torch's CPU build instead of gigabytes of CUDA")
    try:
        run("Installing uv, which knows where CPU builds are", [*INSTALL, "uv>=0.7"])
        uv = [str(VENV / "bin" / "uv"), "pip", "install", "--python", str(PYTHON), "--torch-backend=cpu"]
        run(f"Installing {requirement} for the CPU", [*uv, requirement])
    except Failed as error:
        LOCK.write_text("")  # nothing is incomplete; a new .venv would lose what the reader installs now
        raise Failed(
            f"{error}\nInstall the CPU build of {requirement} yourself, then run this again:\n"
            f"  {PYTHON} -m pip install ...   (PyTorch's web site, Get Started, Compute Platform: CPU)"
        ) from None


def install(extras: list[str]) -> None:
    """Install into `.venv`. After an interruption it is made again: pip keeps what it has downloaded in its cache."""
    interrupted = LOCK.read_text() == UNFINISHED
    if interrupted:
        say("An earlier installation was interrupted: starting again with what was downloaded")
    LOCK.write_text(UNFINISHED)
    ensure_venv(again=interrupted)
    ensure_torch()
    # Named on the command line, the pin is what pip knows first; else it may fetch newer ones to look at.
    run("Installing the course", [*INSTALL, "--editable", f".[{','.join(extras)}]", pinned("triton")])
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
    except KeyboardInterrupt:
        print("\nInterrupted. Run the same command again: it goes on from here.", file=sys.stderr)
        return 130
    say("Everything is installed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
