"""Thumbnails of image files, and the example dataset."""

import io
import os
from pathlib import Path

import pytest
from PIL import Image

from streamcache.dataset_cache.intake import file_mask, file_picture, file_thumbnail, thumbnails
from streamcache.dataset_cache.intake.thumbnails import SIDE
from streamcache.errors import Unusable

from ...support.file_calls import file_calls
from .zips import picture


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_every_format_becomes_a_small_jpeg(tmp_path: Path, kind: str):
    path = tmp_path / f"a.{kind.lower()}"
    path.write_bytes(picture(5, kind, (900, 300)))
    with Image.open(io.BytesIO(file_thumbnail(path))) as small:
        assert small.format == "JPEG" and small.size == (SIDE, 53)


def test_rotation_and_transparency_are_applied(tmp_path: Path):
    image = Image.new("RGBA", (400, 200), (255, 0, 0, 0))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.png", exif=exif)
    with Image.open(io.BytesIO(file_thumbnail(tmp_path / "a.png"))) as small:
        assert small.size == (80, SIDE) and small.getpixel((5, 5)) == (255, 255, 255)


def test_a_thumbnail_is_made_once_until_the_file_changes(tmp_path: Path):
    path = tmp_path / "a.png"
    path.write_bytes(picture(1, size=(200, 200)))
    first = file_thumbnail(path)
    with file_calls(tmp_path) as calls:
        assert file_thumbnail(path) == first
    assert [call for call, _ in calls] == ["stat"]
    path.write_bytes(picture(250, size=(300, 100)))
    os.utime(path, ns=(1, 1))
    assert file_thumbnail(path) != first


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(thumbnails, "_MAX_BYTES", 5000)
    for number in range(30):
        path = tmp_path / f"{number}.png"
        path.write_bytes(picture(number))
        file_thumbnail(path)
    assert sum(map(len, thumbnails._made.values())) == thumbnails._kept_bytes <= 5000


@pytest.mark.parametrize("data", [b"", b"text", picture()[:40]])
def test_what_cannot_be_decoded_is_refused(tmp_path: Path, data: bytes):
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(Unusable, match=r"a\.png"):
        file_thumbnail(tmp_path / "a.png")
    with pytest.raises(Unusable, match="cannot be read"):
        file_thumbnail(tmp_path / "gone.png")


def test_huge_pictures_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(thumbnails, "MAX_PIXELS", 10)
    (tmp_path / "a.png").write_bytes(picture())
    with pytest.raises(Unusable, match="too many"):
        file_thumbnail(tmp_path / "a.png")


def test_a_picture_is_limited_and_upright(tmp_path: Path):
    image = Image.new("RGB", (400, 200), (255, 0, 0))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.jpg", exif=exif)
    for side, size in {64: (32, 64), 2048: (200, 400)}.items():
        with Image.open(io.BytesIO(file_picture(tmp_path / "a.jpg", side))) as shown:
            assert shown.format == "JPEG" and shown.size == size


def test_a_mask_is_as_large_as_the_picture_of_its_image(tmp_path: Path):
    mask = Image.new("L", (40, 20), 0)
    mask.paste(255, (20, 0, 40, 20))
    mask.save(tmp_path / "a.png")
    with Image.open(io.BytesIO(file_mask(tmp_path / "a.png", (400, 200), 100))) as shown:
        assert (shown.format, shown.mode, shown.size) == ("PNG", "L", (100, 50))
        assert shown.getpixel((10, 10)) == 0 and shown.getpixel((90, 40)) == 255
    (tmp_path / "a.png").write_bytes(b"no mask")
    with pytest.raises(Unusable, match="cannot be decoded"):
        file_mask(tmp_path / "a.png", (400, 200), 100)
