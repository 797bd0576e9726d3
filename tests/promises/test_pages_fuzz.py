"""Fuzzing the pages: whatever a damaged or forged cache or run contains, the response is valid JSON or a refusal."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamcache.nodes.server.cache_list import cache_row, list_rows
from streamcache.nodes.server.cache_view import cache_detail, close_views, open_view, sample_page
from streamcache.nodes.server.cleaning import clean_preview
from streamcache.nodes.server.live_runs import LiveRuns
from streamcache.nodes.server.runs import RunPlaces, Runs
from streamcache.nodes.server.thumbnail import thumbnail

from ..support.datasets import forge, write_set
from ..support.mutations import mutate

ROUNDS = 60
ODD: list[Any] = [None, True, -1, 0, 1 << 70, 1.5, float("nan"), "", "../x", "\ud800", [], {}, [[]], {"a": 1}, [1, "a"]]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = {"encode": {"sources": [{"folder": "cats"}], "encoders": {"image": "a" * 32}, "excluded": {"count": 1}}}
    return write_set(tmp_path_factory.mktemp("fuzz") / "set", range(4), provenance=made)


@pytest.fixture
def untrusted(original: Path, tmp_path: Path):
    yield Path(shutil.copytree(original, tmp_path / "set"))
    close_views()


def look(path: Path) -> int:
    """Send everything that a page requests. Returns the number of responses that are not refusals."""
    row = cache_row("set", path, [path.parent])
    looks: list[Callable[[], Any]] = [
        lambda: cache_detail(row, open_view(path)),
        lambda: sample_page(open_view(path), 0, 10),
        lambda: sample_page(open_view(path), 1, 10, "caption", "64×64"),
        lambda: sample_page(open_view(path), 0, 10, "", row.buckets[0]["name"] if row.buckets else "x"),
        lambda: clean_preview(path),
    ]
    answered = 0
    for each in looks:
        try:
            json.dumps(each(), allow_nan=False)
            answered += 1
        except (ValueError, FileNotFoundError) as refusal:
            assert "JSON compliant" not in str(refusal)
    for number in range(2):
        try:
            assert thumbnail(open_view(path), number).startswith(b"\xff\xd8")
            answered += 1
        except (ValueError, FileNotFoundError):
            continue
    assert json.dumps([row.to_json() for row in list_rows([path.parent], [])], allow_nan=False)
    return answered


def test_an_intact_cache_gets_all_responses(untrusted: Path):
    assert look(untrusted) == 7


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_damaged_bytes_are_refused(untrusted: Path, seed: int):
    draw = random.Random(seed)
    mutate(draw.choice(sorted(file for file in untrusted.rglob("*") if file.is_file() and file.stat().st_size)), draw)
    look(untrusted)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_forged_numbers_are_refused(untrusted: Path, seed: int):
    draw = random.Random(seed)

    def change(arrays: dict[str, np.ndarray]) -> None:
        name = draw.choice([name for name, array in arrays.items() if array.nbytes])
        data = arrays[name].view("u1").reshape(-1)
        at = draw.randrange(len(data))
        size = min(draw.choice((1, 4, 8)), len(data) - at)
        data[at : at + size] = np.frombuffer(draw.choice((bytes(size), b"\xff" * size, draw.randbytes(size))), "u1")

    forge(untrusted, change)
    look(untrusted)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_forged_manifests_are_refused(untrusted: Path, seed: int):
    draw = random.Random(seed)
    body = json.loads((untrusted / "dataset.json").read_text())
    place: Any = body
    while True:
        key = draw.choice([*place] if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], (dict, list)) or not place[key] or draw.random() < 0.3:
            break
        place = place[key]
    place[key] = draw.choice(ODD)
    sign(untrusted, body)
    look(untrusted)


def sign(path: Path, body: dict[str, Any]) -> None:
    """Write the manifest as a writer would have published it."""
    old = next(path.glob("index-*"))
    signed = {name: value for name, value in body.items() if name not in ("generation", "published")}
    text = json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()
    generation = hashlib.blake2b(text, digest_size=16).hexdigest()
    (path / "dataset.json").write_text(json.dumps({**signed, "generation": generation}))
    old.rename(path / f"index-{generation}.safetensors")


NESTED = 100_000
BAD_RUNS = {
    "an infinite time": '{"updated": 1e999}',
    "a time of 400 digits": '{"updated": %s}' % ("9" * 400),
    "a time that is NaN": '{"updated": NaN}',
    "steps of 400 digits": json.dumps({"steps": 10**400, "step": 10**400, "status": "done"}),
    "a number of 5000 digits": '{"steps": %s}' % ("9" * 5000),
    "nested": '{"config": ' + "[" * NESTED + "1" + "]" * NESTED + "}",
    "nested less": '{"config": {"a": ' + "[" * 500 + "1" + "]" * 500 + "}}",
    "a long problem": json.dumps({"status": "failed", "problem": "x" * 3_000_000}),
    "a problem that is a list": '{"status": "failed", "problem": [NaN, {}]}',
    "settings that are not finite": '{"config": {"rank": NaN, "alpha": -Infinity, "seed": %s}}' % ("9" * 400),
    "many settings": json.dumps({"config": {str(n): "x" * 3000 for n in range(1000)}}),
    "a status that is an object": '{"status": {"running": 1e999}}',
    "a long status": json.dumps({"status": "x" * 3_000_000}),
    "a long dataset": json.dumps({"dataset": "/" + "x" * 3_000_000}),
    "a dataset of NULs": '{"dataset": "\\u0000\\ud800"}',
    "invalid text": "\udcff",
}
BAD_METRICS = {
    "nested": "[" * NESTED + "\n",
    "a step of 400 digits": '{"step": %s, "epoch": 0, "validation": 1}\n' % ("9" * 400),
    "a loss of 400 digits": '{"step": 1, "epoch": 0, "loss": %s, "learning_rate": 1}\n' % ("9" * 400),
}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    good = tmp_path / "runs" / "good"
    good.mkdir(parents=True)
    (good / "run.json").write_text('{"status": "done", "step": 3, "updated": 5}')
    return Runs(RunPlaces(tmp_path / "runs", tmp_path / "loras", (tmp_path,)), LiveRuns())


def look_at_run(runs: Runs, description: str, metrics: str = "") -> dict[str, Any]:
    """Request a bad run next to a good one, as pages do. Returns its details."""
    folder = runs.places.runs / "bad"
    folder.mkdir()
    (folder / "run.json").write_text(description, encoding="utf-8", errors="surrogateescape")
    (folder / "metrics.jsonl").write_text(metrics)
    rows = runs.rows()
    assert {row["name"] for row in rows} == {"good", "bad"}
    assert len(json.dumps(rows, allow_nan=False)) < 20_000
    shown = runs.describe("bad", 50, 0.9)
    assert len(json.dumps(shown, allow_nan=False)) < 1_000_000
    assert 0 <= shown["run"]["updated"] < 1e11 and shown["run"]["steps"] < 1 << 53
    return shown


@pytest.mark.parametrize("what", BAD_RUNS)
def test_a_bad_run_is_shown_and_does_not_hide_others(runs: Runs, what: str):
    look_at_run(runs, BAD_RUNS[what])


@pytest.mark.parametrize("what", BAD_METRICS)
def test_bad_metrics_are_skipped(runs: Runs, what: str):
    good = '{"step": 2, "epoch": 0, "loss": 0.5, "learning_rate": 1}\n'
    assert look_at_run(runs, "{}", BAD_METRICS[what] + good)["curves"]["loss"] == [[2, 0.5]]


@pytest.mark.parametrize("key", ["status", "step", "steps", "updated", "dataset", "problem", "config", "name"])
@pytest.mark.parametrize("odd", range(len(ODD)))
def test_a_run_with_odd_values_is_shown(runs: Runs, key: str, odd: int):
    look_at_run(runs, json.dumps({"status": "failed", key: ODD[odd]}))
