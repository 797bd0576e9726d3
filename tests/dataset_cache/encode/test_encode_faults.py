"""Encoding when things go wrong: interrupts, bad files, bad captions, lost memory. Rows A13–A15, A17, A20 and A24."""

import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from PIL import Image

from streamcache.dataset_cache import CacheError, CacheWriter, FolderSource, Settings, Transform, make_plan, open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.sources.masks import Masks

from ...support.encoders import CountingImages, CountingTexts
from ...support.fixtures import settle
from ...support.mutations import cut, delete, flip, insert, overwrite, repeat, swap


def excluded(report) -> dict[str, str]:
    return {e.source: e.reason for e in report.excluded}


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
import os, signal, sys, time
sys.path.insert(0, {root!r})
import tests.conftest
from tests.support.encoders import CountingImages, CountingTexts
from streamcache.dataset_cache import CacheWriter
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.transforms import Transform
from streamcache.dataset_cache.write.blob_store import BlobStore
stored = durable = 0
def report(what, count):
    os.write(1, (what + " " + str(count) + "\\n").encode())  # in one piece: two threads report
real_put, real_flush = CacheWriter.put, BlobStore.flush
def put(self, key, structure, field):
    global stored
    real_put(self, key, structure, field)
    stored += field == "latent"
def flush(self):
    global durable
    before = stored
    real_flush(self)
    durable = before
    report("durable", durable)
CacheWriter.put, BlobStore.flush = put, flush
class Killed(CountingImages):
    def encode(self, items):
        if self.count >= {images}:
            deadline = time.monotonic() + 120
            while {wait} and durable < self.count and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        made = super().encode(items)
        report("made", self.count)
        return made
settings = Settings(Transform((64,), step=8), batch_size=2, thumbnail=0)
plan = make_plan(FolderSource({source!r}), image_encoder=Killed(), text_encoder=CountingTexts(), settings=settings)
encode(plan, {target!r})
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a13_a_kill_loses_only_the_tail_and_never_the_published_generation(plan, tmp_path, picture, images):
    """Children are killed after a number of images, at once or when all of them are durable. What they reported as
    durable is never encoded again."""
    for n in range(60):
        picture(f"set/{n:03}.png", seed=n, caption=str(n))
    encode(plan(), tmp_path / "cache")
    first = open_cache(tmp_path / "cache").generation
    for n in range(60):
        picture(f"set/{n:03}.png", seed=1000 + n, caption=str(n))
    places = {"root": str(Path(__file__).resolve().parents[3])}
    places |= {"source": str(tmp_path / "set"), "target": str(tmp_path / "cache")}
    durable = 0
    for count, wait in ((4, True), (12, False), (8, True), (10, False), (6, True)):
        code = CHILD.format(images=count, wait=wait, **places)
        child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
        assert child.returncode == -signal.SIGKILL
        reported = dict(line.split() for line in child.stdout.splitlines())
        assert int(reported["made"]) == count
        assert not wait or int(reported["durable"]) == count, "entries stay volatile while the encoder works"
        durable += int(reported.get("durable", 0))
        assert open_cache(tmp_path / "cache").generation == first
    images.reset()
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 60 and 60 - 40 <= images.count <= 60 - durable


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
    assert "its mask b-masklabel.png is 64×64" in excluded(report)["set/b.png"]


def test_names_that_differ_only_in_extension_are_both_used_and_noted(plan, tmp_path, picture):
    picture("set/a.png", caption="shared")
    picture("set/a.jpg", seed=4)
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 2 and "has the same name as a.jpg" in report.notes[0].text
    cache = open_cache(tmp_path / "cache")
    assert [cache.captions(i) for i in range(2)] == [["shared"], ["shared"]]


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


def test_a_set_with_only_bad_files_is_refused(plan, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.png").write_bytes(b"")
    with pytest.raises(CacheError, match=r"1 file skipped.*set/a\.png: the file is empty"):
        encode(plan(), tmp_path / "cache")
    assert not (tmp_path / "cache" / "dataset.json").exists()


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


def test_a_run_survives_any_damage_to_its_memory_of_the_sources(tmp_path, picture, state_dir):
    """450 damaged copies of a real memory: none stops a run, changes a caption, or makes the report lie."""
    for n in range(12):
        path = picture(f"set/{n:02}.png", size=(16, 16), seed=n)
        path.with_suffix(".txt").write_text(f"caption {n} with the words that a memory keeps")
    settle()
    encoders = {"image_encoder": CountingImages(), "text_encoder": CountingTexts()}
    settings = Settings(Transform((16,), step=8), thumbnail=0)

    def run():
        return encode(make_plan(FolderSource(tmp_path / "set"), settings=settings, **encoders), tmp_path / "cache")

    first = run()
    assert run().unchanged
    (memory,) = (state_dir / "datasets").iterdir()
    intact = memory.read_bytes()
    captions = sorted(open_cache(tmp_path / "cache").captions(n)[0] for n in range(12))
    encoders["image_encoder"].reset()
    for seed in range(450):
        draw = random.Random(seed)
        data = bytearray(intact)
        if seed % 3:  # text and keys of the tables, where a damaged page still parses
            at = draw.choice([m.start() for m in re.finditer(rb"caption|encode|set/|CREATE|\.png|content", intact)])
            for _ in range(draw.choice((1, 2, 8))):
                data[min(len(data) - 1, max(0, at + draw.randrange(-40, 40)))] = draw.randrange(256)
        else:
            draw.choice((flip, overwrite, cut, insert, delete, swap, repeat))(data, draw)
        memory.write_bytes(data)
        report = run()
        assert report.generation == first.generation and report.samples == 12 and not report.made, seed
        assert report.buckets == first.buckets and not report.excluded, seed
    assert encoders["image_encoder"].count == 0
    assert sorted(open_cache(tmp_path / "cache").captions(n)[0] for n in range(12)) == captions
