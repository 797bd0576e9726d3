"""`streamcache sweep`: every combination is trained once on one cache, also if it is killed in between."""

import json
import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from streamcache.cli.jobs.combinations import combine
from streamcache.cli.jobs.sweep import plan_run, prepare, read_file
from streamcache.cli.main import build_parser, main
from streamcache.cli.parser import UsageError
from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.errors import TrainError
from streamcache.lora_train import Run
from streamcache.lora_train.queue import hold

from ...support.commands import run, run_json
from ...support.samples import put_sample
from ...support.trainings import digests, finish, kill, random_moment, start, steps_of, training, wait_until

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
SETTINGS = ["--validation-share=0.25", "--validation-every=10", "--sample-every=10", "--sample-steps=1"]
SETS = ["--set", "rank=2,4", "--set", "learning_rate=1e-2,5e-3"]
NAMES = ["my_lora-rank2-lr0.01", "my_lora-rank2-lr5e-3", "my_lora-rank4-lr0.01", "my_lora-rank4-lr5e-3"]


def sweep(folder: Path, *arguments: object, steps: int = 20) -> list[object]:
    flags = [flag for flag in training(folder, "out/my_lora", steps) if not flag.startswith("--rank")]
    return ["sweep", *flags, *SETTINGS, *arguments]


