"""The phases of a run: stops between batches, threads, and latents that are not finite."""

import itertools
import shutil
import threading
from dataclasses import replace

import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.encode import pipeline
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.pipeline import WriteBehind
from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.folder_source import FolderSource

from ...support.encoders import SMALL


def excluded(report) -> dict[str, str]:
    return {e.source: e.reason for e in report.excluded}


def test_a14_stopped_at_40_percent_the_next_run_encodes_the_rest(plan, tmp_path, picture, images, texts):
    for n in range(100):
        picture(f"set/{n:03}.png", seed=n)
    report = encode(plan(), tmp_path / "cache", stop=lambda: images.count >= 40)
    assert report.stopped and images.count == 40 and not report.generation
    with pytest.raises(CacheError, match="never published"):
        open_cache(tmp_path / "cache")
    images.reset()
    report = encode(plan(), tmp_path / "cache")
    assert images.count == 60 and not report.stopped and report.samples == 100


def test_a14_readers_see_the_old_generation_meanwhile(plan, tmp_path, picture, images):
    for n in range(10):
        picture(f"set/{n}.png", seed=n)
    first = encode(plan(), tmp_path / "cache")
    for n in range(10):
        picture(f"set/{n}.png", seed=100 + n)
    images.reset()
    stopped = encode(plan(), tmp_path / "cache", stop=lambda: images.count >= 4)
    assert stopped.stopped and stopped.generation == first.generation
    assert open_cache(tmp_path / "cache").generation == first.generation
    assert encode(plan(), tmp_path / "cache").generation != first.generation
    assert images.count == 10


def test_a14_a_stop_while_captions_are_encoded_keeps_them(plan, tmp_path, picture, texts, images):
    for n in range(20):
        picture(f"set/{n}.png", seed=n, caption=f"caption {n:02}")
    assert encode(plan(), tmp_path / "cache", stop=lambda: texts.count >= 8).stopped
    assert texts.count == 8 and images.loads == 0
    encode(plan(), tmp_path / "cache")
    assert texts.count == 21


def test_a_latent_that_is_not_finite_is_not_trained_on(plan, tmp_path, picture, images):
    for n in range(5):
        picture(f"set/{n}.png", seed=n)
    real = images.make
    images.make = lambda item: {"samples": real(item)["samples"] * (float("nan") if len(images.items) == 4 else 1)}
    report = encode(plan(settings=Settings(SMALL.transform, batch_size=1, thumbnail=0)), tmp_path / "cache")
    assert report.samples == 4
    assert excluded(report) == {"set/4.png": "the encoder returned values that are not finite"}


def test_a24_eight_threads_and_one_caption_encode_once(tmp_path, picture, images, texts):
    for n in range(100):
        picture(f"set/{n}.png", seed=n % 50, caption="the same")  # every image twice
    settings = replace(SMALL, threads=8)
    plan = make_plan(FolderSource(tmp_path / "set"), image_encoder=images, text_encoder=texts, settings=settings)
    encode(plan, tmp_path / "cache")
    cache = open_cache(tmp_path / "cache")
    assert len(cache) == 100 and sorted(texts.items) == ["", "the same"] and images.count == 50
    assert cache.manifest.counts["entries"] == 52


def test_threads_end_with_the_run(plan, tmp_path, picture):
    picture("set/a.png")
    encode(plan(), tmp_path / "cache")
    assert not [t for t in threading.enumerate() if t.name.startswith("streamcache-")]
    shutil.rmtree(tmp_path / "cache")


def test_progress_is_reported_between_batches(plan, tmp_path, picture):
    for n in range(10):
        picture(f"set/{n}.png", seed=n, caption=str(n))
    told = []
    encode(plan(), tmp_path / "cache", progress=told.append)
    pictures = [p for p in told if p.phase == "images"]
    assert [p.done for p in pictures] == sorted(p.done for p in pictures) and pictures[-1].done == 10
    assert all(p.total == 10 for p in pictures) and pictures[-1].bytes > 0 and pictures[-1].seconds_left == 0
    assert pictures[0].done == 0  # before the encoder is loaded, which may take long
    assert pictures[1].rate > 0 and {p.phase for p in told} == {"captions", "images"}


class Timed(CacheWriter):
    """A writer whose flushes take `cost` seconds by its clock, which stands still otherwise."""

    now = cost = 0.0
    flushes = 0

    def flush(self) -> None:
        super().flush()
        self.now += self.cost
        self.flushes += 1

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("cost", "interval"), [(0.001, 0.05), (0.1, 5.0), (0.3, 15.0), (2.0, 30.0)])
def test_entries_are_flushed_as_often_as_that_takes_2_percent_of_the_time(tmp_path, monkeypatch, cost, interval):
    with Timed(tmp_path / "cache") as writer:
        monkeypatch.setattr(pipeline, "time", writer)
        writer.cost, output, numbers = cost, WriteBehind(writer), itertools.count()

        def store() -> int:
            """Store an entry. Returns how often the writer has flushed by then."""
            output._store([(f"key {next(numbers)}", torch.zeros(4), "latent")])
            return writer.flushes

        assert store() == 1  # the first at once: what it costs is not known yet
        for flushes in (1, 2):
            last = writer.now
            writer.now = last + interval * 0.9
            assert store() == flushes
            writer.now = last + interval * 1.01
            output._store([])  # also if no further entry comes
            assert writer.flushes == flushes + 1
        writer.now += 1000
        output._store([])
        assert writer.flushes == 3  # nothing is waiting
