"""Commands for contributors, on a machine with only Python: `python dev.py demo`, `test`, `lint`, `bench` …"""

import platform
import sys

# First of all: an older Python may lack what the next lines import.
if sys.version_info < (3, 10):
    sys.exit(
        f"StreamCache needs Python 3.10 or newer; this is {platform.python_version()} ({sys.executable}). "
        "Use a newer one, for example: python3.12 dev.py demo"
    )

import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
WINDOWS = os.name == "nt"
PYTHON = VENV / ("Scripts/python.exe" if WINDOWS else "bin/python")
STAMP = VENV / "streamcache-installed.txt"
FRONT_ENDS = VENV / "front-ends"  # a folder per version
PINS = ROOT / "requirements-dev.txt"
PYTEST_INTERRUPTED, INTERRUPTED, TERMINATED = 2, 130, 143
STOPPED = (PYTEST_INTERRUPTED, INTERRUPTED, TERMINATED)
MOST_WORKERS = 4  # each of them starts its own ComfyUI
# pytest's options that take the next argument as their value.
VALUE_FOLLOWS = {"-k", "-m", "-n", "-o", "-p", "-c", "-r", "-W", "--ignore", "--deselect", "--rootdir", "--maxfail"}
HOW_TO_GET_A_HOST = (
    "not found. To install it: git clone https://github.com/comfyanonymous/ComfyUI ~/comfy/ComfyUI, then "
    "python -m venv ~/comfy/ComfyUI/.venv, and install its requirements.txt there; or set COMFYUI_PATH "
    "(and COMFYUI_PYTHON) to an existing one"
)


@dataclass(frozen=True)
class Host:
    """A ComfyUI installation and the interpreter that runs it."""

    folder: Path
    python: Path


def main(arguments: list[str]) -> int:
    """Run one command and pass it the remaining arguments."""
    if not arguments or arguments[0] not in COMMANDS:
        print(f"usage: python dev.py {' | '.join(COMMANDS)}\n")
        for name, command in COMMANDS.items():
            print(f"  {name:8} {command.__doc__}")
        return 0 if arguments in (["-h"], ["--help"]) else 2
    return COMMANDS[arguments[0]](arguments[1:])


def demo(arguments: list[str]) -> int:
    """encode a small made-up dataset and train a LoRA on it, without ComfyUI (--quick for a few steps)"""
    install()
    return run([PYTHON, "-m", "streamcache.reference.tour", *arguments])


def test(arguments: list[str]) -> int:
    """run all tests, or those given; other arguments go to pytest (--slow runs the slow ones too)"""
    install()
    install_front_end()
    chosen = [] if named_tests(arguments) else ["tests"]
    # The whole suite runs on several cores, file by file: the tests of a file share fixtures.
    workers = [f"-n{min(os.cpu_count() or 1, MOST_WORKERS)}", "--dist=loadfile"] if chosen else []
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers that each use all cores only wait for each other
    report = VENV / "last-test.xml"
    report.unlink(missing_ok=True)
    started = time.monotonic()
    code = run([PYTHON, "-m", "pytest", f"--junitxml={report}", *workers, *arguments, *chosen])
    report_tests(report, code, time.monotonic() - started)
    return code


def named_tests(arguments: Sequence[str]) -> list[str]:
    """The arguments that are paths of tests, and not values of options: `-k nodes` is not the folder nodes."""
    own = [argument for before, argument in zip(["", *arguments], arguments) if before not in VALUE_FOLLOWS]
    return [argument for argument in own if argument[:1] != "-" and (ROOT / argument.split("::")[0]).exists()]


def lint(arguments: list[str]) -> int:
    """check style and formatting with ruff (--fix repairs) and types with basedpyright"""
    install()
    fix = "--fix" in arguments
    checked = run([PYTHON, "-m", "ruff", "check", *(["--fix"] if fix else []), "."])
    formatted = run([PYTHON, "-m", "ruff", "format", *([] if fix else ["--check"]), "."])
    typed = run([PYTHON, "-m", "basedpyright"])
    return checked or formatted or typed


def bench(arguments: list[str]) -> int:
    """measure speed and memory against other formats (--quick for a small run)"""
    install()
    return run([PYTHON, "-m", "streamcache.bench", *arguments])


