"""Image files of all kinds become upright RGB, or a clear error."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, features

from streamcache.dataset_cache.sources import images
from streamcache.dataset_cache.sources.images import decode, probe
from streamcache.dataset_cache.sources.transforms import Placement, Transform, place_image
from streamcache.errors import Unusable

RED, BLUE = (255, 0, 0), (0, 0, 255)


def saved(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def halves(size=(40, 20), mode="RGB") -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (size[0] // 2, 0, *size))
    return image.convert(mode)


def pixel(data: bytes, at: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
    return decode(data).rgb.getpixel(at)


KINDS = ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", *(["AVIF"] if features.check("avif") else [])]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_decodes_to_the_size_its_header_states(kind):
    data = saved(halves(), kind)
    header = probe(io.BytesIO(data))
    picture = decode(data)
    assert (header.width, header.height) == picture.size == (40, 20)
    assert header.format == kind
    assert np.allclose(picture.rgb.getpixel((2, 10)), RED, atol=40)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_exif_rotation_is_applied(kind):
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"tiffinfo": {274: 6}} if kind == "TIFF" else {"exif": exif}
    data = saved(halves(), kind, **options)
    assert decode(data).size == (20, 40)
    header = probe(io.BytesIO(data))
    assert (header.width, header.height) == (20, 40)
    assert np.allclose(pixel(data, (10, 2)), RED, atol=40)


def test_sixteen_bit_grey_is_scaled_not_clipped():
    values = np.array([[0, 32896, 65535]], np.uint16)
    assert [pixel(saved(Image.fromarray(values)), (x, 0))[0] for x in range(3)] == [0, 128, 255]


def test_sixteen_bit_color_keeps_its_brightness():
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    row = b"\0" + struct.pack(">HHH", 65535, 32896, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    assert pixel(data) == (255, 128, 0)


def test_float_pixels_must_be_in_range():
    data = saved(Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32)), "TIFF")
    assert [pixel(data, (x, 0))[0] for x in range(3)] == [0, 128, 255]
    with pytest.raises(Unusable, match="expected 0 to 1"):
        decode(saved(Image.fromarray(np.array([[0.0, 7.0]], np.float32)), "TIFF"))


def test_palette_cmyk_and_grey_become_rgb():
    assert pixel(saved(halves().convert("P", palette=Image.Palette.ADAPTIVE))) == RED
    assert np.allclose(pixel(saved(halves(mode="CMYK"), "TIFF")), RED, atol=3)
    assert pixel(saved(Image.new("L", (2, 2), 77))) == (77, 77, 77)
    assert pixel(saved(Image.new("1", (2, 2), 1))) == (255, 255, 255)


def test_transparency_shows_the_background_and_is_kept_as_alpha():
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    image.putpixel((1, 0), (255, 0, 0, 255))
    picture = decode(saved(image), background=(0, 255, 0))
    assert [picture.rgb.getpixel((x, 0)) for x in (0, 1)] == [(0, 255, 0), RED]
    assert [picture.alpha.getpixel((x, 0)) for x in (0, 1)] == [0, 255]
    assert decode(saved(halves())).alpha is None


def test_a_transparent_palette_color_is_transparency():
    image = Image.new("P", (2, 1), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    data = saved(image, "PNG", transparency=0)
    assert probe(io.BytesIO(data)).alpha
    assert pixel(data) == (255, 255, 255)


def test_the_first_frame_of_an_animation_is_used():
    frames = [Image.new("RGB", (8, 8), color) for color in (RED, BLUE)]
    assert pixel(saved(frames[0], "GIF", save_all=True, append_images=frames[1:])) == RED


@pytest.mark.parametrize(
    ("kind", "lenient"),
    [(kind, False) for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF")] + [("PNG", True), ("JPEG", True)],
)
def test_truncated_images_are_refused_even_if_pillow_is_set_to_load_them(kind, lenient, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    data = saved(noise, kind)
    assert decode(data).size == (64, 64)
    with pytest.raises(Unusable):
        decode(data[: len(data) * 2 // 3])


@pytest.mark.parametrize(("data", "word"), [(b"", "empty"), (b"hello" * 99, "not an image")])
def test_a_file_that_is_not_an_image_is_refused(data, word):
    for read in (decode, lambda raw: probe(io.BytesIO(raw))):
        with pytest.raises(Unusable, match=word):
            read(data)


@pytest.mark.parametrize("limit", [89_478_485, None])
def test_a_decompression_bomb_is_refused_without_being_decoded(limit, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    data = saved(Image.new("1", (20_000, 10_000)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    assert len(data) < 100_000
    with pytest.raises(Unusable, match="scale it down"):
        decode(data)
    with pytest.raises(Unusable, match="scale it down"):
        probe(io.BytesIO(data))


def test_rendering_at_the_same_size_keeps_the_pixels():
    noise = np.random.default_rng(0).integers(0, 255, (16, 24, 3), dtype=np.uint8)
    picture = decode(saved(Image.fromarray(noise)))
    placement = Placement(24, 16, (24, 16), 0, 0)
    assert torch.equal(picture.render(placement), torch.from_numpy(noise).float() / 255)
    assert torch.equal(picture.render(placement, flip=True), torch.from_numpy(noise[:, ::-1].copy()).float() / 255)


def test_rendering_crops_at_the_placement():
    picture = decode(saved(halves((200, 100))))
    transform = Transform((64,), step=64)
    middle = picture.render(place_image((200, 100), (64, 64), transform, b"x"))
    assert middle.shape == (64, 64, 3) and middle.dtype == torch.float32
    assert middle[32, 2].tolist() == [1, 0, 0] and middle[32, -3].tolist() == [0, 0, 1]


def test_images_are_recognized_by_extension():
    assert images.is_image("A.JPG") and images.is_image("x.y.webp") and not images.is_image("png")
    assert images.format_of("a.JPG") == "JPEG" and images.format_of("b.png") == "PNG"
