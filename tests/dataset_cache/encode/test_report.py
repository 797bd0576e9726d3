"""Reports: what a run will encode or has encoded, and why."""

from dataclasses import replace

import torch

from streamcache.dataset_cache import open_cache, overview
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.masks import Masks
from streamcache.dataset_cache.sources.transforms import Transform

from ...support.encoders import SMALL, CountingImages, CountingTexts
from ...support.fixtures import settle, touch


def test_a_report_is_complete_before_anything_is_encoded(plan, tmp_path, picture, three, images, texts):
    (tmp_path / "set" / "bad.png").write_bytes(b"")
    picture("set/wide.png", size=(128, 64), caption="caption 0")
    report = plan().report(tmp_path / "cache")
    assert report.samples == 4 and report.buckets == {"72×56": 3, "88×40": 1}
    assert report.encoded == {"latent": 4, "conditioning": 4} and not report.reused
    assert [(e.source, e.reason) for e in report.excluded] == [("set/bad.png", "the file is empty")]
    assert (images.loads, texts.loads) == (0, 0) and not (tmp_path / "cache").exists()
    text = "\n".join(report.lines())
    assert "4 samples in 2 buckets" in text and "set/bad.png: the file is empty" in text
    assert report.to_json()["encoded"] == report.encoded


def test_a_report_counts_reused_entries_and_estimates_the_size(plan, tmp_path, picture, three, images, texts):
    encode(plan(), tmp_path / "cache")
    picture("set/new.png", size=(64, 48), seed=9, caption="caption 1")
    texts.bytes_per_caption = 100
    report = plan().report(tmp_path / "cache")
    assert report.encoded == {"latent": 1} and report.reused == {"latent": 3, "conditioning": 4}
    assert report.bytes_expected == 9 * 7 * 4 * 4  # pixels × channels × float32, known from the cache
    assert "about 1.01 KB to write" in "\n".join(report.lines())
    assert plan().report().bytes_expected is None


def test_a_report_mentions_no_size_if_nothing_is_to_be_encoded(plan, tmp_path, three):
    encode(plan(), tmp_path / "cache")
    report = plan().report(tmp_path / "cache")
    assert report.bytes_expected == 0 and "to write" not in "\n".join(report.lines())


def test_a_report_counts_entries_of_an_unfinished_build_as_reused(plan, tmp_path, picture, images):
    for n in range(12):
        picture(f"set/{n}.png", seed=n)
    encode(plan(), tmp_path / "cache", stop=lambda: images.count >= 8)
    report = plan().report(tmp_path / "cache")
    assert report.encoded == {"latent": 4} and report.reused["latent"] == 8


def reasons(report) -> set[tuple[str, str, str]]:
    return {(entry.source, entry.field, entry.why) for entry in report.made}


def test_a25_every_encoded_entry_has_its_reason(plan, tmp_path, picture, three):
    path = tmp_path / "cache"
    first = encode(plan(), path)
    assert {why for _, _, why in reasons(first)} == {"new"} and len(first.made) == 7
    settle()

    picture("set/1.png", size=(64, 48), seed=50)
    (tmp_path / "set" / "2.txt").write_text("edited")
    picture("set/3.png", size=(64, 48), seed=51, caption="caption 0")
    changed = {
        ("set/1.png", "latent", "content changed"),
        ("set/2.png", "conditioning", "content changed"),
        ("set/3.png", "latent", "new"),
    }
    assert reasons(plan().report(path)) == changed  # as forecast, so done
    assert reasons(encode(plan(), path)) == changed

    bigger = Settings(Transform((80,), step=8), thumbnail=0)
    report = encode(plan(settings=bigger), path)
    assert report.reasons == {"latent": {"transform changed": 4}}

    report = encode(plan(images=CountingImages("other"), texts=CountingTexts("other")), path)
    assert report.reasons["latent"] == {"encoder changed": 4}
    assert report.reasons["conditioning"] == {"encoder changed": 4}  # three captions and the empty one

    report = encode(plan(masks=Masks("auto")), path)
    assert report.reasons == {"mask": {"missing field": 1}}

    settle()
    touch(tmp_path / "set" / "0.png")
    assert encode(plan(masks=Masks("auto")), path).made == []


