"""Small pictures and zips, good and bad ones."""

import io
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image


def picture(color: int = 0, kind: str = "PNG", size: tuple[int, int] = (8, 6)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (color % 256, color // 256 % 256, 90)).save(file, kind)
    return file.getvalue()


def write_zip(path: Path, files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return path


def write_link_zip(path: Path, name: str, target: str) -> Path:
    """A zip with a symbolic link, as `zip --symlinks` stores it."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(entry, target)
    return path
