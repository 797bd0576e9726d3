"""Encoding: only what is new, nothing twice, nothing stale. Rows A1–A6, A8, A9, A11, A18, A19, A21, A23, D3 and D7."""

import os
import shutil

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.captions import Captions
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.masks import Masks
from streamcache.dataset_cache.sources.transforms import Transform

from ...support.encoders import SMALL
from ...support.file_calls import file_calls
from ...support.fixtures import settle, touch


def latents(cache) -> dict[str, torch.Tensor]:
    return {s.source: s.realize().latent["samples"] for s in cache}


def test_a1_of_1000_files_only_what_changed_is_encoded_again(run, tmp_path, picture, images):
    for n in range(1000):
        picture(f"set/{n:04}.png", size=(16, 16), seed=n)
    small = Settings(Transform((16,), step=8), thumbnail=0)
    run("set", settings=small)
    assert images.count == 1000
    settle()

    picture("set/0500.png", size=(16, 16), seed=5000)
    run("set", settings=small)
    assert images.count == 1

    for file in (tmp_path / "set").iterdir():
        touch(file)
    settle()
    report = run("set", settings=small)
    assert images.count == 0 and report.counts.hashed == 1000 and report.unchanged

    picture("set/new.png", size=(16, 16), seed=7000)
    run("set", settings=small)
    assert images.count == 1

    path = tmp_path / "set" / "0007.png"
    status = path.stat()
    data = bytearray(path.read_bytes())
    twin = picture("other.png", size=(16, 16), seed=9000).read_bytes()
    assert len(twin) == len(data) and twin != data
    settle()
    path.write_bytes(twin)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    run("set", settings=small)
    assert images.count == 1


def test_a2_a_moved_folder_encodes_nothing_and_equal_files_encode_once(run, tmp_path, picture, images):
    for n in range(5):
        picture(f"set/{n}.png", seed=n)
    (tmp_path / "set" / "copy").mkdir()
    shutil.copy(tmp_path / "set" / "3.png", tmp_path / "set" / "copy" / "x.png")
    report = run("set")
    assert images.count == 5 and report.samples == 6 and report.reused["latent"] == 0

    (tmp_path / "set").rename(tmp_path / "moved")
    report = run("moved")
    assert images.count == 0 and images.loads == 0 and report.samples == 6
    (tmp_path / "moved" / "0.png").rename(tmp_path / "moved" / "zero.png")
    assert run("moved").samples == 6 and images.count == 0


def test_a3_ten_thousand_images_with_one_caption_encode_once(run, tmp_path, picture, texts):
    data = picture("one.png", size=(8, 8)).read_bytes()
    (tmp_path / "set").mkdir()
    for n in range(10_000):
        (tmp_path / "set" / f"{n}.png").write_bytes(data)
    tiny = Settings(Transform((8,), step=8), thumbnail=0)
    report = run("set", settings=tiny, prompt="a cat")
    assert sorted(texts.items) == ["", "a cat"]  # the empty caption is always there, for caption dropout
    assert report.samples == 10_000
    assert open_cache(tmp_path / "cache").manifest.counts["entries"] == 3


def test_a3_edit_reorder_and_append_lines(run, tmp_path, picture, texts):
    lines = [f"line {n}" for n in range(6)]
    for n in range(3):
        picture(f"set/{n}.png", seed=n, caption="\n".join(lines))
    run("set")
    assert sorted(texts.items) == ["", *lines]

    caption = tmp_path / "set" / "0.txt"
    settle()
    caption.write_text("\n".join([*lines[:3], "edited", *lines[4:]]))
    run("set")
    assert texts.items == ["edited"]

    settle()
    caption.write_text("\n".join(reversed(lines)))
    report = run("set")
    assert texts.count == 0 and not report.unchanged
    assert open_cache(tmp_path / "cache").captions(0) == lines[::-1]

    settle()
    for n in range(3):
        with open(tmp_path / "set" / f"{n}.txt", "a") as file:
            file.write("\nthe same for all")
    run("set")
    assert texts.items == ["the same for all"]


