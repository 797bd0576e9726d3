"""`streamcache queue`: trainings are checked when they are added, listed in order, and cancelled."""

import json
from pathlib import Path

import pytest

from streamcache.cli.main import build_parser
from streamcache.cli.recipe import find_recipe
from streamcache.cli.train import collect_config
from streamcache.lora_train import TrainConfig
from streamcache.lora_train.queue import JobQueue

from ...support.commands import run, run_json
from ...support.trainings import training


def add(folder: Path, out: str = "my_lora", *arguments: object) -> list[object]:
    return ["queue", "add", "--queue", folder / "queue", *training(folder, out), *arguments]


def test_i5_a_job_has_the_arguments_and_all_settings_except_its_name(parts: Path, capsys) -> None:
    (parts / "run.toml").write_text("network_dim = 8\nalpha = 4\n")
    given = [flag for flag in training(parts) if not flag.startswith("--rank")]
    flags = ["--config", parts / "run.toml", "--dora", "--settings", '{"alpha": 2, "seed": 3}']
    code, told = run_json(capsys, "queue", "add", "--queue", parts / "queue", *given, *flags)
    job = JobQueue(parts / "queue").read(1)
    assert code == 0 and (told["number"], job.name, job.status) == (1, "my_lora", "waiting")
    expected = {"rank": 8, "alpha": 2.0, "dora": True, "seed": 3, "steps": 20, "batch_size": 2, "save_every": 10}
    assert job.settings == {name: value for name, value in TrainConfig(**expected).to_dict().items() if name != "name"}
    assert job.arguments == (f"--dataset={parts / 'set'}", "--reference", f"--model={parts / 'base.safetensors'}")
    assert (job.out, job.folder) == (str(parts / "my_lora.safetensors"), str(Path.cwd()))


def test_a_job_trains_with_its_own_settings_not_with_those_of_its_recipe(parts: Path) -> None:
    # rank 16 is the default, and the recipe has another one.
    given = [flag for flag in training(parts) if not flag.startswith("--rank")]
    chosen = ["--recipe", "sdxl/style", "--rank", 16, "--steps", 7]
    assert run("queue", "add", "--queue", parts / "queue", *given, *chosen) == 0
    job = JobQueue(parts / "queue").read(1)
    flags = [*job.arguments, f"--out={job.out}", "--settings", json.dumps(dict(job.settings))]
    config = collect_config(build_parser().parse_args(["train", *flags]))
    assert (config.rank, config.steps, config.to_dict()) == (16, 7, {**job.settings, "name": config.name})
    recipe = find_recipe("sdxl/style").values()
    assert recipe["rank"] != 16 and job.settings["weighting"] == recipe["weighting"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--rank", "0"], 2, "rank = 0: expected a whole number of at least 1"),
        (["--dataset", "nope"], 1, "no such cache"),
        (["--out", "x.txt"], 2, "ends in .safetensors"),
        (["--resume"], 2, 'has no run "my_lora"; give the name of one, or leave out --resume'),
        (["--vae", "x"], 2, "--vae: needs --comfyui FOLDER"),
        (["--name", "a/b"], 2, "expected a plain folder name"),
        (["--start-from", "gone.safetensors"], 2, "--start-from gone.safetensors: no such file"),
        (["--training-adapter", "gone.safetensors"], 2, "--training-adapter gone.safetensors: no such file"),
        (["--model", "gone.safetensors"], 2, "--model gone.safetensors: no such file"),
        (["--settings", "["], 2, "--settings: not valid JSON"),
        (["--settings", "[]"], 2, '--settings: found list; expected an object, such as {"rank": 8}'),
        (["--settings", '{"rnk": 3}'], 2, '--settings: unknown setting "rnk"; did you mean "rank"?'),
    ],
)
def test_i5_a_job_is_checked_when_it_is_added(parts: Path, capsys, arguments: list[str], code: int, words: str) -> None:
    assert run(*add(parts, "my_lora", *arguments)) == code
    assert words in capsys.readouterr().err and not (parts / "queue").exists()


def test_a_dry_run_checks_and_adds_nothing(parts: Path, capsys) -> None:
    assert run(*add(parts, "my_lora", "--dry-run")) == 0
    assert "my_lora can be added" in capsys.readouterr().out and not (parts / "queue").exists()


def test_jobs_are_listed_in_order_and_cancelled(parts: Path, capsys) -> None:
    for out in ("a", "b", "c"):
        assert run(*add(parts, out)) == 0
    queue = ["--queue", parts / "queue"]
    code, told = run_json(capsys, "queue", "list", *queue)
    assert code == 0 and [(job["number"], job["name"]) for job in told["jobs"]] == [(1, "a"), (2, "b"), (3, "c")]
    assert run("queue", "cancel", 2, *queue) == 0
    assert "Removed job 2" in capsys.readouterr().out
    with JobQueue(parts / "queue").claim() as claim:
        claim.start("w 0")
        assert run("queue", "list", *queue) == 0
        assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:]] == [
            ["1", "running", "a"],
            ["3", "waiting", "c"],
        ]
        assert run("queue", "cancel", 1, *queue) == 0 and claim.cancelled
        assert "Job 1 stops after its step and saves" in capsys.readouterr().out
    assert run("queue", "list", *queue) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["1", "waiting", "a"]  # its worker has ended
    assert run("queue", "cancel", 9, *queue) == 1
    assert "has no job 9" in capsys.readouterr().err


def test_a_queue_without_jobs_and_a_file_that_is_none(tmp_path: Path, capsys) -> None:
    assert run("queue", "list", "--queue", tmp_path) == 0
    assert capsys.readouterr().out == f"No jobs in {tmp_path}\n"
    (tmp_path / "000001.json").write_text(json.dumps({"version": 9}))
    assert run("queue", "list", "--queue", tmp_path) == 0
    assert "000001.json: is a job of format 9, this version reads 1" in capsys.readouterr().out
