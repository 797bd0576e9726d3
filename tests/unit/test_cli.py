"""The command line: every command on real caches, its JSON, its exit codes and its one-line errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import streamcache
from streamcache.cli import output
from streamcache.cli.main import main
from streamcache.dataset_cache import open_cache

ROOT = Path(streamcache.__file__).parent


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def run_json(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, dict]:
    code = run(*arguments, "--json")
    return code, json.loads(capsys.readouterr().out)


def core_dataset(folder: Path, count: int = 3) -> Path:
    folder.mkdir(parents=True)
    latents = [{"samples": torch.full((1, 4, 2, 2), float(i))} for i in range(count)]
    conditioning = [[[torch.full((1, 3, 8), float(i)), {"pooled_output": torch.zeros(1, 8)}]] for i in range(count)]
    torch.save({"latents": latents, "conditioning": conditioning}, folder / "shard_0000.pkl")
    return folder


def test_c11_convert_imports_cores_pickle_shards(tmp_path: Path, capsys: pytest.CaptureFixture):
    source, target = core_dataset(tmp_path / "old"), tmp_path / "Neue Bilder ünï"
    code, facts = run_json(capsys, "convert", source, "--to", target)
    assert (code, facts["samples"]) == (0, 3)
    assert len(open_cache(target)) == 3
    assert run("convert", source, "--to", tmp_path / "again") == 0
    assert "Converted 3 samples" in capsys.readouterr().out


def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert run("convert", tmp_path / "nowhere", "--to", tmp_path / "x") == 1
    assert capsys.readouterr().err.count("\n") == 1
    code, facts = run_json(capsys, "convert", tmp_path / "nowhere", "--to", tmp_path / "x")
    assert code == 1 and "nowhere" in facts["error"]


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["convert"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as leaving:
        run(*arguments)
    assert leaving.value.code == 2


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streamcache.cli.convert.convert", interrupt)
    assert run("convert", tmp_path, "--to", tmp_path / "x") == 130


def test_the_module_runs_as_a_program(tmp_path: Path):
    try:
        os.symlink(ROOT, tmp_path / "streamcache")
    except OSError:
        pytest.skip("symbolic links need a privilege on this Windows")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "streamcache.cli.main"]
    done = subprocess.run([*command, "--help"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "convert" in done.stdout
    refused = subprocess.run(
        [*command, "convert", "nowhere", "--to", "x"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == 1 and "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 KB"), (1_400_000_000, "1.4 GB"), (999_999, "1 MB")],
)
def test_byte_counts_are_short(count: int, text: str):
    assert output.byte_count(count) == text


def test_plurals_are_words():
    assert [output.plural(n, "entry") for n in (1, 2)] == ["1 entry", "2 entries"]