def test_a4_resolutions_coexist(run, picture, images, tmp_path):
    for n in range(6):
        picture(f"set/{n}.png", size=(96, 96), seed=n)
    low, high = (Settings(Transform((side,), step=8), thumbnail=0) for side in (64, 96))
    run("set", settings=low)
    first = latents(open_cache(tmp_path / "cache"))
    run("set", settings=high)
    assert images.count == 6
    report = run("set", settings=low)
    assert images.count == 0 and images.loads == 0 and not report.unchanged
    assert all(torch.equal(value, first[name]) for name, value in latents(open_cache(tmp_path / "cache")).items())


def test_several_resolutions_in_one_run_give_a_sample_each(run, picture, tmp_path):
    picture("set/a.png", size=(96, 96))
    report = run("set", settings=Settings(Transform((64, 96), step=8), thumbnail=0))
    assert report.samples == 2 and report.buckets == {"64×64": 1, "96×96": 1}
    assert sorted(s.latent["samples"].shape[-1] for s in open_cache(tmp_path / "cache")) == [8, 12]


def test_a5_a_changed_bucket_setting_decodes_only_images_with_missing_entries(run, picture, images):
    for n in range(4):
        picture(f"set/square{n}.png", size=(64, 64), seed=n)
        picture(f"set/wide{n}.png", size=(192, 64), seed=10 + n)
    settle()
    report = run("set", settings=Settings(Transform((64,), step=8, max_aspect=2), thumbnail=0))
    assert report.counts.decoded == 8
    report = run("set", settings=Settings(Transform((64,), step=8, max_aspect=3), thumbnail=0))
    assert (images.count, report.counts.decoded, report.counts.opened) == (4, 4, 0)
    report = run("set", settings=Settings(Transform((64,), step=8, max_aspect=2), thumbnail=0))
    assert (images.count, report.counts.decoded) == (0, 0)


def test_a6_one_file_in_two_sets_has_one_shape_in_each(run, picture, tmp_path):
    for n in range(5):
        picture(f"set/{n}.png", size=(96, 80), seed=n)
    sources = [
        FolderSource(tmp_path / "set", set="plain", transform=Transform((64,), step=8)),
        FolderSource(tmp_path / "set", set="cut", transform=Transform((64,), step=8, max_aspect=1, crop="random")),
    ]
    run(*sources)
    cache = open_cache(tmp_path / "cache")
    assert len(cache) == 10 and set(cache.sets) == {"plain", "cut"}
    shapes = [tuple(sample.latent["samples"].shape) for sample in cache]
    draw = np.random.default_rng(0)
    seen: dict[int, torch.Tensor] = {}
    for _ in range(10):
        for bucket, rows in cache.buckets().items():
            order = draw.permutation(rows)
            for start in range(0, len(order), 3):
                batch = cache.read_batch(order[start : start + 3].tolist())
                assert tuple(batch.latents.shape[1:]) == bucket.shape
                for row, i in enumerate(batch.indices):
                    assert (1, *batch.latents[row].shape) == shapes[i]
                    assert torch.equal(seen.setdefault(i, batch.latents[row].clone()), batch.latents[row])
    by_set = {cache[i].set: shapes[i] for i in range(10)}
    assert by_set["plain"] != by_set["cut"]


def test_a8_sidecars_are_watched(run, tmp_path, picture, images, texts):
    for n in range(4):
        picture(f"set/{n}.png", seed=n, caption=f"caption {n}")
        picture(f"set/{n}-masklabel.png", seed=20 + n)
    options = {"masks": Masks("file")}
    run("set", **options)
    folder = tmp_path / "set"
    settle()

    (folder / "0.txt").write_text("edited")
    report = run("set", **options)
    assert texts.items == ["edited"] and report.encoded == {"conditioning": 1}
    settle()
    (folder / "1.txt").unlink()
    report = run("set", **options)
    assert report.encoded == {} and open_cache(tmp_path / "cache").captions(1) == [""]
    settle()
    (folder / "1.txt").write_text("caption 1")
    assert run("set", **options).encoded == {}

    settle()
    picture("set/2-masklabel.png", seed=99)
    assert run("set", **options).encoded == {"mask": 1}
    settle()
    (folder / "3-masklabel.png").unlink()
    assert run("set", **options).encoded == {"mask": 1}  # all ones, from now on for every image without a mask
    picture("set/3-masklabel.png", seed=23)
    assert run("set", **options).encoded == {}
    settle()
    for file in folder.iterdir():
        touch(file)
    settle()
    report = run("set", **options)
    assert report.encoded == {} and report.unchanged and images.count == 0


