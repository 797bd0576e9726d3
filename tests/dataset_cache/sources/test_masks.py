"""Masks at the size of latents."""

import io

import pytest
import torch
from PIL import Image

from streamcache.dataset_cache.sources.images import Picture, decode
from streamcache.dataset_cache.sources.masks import Masks, gray_mask, is_mask, render_mask
from streamcache.dataset_cache.sources.transforms import Placement, Transform, place_image
from streamcache.errors import CacheError, Unusable


def left_half(size: tuple[int, int], mode: str = "L") -> Picture:
    image = Image.new("L", size, 0)
    image.paste(255, (0, 0, size[0] // 2, size[1]))
    file = io.BytesIO()
    image.convert(mode).save(file, "PNG")
    return decode(file.getvalue(), background=(0, 0, 0))


@pytest.mark.parametrize("mode", ["L", "RGB", "1", "P"])
def test_a_mask_is_averaged_to_the_latent_size(mode):
    mask = gray_mask(left_half((64, 32), mode), (64, 32))
    weights = render_mask(mask, Placement(64, 32, (64, 32), 0, 0), False, (4, 8))
    assert weights.shape == (1, 4, 8)
    assert weights[0, 0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    flipped = render_mask(mask, Placement(64, 32, (64, 32), 0, 0), True, (4, 8))
    assert torch.equal(flipped, weights.flip(-1))


def test_a_mask_is_cropped_like_its_image():
    placement = place_image((256, 64), (64, 64), Transform((64,), step=64), b"x")
    weights = render_mask(gray_mask(left_half((256, 64)), (256, 64)), placement, False, (8, 8))
    assert weights[0, 0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a_mask_may_have_another_resolution_but_not_another_aspect_ratio():
    small = gray_mask(left_half((32, 16)), (64, 32))
    weights = render_mask(small, Placement(64, 32, (64, 32), 0, 0), False, (4, 8))
    assert weights[0, 0, 0] == 1 and weights[0, 0, -1] == 0
    with pytest.raises(Unusable, match="the mask is 64×64, but the image 64×32"):
        gray_mask(left_half((64, 64)), (64, 32))


def test_without_a_mask_all_weights_are_one():
    assert render_mask(None, Placement(64, 64, (64, 64), 0, 0), False, (8, 8)).eq(1).all()


def test_mask_files_are_not_training_images():
    assert is_mask("a-masklabel.png") and not is_mask("a.png") and not is_mask("masklabel.png")


def test_an_unknown_mode_is_named():
    with pytest.raises(CacheError, match="none, auto, file, folder, alpha"):
        Masks("yes")
