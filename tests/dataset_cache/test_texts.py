"""Captions of a cache get their conditionings: each text once, under its own key, and nothing else changes."""

import shutil
import time
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import (
    CacheError,
    CacheWriter,
    FolderSource,
    SampleFacts,
    Settings,
    encode,
    encode_captions_of,
    export,
    import_cache,
    make_plan,
    open_cache,
    verify,
)
from streamcache.dataset_cache.encode import Recipe
from streamcache.lora_train import BatchStream

from ..support.encoders import SMALL, CountingImages, CountingTexts
from ..support.fixtures import settle
from ..support.samples import same
from .foreign.trainers import draw, image, musubi_latent

CAPTIONS = [("a cat", "a cat on a mat"), ("a dog",), ("a cat",), (), ("a bird", "a dog")]


def write(path: Path, conditionings: dict[int, list] | None = None, captions: list = CAPTIONS) -> Path:
    """A cache as an import leaves it: some samples, or none, have conditionings."""
    with CacheWriter(path, provenance={"imported": {"kind": "a test"}}) as writer:
        writer.describe_set("prior", {"prior": True})
        for i, texts in enumerate(captions):
            writer.put(f"latent {i}", {"samples": draw(1, 4, 8, 8, seed=i)}, "latent")
            keys = {"latent": [f"latent {i}"]}
            for n, value in enumerate((conditionings or {}).get(i, ())):
                writer.put(f"words {i} {n}", value, "conditioning")
                keys.setdefault("conditioning", []).append(f"words {i} {n}")
            writer.sample(
                keys, SampleFacts(texts, f"{i}.png", (640, 480), (1, 2, 64, 64), 2, 0.5, ("", "prior")[i % 2])
            )
    return path


def words(*texts: str) -> list:
    return [CountingTexts().make(text) for text in texts]


def check(path: Path, encoder: CountingTexts, captions: list = CAPTIONS) -> None:
    recipe = Recipe.of_texts(encoder)
    assert list(verify(path)) == []
    with open_cache(path, check=True) as cache:
        for i, texts in enumerate(captions):
            assert cache.keys(i)["conditioning"] == [recipe.conditioning_key(text) for text in texts or ("",)]
            for n, text in enumerate(texts or ("",)):
                assert same(cache.sample(i, {"conditioning": n}).realize().conditioning, encoder.make(text))
        assert same(cache.entry(cache.named["empty caption"]), encoder.make(""))


def test_f9_captions_of_an_imported_cache_are_encoded_once(tmp_path):
    path, encoder = write(tmp_path / "set"), CountingTexts()
    export(path, tmp_path / "before")
    report = encode_captions_of(path, encoder)
    assert sorted(encoder.items) == ["", "a bird", "a cat", "a cat on a mat", "a dog"] and encoder.loads == 1
    assert (report.completed, report.encoded, report.uncaptioned, report.failed) == (5, 5, 1, {})
    check(path, encoder)
    with open_cache(path) as cache, open_cache(tmp_path / "before") as before:
        for name in ("source", "captions", "original_size", "crop", "repeats", "weight", "set"):
            assert [getattr(s, name) for s in cache] == [getattr(s, name) for s in before]
        assert [cache.keys(i)["latent"] for i in range(5)] == [before.keys(i)["latent"] for i in range(5)]
        assert all(same(a.realize().latent, b.realize().latent) for a, b in zip(cache, before))
        assert cache.sets == before.sets and cache.provenance["imported"] == {"kind": "a test"}
        assert len(list(BatchStream(cache, 2))) == 3
    generation = open_cache(path).generation
    encoder.reset()
    again = encode_captions_of(path, encoder)
    assert encoder.loads == 0 and again.completed == 0 and "Unchanged" in "\n".join(again.lines())
    assert open_cache(path).generation == generation


def test_f9_the_keys_are_those_of_encoding_images(tmp_path, picture):
    for i in range(3):
        picture(f"images/{i}.png", size=(64, 64), caption=f"caption {i % 2}", seed=i)
    settle()
    source, images, texts = FolderSource(str(tmp_path / "images")), CountingImages(), CountingTexts()
    encode(make_plan(source, image_encoder=images, settings=SMALL), tmp_path / "set")
    encode_captions_of(tmp_path / "set", texts)
    assert texts.count == 3
    images.reset(), texts.reset()
    encode(make_plan(source, image_encoder=images, text_encoder=texts, settings=SMALL), tmp_path / "set")
    assert images.count == texts.count == 0
    encode(make_plan(source, image_encoder=images, text_encoder=texts, settings=SMALL), tmp_path / "other")
    with open_cache(tmp_path / "set") as cache, open_cache(tmp_path / "other") as other:
        assert [cache.keys(i) for i in range(3)] == [other.keys(i) for i in range(3)] and cache.named == other.named


