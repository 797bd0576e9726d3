"""Headers that are read without Pillow say what Pillow says; everything else is left to it."""

import io
import struct
import zlib

import pytest
from PIL import Image, PngImagePlugin

from streamcache.dataset_cache.sources import images
from streamcache.dataset_cache.sources.headers import Header, read_header
from streamcache.errors import Unusable


def saved(mode: str = "RGB", kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (37, 21)).save(file, kind, **options)
    return file.getvalue()


def texts(**given: str) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    for name, text in given.items():
        info.add_text(name, text)
    return info


def rotated() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def with_chunk(kind: bytes, body: bytes) -> bytes:
    """A PNG with one more chunk after its first."""
    data = saved()
    chunk = struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return data[:33] + chunk + data[33:]


COMMON = {
    **{f"PNG {mode}": saved(mode) for mode in ("1", "L", "LA", "RGB", "RGBA", "P", "I;16")},
    "PNG with a workflow": saved(pnginfo=texts(prompt="x" * 20_000)),
    "PNG with a resolution": saved(dpi=(300, 300)),
    **{f"JPEG {mode}": saved(mode, "JPEG") for mode in ("L", "RGB", "CMYK")},
    "JPEG progressive": saved("RGB", "JPEG", progressive=True, dpi=(300, 300), comment=b"hello"),
    "JPEG with a profile": saved("RGB", "JPEG", icc_profile=b"p" * 1000),
}
RARE = {
    "PNG rotated": saved(exif=rotated()),
    "PNG with a transparent color": saved(transparency=(1, 2, 3)),
    "PNG with a palette and transparency": saved("P", transparency=0),
    "PNG with a profile as text": with_chunk(b"tEXt", b"Raw profile type exif\0" + b"x"),
    "PNG with XMP as text": with_chunk(b"tEXt", b"XML:com.adobe.xmp\0<x/>"),
    "PNG with a long text": saved(pnginfo=texts(prompt="x" * 200_000)),
    "JPEG rotated": saved("RGB", "JPEG", exif=rotated()),
    "JPEG with XMP": saved("RGB", "JPEG", xmp=b"<x/>"),
    **{kind: saved("RGB", kind) for kind in ("WEBP", "GIF", "BMP", "TIFF")},
}


def by_pillow(data: bytes) -> Header:
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        if image.getexif().get(0x0112) == 6:
            width, height = height, width
        alpha = image.mode in ("RGBA", "LA") or "transparency" in image.info
        return Header(width, height, alpha, image.format or "")


@pytest.mark.parametrize("name", COMMON)
def test_a_common_header_is_read_without_pillow(name: str, monkeypatch):
    expected = by_pillow(COMMON[name])
    monkeypatch.setattr(images.Image, "open", None)
    assert images.probe(io.BytesIO(COMMON[name])) == expected


@pytest.mark.parametrize("name", RARE)
def test_everything_else_is_left_to_pillow(name: str):
    assert read_header(RARE[name][:65536]) is None
    assert images.probe(io.BytesIO(RARE[name])) == by_pillow(RARE[name])


def test_damaged_headers_are_left_to_pillow_which_names_the_damage():
    png, jpeg = saved(), saved("RGB", "JPEG")
    for data in (png[:20] + b"\xff" + png[21:], png[:30], b"\x89PNG\r\n\x1a\n", jpeg[:100], jpeg[:3], b"\xff\xd8\xff"):
        assert read_header(data) is None
        with pytest.raises(Unusable):
            images.probe(io.BytesIO(data))


def test_any_byte_of_a_header_may_be_wrong():
    for data in (saved(pnginfo=texts(a="b")), saved("RGB", "JPEG", comment=b"x")):
        for at in range(len(data)):
            for value in (0, 1, 255):
                read_header(data[:at] + bytes([value]) + data[at + 1 :])
            read_header(data[:at])


def test_an_image_with_too_many_pixels_is_refused_with_its_size():
    data = bytearray(saved())
    data[16:24] = struct.pack(">II", 60_000, 60_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    with pytest.raises(Unusable, match="pixels"):
        images.probe(io.BytesIO(bytes(data)))