def test_a9_an_unchanged_set_ends_early_and_an_unrelated_file_changes_nothing(run, tmp_path, picture, images, texts):
    for n in range(5):
        picture(f"set/{n}.png", seed=n, caption=str(n))
    settle()
    first = run("set")
    stamp = (tmp_path / "cache" / "dataset.json").stat()
    (tmp_path / "set" / "notes.md").write_text("unrelated")
    second = run("set")
    assert second.unchanged and second.generation == first.generation and second.samples == 5
    assert (second.counts.opened, second.counts.listed, images.loads, texts.loads) == (0, 0, 0, 0)
    assert (tmp_path / "cache" / "dataset.json").stat().st_mtime_ns == stamp.st_mtime_ns
    assert second.reused == {"latent": 5, "conditioning": 6}  # with the empty one
    picture("set/3.png", seed=77)
    assert not run("set").unchanged and images.count == 1


def test_a9_a_lost_memory_costs_hashing_but_no_encoding(run, tmp_path, picture, images, texts, state_dir):
    for n in range(5):
        picture(f"set/{n}.png", seed=n, caption=str(n))
    settle()
    first = run("set")
    for wreck in (shutil.rmtree, _scribble):
        wreck(state_dir)
        again = run("set")
        assert (images.loads, texts.loads) == (0, 0)
        assert again.unchanged and again.generation == first.generation
        assert again.counts.hashed == 10 and again.counts.decoded == 0


def _scribble(folder) -> None:
    for file in folder.rglob("*.sqlite"):
        file.write_bytes(os.urandom(5000))


def test_a11_a_plan_looks_at_its_files_once(tmp_path, picture, images, texts):
    for n in range(5):
        picture(f"set/{n}.png", seed=n)
    settle()
    plan = make_plan(FolderSource(tmp_path / "set"), image_encoder=images, text_encoder=texts, settings=SMALL)
    encode(plan, tmp_path / "cache")
    with file_calls(tmp_path / "set") as calls:
        assert encode(plan, tmp_path / "cache").unchanged
        assert len(plan) == 5 and plan[0].source == "set/0.png"
        cache = open_cache(tmp_path / "cache")
        for _ in range(2):
            cache.read_batch([0, 1, 2])
    assert {path for _, path in calls} <= {str(tmp_path / "set")}, "only where the folder is may be asked"


def test_a19_and_e6_an_encoder_is_loaded_once_and_only_if_needed(run, picture, images, texts):
    for n in range(20):
        picture(f"set/{n}.png", seed=n, size=(64, 64 + 8 * (n % 3)), caption=f"caption {n}")
    run("set")
    assert (images.loads, texts.loads) == (1, 1) and images.leases == texts.leases == 0
    assert len(images.batches) > 3 and len(texts.batches) > 1
    run("set")
    assert (images.loads, texts.loads) == (0, 0)
    picture("set/new.png", seed=50, caption="caption 3")
    run("set")
    assert (images.loads, texts.loads) == (1, 0)


def test_a23_repeats_weights_and_set_counts_reach_the_dataset(run, tmp_path, picture):
    picture("set/10_cat/a.png", seed=1)
    picture("set/b.png", seed=2)
    picture("class/c.png", seed=3)
    run(
        FolderSource(tmp_path / "set", repeats=2, weight=0.5, samples=7),
        FolderSource(tmp_path / "class", set="class", prior=True, prompt="a cat", weight=0.25),
    )
    cache = open_cache(tmp_path / "cache")
    rows = {s.source: (s.repeats, s.weight, s.set, s.caption) for s in cache}
    assert rows == {
        "set/10_cat/a.png": (20, 0.5, "main", ""),
        "set/b.png": (2, 0.5, "main", ""),
        "class/c.png": (1, 0.25, "class", "a cat"),
    }
    assert cache.sets["main"] == {"prior": False, "samples": 7}
    assert cache.sets["class"] == {"prior": True, "prompt": "a cat"}
    assert set(cache.named) == {"empty caption", "prompt of class"}
    assert cache.entry(cache.named["prompt of class"])[0][0].shape == (1, 7, 16)


