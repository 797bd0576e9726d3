"""Encoding when things go wrong: interrupts, bad files, bad captions, lost memory. Rows A13–A15, A17, A20 and A24."""

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.encoders import Failure, Phase
from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.masks import Masks
from streamcache.dataset_cache.sources.transforms import Transform

from ...support.encoders import CountingImages, CountingTexts
from ...support.fixtures import settle

SMALL = Settings(Transform((64,), step=8), batch_size=4, text_batch_size=8, thumbnail=0)


@pytest.fixture
def plan(tmp_path, images, texts):
    def make(folder="set", settings=SMALL, **options):
        source = FolderSource(tmp_path / folder, **options)
        return make_plan(source, image_encoder=images, text_encoder=texts, settings=settings)

    return make


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


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_propagates_and_encoded_entries_are_durable(interrupt, plan, tmp_path, picture, images):
    for n in range(20):
        picture(f"set/{n}.png", seed=n)
    real = images.encode

    def encode_some(items):
        if images.count >= 8:
            raise interrupt
        return real(items)

    images.encode = encode_some
    with pytest.raises(interrupt):
        encode(plan(), tmp_path / "cache")
    assert images.leases == 0 and not [t for t in threading.enumerate() if t.name.startswith("streamcache-")]
    images.encode = real
    images.reset()
    encode(plan(), tmp_path / "cache")
    assert images.count == 12


