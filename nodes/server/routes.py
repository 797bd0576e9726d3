"""The routes that pages use: list and show caches and training runs, stop or delete a run. Every path is contained
below its root, and only a POST changes anything."""

from pathlib import Path
from typing import Any

from server import PromptServer

from ..host.app import cache_roots, caches_changed, lora_folder, runs_folder, source_roots
from . import curation_routes, folder_routes, upkeep_routes
from .cache_list import cache_row, list_rows
from .cache_view import MAX_PAGE, View, cache_detail, open_view, sample_page
from .grid_view import list_pictures, read_picture
from .http import FileResponse, Params, Routes, cache_param
from .live_runs import RUNS
from .moves import RUN, Root, list_trash, move_to_trash
from .runs import MAX_TAGS, RunPlaces, Runs
from .thumbnail import TYPE, thumbnail

SMOOTHING = 980  # thousandths; the same as the trainer's default
# ComfyUI may replace the policy by its own (--disable-api-nodes), but not the disposition.
_REPORT_HEADERS = {"Content-Disposition": 'attachment; filename="report.html"', "Content-Security-Policy": "sandbox"}
_MAX_NUMBER = (1 << 53) - 1  # the largest integer that JavaScript represents exactly


def register_routes() -> None:
    routes = Routes(PromptServer.instance.routes)
    routes.get("/caches", list_caches)
    routes.get("/cache", show_cache)
    routes.get("/cache/samples", show_samples)
    routes.get("/cache/thumbnail", show_thumbnail)
    upkeep_routes.add(routes)
    folder_routes.add(routes)
    curation_routes.add(routes)
    routes.get("/runs", list_runs)
    routes.get("/runs/stamp", show_stamp)
    routes.get("/run", show_run)
    routes.get("/run/sample", show_run_sample)
    routes.get("/run/report", show_run_report)
    routes.get("/run/grid", show_run_grid)
    routes.get("/run/grid/picture", show_grid_picture)
    routes.get("/run/table", show_run_table)
    routes.get("/run/lora", send_lora)
    routes.post("/run/stop", stop_run)
    routes.post("/run/label", label_run)
    routes.post("/run/rename", rename_run)
    routes.post("/run/delete", delete_run)
    routes.close()


def list_caches(params: Params) -> dict[str, Any]:
    params.refuse_unknown()
    rows = list_rows(cache_roots(), _source_folders())
    trash = list_trash(upkeep_routes.trash_roots())
    return {"caches": [row.to_json() for row in rows], "trash": [row.to_json() for row in trash]}


def show_cache(params: Params) -> dict[str, Any]:
    name, folder = cache_param(params)
    params.refuse_unknown()
    view = open_view(folder)
    return cache_detail(cache_row(name, folder, _source_folders()), view)


def show_samples(params: Params) -> dict[str, Any]:
    view = _view(params)
    start, count = params.integer("start", 0, _MAX_NUMBER, 0), params.integer("count", 1, MAX_PAGE, 100)
    search, bucket = params.text("search", ""), params.text("bucket", "")
    params.refuse_unknown()
    return sample_page(view, start, count, search, bucket)


def show_thumbnail(params: Params) -> FileResponse:
    view, number = _view(params), params.integer("number", 0, _MAX_NUMBER)
    generation = params.text("generation", "")
    params.refuse_unknown()
    return FileResponse(thumbnail(view, number), TYPE, immutable=bool(generation))


def list_runs(params: Params) -> dict[str, Any]:
    """`client` is the requesting page. The response names nodes of runs only if they belong to that page."""
    client = params.text("client", "")
    params.refuse_unknown()
    return {"runs": _runs().rows(client)}


def show_stamp(params: Params) -> dict[str, Any]:
    """For pages that ask again and again whether a run of another process has changed."""
    params.refuse_unknown()
    return {"stamp": _runs().stamp()}