def test_a10_no_global_generator_is_used(run, picture):
    import random

    for n in range(4):
        picture(f"set/{n}.png", size=(160, 64), seed=n, caption="a, b, c, d")
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    run("set", settings=Settings(Transform((64,), step=8, crop="random")), captions=Captions(shuffles=3))
    assert random.getstate() == before[0] and np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize("count", [1, 4, 7, 9])
def test_d3_the_last_partial_batch_is_encoded(count, run, tmp_path, picture, images, texts):
    for n in range(count):
        picture(f"set/{n}.png", seed=n, size=(64, 64 if n % 2 else 96), caption=str(n))
    report = run("set")
    cache = open_cache(tmp_path / "cache")
    assert images.count == report.samples == len(cache) == count
    assert (cache.variants("latent") == 1).all() and (cache.variants("conditioning") == 1).all()


def test_d7_the_cached_latent_equals_the_uncached_one(tmp_path, picture, images, texts):
    for n in range(3):
        picture(f"set/{n}.png", seed=n, size=(100, 60), caption=f"caption {n}")
    plan = make_plan(
        FolderSource(tmp_path / "set"), image_encoder=images, text_encoder=texts, settings=Settings(SMALL.transform)
    )
    fresh = [plan[i].realize() for i in range(3)]
    encode(plan, tmp_path / "cache")
    cache = open_cache(tmp_path / "cache")
    for before, after in zip(fresh, cache):
        assert torch.equal(before.latent["samples"], after.latent["samples"])
        assert torch.equal(before.conditioning[0][0], after.conditioning[0][0])
        assert torch.equal(before.fields["thumbnail"], after.fields["thumbnail"])
        assert (before.original_size, before.crop) == (after.original_size, after.crop)


def test_flipped_variants_are_stored_next_to_the_plain_ones(run, tmp_path, picture, images):
    picture("set/a.png", seed=1)
    run("set", settings=Settings(Transform((64,), step=8, flip=True), thumbnail=0), masks=Masks("auto"))
    cache = open_cache(tmp_path / "cache")
    assert cache.variants("latent").tolist() == cache.variants("mask").tolist() == [2]
    plain = cache.sample(0).realize().latent["samples"]
    flipped = cache.sample(0, {"latent": 1}).realize().latent["samples"]
    assert torch.equal(flipped, plain.flip(-1))


def test_captions_that_the_encoder_cuts_are_counted_until_they_change(run, tmp_path, picture, texts):
    texts.cuts = lambda caption: len(caption) > 20
    long = "a caption that is too long"
    for name, caption in {"a": long, "b": f"{long}\nshort", "c": "short", "d": f"{long} as well"}.items():
        picture(f"set/{name}.png", caption=caption)
    report = run("set")
    assert sorted(report.cut.values()) == ["set/a.png", "set/d.png"]
    assert "2 captions longer than the text encoder takes" in "\n".join(report.lines())
    again = run("set")
    assert again.unchanged and again.cut == report.cut and texts.loads == 0
    picture("set/e.png", caption="new")
    assert run("set").cut == report.cut
    picture("set/f.png", seed=60, caption="short")
    assert run("set").cut == report.cut and texts.loads == 0
    (tmp_path / "set" / "d.txt").write_text("short")
    settle()
    assert list(run("set").cut.values()) == ["set/a.png"]


def test_what_is_noticed_is_told_before_anything_is_encoded(tmp_path, picture, images, texts):
    picture("set/a.png", caption="a [trigger]")
    told: list[list[str]] = []

    def begin(report) -> None:
        assert images.count == texts.count == 0
        told.append([note.text for note in report.notes])

    plan = make_plan(FolderSource(tmp_path / "set"), image_encoder=images, settings=SMALL)
    report = encode(plan, tmp_path / "cache", begin=begin)
    ((missing, trigger),) = told
    assert missing.startswith("there will be no conditionings, because no CLIP is given")
    assert trigger.startswith("[trigger] is in 1 of 1 caption")
    assert [note.text for note in report.notes] == told[0]
    plan = make_plan(FolderSource(tmp_path / "set", captions=Captions(trigger="x")), text_encoder=texts, settings=SMALL)
    notes = plan.report(tmp_path / "other").notes
    assert [note.text[:25] for note in notes] == ["there will be no latents,"]
