"""Small folders of images with captions."""

import random
from pathlib import Path

from PIL import Image

from streamcache.tests.support.fixtures import settle

PICTURES = [((64, 64), "a cat"), ((64, 64), "a dog"), ((96, 64), "a bird"), ((64, 96), "a cat"), ((64, 64), "one\ntwo")]


def write_pictures(folder: Path, seed: int = 1, count: int = len(PICTURES)) -> Path:
    """Noise of a few sizes; two captions are the same, one has two lines."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    for number in range(count):
        size, caption = PICTURES[number % len(PICTURES)]
        write_picture(folder / f"{number}.png", size, draw.randrange(1 << 30))
        (folder / f"{number}.txt").write_text(caption, encoding="utf-8")
    settle()  # a server with its models loaded looks at them within a few milliseconds
    return folder


def write_picture(path: Path, size: tuple[int, int], seed: int) -> None:
    draw = random.Random(seed)
    Image.frombytes("RGB", size, draw.randbytes(size[0] * size[1] * 3)).save(path)
