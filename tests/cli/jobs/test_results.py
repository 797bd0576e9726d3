"""The results of a sweep: read from the files of its runs, sorted, as a table, CSV and pictures."""

import csv
import json
from pathlib import Path

from PIL import Image

from streamcache.cli.jobs.combinations import Combination
from streamcache.cli.jobs.results import (
    RunResult,
    count_seconds,
    describe_results,
    draw_samples,
    read_result,
    sort_results,
    write_results,
)
from streamcache.lora_train import draw_grid


def write_run(run: Path, *rows: dict[str, float]) -> Path:
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "run.json").write_text(json.dumps({"lora": str(run / "x.safetensors")}))
    return run


def result(name: str, validation: float | None, loss: float | None = 0.5, **facts) -> RunResult:
    return RunResult(name, {"rank": 8}, facts.get("status", "done"), 20, loss, validation, 10, 75.0, "x.safetensors")


def test_i5_the_best_validation_counts_with_its_step_but_not_that_of_the_untrained_model(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 4.0 - step, "time": step / 2} for step in (1, 2, 3)]
    checks = [{"step": step, "validation": loss} for step, loss in ((0, 0.1), (1, 0.5), (2, 0.3), (3, 0.4))]
    found = read_result(write_run(tmp_path / "a", *rows, *checks), Combination("a", {"rank": 8}), "done")
    assert (found.validation, found.validation_step, found.step, found.seconds) == (0.3, 2, 3, 1.5)
    assert 1.0 < found.loss < 3.0 and found.lora.endswith("x.safetensors")
    empty = read_result(tmp_path / "none", Combination("none", {}), "failed", "why")
    assert (empty.loss, empty.validation, empty.step, empty.problem) == (None, None, 0, "why")


def test_the_time_of_a_resumed_run_is_that_of_all_its_parts(tmp_path: Path) -> None:
    times = [1.0, 2.0, 3.0, 0.5, 1.0, 0.25]
    run = write_run(tmp_path / "a", *({"step": n + 1, "loss": 1.0, "time": time} for n, time in enumerate(times)))
    assert count_seconds(run / "metrics.jsonl") == 4.25


def test_runs_are_sorted_by_validation_then_by_loss() -> None:
    runs = [result("d", None, None), result("c", None, 0.2), result("b", 0.4), result("a", 0.3, 9.0)]
    assert [one.name for one in sort_results(runs)] == ["a", "b", "c", "d"]
    lines = describe_results(sort_results(runs))
    assert lines[0].split() == ["run", "status", "steps", "loss", "best", "validation", "at", "step", "time"]
    assert lines[1].split() == ["a", "done", "20", "9.00000", "0.30000", "10", "1:15"]
    assert lines[-1] == "Best: x.safetensors"


def test_files_have_what_the_table_has(tmp_path: Path) -> None:
    write_results(tmp_path / "out", [result("a", 0.3), result("b", None)], tmp_path)
    with open(tmp_path / "out/results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["rank"], row["validation"]) for row in rows] == [("a", "8", "0.3"), ("b", "8", "")]
    assert json.loads((tmp_path / "out/results.json").read_text())[0]["validation"] == 0.3
    assert not (tmp_path / "out/samples.png").exists()


def test_the_last_sample_images_of_the_runs_are_side_by_side(tmp_path: Path) -> None:
    for run, color in (("a", "red"), ("b", "blue")):
        (tmp_path / run / "samples").mkdir(parents=True)
        for step, shown in ((5, "white"), (10, color)):
            Image.new("RGB", (192, 192), shown).save(tmp_path / run / "samples" / f"step-{step:08}-0.png")
    (tmp_path / "empty").mkdir()
    sheet = draw_samples([(name, tmp_path / name) for name in ("a", "empty", "b")])
    assert sheet is not None
    colors = {color for _, color in sheet.convert("RGB").getcolors(1 << 20)}
    assert {(255, 0, 0), (0, 0, 255)} <= colors
    assert draw_samples([("empty", tmp_path / "empty")]) is None


def test_each_row_of_the_last_sample_images_has_its_prompt(tmp_path: Path) -> None:
    (tmp_path / "a/samples").mkdir(parents=True)
    images = [Image.new("RGB", (192, 192), color) for color in ("red", "blue", "green")]
    for prompt, image in enumerate(images):
        image.save(tmp_path / f"a/samples/step-00000010-{prompt}.png")
    (tmp_path / "a/run.json").write_text(json.dumps({"prompts": ["a fox\nat night", "long " * 20]}))
    sheet = draw_samples([("none", tmp_path / "none"), ("a", tmp_path / "a")])
    rows = ["a fox at night", "long long long long long long long long…", ""]
    expected = draw_grid([[image] for image in images], rows, ["a"], "Last sample images", 192)
    assert sheet is not None and sheet.tobytes() == expected.tobytes()
