"""The program as a whole: versions, help, exit codes and one-line errors."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import streamcache
from streamcache.cli.main import COMMANDS, main
from streamcache.nodes.host import HostSettings

from ..support.commands import run, run_json

ROOT = Path(streamcache.__file__).parent


def test_the_version_is_printed(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("streamcache 0.")


def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert run("convert", tmp_path / "nowhere", "--to", tmp_path / "x") == 1
    assert capsys.readouterr().err.count("\n") == 1
    code, facts = run_json(capsys, "convert", tmp_path / "nowhere", "--to", tmp_path / "x")
    assert code == 1 and "nowhere" in facts["error"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_takes_json(command: str, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as leaving:
        run(command, "--help")
    assert leaving.value.code == 0 and "--json" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["convert"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as leaving:
        run(*arguments)
    assert leaving.value.code == 2


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streamcache.cli.upkeep.convert", interrupt)
    assert run("convert", tmp_path, "--to", tmp_path / "x") == 130


@pytest.fixture
def program(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """The command and the environment that run this checkout as a program."""
    try:
        os.symlink(ROOT, tmp_path / "streamcache")
    except OSError:
        pytest.skip("symbolic links need a privilege on this Windows")
    return [sys.executable, "-m", "streamcache.cli"], {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_the_module_runs_as_a_program(program: tuple[list[str], dict[str, str]]):
    command, environment = program
    done = subprocess.run([*command, "--help"], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "convert" in done.stdout
    refused = subprocess.run(
        [*command, "convert", "nowhere", "--to", "x"], env=environment, capture_output=True, text=True, timeout=600
    )
    assert refused.returncode == 1 and "Traceback" not in refused.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows sends Ctrl-C to all programs of a console")
def test_ctrl_c_during_start_up_ends_it_silently(program: tuple[list[str], dict[str, str]]):
    command, environment = program
    # Interrupts itself as soon as the import of torch begins.
    begin = "import os, signal, sys\nclass Finder:\n  def find_spec(self, name, *_):\n"
    begin += "    if name == 'torch': os.kill(os.getpid(), signal.SIGINT)\nsys.meta_path.insert(0, Finder())\n"
    begin += "import streamcache.cli.__main__ as program\nprogram.main()"
    done = subprocess.run(
        [command[0], "-c", begin, "info", "set"], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == -signal.SIGINT and done.stderr == ""


def test_an_invalid_setting_is_one_line_wherever_it_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr("streamcache.cli.upkeep.convert", lambda *_, **__: HostSettings(guidance=-1))
    assert run("convert", tmp_path, "--to", tmp_path / "x") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "guidance = -1" in error