@pytest.mark.parametrize("way", ["fails", "stopped"])
def test_f9_what_was_encoded_before_an_interruption_is_not_encoded_again(tmp_path, way):
    captions = [(f"caption {i:02}",) for i in range(20)]
    path = write(tmp_path / "set", captions=captions)
    before, encoder = open_cache(path).generation, CountingTexts()
    make, settings = encoder.make, Settings(text_batch_size=2)

    def broken(item: str) -> list:
        if len(encoder.items) >= 10:
            raise KeyboardInterrupt
        return make(item)

    if way == "fails":
        encoder.make = broken
        with pytest.raises(KeyboardInterrupt):
            encode_captions_of(path, encoder, settings=settings)
        encoder.make = make
    else:
        report = encode_captions_of(path, encoder, settings=settings, stop=lambda: encoder.count >= 10)
        assert report.stopped and "Stopped" in next(report.lines())
    assert open_cache(path).generation == before
    done = encoder.count
    assert 8 <= done < 21
    encoder.items.clear()
    report = encode_captions_of(path, encoder, settings=settings)
    assert encoder.count <= 21 - done + 2 and report.completed == 20
    check(path, encoder, captions)


def test_f9_entries_are_durable_while_others_are_encoded(tmp_path):
    """A copy of the folder in the middle of a run is what a kill would leave."""
    captions = [(f"caption {i:02}",) for i in range(20)]
    path, encoder = write(tmp_path / "set", captions=captions), CountingTexts()
    make = encoder.make

    def copying(item: str) -> list:
        if len(encoder.items) == 16 and not (tmp_path / "killed").exists():
            end = time.monotonic() + 60
            while not any(file.stat().st_size for file in path.glob(".build/*/journal")) and time.monotonic() < end:
                time.sleep(0.01)
            shutil.copytree(path, tmp_path / "killed")
        return make(item)

    encoder.make = copying
    encode_captions_of(path, encoder, settings=Settings(text_batch_size=2))
    encoder.make = make
    encoder.items.clear()
    encode_captions_of(tmp_path / "killed", encoder)
    assert 0 < encoder.count < 21
    check(tmp_path / "killed", encoder, captions)


def test_f9_conditionings_that_are_there_stay_and_the_others_follow_their_captions(tmp_path):
    kept = words("of the other trainer", "another", "one of two")
    path, encoder = write(tmp_path / "set", {1: kept[:1], 0: kept[2:]}), CountingTexts()
    report = encode_captions_of(path, encoder)
    assert report.completed == 4 and report.unknown == 2
    with open_cache(path) as cache:
        assert same(cache[1].realize().conditioning, kept[0])
        assert cache.variants("conditioning").tolist() == [2, 1, 1, 1, 2]
        assert same(cache[0].realize().conditioning, kept[2])
        assert same(cache.sample(0, {"conditioning": 1}).realize().conditioning, encoder.make("a cat on a mat"))


def test_f9_another_text_encoder_is_refused_by_its_record_or_by_the_width(tmp_path):
    path = write(tmp_path / "set")
    encode_captions_of(path, CountingTexts("first"))
    with CacheWriter(path, append=True) as writer:
        writer.add({"samples": draw(1, 4, 8, 8, seed=9)}, caption="new", source="new.png")
    before, other = open_cache(path).generation, CountingTexts("second")
    with pytest.raises(CacheError, match=r"set: its conditionings were made by the text encoder first, this one is se"):
        encode_captions_of(path, other)
    assert open_cache(path).generation == before and not other.items
    encode_captions_of(path, CountingTexts("first"))
    wide = write(tmp_path / "wide", {1: [[[torch.zeros(1, 7, 4096), {}]]]})
    before = open_cache(wide).generation
    with pytest.raises(CacheError, match=r"wide: its conditionings are 4096 wide, those of this text encoder 16"):
        encode_captions_of(wide, CountingTexts())
    assert open_cache(wide).generation == before


def test_f9_a_caption_that_fails_leaves_its_sample_as_it_was(tmp_path):
    captions = [("good",), ("good", "poison"), ("better",)]
    path, encoder = write(tmp_path / "set", captions=captions), CountingTexts()
    report = encode_captions_of(path, encoder)
    assert report.completed == 2 and list(report.failed) == ["1.png"] and "tokenized" in report.failed["1.png"]
    with open_cache(path) as cache:
        assert len(cache) == 3 and cache.variants("conditioning").tolist() == [1, 0, 1]
        assert cache.captions(1) == ["good", "poison"]


def test_f9_an_import_is_trained_on_after_its_captions_are_encoded(tmp_path):
    for name in ("one", "two"):
        image(tmp_path / "images", f"{name}.png", caption=f"a {name}")
        musubi_latent(tmp_path / "cache", name, ("zi", "z_image"), {"latents_1x8x8_float32": draw(16, 1, 8, 8)})
    assert import_cache(tmp_path / "cache", tmp_path / "set", tmp_path / "images").without
    encoder = CountingTexts()
    encode_captions_of(tmp_path / "set", encoder)
    with open_cache(tmp_path / "set") as cache:
        assert sum(len(batch.indices) for batch in BatchStream(cache)) == 2
    import_cache(tmp_path / "cache", tmp_path / "set", tmp_path / "images")  # once more: the list is a new one
    encoder.reset()
    assert encode_captions_of(tmp_path / "set", encoder).completed == 2 and not encoder.items
