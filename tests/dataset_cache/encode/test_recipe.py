"""Cache keys and provenance are those of the first release: a user who updates encodes nothing again.

The expected values were produced by the code before it was divided into folders. `samples` is a hash of every key,
caption, size, crop, repeat count, weight and set name of the dataset.
"""

import base64
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from streamcache.dataset_cache import (
    Captions,
    FolderSource,
    ListSource,
    Masks,
    Settings,
    Transform,
    encode,
    make_plan,
    open_cache,
)
from streamcache.dataset_cache.encode.encoders import Surroundings

from ...support.encoders import SMALL, CountingImages, CountingTexts
from ...support.fixtures import settle

# Written out: other versions of zlib compress the same pixels to other bytes.
GLASS = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAABgAAAAYCAYAAADgdz34AAAAM0lEQVR4nGNkIABOpBj9J6QGH2CiRPOoBaMW0McCRkrTOSEw9INo1IJRC0Yt"
    "GLVgRFgAAFkIBOlP0MPFAAAAAElFTkSuQmCC"
)
SETTINGS = Settings(
    Transform((64, 96), step=8, min_aspect=0.4, max_aspect=2.5, flip=True, seed=5),
    thumbnail=32,
    background=(10, 20, 30),
)


def folders(root: Path) -> list[FolderSource]:
    for n, size in enumerate([(64, 48), (120, 64), (33, 95)]):
        _bitmap(root / "main" / f"3_set {n}" / f"{n}.bmp", size, n).with_suffix(".txt").write_text(
            f"tag {n}, [trigger], b, c\nanother line", encoding="utf-8"
        )
    _bitmap(root / "main" / "3_set 0" / "0-masklabel.bmp", (64, 48), 9)
    (root / "main" / "glass.png").write_bytes(GLASS)
    _bitmap(root / "main" / "plain.bmp", (50, 50), 7)
    (root / "main" / "broken.bmp").write_bytes(b"")
    _bitmap(root / "class" / "c.bmp", (80, 80), 5)
    captions = Captions(trigger="sks", prefix="<", suffix=">", fallback="folder", shuffles=2, keep_tags=1, seed=3)
    main = FolderSource(root / "main", captions=captions, masks=Masks("auto"), repeats=2, weight=0.5, samples=4)
    small = Transform((40,), step=8, crop="random", seed=11, upscale=False)
    prior = FolderSource(root / "class", set="class", prior=True, prompt="a cat", share=0.5, transform=small)
    return [main, prior]