def files_of(folder: Path) -> dict[Path, int]:
    """When each file was written, without locks and leases."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: path.stat().st_mtime_ns
        for name, path in found.items()
        if not any(part.startswith(".") for part in name.parts)
    }


def test_i5_a_dry_run_lists_the_runs_and_trains_nothing(parts: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(*sweep(parts, *SETS, "--dry-run")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:5]] == [[name, "new"] for name in NAMES]
    assert lines[5] == "4 runs to train; nothing was trained" and not (parts / "out").exists()


def test_i5_a_sweep_trains_each_combination_once_sorts_them_and_is_done_when_started_again(
    parts: Path, capfd: pytest.CaptureFixture
) -> None:
    cache = files_of(parts / "set")
    code, told = run_json(capfd, *sweep(parts, "--set", "rank=2,4"))
    assert code == 0 and not told["stopped"]
    losses = [one["validation"] for one in told["runs"]]
    assert losses == sorted(losses) and len(set(losses)) == 2
    assert {one["name"] for one in told["runs"]} == {"my_lora-rank2", "my_lora-rank4"}
    assert all(Path(one["lora"]).is_file() and one["validation_step"] in (10, 20) for one in told["runs"])
    assert (parts / "out/my_lora-sweep/samples.png").is_file()
    before = files_of(parts / "out/runs")
    assert run(*sweep(parts, "--set", "rank=2,4")) == 0
    assert "Sweep of 2 runs: 2 done" in capfd.readouterr().err
    assert files_of(parts / "out/runs") == before and files_of(parts / "set") == cache, "nothing is done twice"


def test_what_was_trained_with_something_else_is_refused_or_trained_again(
    parts: Path, capfd: pytest.CaptureFixture
) -> None:
    assert run(*sweep(parts, "--set", "rank=2", steps=10)) == 0
    before = files_of(parts / "out")
    assert run(*sweep(parts, "--set", "rank=2,4", steps=12)) == 1
    error = capfd.readouterr().err
    assert "my_lora-rank2: was trained with something else (steps: was 10, is 12); give another --out" in error
    assert files_of(parts / "out") == before
    assert run(*sweep(parts, "--set", "rank=2", "--mode", "overwrite", steps=12)) == 0
    assert steps_of(parts / "out/runs/my_lora-rank2") == list(range(1, 13))
    again = files_of(parts / "out/runs")
    assert run(*sweep(parts, "--set", "rank=2", "--mode", "overwrite", steps=12)) == 0
    assert files_of(parts / "out/runs") == again
    with CacheWriter(parts / "set", append=True) as writer:
        put_sample(writer, 1)
    assert run(*sweep(parts, "--set", "rank=2", steps=12)) == 1
    assert "was trained with something else (the dataset has changed)" in capfd.readouterr().err


def test_a_run_of_another_model_or_other_comfyui_settings_is_not_done(
    parts: Path, capfd: pytest.CaptureFixture
) -> None:
    command = sweep(parts, "--set", "rank=2", steps=2)
    assert run(*command) == 0
    shutil.copy(parts / "base.safetensors", parts / "other.safetensors")
    assert run(*command, "--model", parts / "other.safetensors") == 1
    assert "was trained with something else (model: was '" in capfd.readouterr().err
    args = build_parser().parse_args([str(part) for part in command])
    args.arguments = [str(part) for part in command]
    made, axes = prepare(args)
    (one,) = combine("my_lora", axes, made.base)
    Run(parts / "out/runs/my_lora-rank2").amend(host={"guidance": 1.0})
    assert plan_run(replace(made, model={**made.model, "host": {"guidance": 1.0}}), one) == "done"
    with pytest.raises(TrainError, match=r"\(guidance: was 1\.0, is 3\.5\)"):
        plan_run(replace(made, model={**made.model, "host": {"guidance": 3.5}}), one)


def test_a_run_that_fails_is_told_and_the_others_are_trained(parts: Path, capfd: pytest.CaptureFixture) -> None:
    code, told = run_json(capfd, *sweep(parts, "--set", "caption_dropout=0.5,0", steps=2))
    assert code == 1
    assert [one["status"] for one in told["runs"]] == ["done", "failed"]
    assert "the dataset has no encoded empty caption" in told["runs"][1]["problem"]


def test_the_file_may_have_the_flags_too(parts: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(parts)
    (parts / "run.toml").write_text(
        'dataset = "set"\nmodel = "base.safetensors"\nout = "x/my_lora.safetensors"\nreference = true\nlr = 0.25\n'
    )
    assert run("sweep", "run.toml", "--set", "rank=2", "--out", "y/other.safetensors", "--dry-run") == 0
    assert "other-rank2" in capsys.readouterr().out
    (parts / "run.toml").write_text('dataset = "set"\nrnk = 4\n')
    assert run("sweep", "run.toml", "--set", "rank=2") == 2
    assert 'run.toml: unknown setting "rnk"; did you mean "rank"?' in capsys.readouterr().err


def test_prompts_and_text_encoders_of_the_file_may_be_lists_and_flags_win(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('prompt = ["a cat", "a dog, running"]\nclip = "l.safetensors"\nrank = 3\n')

    def read(*flags: str):
        arguments = ["sweep", "run.toml", *flags]
        args = build_parser().parse_args(arguments)
        args.arguments = arguments
        return read_file(args)

    args = read("--set", "dora=on,off")
    assert (args.prompt, args.clip, args.set) == (["a cat", "a dog, running"], ["l.safetensors"], ["dora=on,off"])
    args = read("--prompt", "a bird", "--clip=g", "--clip=h")
    assert (args.prompt, args.clip) == (["a bird"], ["g", "h"])
    for line in ('dataset = ["a", "b"]', 'reference = ["a", "b"]'):
        (tmp_path / "run.toml").write_text(line)
        with pytest.raises(UsageError, match=f"run.toml: {re.escape(line)}: expected one value"):
            read()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing varies; add --set, for example --set rank=8,16"),
        (["--set", "rank=8,0"], "rank = 0: expected a whole number of at least 1"),
        (["--set", "adapter=lora,oft", "--dora"], 'my_lora-adapter_oft: dora = True: not possible with adapter ='),
        (["--set", "rank=2", "--resume"], "a sweep resumes by itself"),
        (["--set", "rank=2", "--name", "mine"], "are named after --out and what varies"),
        (["--set", "rank=2", "--out", "x.txt"], "ends in .safetensors"),
        (["--set", "rank=2", "--dataset", "nope"], "no such cache"),
        (["--set", "rank=2..4"], "add --search N, or list them"),
    ],
)  # fmt: skip
def test_i5_nothing_starts_if_one_combination_is_invalid(parts: Path, capfd, arguments: list[str], words: str) -> None:
    assert run(*sweep(parts, *arguments)) in (1, 2)
    assert words in "".join(capfd.readouterr())
    assert not list((parts / "out").glob("*.safetensors")) and not list((parts / "out/runs").glob("*/run.json"))


def test_what_a_sweep_needs_is_named(capsys: pytest.CaptureFixture) -> None:
    assert main(["sweep", "--reference", "--set", "rank=2"]) == 2
    assert "--dataset is missing; give it here or in the TOML file" in capsys.readouterr().err


def test_i5_a_second_sweep_in_a_folder_is_refused_and_names_the_first(parts: Path, capsys) -> None:
    (parts / "out/runs").mkdir(parents=True)
    with hold(parts / "out/runs/.sweep", "other_lora"):
        assert run(*sweep(parts, "--set", "rank=2")) == 1
    error = capsys.readouterr().err
    assert f"another sweep is running here (other_lora, process {os.getpid()}, since 20" in error
    assert "give another folder with --runs" in error


def test_a_lora_that_is_not_of_the_sweep_is_not_replaced(parts: Path, capsys: pytest.CaptureFixture) -> None:
    (parts / "out").mkdir()
    (parts / "out/my_lora-rank2.safetensors").write_bytes(b"mine")
    assert run(*sweep(parts, "--set", "rank=2")) == 1
    assert "my_lora-rank2.safetensors: exists; move it away" in capsys.readouterr().err


@posix
def test_i5_sigterm_lets_the_run_save_and_the_same_command_goes_on(parts: Path, capsys) -> None:
    command = sweep(parts, "--set", "rank=2,4", "--sample-every=0", "--validation-every=1000", steps=600)
    first = start(*command)
    wait_until(lambda: steps_of(parts / "out/runs/my_lora-rank2"))
    assert run(*command) == 1
    assert f"another sweep is running here (my_lora, process {first.pid}, since" in capsys.readouterr().err
    first.send_signal(signal.SIGTERM)
    code, printed, _ = finish(first)
    assert code == 130 and "Stopped early; the same command goes on with what is left" in printed
    described = json.loads((parts / "out/runs/my_lora-rank2/run.json").read_text())
    assert described["status"] == "stopped" and 0 < described["step"] < 600
    code, _, errors = finish(start(*command))
    assert code == 0 and "Sweep of 2 runs: 1 to resume, 1 new" in errors
    assert steps_of(parts / "out/runs/my_lora-rank2") == list(range(1, 601))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The LoRAs of a sweep that nothing disturbs."""
    from ...support.trainings import make_parts

    folder = tmp_path_factory.mktemp("whole")
    make_parts(folder)
    code, _, errors = finish(start(*sweep(folder, *SETS, steps=200)))
    assert code == 0, errors
    return digests(folder / "out")


