"""Curves: thinned without losing peaks, and read again only as far as the file has changed."""

import random
from pathlib import Path

import pytest

from streamcache.lora_train.run.metrics import MetricsFile
from streamcache.nodes.server.curves import CurveReader, thin_points


def test_thinning_keeps_the_ends_and_every_peak():
    draw = random.Random(3)
    values = [draw.random() for _ in range(10_000)]
    values[4321], values[7777] = 50.0, -50.0
    found = thin_points(range(10_000), values, 600)
    assert len(found) <= 600
    assert [4321, 50.0] in found and [7777, -50.0] in found
    assert found[0][0] == 0 and found[-1][0] == 9999
    assert [step for step, _ in found] == sorted({step for step, _ in found})
    assert thin_points([1, 2], [0.123456789, 2], 50) == [[1, 0.12346], [2, 2.0]]


def test_only_new_lines_are_read_unless_the_file_was_rewritten(tmp_path: Path):
    reader, path = CurveReader(), tmp_path / "metrics.jsonl"
    line = '{"step": %d, "epoch": 0, "loss": %s, "learning_rate": 0.1}\n'
    path.write_text(line % (1, 1) + "no json\n" + '{"step": 2}\n' + line % (3, "NaN"))
    assert reader.curves(path, 50, 0)["loss"] == [[1, 1.0]]
    with path.open("a") as file:
        file.write(line % (2, 2) + '{"step": 3, "lo')  # the last line is being written
    assert reader.curves(path, 50, 0)["loss"] == [[1, 1.0], [2, 2.0]]
    with path.open("a") as file:
        file.write('ss": 3, "epoch": 0, "learning_rate": 0.1}\n{"step": 3, "validation": 0.7}\n')
    curves = reader.curves(path, 50, 0, [(2, 9.0, 0.1), (4, 4.0, 0.2)])  # step 2 is on disk already
    assert curves["loss"] == [[1, 1.0], [2, 2.0], [3, 3.0], [4, 4.0]]
    assert curves["validation"] == [[3, 0.7]] and curves["learning_rate"][-1] == [4, 0.2]
    with MetricsFile(path, resume_at=1):
        pass
    assert reader.curves(path, 50, 0)["loss"] == [[1, 1.0]]


@pytest.mark.parametrize("removed", [True, False])
def test_a_file_replaced_by_a_longer_one_is_read_from_the_start(tmp_path: Path, removed: bool):
    reader, path = CurveReader(), tmp_path / "metrics.jsonl"
    line = '{"step": %d, "epoch": 0, "loss": %d, "learning_rate": 0.1, "time": %d}\n'
    path.write_text("".join(line % (step, 1, step) for step in range(1, 4)))
    assert len(reader.curves(path, 50, 0)["loss"]) == 3
    inode = path.stat().st_ino
    if removed:
        path.unlink()
    path.write_text("".join(line % (step, 2, 100 + step) for step in range(1, 6)))
    reader._columns[path].inode = path.stat().st_ino if removed else inode  # as ext4 gives it again
    assert reader.curves(path, 50, 0)["loss"] == [[step, 2.0] for step in range(1, 6)]


def write_steps(path: Path, rows: list[tuple[int, int, float]]) -> None:
    """Lines of (step, epoch, time)."""
    with MetricsFile(path) as metrics:
        for step, epoch, time in rows:
            metrics.write(step=step, epoch=epoch, loss=1 / step, learning_rate=0.1, time=time, gradient_norm=2.0 * step)


def test_times_go_on_over_a_resume_and_epochs_end_where_the_next_begins(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, [(1, 0, 0.5), (2, 0, 1.0), (3, 1, 1.5), (4, 1, 0.25), (5, 2, 0.75)])
    curves = CurveReader().curves(path, 50, 0)
    assert curves["time"] == [[1, 0.5], [2, 1.0], [3, 1.5], [4, 1.75], [5, 2.25]]
    assert curves["epoch"] == [[0, 0.0], [2, 1.0], [4, 2.0], [5, 2.5]]
    assert curves["gradient_norm"] == [[step, 2.0 * step] for step in range(1, 6)]


def test_a_range_of_steps_is_thinned_less_and_smoothed_alike(tmp_path: Path):
    reader, path = CurveReader(), tmp_path / "metrics.jsonl"
    write_steps(path, [(step, 0, step) for step in range(1, 1001)])
    whole, part = reader.curves(path, 1000, 0.9), reader.curves(path, 50, 0.9, first=100, last=140)
    assert [step for step, _ in part["loss"]] == list(range(100, 141))
    assert part["smooth"] == whole["smooth"][99:140]
    assert part["time"][-1] == [1000, 1000.0], "places on the axis are those of the whole run"


def test_a_table_has_every_step_and_an_old_line_has_no_gradient_norm(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 0, "validation": 0.75}\n{"step": 1, "epoch": 0, "loss": 0.5, "learning_rate": 0.1, "time": 2}\n'
        '{"step": 2, "epoch": 0, "loss": 0.25, "learning_rate": 0.1, "gradient_norm": null, "time": 3}\n'
        '{"step": 2, "validation": 0.5}\n'
    )
    lines = CurveReader().table(path).splitlines()
    assert lines[0] == "step,epoch,seconds,loss,learning_rate,gradient_norm,validation"
    assert lines[1:] == ["0,,,,,,0.75", "1,0,2.0,0.5,0.1,,", "2,0,3.0,0.25,0.1,,0.5"]
