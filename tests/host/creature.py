"""Whether a picture shows the creature of the example images: by how much of each of its colors appears."""

import io
from typing import Any

import numpy
from PIL import Image

from streamcache.reference.images import COLORS

from .server import Server

# The least share of a picture that is within REACH of a color. In the example images: 20 %, 4 %, 2 % and 4 % or more.
LEAST = {"purple": 0.10, "white": 0.015, "yellow": 0.005, "black": 0.02}
REACH = 75  # of 442: distance between black and white


def shares(picture: Image.Image) -> dict[str, float]:
    """Color → its share of the picture."""
    pixels = numpy.asarray(picture.convert("RGB"), dtype=float)
    return {
        name: float((numpy.linalg.norm(pixels - color, axis=-1) < REACH).mean())
        for name, color in COLORS.items()
        if name in LEAST
    }


def shows_creature(picture: Image.Image) -> bool:
    found = shares(picture)
    return all(found[name] >= least for name, least in LEAST.items())


def shown_pictures(server: Server, shown: dict[str, Any]) -> list[Image.Image]:
    """The pictures that a node shows."""
    return [Image.open(io.BytesIO(fetch(server, entry))) for entry in shown["images"]]


def fetch(server: Server, entry: dict[str, str]) -> bytes:
    root = server.base / {"temp": "temp", "output": "output", "input": "input"}[entry["type"]]
    return (root / entry["subfolder"] / entry["filename"]).read_bytes()
