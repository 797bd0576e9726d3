"""Folders of small images with captions."""

from pathlib import Path

from PIL import Image


def write_folder(path: Path, captions: dict[str, str]) -> Path:
    """One image per name, with a caption file where the caption is not empty."""
    for number, (name, caption) in enumerate(captions.items()):
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (number * 20 % 256, 0, 0)).save(file)
        if caption:
            file.with_suffix(".txt").write_text(caption, encoding="utf-8")
    return path
