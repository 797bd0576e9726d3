"""Caches of OneTrainer: unscaled latents with sizes and masks; images and captions from a folder that is named."""

from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheError, open_cache
from streamcache.dataset_cache.foreign import import_foreign

from .trainers import draw, image, onetrainer_images


def item(latent: torch.Tensor, **more) -> dict:
    return {"latent_image": latent, "original_resolution": (64, 80), "crop_offset": (1, 2), **more}


def test_f9_latents_sizes_masks_and_captions(tmp_path: Path):
    image(tmp_path / "images", "cats/one.png", caption="a cat\nanother cat")
    raw = [draw(4, 8, 9, dtype=torch.bfloat16), draw(4, 8, 9, seed=1)]
    items = [item(raw[0]), item(raw[1], latent_mask=torch.ones(1, 8, 9))]
    onetrainer_images(tmp_path / "cache", items, ["D:\\data\\cats\\one.png", "/data/two.png"])
    onetrainer_images(tmp_path / "cache", [item(raw[1])], ["/data/two.png"], variation=1)
    report = import_foreign(tmp_path / "cache", tmp_path / "set", tmp_path / "images")
    assert report.samples == 3 and report.skipped == () and list(report.without.values()) == [3]
    cache = open_cache(tmp_path / "set")
    assert [cache.source(i) for i in range(3)] == ["cats/one.png", "two.png", "two.png"]
    assert torch.equal(cache[0].latent["samples"], raw[0][None]) and cache.captions(0) == ["a cat", "another cat"]
    assert cache[0].original_size == (80, 64) and cache[0].crop == (2, 1, 72, 64)
    assert cache[1].fields["mask"].shape == (1, 8, 9)


def test_f9_latents_of_several_channels_that_could_mean_anything_are_named(tmp_path: Path):
    items = [
        item(draw(32, 8, 8)),
        item(draw(4, 8, 8), latent_conditioning_image=draw(4, 8, 8)),
        item(draw(16, 1, 8, 8)),
    ]
    onetrainer_images(tmp_path / "cache", items, ["a.png", "b.png", "c.png"])
    report = import_foreign(tmp_path / "cache", tmp_path / "set")
    assert open_cache(tmp_path / "set")[0].latent["samples"].shape == (1, 16, 1, 8, 8)
    assert len(report.skipped) == 2
    assert "32 channels" in report.skipped[0] and "latent_conditioning_image" in report.skipped[1]


def test_f9_captions_are_read_only_below_the_folder_of_images(tmp_path: Path):
    """A cache could name any file of this computer, whose text would then be in the new cache."""
    image(tmp_path, "secret.png", caption="a secret")
    (tmp_path / "images").mkdir()
    paths = [str(tmp_path / "secret.png"), "../secret.png", "images/../../secret.png"]
    onetrainer_images(tmp_path / "cache", [item(draw(4, 8, 8)) for _ in paths], paths)
    for images in (None, tmp_path / "images"):
        import_foreign(tmp_path / "cache", tmp_path / "set", images)
        cache = open_cache(tmp_path / "set")
        assert [sample.caption for sample in cache] == [""] * 3 and {sample.source for sample in cache} == {
            "secret.png"
        }


def test_f9_a_list_of_images_that_is_none_is_refused(tmp_path: Path):
    place = onetrainer_images(tmp_path / "cache", [item(draw(4, 8, 8))], ["a.png"])
    torch.save([{"image_path": 3, "crop_resolution": (8, 8)}], place / "aggregate.pt")
    with pytest.raises(CacheError, match="another program wrote it"):
        import_foreign(tmp_path / "cache", tmp_path / "set")