def _bitmap(path: Path, size: tuple[int, int], seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.arange(size[0] * size[1] * 3, dtype=np.uint32).reshape(size[1], size[0], 3)
    Image.fromarray(((rows * 7 + seed * 31) % 251).astype(np.uint8)).save(path)
    return path


def test_keys_and_provenance_of_folders_are_unchanged(tmp_path, images, texts):
    plan = make_plan(folders(tmp_path), image_encoder=images, text_encoder=texts, settings=SETTINGS)
    encode(plan, tmp_path / "cache")
    assert open_cache(tmp_path / "cache").provenance["encode"] == FOLDERS


def test_keys_and_provenance_of_lists_are_unchanged(tmp_path, images, texts, state_dir):
    pixels = [torch.full((40, 48, 3), 0.25), torch.full((1, 64, 64, 4), 0.75)]
    plan = make_plan(ListSource(pixels, ["one\ntwo", "three"]), image_encoder=images, text_encoder=texts)
    encode(plan, tmp_path / "cache")
    assert open_cache(tmp_path / "cache").provenance["encode"] == LISTS
    (state,) = (state_dir / "datasets").glob("*.sqlite")
    with sqlite3.connect(state) as connection:  # the signature decides whether a later run looks any further
        assert connection.execute("SELECT signature FROM run WHERE signature != ''").fetchall() == [(SIGNATURE,)]


FOLDERS = {
    "encoders": {"image": "images", "text": "texts"},
    "encoder_names": {},
    "settings": {"thumbnail": 32, "background": [10, 20, 30]},
    "sources": [
        {
            "folder": "main",
            "set": "main",
            "captions": {
                "lines": "variants",
                "fallback": "folder",
                "trigger": "sks",
                "prefix": "<",
                "suffix": ">",
                "shuffles": 2,
                "keep_tags": 1,
                "seed": 3,
            },
            "masks": {"mode": "auto", "folder": "masks"},
            "transform": {
                "resolutions": [64, 96],
                "step": 8,
                "min_aspect": 0.4,
                "max_aspect": 2.5,
                "upscale": True,
                "crop": "centre",
                "flip": True,
                "seed": 5,
            },
            "repeats": 2,
            "weight": 0.5,
            "prior": False,
            "prompt": None,
            "samples": 4,
            "share": None,
            "recursive": True,
        },
        {
            "folder": "class",
            "set": "class",
            "captions": {
                "lines": "variants",
                "fallback": "empty",
                "trigger": "",
                "prefix": "",
                "suffix": "",
                "shuffles": 0,
                "keep_tags": 0,
                "seed": 0,
            },
            "masks": {"mode": "none", "folder": "masks"},
            "transform": {
                "resolutions": [40],
                "step": 8,
                "min_aspect": 0.5,
                "max_aspect": 2.0,
                "upscale": False,
                "crop": "random",
                "flip": False,
                "seed": 11,
            },
            "repeats": 1,
            "weight": 1.0,
            "prior": True,
            "prompt": "a cat",
            "samples": None,
            "share": 0.5,
            "recursive": True,
        },
    ],
    "excluded": {"count": 1, "files": [{"source": "main/broken.bmp", "reason": "the file is empty"}]},
    "samples": "12b494c9a4f9c9043dc1062e54e44821",
}
LISTS = {
    "encoders": {"image": "images", "text": "texts"},
    "encoder_names": {},
    "settings": {"thumbnail": 128, "background": [255, 255, 255]},
    "sources": [
        {
            "set": "main",
            "captions": {
                "lines": "variants",
                "fallback": "empty",
                "trigger": "",
                "prefix": "",
                "suffix": "",
                "shuffles": 0,
                "keep_tags": 0,
                "seed": 0,
            },
            "masks": {"mode": "none", "folder": "masks"},
            "transform": {
                "resolutions": [1024],
                "step": 64,
                "min_aspect": 0.5,
                "max_aspect": 2.0,
                "upscale": True,
                "crop": "centre",
                "flip": False,
                "seed": 0,
            },
            "repeats": 1,
            "weight": 1.0,
            "prior": False,
            "prompt": None,
            "samples": None,
            "share": None,
        }
    ],
    "excluded": {"count": 0, "files": []},
    "samples": "51dbbb345717c0ac23a7cc0f93f2700d",
}
SIGNATURE = "0a219b769aa72c6823f9eb64038a3f0b"


def test_a3_embeddings_named_in_a_caption_are_part_of_its_key(run, picture, texts):
    for n in range(3):
        picture(f"set/{n}.png", seed=n, caption="a style" if n else "plain")
    settle()

    def surround(content: str) -> None:
        texts.surroundings = Surroundings(content, lambda caption: content if "style" in caption else "")

    surround("first")
    assert run("set").samples == 3 and sorted(texts.items) == ["", "a style", "plain"]
    assert run("set").unchanged and not texts.items
    surround("second")
    report = run("set")
    assert texts.items == ["a style"] and [made.why for made in report.made] == ["content changed"]
    surround("first")
    assert not run("set").unchanged and not texts.items  # that one is still there


@pytest.mark.parametrize(
    ("change", "encoded"),
    [
        ({"images": CountingImages("another VAE")}, {"latent"}),
        ({"texts": CountingTexts("another CLIP")}, {"conditioning"}),
        ({"images": CountingImages("images/bf16")}, {"latent"}),
        ({"settings": Settings(Transform((64,), step=8, crop="random"), thumbnail=0)}, {"latent"}),
        ({"settings": Settings(Transform((64,), step=8, flip=True), thumbnail=0)}, {"latent"}),
        ({"captions": Captions(trigger="sks")}, {"conditioning"}),
        ({"captions": Captions(shuffles=2)}, {"conditioning"}),
    ],
)
def test_a21_other_encoders_and_settings_have_other_keys(change, encoded, run, picture, tmp_path):
    for n in range(3):
        picture(f"set/{n}.png", size=(160, 64), seed=n, caption=f"{n}, b, c, d")
    first = run("set")
    changed = run("set", **change)
    assert set(changed.encoded) == encoded and changed.generation != first.generation
    back = run("set")  # both are still there, and never mixed
    assert back.encoded == {} and back.generation not in (changed.generation,)


def test_a21_a_background_matters_only_for_transparent_images(run, picture, tmp_path):
    from PIL import Image

    picture("set/opaque.png")
    Image.new("RGBA", (64, 64), (9, 9, 9, 100)).save(tmp_path / "set" / "glass.png")
    run("set")
    black = Settings(SMALL.transform, thumbnail=0, background=(0, 0, 0))
    assert run("set", settings=black).encoded == {"latent": 1}