def test_a25_damaged_entries_are_found_and_encoded_again(plan, tmp_path, three, images, texts):
    path = tmp_path / "cache"
    encode(plan(), path)
    before = open_cache(path)[1].realize().latent["samples"]
    _damage(path, before)
    images.reset()
    texts.reset()
    report = encode(plan(settings=Settings(SMALL.transform, thumbnail=0, check=True)), path)
    assert reasons(report) == {("set/1.png", "latent", "damaged")} and report.samples == 3
    assert images.count == 1 and texts.count == 0
    assert torch.equal(open_cache(path, check=True)[1].realize().latent["samples"], before)
    assert encode(plan(), path).made == []


def _damage(path, tensor: torch.Tensor) -> None:
    """Flip a bit where a tensor is stored."""
    needle = tensor.numpy().tobytes()
    (shard,) = [file for file in (path / "shards").iterdir() if needle in file.read_bytes()]
    data = bytearray(shard.read_bytes())
    data[data.index(needle)] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)


def test_captions_that_samples_share_do_not_count_as_reused(tmp_path, picture, images, texts):
    """A first build reuses nothing, in the report and while it runs."""
    for n in range(9):
        picture(f"set/{n}.png", size=(16, 16), seed=n, caption=f"caption {n % 2}")
    settings = Settings(Transform((16,), step=8), thumbnail=0)
    seen = []
    plan = make_plan(FolderSource(tmp_path / "set"), image_encoder=images, text_encoder=texts, settings=settings)
    assert not plan.report(tmp_path / "cache").reused
    report = encode(plan, tmp_path / "cache", progress=seen.append)
    assert report.encoded == {"latent": 9, "conditioning": 3} and not any(report.reused.values()) and report.hits == 0
    assert {now.hits for now in seen} == {0}
    picture("set/0.png", size=(16, 16), seed=100)
    seen.clear()
    plan = make_plan(FolderSource(tmp_path / "set"), image_encoder=images, text_encoder=texts, settings=settings)
    report = encode(plan, tmp_path / "cache", progress=seen.append)
    assert report.encoded == {"latent": 1} and report.reused == {"latent": 8, "conditioning": 3}
    assert {(now.phase, now.hits) for now in seen} == {("images", 8)}


class PaddedTexts(CountingTexts):
    """Pads every caption to 64 tokens with zeros."""

    def make(self, item: str) -> list:
        ((tokens, facts),) = super().make(item)
        return [[torch.cat([tokens, torch.zeros(1, 57, 16)], 1), facts]]


def test_f10_a_report_says_what_trimming_saved_and_the_setting_switches_it_off(run, tmp_path, three):
    texts, whole = PaddedTexts(), 4 * (64 * 16 + 16) * 4  # three captions and the empty one
    report = run("set", texts=texts)
    assert report.text_bytes == whole and report.trimmed_bytes == 0, "3.6 KB are less than a page each"
    wide = PaddedTexts("wide")
    make, wide.make = wide.make, lambda item: [[torch.cat([make(item)[0][0]] * 2, 2), make(item)[0][1]]]
    report = run("set", texts=wide, to="trimmed")
    saved, whole = 4 * (57 * 32 * 4 - 4), 4 * (64 * 32 + 16) * 4
    assert (report.trimmed_bytes, report.text_bytes) == (saved, whole)
    assert "  padding of captions: 29.2 KB of 33 KB not stored (88%)" in list(report.lines())
    facts = overview(tmp_path / "trimmed")
    assert (facts.bytes_trimmed, facts.bytes_untrimmed) == (saved, whole)

    again = run("set", texts=wide, to="trimmed", settings=replace(SMALL, trim_padding=False))
    assert again.unchanged and not wide.count and open_cache(tmp_path / "trimmed").manifest.requires == ("padding",)
    off = run("set", texts=wide, to="whole", settings=replace(SMALL, trim_padding=False))
    assert off.trimmed_bytes == 0 and open_cache(tmp_path / "whole").manifest.requires == ()
    assert not any("padding of captions" in line for line in off.lines())
    assert open_cache(tmp_path / "whole").keys(0) == open_cache(tmp_path / "trimmed").keys(0)
