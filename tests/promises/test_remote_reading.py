"""A training reads a dataset behind a server as one on disk: same LoRA, no waiting, whatever is killed meanwhile."""

import json
import random
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamcache.cli.train import describe_result
from streamcache.dataset_cache import open_cache, use_cache_limit
from streamcache.dataset_cache.ahead.read_ahead import GRAIN

from ..support.processes import Nursery, needs_fork, read_ahead
from ..support.range_server import Line, serving
from ..support.served import write_even
from ..support.small_parts import SmallDenoiser, make_dataset, run_training

pytest.importorskip("obstore")


@pytest.fixture
def copies(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("STREAMCACHE_CACHE_DIR", str(tmp_path / "copies"))
    yield tmp_path / "copies"
    use_cache_limit(None)


@pytest.mark.parametrize("limit", [None, 0, 200_000])
def test_f5_a_training_over_the_network_makes_the_same_lora(limit, tmp_path, copies) -> None:
    use_cache_limit(limit)
    settings = {"steps": 20, "accumulate": 2, "validation_share": 0.1, "validation_every": 4, "save_every": 0}
    local = make_dataset(tmp_path / "set")
    expected = run_training(tmp_path / "local", local, **settings)
    with serving(tmp_path / "set") as (address, line), open_cache(address) as dataset:
        result = run_training(tmp_path / "remote", dataset, **settings)
    ours, theirs = load_file(result.lora), load_file(expected.lora)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs) and len(line.requests)
    assert expected.traffic is None and result.traffic is not None and result.traffic.requests == len(of_shards(line))


def test_f5_what_reading_has_cost_is_reported(tmp_path, copies) -> None:
    make_dataset(tmp_path / "set")
    with serving(tmp_path / "set") as (address, _), open_cache(address) as dataset:
        result = run_training(tmp_path, dataset, steps=8)
    rows = [json.loads(line) for line in (tmp_path / "runs/test/metrics.jsonl").read_text().splitlines()]
    counts = [row["remote"] for row in rows if "loss" in row]
    assert set(counts[-1]) == {"requests", "bytes", "fetched", "hits", "late", "evictions", "lost"}
    assert counts[-1]["requests"] == result.traffic.requests > 0
    assert all(a["bytes"] <= b["bytes"] for a, b in pairwise(counts))
    assert f"{result.traffic}." in (tmp_path / "runs/test/report.html").read_text()
    assert any(line == f"Remote dataset: {result.traffic}" for line in describe_result(result, tmp_path))


def test_f5_a_local_dataset_reports_no_traffic(tmp_path) -> None:
    result = run_training(tmp_path, make_dataset(tmp_path / "set"))
    assert "remote" not in (tmp_path / "runs/test/metrics.jsonl").read_text()
    assert not any("Remote" in line for line in describe_result(result, tmp_path))


@pytest.mark.parametrize("mode", ["stopped", "whole"])
def test_f5_nothing_is_fetched_that_the_run_does_not_use(mode, tmp_path, copies) -> None:
    """Neither beyond its last step, nor again when it resumes."""
    make_dataset(tmp_path / "set", count=48)
    with serving(tmp_path / "set") as (address, line):
        with open_cache(address) as dataset:
            run_training(tmp_path, dataset, steps=3 if mode == "stopped" else 6)
        first = len(of_shards(line))
        with open_cache(address) as dataset:
            run_training(tmp_path, dataset, steps=6, mode="resume")
        asked = of_shards(line)
        assert len(set(asked)) == len(asked) and (mode == "stopped" or len(asked) == first)


def of_shards(line: Line) -> list[tuple[str, int, int]]:
    """The requests for data, not for the manifest and the index."""
    return [request for request in line.requests if request[0].startswith("shards/")]


class SlowDenoiser(SmallDenoiser):
    """A model whose steps take a while."""

    def predict(self, x_t, t, conditioning):
        time.sleep(0.1)
        return super().predict(x_t, t, conditioning)


@pytest.mark.slow
def test_f5_training_does_not_wait_for_a_distant_server(tmp_path, copies) -> None:
    """50 ms to each answer and 100 MB/s. The bound is wide: other tests run on this machine."""
    write_even_text(tmp_path / "set", 64)
    with (
        serving(tmp_path / "set", Line(0.05, 100e6)) as (address, _),
        open_cache(address) as dataset,
    ):
        result = run_training(tmp_path, dataset, SlowDenoiser(), steps=64)
    assert result.data_wait < 0.1


def write_even_text(path: Path, count: int) -> None:
    """Samples of several hundred KB, with a caption that the small model takes."""
    from streamcache.dataset_cache import CacheWriter

    from ..support.small_parts import words_of

    with CacheWriter(path) as writer:
        for i in range(count):
            draw = torch.Generator().manual_seed(i)
            latent = torch.randn(1, 4, 128, 128, generator=draw)
            writer.add(latent={"samples": latent}, conditioning=words_of(i), caption=f"caption {i}", source=f"{i}.png")


@needs_fork
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_f5_a_killed_reader_leaves_copies_from_which_everything_is_read_right(
    kills, tmp_path, nursery: Nursery, copies
) -> None:
    path, draw, limit = write_even(tmp_path / "cache", 24), random.Random(kills), 10 * GRAIN
    reads = 0
    with serving(path, Line(latency=0.002)) as (address, _):
        for kill in range(kills):
            readers = [nursery.start(read_ahead, path, address, copies, limit, kill + n) for n in range(1 + kill % 2)]
            for reader in readers:
                reader.wait_for("open")
            time.sleep(draw.random() ** 2 * 0.3)
            notes = [note for reader in readers for note in reader.kill()]
            assert not [note for note in notes if note[0] == "wrong"]
            reads += len(notes)
        last = nursery.start(read_ahead, path, address, copies, limit, 1000).wait()
    assert last[-1] == ["done"] and not [note for note in last if note[0] == "wrong"] and reads
    left = [file for file in (copies / "blocks").glob("*/*") if file.parent.name != "readers"]
    assert sum(file.stat().st_size for file in left) <= limit + 10 * 16
    assert not [file for file in left if file.name.startswith(".")]
    assert open_cache(path).read_batch([0]).latents is not None
