"""Caches for the tests: drawn landscapes with captions in several buckets, and a very large one."""

import io
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

from streamcache.dataset_cache import CacheWriter, SampleFacts

SIZES = ((1024, 1024), (832, 1216), (1216, 832), (896, 1152), (1344, 768))
SHARES = (40, 25, 18, 11, 6)
SKIES = {
    "at dawn": ((255, 184, 140), (120, 160, 220)),
    "at noon": ((190, 225, 250), (60, 130, 220)),
    "at dusk": ((250, 120, 90), (60, 40, 110)),
    "at night": ((40, 50, 100), (10, 12, 35)),
}
HILLS = {
    "green hills": (50, 120, 70),
    "red dunes": (190, 90, 50),
    "blue mountains": (60, 85, 140),
    "a grey coast": (95, 100, 110),
}
LEFT_OUT = {"count": 1, "files": [{"source": "coast/broken.png", "reason": "the file ends too early"}]}
MADE = {"encoders": {"image": "sdxl_vae", "text": "clip_l + clip_g"}, "excluded": LEFT_OUT}
EXTRAS = ("and a pale moon", "and a low sun", "and nothing else")


def write_landscapes(folder: Path, count: int, seed: int = 1, side: int = 192, **provenance: Any) -> None:
    """A cache of `count` samples whose images match their captions."""
    draw = random.Random(seed)
    with CacheWriter(folder, provenance=provenance, trim=False) as writer:  # zeros stand for text
        for number in range(count):
            width, height = draw.choices(SIZES, SHARES)[0]
            sky, hill, extra = (draw.choice(list(each)) for each in (SKIES, HILLS, EXTRAS))
            caption = f"{hill} {sky} {extra}"
            writer.add(
                latent={"samples": torch.full((1, 16, height // 8, width // 8), number / 100, dtype=torch.bfloat16)},
                conditioning=conditioning(caption),
                caption=(caption, f"a painting of {hill}") if number % 5 == 0 else caption,
                source=f"{hill.split()[-1]}/{number:04}.png",
                original_size=(width * 2, height * 2),
                crop=(0, 0, width, height),
                thumbnail=landscape(width, height, side, sky, hill, extra, draw),
            )


def write_many(folder: Path, count: int) -> None:
    """A cache of many samples that share few entries, written in seconds. Captions have the number of their sample."""
    keys = [(f"latent {bucket}", f"picture {bucket}") for bucket in range(4)]
    with CacheWriter(folder) as writer:
        writer.put("text", conditioning("all"), "conditioning")
        for bucket, (latent, picture) in enumerate(keys):
            writer.put(latent, {"samples": torch.zeros(1, 4, 8, 8 + bucket)}, "latent")
            color = ((70, 110, 200), (200, 90, 70), (80, 170, 110), (190, 160, 60))[bucket]
            writer.put(picture, jpeg(Image.new("RGB", (32, 32), color)), "thumbnail")
        for number in range(count):
            latent, picture = keys[number % len(keys)]
            fields = {"latent": [latent], "conditioning": ["text"], "thumbnail": [picture]}
            writer.sample(
                fields, SampleFacts(captions=f"sample number {number}", source=f"{number // 1000:03}/{number:06}.png")
            )


def conditioning(caption: str) -> list:
    tokens = torch.full((1, 77, 64), float(len(caption)), dtype=torch.bfloat16)
    tokens[0, 0, : min(64, len(caption))] = torch.tensor([ord(c) for c in caption[:64]], dtype=torch.bfloat16)
    return [[tokens, {"pooled_output": tokens[:, 0].clone()}]]


def landscape(width: int, height: int, side: int, sky: str, hill: str, extra: str, draw: random.Random) -> torch.Tensor:
    scale = side / max(width, height)
    w, h = round(width * scale), round(height * scale)
    low, high = SKIES[sky]
    picture = Image.new("RGB", (w, h))
    pen = ImageDraw.Draw(picture)
    for y in range(h):
        pen.line([(0, y), (w, y)], fill=mix(high, low, y / h))
    if "nothing" not in extra:
        x, y, r = draw.uniform(0.2, 0.8) * w, draw.uniform(0.15, 0.45) * h, side * draw.uniform(0.05, 0.11)
        pen.ellipse([x - r, y - r, x + r, y + r], fill=(255, 236, 170) if "sun" in extra else (235, 238, 245))
    base = HILLS[hill]
    for layer in range(4):
        top, swing, phase = h * (0.5 + 0.12 * layer), h * 0.09, draw.uniform(0, 6.28)
        line = [
            (x, top + swing * (math.sin(x / w * (3 + layer * 2) + phase) + 0.4 * math.sin(x / w * 11 + phase * 2)))
            for x in range(0, w + 3, 2)
        ]
        pen.polygon([*line, (w, h), (0, h)], fill=mix(mix(base, low, 0.45), mix(base, (0, 0, 0), 0.35), layer / 3))
    return jpeg(picture)


def mix(a: Sequence[int], b: Sequence[int], share: float) -> tuple[int, int, int]:
    return tuple(round(x + (y - x) * share) for x, y in zip(a, b, strict=True))


def jpeg(picture: Image.Image) -> torch.Tensor:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=88)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
