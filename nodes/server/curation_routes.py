"""The routes of curation: show the images of a folder, edit their captions, exclude and repeat them, find look-alikes.

Edits go to the files of the folder; each can be undone, and a file that changed since it was shown is not overwritten.
"""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...dataset_cache import CacheError, Transform, curate, intake, plural
from ..folders import (
    KINDS,
    LAST,
    MAX_EDITS,
    MAX_GROUPS,
    MAX_PAGE,
    MAX_SHOWN,
    PREVIEWS,
    FolderNow,
    Query,
    find_alike,
    find_source,
    folder_charts,
    forget_first,
    groups_of,
    image_row,
    look_at,
    look_first,
    make_edit,
    view_page,
)
from ..host.app import send_event, source_roots
from ..library import contained, parse_name, path_of_folder
from ..outside import Refused
from .cache_view import open_view
from .http import FileResponse, Params, Routes, cache_param
from .jobs import Watch, Work
from .upkeep_routes import JOBS, READ

MAX_NAMES = 10_000
MAX_CAPTION = 1_000_000  # characters that one request may set
MAX_BODY = 8 << 20
_SIDES = (64, 2048)
_RESOLUTIONS = (64, 8192)
_STEPS = (8, 64)
_LEAST_ASPECT = 0.05
_MAX_REPEATS = 100_000
_MAX_NUMBER = (1 << 53) - 1
_FLAGS = ("captioned", "excluded", "masked", "problem", "alike")  # in the order of ImageFilter


def add(routes: Routes) -> None:
    routes.get("/folder/view", show_folder)
    routes.get("/folder/charts", show_charts)
    routes.get("/folder/caption", show_caption)
    routes.get("/folder/picture", show_picture)
    routes.get("/folder/mask", show_mask)
    routes.get("/folder/alike", show_alike)
    routes.get("/cache/source", show_source)
    routes.post("/folder/preview", preview, MAX_BODY)
    changes: Mapping[str, Callable[[Params], dict[str, Any]]] = {
        "/folder/caption": set_caption,
        "/folder/edit": edit,
        "/folder/choose": choose,
        "/folder/undo": undo,
    }
    for path, change in changes.items():
        routes.post(path, _notifying(change), MAX_BODY)
    routes.post("/folder/alike", start_alike)


def show_folder(params: Params) -> dict[str, Any]:
    (folder, path), state = _folder(params), params.text("state", "")
    start, count = params.integer("start", 0, _MAX_NUMBER, 0), params.integer("count", 1, MAX_PAGE, 100)
    order = params.text("order", curate.IMAGE_ORDERS[0])
    query = Query(_filter(params), order, bool(params.flag("descending")), _transform(params))
    params.refuse_unknown()
    now = _look(folder, path, state, needs_all=not query.is_plain)
    return {"folder": folder, **view_page(now, query, start, count)}


def show_charts(params: Params) -> dict[str, Any]:
    (folder, path), state, transform = _folder(params), params.text("state", ""), _transform(params)
    params.refuse_unknown()
    return folder_charts(_look(folder, path, state, needs_all=True), transform)


def show_caption(params: Params) -> dict[str, Any]:
    """One image, with its caption whole."""
    (_, path), name, transform = _folder(params), params.text("name"), _transform(params)
    params.refuse_unknown()
    _, image = _find(path, name, "")
    return image_row(image, transform, len(image.caption.text))


def show_picture(params: Params) -> FileResponse:
    now, image, side, stamp = _picture(params)
    return FileResponse(intake.file_picture(_inside(now, image.name), side), "image/jpeg", immutable=bool(stamp))


def show_mask(params: Params) -> FileResponse:
    now, image, side, stamp = _picture(params)
    if not image.masked:
        raise Refused(f"{image.name[:200]}: has no mask", 404)
    size = image.width, image.height
    path, alpha = _inside(now, image.mask or image.name), not image.mask
    return FileResponse(intake.file_mask(path, size, side, alpha), "image/png", immutable=bool(stamp))


def show_alike(params: Params) -> dict[str, Any]:
    _, path = _folder(params)
    params.refuse_unknown()
    groups = groups_of(look_at(path))
    return {"ready": groups is not None, "groups": (groups or [])[:MAX_GROUPS]}