def pretrain(arguments: list[str]) -> int:
    """train the tiny models that come with the pack again, with ComfyUI's Python; half an hour"""
    found = host_or_reason()
    if isinstance(found, str):
        return say(found, code=1)
    return run([found.python, ROOT / "pretrain" / "make_weights.py", found.folder, ROOT / "pretrained", *arguments])


def memory(arguments: list[str]) -> int:
    """compute the memory that training needs, with ComfyUI's Python; writes docs/memory.md (--again for all rows)"""
    found = host_or_reason()
    if isinstance(found, str):
        return say(found, code=1)
    computed = run([found.python, ROOT / "bench" / "forecasts.py", found.folder, *arguments])
    return computed or run([found.python, ROOT / "bench" / "forecast_errors.py", found.folder])


def host(arguments: list[str]) -> int:
    """show where ComfyUI was found, or how to get it"""
    found = host_or_reason()
    if isinstance(found, str):
        return say(found, code=1)
    return say("\n".join(f"ComfyUI: {each.folder}, with {each.python}" for each in find_hosts()))


COMMANDS = {
    "demo": demo,
    "test": test,
    "lint": lint,
    "bench": bench,
    "pretrain": pretrain,
    "memory": memory,
    "host": host,
}


def find_host() -> Host | None:
    """The first ComfyUI of `find_hosts`; None if there is none."""
    return next(iter(find_hosts()), None)


def find_hosts() -> list[Host]:
    """All that COMFYUI_PATH names, or the ComfyUI whose custom_nodes this folder is in, or ~/comfy/ComfyUI."""
    named = named_folders("COMFYUI_PATH")
    wrong = next((folder for folder in named if not is_host(folder)), None)
    if wrong is not None:
        raise ValueError(f"COMFYUI_PATH is {wrong}, which contains no main.py; set it to ComfyUI's folder, or unset it")
    around = [folder for folder in (ROOT.parent.parent, Path.home() / "comfy" / "ComfyUI") if is_host(folder)]
    folders = named or around[:1]
    return [
        Host(folder.resolve(), find_host_python(folder, number, len(folders))) for number, folder in enumerate(folders)
    ]


def named_folders(variable: str) -> list[Path]:
    """The paths in an environment variable, separated as in PATH. A single one may contain the separator."""
    value = os.environ.get(variable, "")
    names = [value] if Path(value).exists() else value.split(os.pathsep)
    return [Path(name) for name in names if name]


def is_host(folder: Path) -> bool:
    return (folder / "main.py").is_file() and (folder / "comfy").is_dir()


def find_host_python(folder: Path, number: int, count: int) -> Path:
    """COMFYUI_PYTHON, which names one for all or one for each, or else the Python of ComfyUI's own environment."""
    named = named_folders("COMFYUI_PYTHON")
    if len(named) not in (0, 1, count):
        raise ValueError(
            f"COMFYUI_PYTHON names {len(named)} Pythons, but the number of ComfyUI folders is {count}; "
            "name one for each, in the order of COMFYUI_PATH, or one for all"
        )
    if named:
        return named[number] if len(named) > 1 else named[0]
    inside = "Scripts/python.exe" if WINDOWS else "bin/python"
    found = next((p for p in (folder / ".venv" / inside, folder / "venv" / inside) if p.exists()), None)
    if found is None:
        raise ValueError(f"{folder} has no .venv or venv; set COMFYUI_PYTHON to the Python that runs it")
    return found


def host_version(folder: Path) -> str:
    """The version of a ComfyUI; "?" if it does not say."""
    file = folder / "comfyui_version.py"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    return found[1] if found else "?"


def install() -> None:
    """Install the pinned packages into .venv. A stamp file makes later calls free and repeats an interrupted one."""
    wanted = fingerprint()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text(encoding="utf-8") == wanted:
        return
    started = time.monotonic()
    say(f"Installing into {VENV} (once; a minute or two, longer if torch must be downloaded)")
    STAMP.unlink(missing_ok=True)
    if not python_works():
        make_venv()
    pip = pip_command()
    require(run([*pip, "install", "--quiet", "-r", PINS]), "installing requirements-dev.txt")
    # Without build isolation the pinned setuptools is used, so that this works without a network.
    editable = ["install", "--quiet", "--no-build-isolation", "--no-deps", "-e", str(ROOT)]
    require(run([*pip, *editable]), "installing the package itself")
    # The stamp is written last: without it the next call repeats all of this.
    STAMP.write_text(wanted, encoding="utf-8")
    say(f"Installed in {time.monotonic() - started:.0f} s")


