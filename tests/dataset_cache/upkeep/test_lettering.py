"""Texts in pictures are drawn with letters, not with boxes."""

import pytest
from PIL import Image, ImageDraw, ImageFont

from streamcache.dataset_cache.upkeep import lettering
from streamcache.dataset_cache.upkeep.lettering import drawable, font_for


def drawn(text: str) -> bytes:
    image = Image.new("L", (40, 30))
    ImageDraw.Draw(image).text((2, 2), drawable(text), fill=255, font=font_for(text, 20))
    return image.tobytes()


def system_font() -> bool:
    return lettering._system_font(20) is not lettering._own_font(20)


def test_latin_letters_are_drawn_with_the_font_of_pillow_on_every_system():
    assert font_for("a cat × 0.6, é", 13) is font_for("another", 13)
    assert drawn("×") == drawn("x") != drawn("y")


@pytest.mark.skipif(not system_font(), reason="this system has no font with Chinese letters")
def test_two_chinese_letters_look_different():
    assert drawn("猫") != drawn("狗")


def test_without_such_a_font_the_one_of_pillow_draws(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str, size: int) -> ImageFont.FreeTypeFont:
        raise OSError(name)

    lettering._system_font.cache_clear()
    monkeypatch.setattr(ImageFont, "truetype", missing)
    try:
        assert font_for("猫", 13) is font_for("cat", 13)
    finally:
        lettering._system_font.cache_clear()
