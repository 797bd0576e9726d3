"""The grid as one image."""

from PIL import Image

from streamcache.lora_train.grid import draw_sheet

COLORS = ("red", "lime", "blue")


def test_i2_every_picture_is_on_the_sheet_in_its_own_cell():
    pictures = [[Image.new("RGB", (64, 48), color) for color in COLORS] for _ in range(2)]
    sheet = draw_sheet(pictures, ["a × 1", "b × 1", "c × 1"], ["a cat", "a dog"], "my_lora")
    colors = [color for _, color in sheet.getcolors(1 << 20)]
    for color in ((255, 0, 0), (0, 255, 0), (0, 0, 255)):
        assert color in colors
        assert sum(count for count, found in sheet.getcolors(1 << 20) if found == color) == 2 * 64 * 48


def test_i2_labels_are_drawn_and_long_ones_are_wrapped():
    picture = [[Image.new("RGB", (64, 64), "red")]]
    short, long = (draw_sheet(picture, [name], ["a cat"]) for name in ("a", "a long name of a LoRA × 1"))
    assert long.height > short.height
    assert draw_sheet(picture, ["a"], ["a cat"]).tobytes() != draw_sheet(picture, ["a"], ["a dog"]).tobytes()


def test_i2_a_huge_grid_stays_a_picture_that_can_be_opened():
    one = Image.new("RGB", (1024, 1024), "red")
    sheet = draw_sheet([[one] * 60], ["x"] * 60, ["a cat"])
    assert max(sheet.size) < 17_000
    assert draw_sheet([[one]], ["x"], ["a cat"]).width < 1024
