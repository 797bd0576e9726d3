"""Sizes of images in pixels: as stored, or from the latents."""

from pathlib import Path

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train.data.sizes import KnownSizes

from ...support.small_parts import latent_of, words_of


def test_j6_pixels_come_from_the_stored_size_or_from_the_latents(tmp_path: Path) -> None:
    with CacheWriter(tmp_path / "set") as writer:
        writer.add(latent_of(0, (8, 8)), words_of(0), "a", original_size=(256, 256), crop=(0, 0, 128, 128))
        writer.add(latent_of(1, (4, 12)), words_of(1), "b")
        writer.add(latent_of(2, (8, 8)), words_of(2), "c")
    dataset = open_cache(tmp_path / "set")
    assert KnownSizes(dataset).pixels([2, 0, 1]) == [64 * 64, 128 * 128, 32 * 96]
    assert KnownSizes(dataset, 16).pixels([2, 0, 1]) == [128 * 128, 128 * 128, 64 * 192]
