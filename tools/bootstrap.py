"""Create `.venv` and install what the course needs; with nothing missing, take a moment only.

    python3 tools/bootstrap.py lab     what `make lab` needs
    python3 tools/bootstrap.py test    what `make test` needs on top

Standard library only: it runs before anything is installed.
"""

import sys

if sys.version_info < (3, 10):  # before any line that an older Python could not execute
    sys.exit(
        "The course needs Python 3.10 or newer; this is {}.{} ({}).\n"
        "Install a newer one and name it: make lab PYTHON=python3.12".format(*sys.version_info[:2], sys.executable)
    )

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.json"  # written after success only
UNFINISHED = VENV / "unfinished"  # there while something is being installed
LOG = VENV / "install.log"
LOCK = ROOT / ".venv.lock"

EXTRAS = {"lab": ["course", "cutlass"], "test": ["course", "cutlass", "dev"]}
OLDEST_PIP = (25, 0)  # from here on, a dry run asks for a wheel's metadata only, not for the wheel
LARGE_MB = 20
PIP = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input"]

# Packages that an interrupted install left incomplete: files or sizes differ from their own list.
FIND_BROKEN = """
import importlib.metadata as metadata
for dist in metadata.distributions():
    name = dist.metadata["Name"] if dist.metadata else None
    files = dist.files
    damaged = name is None or not files
    for file in files or ():
        path = file.locate()
        if file.suffix == ".pyc" or damaged:
            continue
        try:
            size = path.stat().st_size
        except OSError:
            size = -1
        damaged = size < 0 or (file.size is not None and file.size != size)
    if damaged:
        print(dist._path)
"""


