"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.reference import model as reference
from streamcache.reference.encoders import encode_caption, encode_image
from streamcache.reference.images import creatures

from ..support.datasets import write_set
from ..support.fixtures import settle


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Saved with 5 samples, then with 3, and looked at in between."""
    folder = write_set(tmp_path / "my set ünï", range(5), provenance={"vae": "ä"})
    open_cache(folder)
    return write_set(folder, range(3))


@pytest.fixture
def encoding(tmp_path, picture) -> list[object]:
    """The command that encodes six images into `cache` with the reference encoders."""
    for n in range(6):
        picture(f"set/{n}.png", size=(96, 96 if n % 2 else 64), seed=n, caption=f"caption {n % 2}")
    settle()
    return ["encode", tmp_path / "set", "--to", tmp_path / "cache", "--reference", "--resolution", 64, "--step", 8]


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Arguments of a small real training."""
    import numpy as np
    import torch

    size = reference.ModelSize(width=32, depth=1, heads=2)
    reference.save_model(tmp_path / "base.safetensors", reference.ReferenceModel(size))
    with CacheWriter(tmp_path / "set") as writer:
        for picture in creatures(6):
            pixels = torch.from_numpy(np.asarray(picture.image, np.float32) / 255)
            writer.add(
                latent={"samples": encode_image(pixels)},
                conditioning=encode_caption(picture.caption),
                caption=picture.caption,
            )
    paths = {"dataset": "set", "out": "out/my_lora.safetensors", "model": "base.safetensors"}
    flags = [part for name, path in paths.items() for part in (f"--{name}", str(tmp_path / path))]
    return ["train", "--reference", *flags, "--rank", "2", "--batch-size", "2"]