@posix
@pytest.mark.slow
@pytest.mark.parametrize("locks", [True, False], ids=["", "without file locks"])
@pytest.mark.parametrize("seed", range(2))
def test_i5_a_sweep_that_is_killed_again_and_again_ends_as_if_it_were_not(
    parts: Path, uninterrupted: dict[str, str], seed: int, locks: bool
) -> None:
    moment, cache = random_moment(seed), files_of(parts / "set")
    command, runs = sweep(parts, *SETS, steps=200), parts / "out/runs"
    place = None if locks else parts / "no_locks"
    for number, name in enumerate(NAMES):
        process = start(*command, locks=place)
        wait_until(lambda name=name, process=process: steps_of(runs / name) or process.poll() is not None)
        moment(0.6)
        kill(process, whole=bool((number + seed) % 2))
    code, _, errors = finish(start(*command, locks=place))
    assert code == 0, errors
    assert digests(parts / "out") == uninterrupted and sorted(uninterrupted) == [
        f"{name}.safetensors" for name in NAMES
    ]
    # Each run was trained in one folder, each of its steps counts once, and nothing was encoded.
    assert sorted(path.name for path in runs.iterdir() if path.is_dir()) == NAMES
    assert all(steps_of(runs / name) == list(range(1, 201)) for name in NAMES)
    assert files_of(parts / "set") == cache and len(open_cache(parts / "set")) == 8