class Failed(Exception):
    """A step that did not work; the message says what to do."""


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def progress(title: str):
    """One line a step: rewritten every second in a terminal, repeated every 30 s in a log."""
    started, live = time.monotonic(), sys.stdout.isatty()
    detail, finished = [""], threading.Event()

    def show() -> None:
        while not finished.wait(1 if live else 30):
            line = f"{title} ... {time.monotonic() - started:.0f} s  {detail[0]}"
            width = shutil.get_terminal_size().columns - 1
            print("\r" + line[:width].ljust(width) if live else line, end="" if live else "\n", flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield lambda text: detail.__setitem__(0, text)
    finally:
        finished.set()
        thread.join()
        clear = "\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r" if live else ""
        say(f"{clear}{title}: {time.monotonic() - started:.0f} s")


def run(title: str, command: list[str]) -> None:
    """Run a step, its output in the log and its downloads shown; Failed carries the lines that matter."""
    lines = []
    # A user's settings for pip outside of virtual environments make it refuse to work inside of one.
    environment = {**os.environ, "PIP_USER": "0", "PYTHONNOUSERSITE": "1"}
    with progress(title) as detail, open(LOG, "a", encoding="utf-8") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                log.write(line)
                match = re.match(r"\s*(?:Downloading (\S+)|(Installing|Building|Preparing)\b)(.*)", line)
                if match:
                    detail(line.strip())
                    size = re.search(r"\(([\d.]+) (MB|GB)", match[3])
                    if size and (size[2] == "GB" or float(size[1]) >= LARGE_MB) and not sys.stdout.isatty():
                        say("  " + line.strip())
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    if code:
        # From the first error on: what follows it is its cause.
        first = next((i for i, line in enumerate(lines) if re.match(r"\s*(ERROR|error|×)", line)), -15)
        errors = lines[first:][:15]
        raise Failed("\n".join([f"{title} failed:", *("  " + line for line in errors), f"All of it is in {LOG}."]))


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


def ensure_venv() -> None:
    """An environment whose Python starts and has pip; an unfinished one is made again."""
    halfway = UNFINISHED.exists() and UNFINISHED.read_text() == "venv"
    version = None if halfway else inside("import sys; print(*sys.version_info[:2])")
    if version and tuple(map(int, version.split())) >= (3, 10):
        if inside("import pip") is None:
            run("Adding pip to .venv", [str(PYTHON), "-m", "ensurepip"])
        return
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise Failed(
            f"This Python ({sys.executable}) has no venv module. On Debian and Ubuntu: apt install python{minor}-venv"
        )
    VENV.mkdir(exist_ok=True)
    # Emptied by hand: `venv --clear` would remove the marker as well, and an interruption would go unnoticed.
    for entry in VENV.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    UNFINISHED.write_text("venv")
    run("Creating .venv", [sys.executable, "-m", "venv", str(VENV)])


def repair() -> None:
    """After an interruption: have pip forget what it left incomplete, so that it installs that again."""
    say("An earlier installation was interrupted: looking for incomplete packages")
    for line in (inside(FIND_BROKEN) or "").splitlines():
        path = Path(line)
        if VENV in path.parents and path.name.endswith((".dist-info", ".egg-info")):
            say(f"  {path.name} is incomplete, will be installed again")
            shutil.rmtree(path, ignore_errors=True)
    for leftover in VENV.glob("lib/python*/site-packages/~*"):  # what pip renames while it replaces a package
        shutil.rmtree(leftover, ignore_errors=True)
    if inside("import pip._internal.cli.main") is None:
        run("Repairing pip", [str(PYTHON), "-m", "ensurepip", "--upgrade"])


def has_nvidia_gpu() -> bool:
    """Whether this machine has an NVIDIA driver with a GPU behind it."""
    if Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists():
        return True
    tool = shutil.which("nvidia-smi") or shutil.which("/usr/lib/wsl/lib/nvidia-smi")
    if tool is None:
        return False
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20)
        return listed.returncode == 0 and "GPU" in listed.stdout
    return False


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
        run(f"Installing {requirement}", [*PIP, "install", requirement])
        return
    version = inside("import pip; print(pip.__version__)") or "0"
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_PIP:
        run("Updating pip", [*PIP, "install", "--upgrade", "pip>=25"])
    report_file = VENV / "plan.json"
    run(
        "Asking pip which torch it would install",
        [
            *PIP,
            "install",
            "--dry-run",
            "--ignore-installed",
            "--no-deps",
            "--report",
            str(report_file),
            requirement,
        ],
    )
    if not is_cuda_build(json.loads(report_file.read_text(encoding="utf-8"))):
        run(f"Installing {requirement}", [*PIP, "install", requirement])
        return
    say("No NVIDIA GPU: installing torch's CPU build instead of gigabytes of CUDA")
    try:
        run("Installing uv, which knows where CPU builds are", [*PIP, "install", "uv>=0.7"])
        uv = [str(VENV / "bin" / "uv"), "pip", "install", "--python", str(PYTHON), "--torch-backend=cpu"]
        run(f"Installing {requirement} for the CPU", [*uv, requirement])
    except Failed as error:
        raise Failed(
            f"{error}\nInstall the CPU build of {requirement} yourself, then run this again:\n"
            f"  {PYTHON} -m pip install ...   (PyTorch's web site, Get Started, Compute Platform: CPU)"
        ) from None


def quiet_lab() -> None:
    """JupyterLab in this environment asks nobody whether they want its news; a reader's own settings win."""
    settings = VENV / "share" / "jupyter" / "lab" / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    no_news = {"fetchNews": "false", "checkForUpdates": False}
    overrides = {"@jupyterlab/apputils-extension:notification": no_news}
    (settings / "overrides.json").write_text(json.dumps(overrides), encoding="utf-8")


def install(extras: list[str]) -> None:
    if UNFINISHED.exists():
        repair()
    UNFINISHED.write_text("packages")
    ensure_torch()
    # Named on the command line, the pin is what pip knows first; else it may fetch newer ones to look at.
    run("Installing the course", [*PIP, "install", "--editable", f".[{','.join(extras)}]", pinned("triton")])
    quiet_lab()
    stamp = {"key": wanted_key(), "extras": extras, "python": inside("import sys; print(sys.version)")}
    STAMP.write_text(json.dumps(stamp, indent=1), encoding="utf-8")
    UNFINISHED.unlink()


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
        import fcntl

        with open(LOCK, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("Another installation is running in this folder: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if is_ready(extras):
                return 0
            ensure_venv()
            if UNFINISHED.exists() and UNFINISHED.read_text() == "venv":
                UNFINISHED.unlink()
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