def show_source(params: Params) -> dict[str, Any]:
    """The image that a sample of a cache was made from, if ComfyUI offers its folder."""
    view = open_view(cache_param(params)[1], params.text("generation", ""))
    number = params.integer("number", 0, _MAX_NUMBER)
    params.refuse_unknown()
    if number >= len(view.cache):
        raise Refused(f"no sample {number:,}: the cache has {len(view.cache):,}", 404)
    row = view.index.sample_row(number)
    return find_source(view.index.string(row.source), view.manifest.id, source_roots())


def preview(params: Params) -> dict[str, Any]:
    """What some edits of captions would change. Nothing is written before `edit`."""
    (_, path), edits = _folder(params), params.tables("edits", MAX_EDITS)
    wanted, change = _wanted(params), make_edit([_edit(each) for each in edits])
    params.refuse_unknown()
    now, names = wanted(path)
    return PREVIEWS.make(now, names, change)


def edit(params: Params) -> dict[str, Any]:
    (_, path), token = _folder(params), params.text("token")
    params.refuse_unknown()
    now = look_first(path, LAST)
    changes, title = PREVIEWS.take(now.root, token)
    return _finish(path, curate.apply_changes(now.view, changes, title))


def set_caption(params: Params) -> dict[str, Any]:
    (_, path), name, stamp = _folder(params), params.text("name"), params.text("stamp", "")
    text = params.text("text", most=MAX_CAPTION)
    params.refuse_unknown()
    now, image = _find(path, name)
    _refuse_linked(now, [image.name])
    before = image.caption.text if image.caption.stamp == stamp else ""
    change = curate.CaptionChange(image.name, before, text, stamp)
    return _finish(path, curate.apply_changes(now.view, [change], f"Edit the caption of {image.name}"))


def choose(params: Params) -> dict[str, Any]:
    """Exclude or include images, or repeat them."""
    (_, path), wanted = _folder(params), _wanted(params)
    excluded = params.flag("excluded")
    repeats = params.integer("repeats", 1, _MAX_REPEATS) if params.has("repeats") else None
    params.refuse_unknown()
    if excluded is None and repeats is None:
        raise Refused("excluded: is missing; choose whether images are excluded, or how often they repeat")
    now, names = wanted(path)
    _refuse_linked(now, names)
    return _finish(path, curate.choose_images(now.view, names, excluded=excluded, repeats=repeats))


def undo(params: Params) -> dict[str, Any]:
    _, path = _folder(params)
    params.refuse_unknown()
    done = curate.undo_edit(path)
    if done is None:
        raise Refused("there is nothing to undo in this folder", 404)
    return _finish(path, done)


def start_alike(params: Params) -> dict[str, Any]:
    folder, path = _folder(params)
    params.refuse_unknown()
    return {"job": JOBS.start("alike", folder, _comparing(path))}


def _look(folder: str, path: Path, state: str, needs_all: bool) -> FolderNow:
    """A folder now. A large one that was not read yet is read by a job; meanwhile only its plain list is known."""
    now = look_first(path, state)
    if now.view.whole:
        return now
    if state != now.state:  # a page that scrolls does not start again what the user canceled
        with contextlib.suppress(Refused):  # it is running, or there are too many jobs
            JOBS.start(READ, folder, _reading(path))
    if needs_all:
        raise Refused(f"{folder}: its images are being read; wait until that is done", 409)
    return now


def _reading(path: Path) -> Work:
    return lambda watch: f"Read {plural(len(look_at(path, progress=watch).view.images), 'image')}"


def _comparing(path: Path) -> Work:
    def work(watch: Watch) -> str:
        groups = find_alike(look_at(path), watch)
        count = sum(map(len, groups))
        watch.count(groups=len(groups), images=count)
        if not groups:
            return "No look-alikes"
        return f"{plural(count, 'image')} in {plural(len(groups), 'group')} of look-alikes"

    return work


def _notifying(change: Callable[[Params], dict[str, Any]]) -> Callable[[Params], dict[str, Any]]:
    def change_and_notify(params: Params) -> dict[str, Any]:
        done = change(params)
        send_event("streamcache.folders", {})
        return done

    return change_and_notify


