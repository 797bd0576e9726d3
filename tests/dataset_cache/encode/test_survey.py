"""From files to planned samples: masks, sizes, and files that are trusted."""

import pytest
import torch
from PIL import Image

from streamcache.dataset_cache import CacheError, FolderSource, make_plan, open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.masks import Masks
from streamcache.dataset_cache.sources.transforms import Transform

from ...support.encoders import SMALL, CountingImages
from ...support.fixtures import settle


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
    assert "6 files trusted" in "\n".join(report.lines())
    assert torch.equal(open_cache(path)[1].realize().latent["samples"], old)

    with pytest.raises(CacheError, match="its image encoder was images and this one is other"):
        encode(plan(settings=trusting, images=CountingImages("other")), path)
    report = encode(plan(), path)  # looking again, the change is found
    assert report.reasons == {"latent": {"content changed": 1}}


def test_images_that_are_too_small_are_excluded_if_upscaling_is_off(plan, tmp_path, picture):
    picture("set/big.png", size=(96, 96))
    picture("set/tiny.png", size=(6, 96))
    report = plan(settings=Settings(Transform((64,), step=8, upscale=False))).report()
    assert report.samples == 1 and "upscaling is off" in report.excluded[0].reason


@pytest.mark.parametrize("door", ["encode", "report"])
def test_class_images_without_captions_are_refused_unless_the_set_has_a_prompt(tmp_path, picture, images, texts, door):
    picture("set/a.png", seed=1)  # images to learn from may have no caption
    picture("class/a.png", seed=2, caption="a small dog")
    picture("class/b.png", seed=3)

    def go(text_encoder=texts, **prior):
        sources = [FolderSource(tmp_path / "set"), FolderSource(tmp_path / "class", set="class", prior=True, **prior)]
        plan = make_plan(sources, image_encoder=images, text_encoder=text_encoder, settings=SMALL)
        return encode(plan, tmp_path / "cache") if door == "encode" else plan.report(tmp_path / "cache")

    with pytest.raises(
        CacheError, match="class/b.png: no caption, which class images need; give the set class a prompt"
    ):
        go()
    assert not (tmp_path / "cache").exists()
    assert go(text_encoder=None).samples == 3  # without captions, there is nothing to preserve with them
    assert go(prompt="a dog").samples == 3
    (tmp_path / "class" / "b.txt").write_text("a big dog")
    assert go().samples == 3
