"""Thumbnails and contact sheets."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.sources.images import decode, decode_thumbnail
from streamcache.dataset_cache.sources.transforms import Placement, Transform, place_image
from streamcache.dataset_cache.upkeep.contact_sheet import contact_sheet


def picture(color: tuple[int, int, int], size: tuple[int, int] = (300, 200)):
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return decode(file.getvalue())


def test_a_thumbnail_shows_the_trained_crop():
    placement = place_image((300, 200), (128, 64), Transform((64,), step=8), b"x")
    data = picture((200, 10, 10)).thumbnail(placement, 32)
    assert data.dtype == torch.uint8 and data.ndim == 1
    image = decode_thumbnail(data)
    assert image.size == (32, 16) and np.allclose(image.getpixel((5, 5)), (200, 10, 10), atol=12)


def test_a_thumbnail_is_never_larger_than_its_image():
    data = picture((0, 0, 0)).thumbnail(Placement(24, 16, (24, 16), 0, 0), 128)
    assert decode_thumbnail(data).size == (24, 16)


@pytest.fixture
def cache(tmp_path):
    red, blue = (picture(color) for color in ((250, 0, 0), (0, 0, 250)))
    with CacheWriter(tmp_path / "cache") as writer:
        for n in range(7):
            writer.add(latent={"samples": torch.zeros(1, 4, 8, 8)}, thumbnail=_thumbnail(red), source=f"r{n}")
        for n in range(2):
            writer.add(latent={"samples": torch.zeros(1, 4, 8, 6)}, thumbnail=_thumbnail(blue), source=f"b{n}")
        writer.add(latent={"samples": torch.zeros(1, 4, 8, 6)}, source="without")
    return open_cache(tmp_path / "cache")


def _thumbnail(source) -> torch.Tensor:
    return source.thumbnail(Placement(64, 64, (64, 64), 0, 0), 32)


def test_a_sheet_lists_the_buckets_from_top_to_bottom(cache):
    sheet = contact_sheet(cache, columns=4, side=32)
    assert sheet.width == 4 * 40 + 8
    pixels = np.asarray(sheet).astype(int)
    reds = (pixels[..., 0] > 200) & (pixels[..., 2] < 60)
    blues = (pixels[..., 2] > 200) & (pixels[..., 0] < 60)
    assert reds.sum() == pytest.approx(7 * 32 * 32, rel=0.1) and blues.sum() == pytest.approx(2 * 32 * 32, rel=0.1)
    assert np.flatnonzero(reds.any(1)).max() < np.flatnonzero(blues.any(1)).min()


def test_a_large_bucket_shows_evenly_spaced_samples(cache):
    few, many = (contact_sheet(cache, columns=4, side=32, per_bucket=count) for count in (4, 48))
    assert few.height < many.height


def test_a_dataset_without_thumbnails_is_refused(tmp_path):
    with CacheWriter(tmp_path / "bare") as writer:
        writer.add(latent={"samples": torch.zeros(1, 4, 8, 8)})
    with pytest.raises(CacheError, match="has no thumbnails"):
        contact_sheet(open_cache(tmp_path / "bare"))