def _folder(params: Params) -> tuple[str, Path]:
    """The folder that the parameter `folder` names: its name, and its path."""
    name = "/".join(parse_name(params.text("folder")))
    try:
        return name, path_of_folder(name, source_roots())
    except CacheError as error:
        raise Refused(str(error), 404) from None


def _filter(params: Params) -> curate.ImageFilter:
    words, tag, bucket = (params.text(name, "") for name in ("search", "tag", "bucket"))
    return curate.ImageFilter(words, tag, bucket, *map(params.flag, _FLAGS))


def _transform(params: Params) -> Transform:
    """How images are resized, by the names of these settings on Encode Dataset."""
    upscale = params.flag("upscale")
    return Transform(
        resolutions=(params.integer("resolution", *_RESOLUTIONS, 1024),),
        step=params.integer("step", *_STEPS, 64),
        min_aspect=params.number("min_aspect", _LEAST_ASPECT, 1, 0.5),
        max_aspect=params.number("max_aspect", 1, 1 / _LEAST_ASPECT, 2.0),
        upscale=upscale is not False,
        crop=params.text("crop", "centre"),
    )


def _wanted(params: Params) -> Callable[[Path], tuple[FolderNow, list[str]]]:
    """A folder now, and the images in it that the parameter `names` lists or `filter` describes."""
    inner = params.table("filter")
    names = params.texts("names", MAX_NAMES) if params.has("names") else None
    if inner is None:
        return lambda path: (look_first(path), _given(names))
    if names is not None:
        raise Refused("names: expected either names or filter")
    query = Query(_filter(inner), transform=_transform(inner))
    inner.refuse_unknown()

    def find(path: Path) -> tuple[FolderNow, list[str]]:
        now = look_at(path)
        return now, [image.name for image in query.images(now)]

    return find


def _given(names: list[str] | None) -> list[str]:
    if names is None:
        raise Refused("names: is missing; expected names or filter")
    return names


def _edit(params: Params) -> dict[str, Any]:
    kind = params.text("kind")
    if kind not in KINDS:
        raise Refused(f"kind: expected one of {', '.join(KINDS)}")
    if kind == "replace":
        values = {"find": params.text("find"), "by": params.text("by"), "regex": bool(params.flag("regex"))}
    else:
        values = {"text": params.text("text")}
    params.refuse_unknown()
    return {"kind": kind, **values}


def _find(path: Path, name: str, state: str = LAST) -> tuple[FolderNow, curate.FolderImage]:
    """An image as it was when the folder was last read; a new one makes it be read again."""
    now = look_first(path, state)
    try:
        return now, now.view.find(name)
    except CacheError as error:
        if state:
            return _find(path, name, "")
        raise Refused(str(error), 404) from None


def _refuse_linked(now: FolderNow, names: list[str]) -> None:
    for reason in now.linked(names).values():
        raise Refused(reason)


def _picture(params: Params) -> tuple[FolderNow, curate.FolderImage, int, str]:
    (_, path), name = _folder(params), params.text("name")
    side, stamp = params.integer("side", *_SIDES, 1024), params.text("stamp", "")
    params.refuse_unknown()
    return *_find(path, name), side, stamp


def _inside(now: FolderNow, name: str) -> Path:
    try:
        return contained(now.root, name.split("/"), name)
    except CacheError as error:
        raise Refused(str(error), 404) from None


def _finish(path: Path, done: curate.EditResult) -> dict[str, Any]:
    """What an edit did. The next look at a folder that is still being read lists it again."""
    forget_first(path)
    conflicts = [
        {"name": c.name, "before": c.before, "found": c.found, "after": c.after, "stamp": c.stamp}
        for c in done.conflicts[:MAX_SHOWN]
    ]
    return {
        "changed": done.changed,
        "conflicts": conflicts,
        "conflict_count": len(done.conflicts),
        "refused": dict(list(done.refused.items())[:MAX_SHOWN]),
        "refused_count": len(done.refused),
        "undo": curate.last_edit(path),
    }
