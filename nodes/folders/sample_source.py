"""Where a sample of a cache comes from: its image in a folder that ComfyUI offers, if it is there.

A cache names sources without their place on the machine, such as `cats/sub/a.png` for a folder `cats`. The place is
remembered by the machine that encoded it; otherwise folders of that name are searched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...dataset_cache import CacheError, is_image, normal_form, remembered_folders, spelled
from ..library import contained, list_folders, parse_name, path_of_folder

_MAX_FOLDERS = 2000  # remembered ones to look at
_Roots = Mapping[str, Sequence[Path]]


def find_source(source: str, dataset: str, roots: _Roots) -> dict[str, str]:
    """`{"folder", "image"}` of a sample's source, or `{"reason"}` why it cannot be shown."""
    parts = source.split("/")
    if len(parts) < 2 or not is_image(parts[-1]) or not all(map(_is_plain, parts)):
        return {"reason": "this sample was not made from an image file in a folder"}
    away = False
    for folder in _remembered(parts, dataset):
        name = _name_of(folder, roots)
        image = _image_in(folder, parts[1:])
        if name and image:
            return {"folder": name, "image": image}
        away |= bool(image)
    found = dict(_searched(parts, roots))
    if len(found) == 1:
        return next({"folder": name, "image": image} for name, image in found.items())
    if found:
        return {"reason": f"{parts[0]}: several folders of this name have the image: {', '.join(sorted(found)[:5])}"}
    if away:
        return {
            "reason": f"{parts[0]}: its folder is not below ComfyUI's input folder or a datasets folder; "
            "move it there, or add the folder above it as datasets in extra_model_paths.yaml"
        }
    return {"reason": f"{source}: this image is not below ComfyUI's input folder or a datasets folder"}


def _remembered(parts: Sequence[str], dataset: str) -> Iterator[Path]:
    """The source folders of this dataset on this machine whose names fit."""
    inner = [normal_form(part) for part in parts[:-1]]
    for place in remembered_folders(dataset, _MAX_FOLDERS):
        folder = Path(place)
        if [normal_form(part) for part in folder.parts[-len(inner) :]] == inner:
            yield folder.parents[len(inner) - 2] if len(inner) > 1 else folder


def _searched(parts: Sequence[str], roots: _Roots) -> Iterator[tuple[str, str]]:
    wanted, seen = normal_form(parts[0]), set()
    for name in list_folders(roots):
        if normal_form(name.rpartition("/")[2]) != wanted:
            continue
        try:
            folder = path_of_folder(name, roots)
        except CacheError:  # removed meanwhile, or a name that cannot be used
            continue
        image = _image_in(folder, parts[1:])
        if image and os.path.realpath(folder) not in seen:
            seen.add(os.path.realpath(folder))
            yield name, image


def _image_in(folder: Path, parts: Sequence[str]) -> str:
    """The image's name below the folder as it is on disk, "" if it is not there."""
    place = folder
    try:
        for part in parts:
            place /= spelled(place, part)
        contained(folder, place.relative_to(folder).parts, "/".join(parts))
        return place.relative_to(folder).as_posix() if place.is_file() else ""
    except (CacheError, OSError):
        return ""


def _name_of(folder: Path, roots: _Roots) -> str:
    """The name under which ComfyUI offers a folder, "" if it does not."""
    real = Path(os.path.realpath(folder))
    for label, below in roots.items():
        for root in below:
            top = Path(os.path.realpath(root))
            if top in real.parents:
                name = f"{label}/{real.relative_to(top).as_posix()}"
                try:
                    parse_name(name)
                    if path_of_folder(name, roots).samefile(real):
                        return name
                except (CacheError, OSError):
                    continue
    return ""


def _is_plain(part: str) -> bool:
    return part not in ("", ".", "..") and part[0] != "." and not any(c in part for c in "\\\0:")
