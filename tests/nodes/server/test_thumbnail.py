"""Thumbnails: stored JPEGs unchanged, otherwise the latent in false colors; always an image."""

import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from streamcache.nodes.outside.untrusted import Refused
from streamcache.nodes.server.cache_view import (
    close_views,
    open_view,
)
from streamcache.nodes.server.thumbnail import false_colors, thumbnail

from ...support.samples import write_cache
from .captioned import jpeg, write_captions


@pytest.fixture(autouse=True)
def nothing_open():
    yield
    close_views()


class TestThumbnails:
    def test_a_stored_jpeg_is_served_unchanged(self, tmp_path: Path):
        picture = jpeg((200, 10, 10))
        assert thumbnail(open_view(write_captions(tmp_path / "set", [["a"]], picture)), 0) == picture

    def test_without_a_stored_thumbnail_the_latent_is_shown(self, tmp_path: Path):
        shown = open_view(write_captions(tmp_path / "set", [["a"], ["b"]]))
        sizes = [Image.open(io.BytesIO(thumbnail(shown, n))).size for n in range(2)]
        assert sizes == [(128, 128), (128, 64)]

    def test_stored_bytes_that_are_not_a_jpeg_are_not_served(self, tmp_path: Path):
        shown = open_view(write_captions(tmp_path / "set", [["a"]], b"<script>alert(1)</script>"))
        assert Image.open(io.BytesIO(thumbnail(shown, 0))).format == "JPEG"

    @pytest.mark.parametrize("size", [(1025, 8), (8, 65000), (16384, 16384)])
    def test_a_huge_stored_image_is_not_served(self, tmp_path: Path, size: tuple[int, int]):
        file = io.BytesIO()
        Image.new("L", (8, 8)).save(file, "JPEG")
        picture = bytearray(file.getvalue())
        at = picture.index(b"\xff\xc0") + 5  # a browser takes the size from here, whatever follows
        picture[at : at + 4] = size[1].to_bytes(2, "big") + size[0].to_bytes(2, "big")
        shown = open_view(write_captions(tmp_path / "set", [["a"]], bytes(picture)))
        assert max(Image.open(io.BytesIO(thumbnail(shown, 0))).size) == 128

    def test_a_stored_image_of_1024_pixels_is_served_unchanged(self, tmp_path: Path):
        file = io.BytesIO()
        Image.new("L", (1024, 1024)).save(file, "JPEG")
        shown = open_view(write_captions(tmp_path / "set", [["a"]], file.getvalue()))
        assert thumbnail(shown, 0) == file.getvalue()

    def test_a_missing_sample_is_refused(self, tmp_path: Path):
        with pytest.raises(Refused, match="no sample 2"):
            thumbnail(open_view(write_cache(tmp_path / "set", 2)), 2)

    @pytest.mark.parametrize(
        "latent",
        [
            None,
            {},
            {"samples": 3},
            {"samples": torch.zeros(0, 4, 8, 8)},
            {"samples": torch.zeros(5)},
            {"samples": torch.full((1, 4, 8, 8), float("nan"))},
            {"samples": torch.full((1, 2, 8, 8), float("inf"))},
            {"samples": torch.zeros(1, 4, 3, 8, 8)},
            {"samples": torch.zeros(1, 1, 1, 5000)},
            {"samples": torch.zeros(1, 4, 8, 8).to(torch.float8_e4m3fn)},
            {"samples": torch.zeros(1, 4, 8, 8, dtype=torch.complex64)},
            {"samples": torch.ones(1, 4, 8, 8, dtype=torch.bool)},
        ],
    )
    def test_any_latent_is_shown_as_an_image(self, latent):
        assert Image.open(io.BytesIO(false_colors(latent))).format == "JPEG"