def install_front_end() -> None:
    """Get ComfyUI's newest supported front end for the browser tests. Without a network they run on ComfyUI's own."""
    version, folder = newest_front_end()
    if folder.exists() or not host_found():
        return
    target = FRONT_ENDS / version
    say(f"Downloading ComfyUI's front end {version} (once)")
    partial = FRONT_ENDS / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    # Few retries: this must not hold up a machine without a network.
    options = ["--quiet", "--no-deps", "--no-compile", "--retries=1", "--timeout=20", "--target", partial]
    if run([*pip_command(), "install", *options, f"comfyui-frontend-package=={version}"]):
        say("Not available now: browser tests run on ComfyUI's own front end only")
        return
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def newest_front_end() -> tuple[str, Path]:
    """The newest front end that pyproject.toml names as supported, and the folder that ComfyUI would serve."""
    # tomllib is missing in Python 3.10.
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^newest-front-end = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise ValueError("pyproject.toml has no newest-front-end in [tool.streamcache]")
    return found[1], FRONT_ENDS / found[1] / "comfyui_frontend_package" / "static"


def host_or_reason() -> Host | str:
    """ComfyUI, or a line that says why there is none and how to get it."""
    try:
        return find_host() or f"ComfyUI: {HOW_TO_GET_A_HOST}."
    except ValueError as problem:
        return f"ComfyUI: {problem}"


def host_found() -> bool:
    try:
        return find_host() is not None
    except ValueError:
        return False


def fingerprint() -> str:
    """Changes with the pins, with pyproject.toml, and with the folder, to which the editable install points."""
    digest = hashlib.sha256()
    for part in (PINS.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), str(ROOT).encode()):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def python_works() -> bool:
    """Whether .venv runs: it breaks if the Python that made it is removed."""
    if not PYTHON.exists():
        return False
    check = "import sys; sys.exit(sys.version_info < (3, 10))"
    return subprocess.run([PYTHON, "-c", check], capture_output=True, check=False).returncode == 0


def make_venv() -> None:
    shutil.rmtree(VENV, ignore_errors=True)
    # Debian ships venv without ensurepip; then this Python's own pip installs into the new environment.
    own_pip = importlib.util.find_spec("ensurepip") is not None
    require(run([sys.executable, "-m", "venv", *([] if own_pip else ["--without-pip"]), VENV]), "making .venv")


def pip_command() -> list[object]:
    if subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
        return [PYTHON, "-m", "pip"]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--python", PYTHON]
    shutil.rmtree(VENV, ignore_errors=True)
    sys.exit(f"{sys.executable} has neither ensurepip nor pip; on Debian or Ubuntu: sudo apt install python3-venv")


def report_tests(report: Path, code: int, seconds: float) -> None:
    """Print how many tests passed and failed, and which were skipped and why, from pytest's report."""
    if not report.exists():
        how = "was stopped" if code in STOPPED else f"ended with exit code {code}"
        say(f"\npytest {how} before it wrote its report; after {seconds:.0f} s")
        return
    cases = list(ElementTree.parse(report).iter("testcase"))
    skips = [skip for case in cases if (skip := case.find("skipped")) is not None]
    skipped = Counter(skip.get("message", "") for skip in skips)
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    passed = len(cases) - failed - sum(skipped.values())
    began = "Stopped, not all tests ran" if code in STOPPED else "Done"
    say(f"\n{began}: {count_tests(passed)} passed, {failed} failed, in {seconds:.0f} s")
    for reason, count in skipped.most_common():
        say(f"Skipped: {count_tests(count)}: {reason}")
    if not skipped and code not in STOPPED:
        say("Skipped: nothing")


def count_tests(count: int) -> str:
    return "1 test" if count == 1 else f"{count:,} tests"


def run(command: Sequence[object]) -> int:
    """Run a command in the project's folder and show its output; Ctrl-C and SIGTERM end both."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        code = subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode
        return code if code >= 0 else 128 - code  # as shells report a signal
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as stopped:
        return int(stopped.code or 0)
    finally:
        signal.signal(signal.SIGTERM, before)


def require(code: int, what: str) -> None:
    if code:
        sys.exit(f"{what} failed (exit code {code}); the lines above show why. Run the same command again to retry.")


def say(text: str, code: int = 0) -> int:
    print(text, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