CHILD = """
import sys, time
sys.path.insert(0, {root!r})
import tests.conftest
from tests.support.encoders import CountingImages, CountingTexts
from streamcache.dataset_cache import CacheWriter
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.transforms import Transform
CacheWriter.__init__.__defaults__ = (None, False, 20_000, 0.05)
class Slow(CountingImages):
    def encode(self, items):
        made = super().encode(items)
        time.sleep(0.04)
        print(self.count, flush=True)
        return made
settings = Settings(Transform((64,), step=8), batch_size=2, thumbnail=0)
plan = make_plan(FolderSource({source!r}), image_encoder=Slow(), text_encoder=CountingTexts(), settings=settings)
print("ready", flush=True)
encode(plan, {target!r})
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a13_a_kill_loses_only_the_tail_and_never_the_published_generation(plan, tmp_path, picture, images):
    for n in range(60):
        picture(f"set/{n:03}.png", seed=n, caption=str(n))
    encode(plan(), tmp_path / "cache")
    first = open_cache(tmp_path / "cache").generation
    for n in range(60):
        picture(f"set/{n:03}.png", seed=1000 + n, caption=str(n))
    code = CHILD.format(
        root=str(Path(__file__).resolve().parents[3]), source=str(tmp_path / "set"), target=str(tmp_path / "cache")
    )
    draw = random.Random(0)
    made = 0
    for _ in range(5):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        time.sleep(draw.uniform(0.05, 0.25))
        child.send_signal(signal.SIGKILL)
        lines = child.stdout.read().split()
        child.wait()
        made += int(lines[-1]) if lines else 0
        assert open_cache(tmp_path / "cache").generation == first
    images.reset()
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 60 and images.count < 60
    assert made + images.count <= 60 + 5 * 14  # each kill loses no more than what came after its last interval


BAD = {
    "empty.png": ("the file is empty", lambda good: b""),
    "text.png": ("not an image", lambda good: b"just text" * 50),
    "truncated.png": ("truncated|cannot be decoded", lambda good: good[: len(good) * 2 // 3]),
    "header.jpg": ("not an image|cannot be decoded", lambda good: b"\xff\xd8\xff" + b"\0" * 50),
}


@pytest.mark.parametrize("name", BAD)
def test_a15_one_bad_file_never_aborts_and_is_never_trained_on(name, plan, tmp_path, picture, images):
    reason, spoil = BAD[name]
    for n in range(5):
        good = picture(f"set/{n}.png", size=(80, 72), seed=n).read_bytes()
    (tmp_path / "set" / name).write_bytes(spoil(good))
    settle()
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 5 and list(excluded(report)) == [f"set/{name}"]
    import re

    assert re.search(reason, excluded(report)[f"set/{name}"])
    cache = open_cache(tmp_path / "cache")
    assert len(cache) == 5 and f"set/{name}" not in [s.source for s in cache]
    assert cache.provenance["encode"]["excluded"] == {
        "count": 1,
        "files": [{"source": f"set/{name}", "reason": excluded(report)[f"set/{name}"]}],
    }
    images.reset()
    again = encode(plan(), tmp_path / "cache")
    assert again.unchanged and excluded(again) == excluded(report) and images.loads == 0


def test_an_enormous_image_is_excluded_without_being_decoded(plan, tmp_path, picture, monkeypatch):
    picture("set/a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    Image.new("1", (20_000, 10_000)).save(tmp_path / "set" / "bomb.png")
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 1 and "scale it down" in excluded(report)["set/bomb.png"]


def test_an_image_with_the_wrong_extension_is_used_and_noted(plan, tmp_path, picture):
    picture("set/a.png").rename(tmp_path / "set" / "a.jpg")
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 1 and [n.text for n in report.notes] == ["is in fact a PNG file"]


def test_bad_captions_exclude_their_image_and_odd_ones_are_noted(plan, tmp_path, picture):
    for name in ("good", "broken", "bom", "long", "json"):
        picture(f"set/{name}.png", caption="fine")
    folder = tmp_path / "set"
    (folder / "broken.txt").write_bytes(b"caf\xe9")
    (folder / "bom.txt").write_bytes(b"\xef\xbb\xbffine")
    (folder / "long.txt").write_text("x" * 100_000)
    (folder / "json.txt").unlink()
    (folder / "json.json").write_text("{")
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 3
    assert "not UTF-8 at byte 3" in excluded(report)["set/broken.png"]
    assert "its caption json.json: invalid JSON" in excluded(report)["set/json.png"]
    assert [(n.source, n.text) for n in report.notes] == [
        ("set/long.png", "its caption long.txt has 100,000 characters")
    ]
    cache = open_cache(tmp_path / "cache")
    assert {cache.source(i): len(cache.captions(i)[0]) for i in range(3)} == {
        "set/bom.png": 4,
        "set/good.png": 4,
        "set/long.png": 100_000,
    }


def test_a_mask_of_another_aspect_ratio_excludes_its_image(plan, tmp_path, picture):
    for name in ("a", "b", "c"):
        picture(f"set/{name}.png", size=(64, 48))
    picture("set/a-masklabel.png", size=(128, 96))
    picture("set/b-masklabel.png", size=(64, 64))
    (tmp_path / "set" / "c-masklabel.png").write_bytes(b"no mask")
    report = encode(plan(masks=Masks("file")), tmp_path / "cache")
    assert report.samples == 1 and set(excluded(report)) == {"set/b.png", "set/c.png"}
    assert "its mask b-masklabel.png is 64 × 64" in excluded(report)["set/b.png"]


def test_names_that_differ_only_in_extension_are_both_used_and_noted(plan, tmp_path, picture):
    picture("set/a.png", caption="shared")
    picture("set/a.jpg", seed=4)
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 2 and "has the same name as a.jpg" in report.notes[0].text
    cache = open_cache(tmp_path / "cache")
    assert [cache.captions(i) for i in range(2)] == [["shared"], ["shared"]]


def test_a_file_that_vanishes_during_the_run_is_excluded(plan, tmp_path, picture, images):
    for n in range(4):
        picture(f"set/{n}.png", seed=n)
    made = plan()
    len(made)
    (tmp_path / "set" / "2.png").unlink()
    report = encode(made, tmp_path / "cache")
    assert report.samples == 3 and "cannot be read" in excluded(report)["set/2.png"]


def test_a_file_that_changes_during_the_run_is_stored_as_it_was_decoded(plan, tmp_path, picture, images):
    for n in range(4):
        picture(f"set/{n}.png", seed=n)
    encode(plan(), tmp_path / "cache")
    settle()
    picture("set/3.png", seed=50)
    made = plan()
    made.report(tmp_path / "cache")  # scanned and hashed
    picture("set/3.png", seed=60, size=(96, 64))
    settle()
    report = encode(made, tmp_path / "cache")
    assert report.samples == 4
    sample = open_cache(tmp_path / "cache")[3].realize()
    fresh = plan()[3].realize()
    assert torch.equal(sample.latent["samples"], fresh.latent["samples"]) and sample.original_size == (96, 64)
    images.reset()
    assert encode(plan(), tmp_path / "cache").samples == 4 and images.count == 0


def test_a_mask_that_changes_during_the_run_excludes_its_image_this_time(plan, tmp_path, picture):
    for n in range(2):
        picture(f"set/{n}.png", seed=n)
        picture(f"set/{n}-masklabel.png", seed=10 + n)
    settle()
    made = plan(masks=Masks("file"))
    made.report(tmp_path / "cache")
    picture("set/1-masklabel.png", seed=99)
    report = encode(made, tmp_path / "cache")
    assert report.samples == 1 and "changed during the run" in excluded(report)["set/1.png"]
    assert encode(plan(masks=Masks("file")), tmp_path / "cache").samples == 2


def test_a17_a_missing_source_is_refused_and_nothing_changes(plan, tmp_path, picture):
    for n in range(3):
        picture(f"set/{n}.png", seed=n)
    first = encode(plan(), tmp_path / "cache")
    (tmp_path / "set").rename(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="is missing; mount it"):
        encode(plan(), tmp_path / "cache")
    (tmp_path / "set").mkdir()  # the mount point of a disk that is not mounted
    with pytest.raises(CacheError, match="contains no images; is the disk mounted"):
        encode(plan(), tmp_path / "cache")
    cache = open_cache(tmp_path / "cache")
    assert cache.generation == first.generation and cache.manifest.counts["unused"] == 0


def test_encoding_into_a_source_is_refused(plan, tmp_path, picture):
    picture("set/a.png")
    with pytest.raises(CacheError, match="encode to another folder"):
        encode(plan(), tmp_path / "set")
    encode(plan(), tmp_path / "set" / "cache")
    settle()
    encode(plan(), tmp_path / "set" / "cache")
    assert encode(plan(), tmp_path / "set" / "cache").unchanged


def test_a_set_with_only_bad_files_is_refused(plan, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.png").write_bytes(b"")
    with pytest.raises(CacheError, match=r"1 file excluded.*set/a\.png: the file is empty"):
        encode(plan(), tmp_path / "cache")
    assert not (tmp_path / "cache" / "dataset.json").exists()


def test_a20_one_poisonous_caption_fails_alone(plan, tmp_path, picture, texts):
    for n in range(10):
        picture(f"set/{n}.png", seed=n, caption="poison" if n == 3 else f"caption {n}")
    (tmp_path / "set" / "5.txt").write_text("caption 5\npoison here too")
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 9
    assert excluded(report) == {"set/3.png": "its caption: the encoder failed: this caption cannot be tokenized"}
    cache = open_cache(tmp_path / "cache")
    assert {s.source: s.captions for s in cache}["set/5.png"] == ("caption 5",)


def test_a20_captions_are_encoded_in_batches(plan, tmp_path, picture, texts):
    for n in range(20):
        picture(f"set/{n}.png", seed=n, caption=f"caption {n:02}")
    encode(plan(), tmp_path / "cache")
    assert texts.batches == [8, 8, 5]


def test_an_encoder_that_always_fails_stops_the_run(plan, tmp_path, picture, images):
    for n in range(12):
        picture(f"set/{n}.png", seed=n)

    def broken(item):
        raise RuntimeError("wrong weights")

    images.make = broken
    with pytest.raises(CacheError, match="failed on each of the first 8 items: wrong weights"):
        encode(plan(), tmp_path / "cache")


def test_a_latent_that_is_not_finite_is_not_trained_on(plan, tmp_path, picture, images):
    for n in range(5):
        picture(f"set/{n}.png", seed=n)
    real = images.make
    images.make = lambda item: {"samples": real(item)["samples"] * (float("nan") if len(images.items) == 4 else 1)}
    report = encode(plan(settings=Settings(SMALL.transform, batch_size=1, thumbnail=0)), tmp_path / "cache")
    assert report.samples == 4
    assert excluded(report) == {"set/4.png": "the encoder returned values that are not finite"}


OUT_OF_MEMORY = [
    MemoryError(),
    getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)("CUDA out of memory"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_out_of_memory_halves_the_batch_and_continues(error, plan, tmp_path, picture, images):
    for n in range(20):
        picture(f"set/{n}.png", seed=n)
    real = images.encode

    def greedy(items):
        if len(items) > 2:
            raise error
        return real(items)

    images.encode = greedy
    report = encode(plan(settings=Settings(SMALL.transform, batch_size=8, thumbnail=0)), tmp_path / "cache")
    assert report.samples == 20 and images.batches == [2] * 10


def test_out_of_memory_for_a_single_item_is_raised(images):
    def hungry(items):
        raise MemoryError("no room")

    images.encode = hungry
    with Phase(images, 4) as phase, pytest.raises(MemoryError, match="no room"):
        list(phase.encode([torch.zeros(8, 8, 3)] * 4))


def test_a_wrong_number_of_results_is_an_error(texts):
    texts.encode = lambda items: []
    with Phase(texts, 4) as phase, pytest.raises(CacheError, match="0 results for 2 items"):
        list(phase.encode(["a", "b"]))


def test_failures_keep_the_positions_of_their_items(texts):
    with Phase(texts, 3) as phase:
        made = [value for batch in phase.encode(["a", "poison", "c", "d"]) for value in batch]
    assert [isinstance(value, Failure) for value in made] == [False, True, False, False]


def test_a24_eight_threads_and_one_caption_encode_once(tmp_path, picture, images, texts):
    for n in range(100):
        picture(f"set/{n}.png", seed=n % 50, caption="the same")  # every image twice
    settings = replace(SMALL, threads=8)
    plan = make_plan(FolderSource(tmp_path / "set"), image_encoder=images, text_encoder=texts, settings=settings)
    encode(plan, tmp_path / "cache")
    cache = open_cache(tmp_path / "cache")
    assert len(cache) == 100 and sorted(texts.items) == ["", "the same"] and images.count == 50
    assert cache.manifest.counts["entries"] == 52


def test_a_full_disk_is_an_error_and_the_next_run_continues(plan, tmp_path, picture, images, monkeypatch):
    for n in range(20):
        picture(f"set/{n}.png", seed=n)
    real, stored = CacheWriter.put, []

    def put(self, key, structure, field):
        stored.append(key)
        if len(stored) > 9:
            raise CacheError("No space left on device")
        real(self, key, structure, field)

    with monkeypatch.context() as patch:
        patch.setattr(CacheWriter, "put", put)
        with pytest.raises(CacheError, match="No space left"):
            encode(plan(), tmp_path / "cache")
    images.reset()
    assert encode(plan(), tmp_path / "cache").samples == 20 and images.count == 20 - 8


def test_a_second_encoder_of_the_same_cache_is_refused(plan, tmp_path, picture):
    picture("set/a.png")
    with (
        CacheWriter(tmp_path / "cache") as writer,
        pytest.raises(CacheError),
    ):
        try:
            encode(plan(), tmp_path / "cache")
        finally:
            writer.add(latent={"samples": torch.zeros(1, 4, 2, 2)})


def test_threads_end_with_the_run(plan, tmp_path, picture):
    picture("set/a.png")
    encode(plan(), tmp_path / "cache")
    assert not [t for t in threading.enumerate() if t.name.startswith("streamcache-")]
    shutil.rmtree(tmp_path / "cache")


def test_counting_encoders_fulfil_the_protocol():
    from streamcache.dataset_cache.encode.encoders import Encoder, ImageEncoder

    assert isinstance(CountingTexts(), Encoder) and isinstance(CountingImages(), ImageEncoder)
