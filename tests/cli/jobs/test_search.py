"""`streamcache sweep --search`: settings chosen by validation loss, also if the search is killed in between."""

import shutil
import sys
from pathlib import Path
from statistics import median

import pytest

from streamcache.cli.jobs import search as search_module
from streamcache.cli.jobs.combinations import parse_axes
from streamcache.errors import TrainError

from ...support.commands import run, run_json
from ...support.trainings import digests, finish, kill, start, steps_of, training, wait_until

AXES = ["learning_rate=1e-4..1e-1:log", "rank=1..4", "dora=on,off"]
SETS = ["--set=learning_rate=1e-3..1e-1:log", "--set=rank=1..4"]


def search(folder: Path, count: int, *arguments: object) -> list[object]:
    flags = [flag for flag in training(folder, "out/my_lora", 40) if not flag.startswith("--rank")]
    return ["sweep", *flags, *SETS, "--search", count, "--validation-share=0.25", *arguments]


def make_search(folder: Path, *texts: str, **facts) -> search_module.Search:
    pytest.importorskip("optuna")
    return search_module.Search(folder, "my_lora", parse_axes(texts or AXES), facts, seed=7)


def play(one: search_module.Search, count: int) -> list[str]:
    names = []
    for _ in range(count):
        trial = one.choose()
        names.append(trial.run.name)
        one.tell(trial, abs(trial.run.settings["learning_rate"] - 1e-2))
    return names


def test_i5_values_are_within_their_ranges_and_come_closer_to_the_best(tmp_path: Path) -> None:
    one = make_search(tmp_path)
    play(one, 40)
    tried = [trial.run.settings for trial in one.trials()]
    assert all(1e-4 <= found["learning_rate"] <= 1e-1 and found["rank"] in (1, 2, 3, 4) for found in tried)
    assert {type(found["dora"]) for found in tried} == {bool}
    distances = [abs(found["learning_rate"] - 1e-2) for found in tried]
    assert median(distances[-20:]) < median(distances[:10])


def test_i5_a_search_that_is_opened_again_chooses_the_same(tmp_path: Path) -> None:
    whole = play(make_search(tmp_path / "whole"), 14)
    parts = [play(make_search(tmp_path / "parts"), count) for count in (3, 1, 10)]
    assert [name for names in parts for name in names] == whole


def test_a_trial_that_a_kill_left_open_is_known_and_can_be_told(tmp_path: Path) -> None:
    first = make_search(tmp_path)
    left = first.choose()
    (tmp_path / "search.journal.lock").touch()
    with open(tmp_path / "search.journal", "ab") as file:
        file.write(b'{"op_code": 5, "trial')  # half a line
    again = make_search(tmp_path)
    assert [(trial.run, trial.open) for trial in again.trials()] == [(left.run, True)]
    again.tell(again.trials()[0], 0.5)
    again.tell(again.choose(), None)  # it failed
    assert [(trial.open, trial.failed) for trial in make_search(tmp_path).trials()] == [(False, False), (False, True)]


def test_other_values_or_another_dataset_are_another_search(tmp_path: Path) -> None:
    play(make_search(tmp_path), 2)
    assert make_search(tmp_path, "learning_rate=1e-4..1e-2:log").trials() == []
    assert make_search(tmp_path, dataset="other").trials() == []
    assert len(make_search(tmp_path).trials()) == 2


def test_a_trial_that_failed_is_still_failed_when_its_search_goes_on(parts: Path, capfd) -> None:
    pytest.importorskip("optuna")
    command = search(parts, 1, "--steps=2", "--caption-dropout=0.5")
    for _ in range(2):
        code, told = run_json(capfd, *command)
        assert code == 1 and [one["status"] for one in told["runs"]] == ["failed"]


def test_a_search_with_another_model_is_another_search(parts: Path, capfd) -> None:
    pytest.importorskip("optuna")
    shutil.copy(parts / "base.safetensors", parts / "other.safetensors")
    command = search(parts, 1, "--steps=2", "--mode=overwrite")
    for model, done in (("base", 0), ("base", 1), ("other", 0)):
        assert run(*command, "--model", parts / f"{model}.safetensors") == 0
        assert f"Search of 1 run: {done} done" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--validation-share=0"], "chooses by validation loss; set validation_share"),
        (["--search=0"], "--search 0: expected a whole number of at least 1"),
        (["--set=dora=on,off", "--adapter=oft"], "not possible with adapter"),
    ],
)
def test_a_search_that_cannot_work_is_refused(parts: Path, capsys, arguments: list[str], words: str) -> None:
    pytest.importorskip("optuna")
    assert run(*search(parts, 2, *arguments)) == 2
    assert words in capsys.readouterr().err and not (parts / "out").exists()


def test_i5_without_optuna_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, parts: Path, capsys) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert run(*search(parts, 2)) == 1
    assert '--search: needs optuna; run "pip install optuna"' in capsys.readouterr().err
    with pytest.raises(TrainError):
        search_module.import_optuna()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_i5_a_killed_search_goes_on_with_the_same_runs(parts: Path, tmp_path_factory, capfd) -> None:
    from ...support.trainings import make_parts

    pytest.importorskip("optuna")
    whole = tmp_path_factory.mktemp("whole")
    make_parts(whole)
    code, told = run_json(capfd, *search(whole, 3))
    assert code == 0 and len(told["runs"]) == 3
    runs = parts / "out/runs"
    for count, whole_group in ((1, True), (2, False)):
        process = start(*search(parts, 3))
        wait_until(lambda count=count: sum(bool(steps_of(run)) for run in runs.glob("my*")) >= count)
        kill(process, whole=whole_group)
    code, _, errors = finish(start(*search(parts, 3)))
    assert code == 0, errors
    assert digests(parts / "out") == digests(whole / "out") and len(digests(parts / "out")) == 3
    code, again = run_json(capfd, *search(parts, 3))
    assert code == 0 and [one["name"] for one in again["runs"]] == [one["name"] for one in told["runs"]]
