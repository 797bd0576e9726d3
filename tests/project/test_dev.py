"""dev.py: it installs once and repairs itself, finds ComfyUI, and reports what was skipped and why."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streamcache import dev

TINY_PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "tiny"
version = "1.0.0"
[tool.setuptools]
packages = []
"""


@pytest.fixture
def no_host_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without ComfyUI in the home folder or around the pack."""
    monkeypatch.delenv("COMFYUI_PATH", raising=False)
    monkeypatch.delenv("COMFYUI_PYTHON", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(dev, "ROOT", tmp_path / "outer" / "custom_nodes" / "streamcache")
    return tmp_path


def make_host(folder: Path, environment: str | None = ".venv") -> Path:
    (folder / "comfy").mkdir(parents=True)
    (folder / "main.py").touch()
    if environment:
        python = folder / environment / dev.PYTHON.relative_to(dev.VENV)
        python.parent.mkdir(parents=True)
        python.touch()
    return folder


def test_without_comfyui_it_shows_how_to_get_it(no_host_named: Path, capsys: pytest.CaptureFixture):
    assert dev.host([]) == 1
    assert "git clone" in capsys.readouterr().out


def test_comfyui_in_the_home_folder_is_found(no_host_named: Path):
    folder = make_host(no_host_named / "comfy" / "ComfyUI", "venv")
    found = dev.find_host()
    assert found.folder == folder.resolve()
    assert found.python.exists()


def test_the_comfyui_around_the_pack_comes_before_the_home_folder(no_host_named: Path):
    make_host(no_host_named / "comfy" / "ComfyUI")
    around = make_host(no_host_named / "outer")
    assert dev.find_host().folder == around.resolve()


def test_comfyui_path_and_python_come_first(no_host_named: Path, monkeypatch: pytest.MonkeyPatch):
    make_host(no_host_named / "comfy" / "ComfyUI")
    monkeypatch.setenv("COMFYUI_PATH", str(make_host(no_host_named / "mine", environment=None)))
    monkeypatch.setenv("COMFYUI_PYTHON", sys.executable)
    assert dev.find_host() == dev.Host((no_host_named / "mine").resolve(), Path(sys.executable))


def test_a_comfyui_path_without_comfyui_is_reported(no_host_named: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COMFYUI_PATH", str(no_host_named / "nowhere"))
    with pytest.raises(ValueError, match="nowhere.*main.py"):
        dev.find_host()


def test_comfyui_path_may_name_several(
    no_host_named: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    old, new = (make_host(no_host_named / name) for name in ("old", "new"))
    monkeypatch.setenv("COMFYUI_PATH", f"{old}{os.pathsep}{new}")
    assert [found.folder for found in dev.find_hosts()] == [old.resolve(), new.resolve()]
    assert dev.find_host() == dev.find_hosts()[0]
    assert dev.host([]) == 0 and capsys.readouterr().out.count("ComfyUI: ") == 2
    monkeypatch.setenv("COMFYUI_PYTHON", os.pathsep.join(["first", "second"]))
    assert [found.python for found in dev.find_hosts()] == [Path("first"), Path("second")]
    monkeypatch.setenv("COMFYUI_PYTHON", "one")
    assert [found.python for found in dev.find_hosts()] == [Path("one"), Path("one")]
    monkeypatch.setenv("COMFYUI_PATH", f"{old}{os.pathsep}{no_host_named / 'nowhere'}")
    with pytest.raises(ValueError, match="nowhere, which contains no main.py"):
        dev.find_hosts()


@pytest.mark.parametrize("count", [2, 4])
def test_neither_one_python_nor_one_for_each_comfyui_is_refused(
    no_host_named: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, count: int
):
    hosts = [make_host(no_host_named / name) for name in ("old", "new", "newest")]
    monkeypatch.setenv("COMFYUI_PATH", os.pathsep.join(map(str, hosts)))
    monkeypatch.setenv("COMFYUI_PYTHON", os.pathsep.join(f"python{number}" for number in range(count)))
    assert dev.host([]) == 1
    expected = f"COMFYUI_PYTHON names {count} Pythons, but the number of ComfyUI folders is 3; name one for each"
    assert expected in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="names of folders cannot contain the separator there")
def test_a_single_comfyui_path_may_contain_the_separator(no_host_named: Path, monkeypatch: pytest.MonkeyPatch):
    folder = make_host(no_host_named / f"a{os.pathsep}b")
    monkeypatch.setenv("COMFYUI_PATH", str(folder))
    assert [found.folder for found in dev.find_hosts()] == [folder.resolve()]


@pytest.mark.parametrize("versions", [("0.33.0",), ("0.33.0", "0.45.2")])
def test_host_tests_run_on_each_comfyui(tmp_path: Path, versions: tuple[str, ...]):
    hosts = [make_host(tmp_path / version) for version in versions]
    for folder, version in zip(hosts, versions):
        (folder / "comfyui_version.py").write_text(f'__version__ = "{version}"\n')
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "tests/host/test_contract.py",
        "-k",
        "every_name",
    ]
    own = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "COMFYUI_PYTHON")}
    environment = {**own, "COMFYUI_PATH": os.pathsep.join(map(str, hosts))}
    done = subprocess.run(command, cwd=dev.ROOT, env=environment, capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(found) == len(versions), done.stdout
    assert len(versions) == 1 or all(any(version in line for line in found) for version in versions)


def test_comfyui_without_an_environment_needs_comfyui_python(no_host_named: Path, capsys: pytest.CaptureFixture):
    make_host(no_host_named / "comfy" / "ComfyUI", environment=None)
    assert dev.host([]) == 1
    assert "COMFYUI_PYTHON" in capsys.readouterr().out


def test_the_last_lines_count_tests_and_give_reasons_for_skips(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert False\n"
        "@pytest.mark.skip(reason='no moon')\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_skipped(n): pass\n"
    )
    report = tmp_path / "report.xml"
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--junitxml={report}", str(tmp_path)]
    code = subprocess.run(pytest_command, capture_output=True, cwd=tmp_path, check=False).returncode
    dev.report_tests(report, code, 1.0)
    printed = capsys.readouterr().out
    assert "1 test passed, 1 failed" in printed
    assert "Skipped: 2 tests: no moon" in printed


def test_a_run_that_never_started_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture):
    dev.report_tests(tmp_path / "missing.xml", 4, 1.0)
    assert "exit code 4" in capsys.readouterr().out


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture):
    assert dev.main(["dance"]) == 2
    printed = capsys.readouterr().out
    assert all(name in printed for name in dev.COMMANDS)


def test_the_newest_front_end_is_that_of_pyproject():
    version, folder = dev.newest_front_end()
    assert f'newest-front-end = "{version}"\n' in (dev.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert version in folder.parts and folder.name == "static"


def test_a_front_end_that_cannot_be_downloaded_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr(dev, "FRONT_ENDS", tmp_path / "front-ends")
    monkeypatch.setattr(dev, "host_found", lambda: True)
    monkeypatch.setattr(dev, "pip_command", lambda: [sys.executable, "-m", "pip"])
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(name, value)
    dev.install_front_end()
    assert "ComfyUI's own front end only" in capsys.readouterr().out
    assert not dev.newest_front_end()[1].exists()


@pytest.mark.slow
def test_install_repairs_a_broken_environment_and_then_is_free(tmp_path: Path):
    """A real environment in a copy of the project that pins only setuptools, which the package index must have."""
    shutil.copy(dev.__file__, tmp_path / "dev.py")
    (tmp_path / "pyproject.toml").write_text(TINY_PROJECT)
    pins = tmp_path / "requirements-dev.txt"
    setuptools = next(line for line in dev.PINS.read_text().splitlines() if line.startswith("setuptools"))

    pins.write_text(f"{setuptools}\n./no-such-package\n")
    assert "Run the same command again" in install_in(tmp_path).stderr
    pins.write_text(f"{setuptools}\n")
    assert "Installed" in install_in(tmp_path).stdout
    assert install_in(tmp_path).stdout == ""

    python = tmp_path / ".venv" / dev.PYTHON.relative_to(dev.VENV)
    python.unlink()
    assert "Installed" in install_in(tmp_path).stdout
    assert python.exists()


def install_in(folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", "import dev; dev.install()"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_a_command_stopped_by_sigterm_ends_its_child_and_is_not_reported_as_done(tmp_path: Path):
    child = tmp_path / "child.py"
    child.write_text("import os, time, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(600)\n")
    parent = (
        f"import sys; sys.path.insert(0, {str(Path(dev.__file__).parent)!r})\n"
        f"import dev, pathlib\ndev.ROOT = pathlib.Path({str(tmp_path)!r})\n"
        "code = dev.run([sys.executable, 'child.py'])\n"
        "dev.report_tests(pathlib.Path('missing.xml'), code, 1.0)\nsys.exit(code)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 143 and "was stopped" in printed and "Done" not in printed
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize("code", [2, 130, 143])
def test_an_interrupted_run_is_not_reported_as_done(code: int, tmp_path: Path, capsys: pytest.CaptureFixture):
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite><testcase name="a"/></testsuite></testsuites>')
    dev.report_tests(report, code, 1.0)
    assert capsys.readouterr().out.strip() == "Stopped, not all tests ran: 1 test passed, 0 failed, in 1 s"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-k", "nodes"], []),
        (["-m", "tests", "--slow", "-k", "lora_train or cli"], []),
        (["tests/cli", "-k", "nodes"], ["tests/cli"]),
        (["-x", "tests/project/test_dev.py::test_x"], ["tests/project/test_dev.py::test_x"]),
        (["--ignore", "tests/host", "-q"], []),
    ],
)
def test_the_value_of_an_option_is_not_taken_for_a_path(arguments: list[str], named: list[str]):
    assert dev.named_tests(arguments) == named
