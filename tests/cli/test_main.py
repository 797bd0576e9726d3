"""The command line: every command on real caches, its JSON, its exit codes and its one-line errors."""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import streamcache
from streamcache.cli import output
from streamcache.cli.main import build_parser, main
from streamcache.cli.output import Progress
from streamcache.dataset_cache import CacheWriter, open_cache, plural

from ..support.datasets import SHARED, blob_place, flip, folder_bytes, listing, put_sample, write_set

ROOT = Path(streamcache.__file__).parent


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def run_json(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, dict]:
    capsys.readouterr()
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


def test_the_version_is_printed(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("streamcache 0.")


def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert run("convert", tmp_path / "nowhere", "--to", tmp_path / "x") == 1
    assert capsys.readouterr().err.count("\n") == 1
    code, facts = run_json(capsys, "convert", tmp_path / "nowhere", "--to", tmp_path / "x")
    assert code == 1 and "nowhere" in facts["error"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Saved with 5 samples, then with 3, and looked at in between."""
    folder = write_set(tmp_path / "my set ünï", range(5), provenance={"vae": "ä"})
    open_cache(folder)
    return write_set(folder, range(3))


def test_info_shows_what_a_cache_takes(path: Path, capsys: pytest.CaptureFixture):
    code, facts = run_json(capsys, "info", path)
    assert (code, facts["samples"], facts["unused"]) == (0, 3, 6)
    assert facts["usage"]["fields"] == {"conditioning": 5 * 224, "latent": 1024 + 2048 + 1024, "thumbnail": 3 * 75}
    assert facts["usage"]["unused"] == 2 * (224 + 75) + 1024 + 2048
    assert (facts["usage"]["readers"], facts["usage"]["writer"]) == ([], None)
    assert run("info", path) == 0
    text = capsys.readouterr().out
    for word in ("3 samples", "4×8×8", "conditioning 1.12 KB", "Set main", "Readers now: none", "vae: ä"):
        assert word in text


def test_info_names_readers_writers_and_older_generations(path: Path, capsys: pytest.CaptureFixture):
    reader = open_cache(path)
    write_set(path, range(2))
    writer = CacheWriter(path, append=True)
    code, facts = run_json(capsys, "info", path)
    assert code == 0 and len(facts["usage"]["readers"]) == 1 and str(os.getpid()) in facts["usage"]["writer"]
    assert facts["usage"]["older_generations"] == 1
    writer.close()
    assert run("info", path) == 0 and "1 older generation" in capsys.readouterr().out
    del reader


def test_info_of_an_empty_and_of_a_plain_cache(tmp_path: Path, capsys: pytest.CaptureFixture):
    CacheWriter(tmp_path / "empty").__exit__(None, None, None)
    with CacheWriter(tmp_path / "plain") as writer:
        writer.add(extra={"x": 1})
        writer.add(latent={"samples": torch.zeros(1, 4, 2, 2)})
    for name, samples in (("empty", 0), ("plain", 2)):
        code, facts = run_json(capsys, "info", tmp_path / name)
        assert (code, facts["samples"]) == (0, samples)
        assert run("info", tmp_path / name) == 0
        capsys.readouterr()


def test_info_of_an_unfinished_save_reports_how_much_is_ready(tmp_path: Path, capsys: pytest.CaptureFixture):
    writer = CacheWriter(tmp_path / "set")
    put_sample(writer, 1)
    writer.flush()
    assert run("info", tmp_path / "set") == 1
    assert "4 entries" in capsys.readouterr().err
    writer.close()


def test_verify_exits_with_3_and_names_the_sample(path: Path, capsys: pytest.CaptureFixture):
    assert run("verify", path) == 0 and "no problems found" in capsys.readouterr().out
    flip(*blob_place(path, "latent 1"))
    assert run("verify", path) == 3
    assert "sample 1 (1.png)" in capsys.readouterr().out
    code, facts = run_json(capsys, "verify", path)
    assert code == 3 and facts["problems"][0]["source"] == "1.png" and facts["repaired"] is None


def test_verify_repair_drops_damaged_samples(path: Path, capsys: pytest.CaptureFixture):
    flip(*blob_place(path, "latent 1"))
    code, facts = run_json(capsys, "verify", "--repair", path)
    assert code == 0 and facts["repaired"]["samples"] == [[1, "1.png"]]
    assert run("verify", path) == 0 and len(open_cache(path)) == 2


def test_verify_prints_some_problems_of_a_kind_or_all(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = write_set(tmp_path / "set", range(30))
    flip(*blob_place(path, SHARED))
    assert run("verify", path) == 3
    assert "and 10 more" in capsys.readouterr().out
    run("verify", path, "--all")
    assert "sample 29" in capsys.readouterr().out


def test_a18_clean_only_counts_without_apply(path: Path, capsys: pytest.CaptureFixture):
    before = listing(path)
    assert run("clean", path) == 0
    assert "--unused --apply" in capsys.readouterr().out and listing(path) == before
    with pytest.raises(SystemExit) as leaving:
        run("clean", path, "--apply")
    assert leaving.value.code == 2 and listing(path) == before


def test_a17_clean_removes_what_it_counted(path: Path, capsys: pytest.CaptureFixture):
    _, preview = run_json(capsys, "clean", path, "--unused", "--debris")
    before = folder_bytes(path)
    code, facts = run_json(capsys, "clean", path, "--unused", "--debris", "--apply")
    assert code == 0 and facts["removed"] and not preview["removed"]
    assert facts["bytes"] == preview["bytes"] == before - folder_bytes(path) > 0
    assert run("clean", path) == 0 and "Nothing to remove" in capsys.readouterr().out


def test_a_cache_in_use_is_exit_code_4(path: Path, capsys: pytest.CaptureFixture):
    reader = open_cache(path)
    assert run("clean", path, "--unused", "--apply") == 4
    assert f"process {os.getpid()}" in capsys.readouterr().err
    assert run("clean", path) == 0 and "in use" in capsys.readouterr().out
    del reader
    writer = CacheWriter(path, append=True)
    assert run("compact", path) == 4
    writer.close()


def test_merge_export_and_compact_run(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    other = write_set(tmp_path / "other", range(3, 6))
    code, facts = run_json(capsys, "merge", path, other, "--to", tmp_path / "all of it")
    assert (code, facts["samples"]) == (0, 6)
    code, facts = run_json(capsys, "export", tmp_path / "all of it", "--to", tmp_path / "copy")
    assert (code, facts["samples"]) == (0, 6)
    assert run("export", "--duplicate", path, "--to", tmp_path / "second") == 0
    assert open_cache(tmp_path / "second").id != open_cache(path).id
    write_set(path, [8], append=True)
    code, facts = run_json(capsys, "compact", path)
    assert (code, facts["shards"]) == (0, [4, 2])
    assert run("merge", path, "--to", tmp_path / "copy") == 1
    assert "already contains a cache" in capsys.readouterr().err


def test_a_progress_bar_is_drawn_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for terminal, asked_json in ((Terminal(), False), (Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress(argparse.Namespace(json=asked_json), "Working") as progress:
            progress(500, 1000)
        drawn = terminal.getvalue()
        assert bool(drawn) == (terminal.isatty() and not asked_json)
        assert "####" in drawn or not drawn


@pytest.mark.parametrize("command", build_parser()._subparsers._group_actions[0].choices)
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
    done = subprocess.run([*command, "--help"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "convert" in done.stdout
    refused = subprocess.run(
        [*command, "convert", "nowhere", "--to", "x"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == 1 and "Traceback" not in refused.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows sends Ctrl-C to all programs of a console")
def test_ctrl_c_during_start_up_ends_it_silently(program: tuple[list[str], dict[str, str]]):
    command, environment = program
    # Interrupts itself as soon as the import of torch begins.
    begin = "import os, signal, sys\nclass Finder:\n  def find_spec(self, name, *_):\n"
    begin += "    if name == 'torch': os.kill(os.getpid(), signal.SIGINT)\nsys.meta_path.insert(0, Finder())\n"
    begin += "import streamcache.cli.__main__ as program\nprogram.main()"
    done = subprocess.run([command[0], "-c", begin], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGINT and done.stderr == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1 KB"), (1_400_000_000, "1.4 GB"), (999_999, "1 MB")],
)
def test_byte_counts_are_short(count: int, text: str):
    assert output.byte_count(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (114, "1:54"), (3599.6, "1:00:00"), (7380, "2:03:00")])
def test_the_time_left_reads_like_a_clock(seconds: float, text: str):
    assert output.clock(seconds) == text


def test_plurals_are_spelled_out():
    assert [plural(n, "entry") for n in (1, 2)] == ["1 entry", "2 entries"]
