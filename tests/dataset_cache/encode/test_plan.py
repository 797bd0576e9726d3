"""Plans: their reports, and the samples they show before encoding. Rows A7, A12, A16 and A25."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from streamcache.dataset_cache import CacheError, open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.list_source import ListSource
from streamcache.dataset_cache.sources.masks import Masks
from streamcache.dataset_cache.sources.transforms import Transform

from ...support.encoders import CountingImages, CountingTexts
from ...support.fixtures import settle, touch

SMALL = Settings(Transform((64,), step=8), batch_size=4, thumbnail=0)


@pytest.fixture
def plan(tmp_path, images, texts):
    def make(*sources, settings=SMALL, images=images, texts=texts, **options):
        made = list(sources) or [FolderSource(tmp_path / "set", **options)]
        return make_plan(made, image_encoder=images, text_encoder=texts, settings=settings)

    return make


@pytest.fixture
def three(picture):
    for n in range(3):
        picture(f"set/{n}.png", size=(64, 48), seed=n, caption=f"caption {n}")
    settle()


def test_a_report_is_complete_before_anything_is_encoded(plan, tmp_path, picture, three, images, texts):
    (tmp_path / "set" / "bad.png").write_bytes(b"")
    picture("set/wide.png", size=(128, 64), caption="caption 0")
    report = plan().report(tmp_path / "cache")
    assert report.samples == 4 and report.buckets == {"72×56": 3, "88×40": 1}
    assert report.encoded == {"latent": 4, "conditioning": 3} and report.reused == {"conditioning": 1}
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
    assert plan().report().bytes_expected is None


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


def test_a7_masks_switched_on_later_add_only_masks(plan, tmp_path, picture, images, texts):
    for n in range(8):
        picture(f"set/{n}.png", size=(96, 64), seed=n)
        picture(f"set/{n}-masklabel.png", size=(96, 64), seed=20 + n)
    path = tmp_path / "cache"
    encode(plan(), path)
    before = {s.source: s.realize().latent["samples"] for s in open_cache(path)}
    images.reset()
    texts.reset()
    stopped = []
    report = encode(plan(masks=Masks("file")), path, stop=lambda: stopped.append(1) or len(stopped) > 1)
    assert report.stopped
    report = encode(plan(masks=Masks("file")), path)
    assert (images.loads, texts.loads) == (0, 0) and report.samples == 8
    for sample in open_cache(path):
        sample = sample.realize()
        latent, mask = sample.latent["samples"], sample.fields["mask"]
        assert torch.equal(latent, before[sample.source]) and mask.shape[-2:] == latent.shape[-2:]
        assert 0 < mask.min() < mask.max() <= 1
    assert open_cache(path).read_batch([0, 1, 2]).masks[1].shape == mask.shape


def test_masks_come_from_files_folders_or_alpha(plan, tmp_path, picture):
    half = Image.new("L", (64, 64), 0)
    half.paste(255, (0, 0, 32, 64))
    picture("set/sub/file.png")
    half.save(tmp_path / "set" / "sub" / "file-masklabel.png")
    picture("set/sub/folder.jpg")
    (tmp_path / "set" / "masks" / "sub").mkdir(parents=True)
    half.save(tmp_path / "set" / "masks" / "sub" / "folder.png")
    glass = Image.new("RGB", (64, 64), (200, 0, 0))
    glass.putalpha(half)
    glass.save(tmp_path / "set" / "sub" / "alpha.png")
    picture("set/sub/none.png")
    report = encode(plan(masks=Masks("auto")), tmp_path / "cache")
    masks = {s.source: s.realize().fields["mask"][0, 0].tolist() for s in open_cache(tmp_path / "cache")}
    left = [1, 1, 1, 1, 0, 0, 0, 0]
    assert report.samples == 4 and masks == {
        "set/sub/file.png": left,
        "set/sub/folder.jpg": left,
        "set/sub/alpha.png": left,
        "set/sub/none.png": [1] * 8,
    }


def test_a_folder_of_masks_is_skipped_and_reported(plan, tmp_path, picture):
    picture("set/a.png")
    picture("set/masks/a.png")
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 1 and "masks are off" in report.excluded[0].reason


def test_folders_of_masks_next_to_images_in_subfolders_are_found(plan, tmp_path, picture):
    half = Image.new("L", (64, 64), 0)
    half.paste(255, (0, 0, 32, 64))
    picture("set/sub/a.png")
    (tmp_path / "set" / "sub" / "masks").mkdir()
    half.save(tmp_path / "set" / "sub" / "masks" / "a.png")
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 1 and report.excluded[0].source == "set/sub/masks"
    report = encode(plan(masks=Masks("folder")), tmp_path / "cache")
    assert report.samples == 1 and not report.excluded
    assert open_cache(tmp_path / "cache")[0].realize().fields["mask"][0, 0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a12_trust_uses_known_files_encodes_missing_ones_and_reports_it(plan, tmp_path, picture, three, images):
    path = tmp_path / "cache"
    encode(plan(), path)
    old = open_cache(path)[1].realize().latent["samples"]
    settle()
    picture("set/1.png", size=(64, 48), seed=99)  # changed behind its back
    picture("set/new.png", size=(64, 48), seed=5)
    images.reset()
    trusting = Settings(SMALL.transform, thumbnail=0, trust=True)
    report = encode(plan(settings=trusting), path)
    assert images.count == 1 and report.samples == 4 and report.trusted == 6
    assert "6 files were trusted" in "\n".join(report.lines())
    assert torch.equal(open_cache(path)[1].realize().latent["samples"], old)

    with pytest.raises(CacheError, match="its image encoder was images and this one is other"):
        encode(plan(settings=trusting, images=CountingImages("other")), path)
    report = encode(plan(), path)  # looking again, the change is found
    assert report.reasons == {"latent": {"content changed": 1}}


def test_a16_the_cache_alone_is_enough(plan, tmp_path, three, state_dir):
    path = tmp_path / "cache"
    encode(plan(), path)
    cache = open_cache(path)
    before = cache.read_batch([2, 0, 1])
    shutil.rmtree(tmp_path / "set")
    shutil.rmtree(state_dir)
    after = open_cache(path).read_batch([2, 0, 1])
    assert torch.equal(before.latents, after.latents) and before.captions == after.captions
    for one, two in zip(before.conditionings, after.conditionings):
        assert torch.equal(one[0][0], two[0][0]) and torch.equal(one[0][1]["pooled_output"], two[0][1]["pooled_output"])


def test_a_plan_shows_the_samples_that_the_cache_will_have(plan, tmp_path, picture, three):
    picture("set/wide.png", size=(128, 64), caption="one\ntwo")
    made = plan(settings=Settings(Transform((64,), step=8, flip=True)), repeats=3, weight=0.5)
    encode(made, tmp_path / "cache")
    cache = open_cache(tmp_path / "cache")
    planned = plan(settings=made.settings, repeats=3, weight=0.5)
    assert len(planned) == len(cache) == 4
    assert set(planned.fields) == set(cache.fields) and planned.sets == cache.sets
    assert {b: list(rows) for b, rows in planned.buckets().items()} == {b: list(r) for b, r in cache.buckets().items()}
    for name in ("repeats", "weight", "set", "original_size", "crop"):
        assert np.array_equal(planned.column(name), cache.column(name)), name
    assert [planned.source(i) for i in range(4)] == [cache.source(i) for i in range(4)]
    assert planned.captions(3) == cache.captions(3) == ["one", "two"]
    for i, picks in ((0, {"latent": 1}), (2, {"latent": 0})):
        ours, theirs = (d.sample(i, picks) for d in (planned, cache))
        assert torch.equal(ours.latent["samples"], theirs.latent["samples"]) and ours.captions == theirs.captions
    one, two = planned.sample(3, {"conditioning": 1}), cache.sample(3, {"conditioning": 1})
    assert one.caption == two.caption == "two" and one.index == two.index
    assert torch.equal(one.conditioning[0][0], two.conditioning[0][0])
    assert [sample.source for sample in planned] == [sample.source for sample in cache]


def test_lists_of_images_and_texts_are_a_source_too(plan, tmp_path, picture, images, texts):
    path = picture("set/a.png", size=(64, 64), caption="from a file")
    pixels = torch.from_numpy(np.asarray(Image.open(path)).copy()).float()[None] / 255
    grey, glass = torch.rand(64, 64, 1), torch.rand(1, 64, 64, 4)
    report = encode(plan(ListSource([pixels, grey, glass], ["one", "two", "one"])), tmp_path / "cache")
    assert report.samples == 3 and images.count == 3 and sorted(texts.items) == ["", "one", "two"]
    listed = open_cache(tmp_path / "cache")[0].realize().latent["samples"]
    encode(plan(), tmp_path / "other")
    assert torch.equal(listed, open_cache(tmp_path / "other")[0].realize().latent["samples"])
    images.reset()
    again = encode(plan(ListSource([pixels, grey, glass], ["one", "two", "one"])), tmp_path / "cache")
    assert again.unchanged and images.loads == 0


@pytest.mark.parametrize(
    ("images_given", "texts_given", "word"),
    [
        ([torch.rand(8, 8, 3)] * 3, ["a", "b"], "2 texts for 3 images"),
        ([torch.rand(2, 8, 8, 3)], ["a"], "split a batch"),
        ([torch.full((8, 8, 3), float("nan"))], ["a"], "not finite"),
    ],
)
def test_invalid_lists_are_refused(plan, tmp_path, images_given, texts_given, word):
    with pytest.raises(CacheError, match=word):
        encode(plan(ListSource(images_given, texts_given)), tmp_path / "cache")


def test_invalid_plans_are_refused(plan, tmp_path, three, images, texts):
    with pytest.raises(CacheError, match="no sources"):
        make_plan([], image_encoder=images)
    with pytest.raises(CacheError, match="needs an image encoder"):
        make_plan(FolderSource(tmp_path / "set"))
    with pytest.raises(CacheError, match="give the sources different set names"):
        plan(FolderSource(tmp_path / "set"), FolderSource(tmp_path / "set", prior=True))
    with pytest.raises(CacheError, match="batch_size = 0"):
        encode(plan(settings=Settings(SMALL.transform, batch_size=0)), tmp_path / "cache")


def test_a_random_crop_is_the_same_in_plan_and_cache(plan, tmp_path, picture):
    for n in range(4):
        picture(f"set/{n}.png", size=(400, 64), seed=n)
    settings = Settings(Transform((64,), step=8, max_aspect=1, crop="random"), thumbnail=0)
    planned = [sample.crop for sample in plan(settings=settings)]
    encode(plan(settings=settings), tmp_path / "cache")
    assert planned == [sample.crop for sample in open_cache(tmp_path / "cache")] and len(set(planned)) > 1


def test_images_that_are_too_small_are_excluded_if_upscaling_is_off(plan, tmp_path, picture):
    picture("set/big.png", size=(96, 96))
    picture("set/tiny.png", size=(6, 96))
    report = plan(settings=Settings(Transform((64,), step=8, upscale=False))).report()
    assert report.samples == 1 and "upscaling is off" in report.excluded[0].reason


def test_images_or_texts_alone_make_a_dataset(plan, tmp_path, three, images, texts):
    source = FolderSource(tmp_path / "set")
    encode(make_plan(source, image_encoder=images, settings=SMALL), tmp_path / "pictures")
    assert open_cache(tmp_path / "pictures").fields == ("latent",)
    encode(make_plan(source, text_encoder=texts, settings=SMALL), tmp_path / "captions")
    assert open_cache(tmp_path / "captions").fields == ("conditioning",)


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
