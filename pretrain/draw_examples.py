"""Draws the example images that come with the pack: a made-up creature that the tiny model does not know.

python -m streamcache.pretrain.draw_examples
"""

from pathlib import Path

from ..reference.images import creatures

FOLDER = Path(__file__).resolve().parents[1] / "example_images" / "zogglewump"
COUNT, SIDE = 12, 128


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(creatures(COUNT, seed=7, sizes=((SIDE, SIDE),)), start=1):
        picture.image.quantize(64).save(FOLDER / f"zogglewump_{number:02}.png", optimize=True)
        (FOLDER / f"zogglewump_{number:02}.txt").write_text(picture.caption + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