def show_run(params: Params) -> dict[str, Any]:
    name, client = params.text("name"), params.text("client", "")
    points = params.integer("points", 50, 5000, 1000)
    smoothing = params.integer("smoothing", 0, 999, SMOOTHING)
    first, last = params.integer("first", 0, _MAX_NUMBER, 0), params.integer("last", 0, _MAX_NUMBER, _MAX_NUMBER)
    params.refuse_unknown()
    return _runs().describe(name, points, smoothing / 1000, client, first, last)


def show_run_sample(params: Params) -> FileResponse:
    name, file, mtime = params.text("name"), params.text("file"), params.text("mtime", "")
    params.refuse_unknown()
    found = _runs().sample(name, file)
    return FileResponse(found.data, "image/png", immutable=found.mtime == mtime)


def show_run_report(params: Params) -> FileResponse:
    """The report page of a run, as a download: the folder may come from elsewhere, so a browser must not open the page
    on ComfyUI's own address. The Training tab shows it in a sandboxed frame."""
    name = params.text("name")
    params.refuse_unknown()
    return FileResponse(_runs().report(name), "text/html", headers=_REPORT_HEADERS)


def show_run_grid(params: Params) -> dict[str, Any]:
    """The test images that LoRA Test Grid has made for a run."""
    name = params.text("name")
    params.refuse_unknown()
    return {"pictures": list_pictures(_runs().folder(name))}


def show_grid_picture(params: Params) -> FileResponse:
    name, file, mtime = params.text("name"), params.text("file"), params.text("mtime", "")
    params.refuse_unknown()
    found = read_picture(_runs().folder(name), file)
    return FileResponse(found.data, "image/png", immutable=found.mtime == mtime)


def show_run_table(params: Params) -> FileResponse:
    name = params.text("name")
    params.refuse_unknown()
    headers = {"Content-Disposition": 'attachment; filename="run.csv"'}
    return FileResponse(_runs().table(name).encode(), "text/csv", headers=headers)


def send_lora(params: Params) -> Path:
    name, file = params.text("name"), params.text("file")
    params.refuse_unknown()
    return _runs().lora(name, file)


def stop_run(params: Params) -> dict[str, Any]:
    """Stop like the trainer itself: finish the step, save state and LoRA, and let the node end normally."""
    name = params.text("name")
    params.refuse_unknown()
    RUNS.stop(_runs().folder(name).name)
    return {}


def label_run(params: Params) -> dict[str, Any]:
    """Replace the tags and the comment of a run. Refused during training, which writes the same file."""
    name, tags, comment = params.text("name"), params.texts("tags", MAX_TAGS, least=0), params.text("comment", "")
    params.refuse_unknown()
    _runs().label(name, tags, comment)
    caches_changed()
    return {}


def rename_run(params: Params) -> dict[str, Any]:
    name, to = params.text("name"), params.text("to")
    params.refuse_unknown()
    renamed = _runs().rename(name, to)
    caches_changed()
    return {"name": renamed.name}


def delete_run(params: Params) -> dict[str, Any]:
    """Move a run to the trash, like a cache. The LoRA that it trained is not part of it and stays."""
    name = params.text("name")
    params.refuse_unknown()
    runs, root = _runs(), Root(runs_folder(), RUN)
    folder = runs.folder(name)
    number = move_to_trash(root, folder.name, folder, lambda: runs.unused(folder.name))
    caches_changed()
    return {"trash": number}


_last_runs: dict[str, Runs] = {}


def _runs() -> Runs:
    """The runs in ComfyUI's folders, which may be set after the pack is loaded. While the folders stay the same, so
    does the object, with the curves that it has read."""
    places = RunPlaces(runs_folder(), lora_folder(), tuple(cache_roots()))
    runs = _last_runs.get("runs")
    if runs is None or runs.places != places:
        runs = _last_runs["runs"] = Runs(places, RUNS)
    return runs


def _view(params: Params) -> View:
    return open_view(cache_param(params)[1], params.text("generation", ""))


def _source_folders() -> list[Path]:
    return [folder for below in source_roots().values() for folder in below]
