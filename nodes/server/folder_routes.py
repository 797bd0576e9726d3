"""The routes of folders of images: list them, show thumbnails, and add images to them.

To add images, a page begins an upload, sends single files through ComfyUI's own upload route and zips to a route here,
and then has them added by a job. Until then nothing in a folder of images changes.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...dataset_cache import CacheError, intake, is_image
from ..host.app import input_root, list_examples, max_upload_bytes, source_roots
from ..library import DATASETS, contained, list_folders, parse_name, path_of_folder, path_of_new_folder
from ..outside import Refused
from .http import FileResponse, Params, Routes
from .jobs import adding
from .upkeep_routes import JOBS

_MAX_BYTES = 1 << 40
_GROUPS = (f"input/{DATASETS}",)
_THUMBNAIL = "image/jpeg"


def add(routes: Routes) -> None:
    routes.get("/folders", list_all)
    routes.get("/folder/image", show_image)
    routes.post("/folder/begin", begin)
    routes.receive("/folder/zip", zip_place)
    routes.post("/folder/add", add_upload)
    routes.post("/folder/discard", discard)
    routes.post("/folder/example", add_example)


def list_all(params: Params) -> dict[str, Any]:
    """The folders with images, and all names that an Image Folder Dataset node can have."""
    params.refuse_unknown()
    roots = source_roots()
    rows = intake.list_image_folders(roots, _GROUPS)
    return {"folders": [_row(folder) for folder in rows], "names": list_folders(roots)}


def show_image(params: Params) -> FileResponse:
    folder, name, stamp = params.text("folder"), params.text("name"), params.text("stamp", "")
    params.refuse_unknown()
    return FileResponse(intake.file_thumbnail(_image(folder, name)), _THUMBNAIL, immutable=bool(stamp))


def begin(params: Params) -> dict[str, Any]:
    """Refuses a name that cannot be used and a disk that is too full, before anything is sent."""
    folder, size = params.text("folder"), params.integer("bytes", 1, _MAX_BYTES)
    params.refuse_unknown()
    name, path = path_of_new_folder(folder, input_root())
    root = _uploads()
    intake.remove_abandoned(root)
    upload = intake.Upload.begin(root, size)
    place = upload.folder.relative_to(input_root()).as_posix()
    images = intake.describe_folder(path, name).images
    limit = max_upload_bytes()
    below = f"{place}/{intake.FILES}"
    return {"upload": upload.id, "folder": name, "subfolder": below, "file_bytes": limit, "images": images}


def zip_place(params: Params) -> Path:
    number, position = params.text("upload"), params.integer("number", 0, intake.MAX_ZIPS - 1)
    params.refuse_unknown()
    return _upload(number).zip_path(position)


def add_upload(params: Params) -> dict[str, Any]:
    number, folder, if_exists = params.text("upload"), params.text("folder"), params.text("if_exists", intake.KEEP_BOTH)
    params.refuse_unknown()
    if if_exists not in intake.IF_FILE_EXISTS:
        raise Refused(f"if_exists: expected one of {', '.join(intake.IF_FILE_EXISTS)}")
    name, path = path_of_new_folder(folder, input_root())
    return {"job": JOBS.start("add", name, adding(_upload(number), path, if_exists))}


def discard(params: Params) -> dict[str, Any]:
    number = params.text("upload")
    params.refuse_unknown()
    _upload(number).discard()
    return {}


def add_example(params: Params) -> dict[str, Any]:
    """A copy of example images that come with the pack, whose captions can be edited."""
    wanted = params.text("example")
    params.refuse_unknown()
    examples = list_examples()
    if wanted not in examples:
        raise Refused(f"example: expected one of {', '.join(examples)}")
    name, path = path_of_new_folder(f"example_{wanted}", input_root())
    upload = intake.Upload.begin(_uploads(), 1 << 20)
    for file in sorted(examples[wanted].iterdir()):
        shutil.copyfile(file, upload.folder / intake.FILES / f"0-{file.name}")
    return {"job": JOBS.start("add", name, adding(upload, path, "skip"))}


def _row(folder: intake.ImageFolder) -> dict[str, Any]:
    return {**asdict(folder), "covers": list(folder.covers), "writable": folder.name.startswith("input/")}


def _uploads() -> Path:
    return contained(input_root(), [DATASETS], DATASETS)


def _upload(number: str) -> intake.Upload:
    try:
        upload = intake.Upload(_uploads(), number)
    except CacheError as error:
        raise Refused(str(error)) from None
    if not upload.exists():
        raise Refused("this upload does not exist, or was added or discarded already", 404)
    return upload


def _image(folder: str, name: str) -> Path:
    """An image file of a folder. Its name comes from a list, or from an attacker."""
    parse_name(folder)
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part or part[0] == "." for part in parts):
        raise Refused(f"name: {json.dumps(name[:60])} is not the name of an image")
    try:
        path = contained(path_of_folder(folder, source_roots()), parts, name)
    except CacheError as error:
        raise Refused(str(error), 404) from None
    if not is_image(parts[-1]) or not path.is_file():
        raise Refused(f"{name[:200]}: no such image", 404)
    return path
