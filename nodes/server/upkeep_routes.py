"""The routes that maintain caches: clean, rename, delete and restore, and the jobs that verify, repair and
copy."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...dataset_cache import Address, CacheError, travel
from ..host.app import cache_roots, caches_changed, export_root, runs_folder, send_event
from ..library import forget_result, parse_name, path_to_create, path_to_save, remote_place
from ..outside import Refused
from ..remotes import remote_rows
from .cleaning import clean_as_shown, clean_preview
from .http import Params, Routes, cache_param
from .jobs import Jobs, duplicating, exporting, repairing, travelling, verifying
from .moves import RUN, Root, move_to_trash, remove_for_good, rename, restore, root_of, unused

READ = "read"  # a folder of images, before it can be filtered


def _report(job: dict[str, Any]) -> None:
    send_event("streamcache.job", job)
    if job["kind"] in ("duplicate", "repair", "push", "pull", "sync") and job["state"] == "done":
        caches_changed()
    if (job["kind"] == "add" and job["state"] != "running") or (job["kind"] == READ and job["state"] == "done"):
        send_event("streamcache.folders", {})


JOBS = Jobs(_report)
MOST_SAMPLES = 10**12


def add(routes: Routes) -> None:
    routes.get("/cache/clean", preview_clean)
    routes.get("/jobs", list_jobs)
    changes: dict[str, Callable[[Params], dict[str, Any]]] = {
        "/cache/clean": clean_cache,
        "/cache/rename": rename_cache,
        "/cache/delete": delete_cache,
        "/trash/restore": restore_from_trash,
        "/trash/empty": empty_trash,
    }
    for path, change in changes.items():
        routes.post(path, _notifying(change))
    routes.post("/cache/verify", verify_cache)
    routes.post("/cache/repair", repair_cache)
    routes.post("/cache/duplicate", duplicate_cache)
    routes.post("/cache/export", export_cache)
    routes.get("/remotes", list_remotes)
    routes.post("/remote/push", push_cache)
    routes.post("/remote/pull", pull_cache)
    routes.post("/remote/sync", sync_cache)
    routes.post("/job/cancel", cancel_job)


def trash_roots() -> list[Root]:
    return [*map(Root, cache_roots()), Root(runs_folder(), RUN)]


def preview_clean(params: Params) -> dict[str, Any]:
    _, folder = cache_param(params)
    params.refuse_unknown()
    return clean_preview(folder)


def clean_cache(params: Params) -> dict[str, Any]:
    (_, folder), plan = cache_param(params), params.text("plan")
    categories = params.texts("categories")
    params.refuse_unknown()
    return clean_as_shown(folder, plan, categories)


def rename_cache(params: Params) -> dict[str, Any]:
    (name, _), to = cache_param(params), params.text("to")
    params.refuse_unknown()
    rename(name, to, cache_roots())
    return {"name": "/".join(parse_name(to))}


def delete_cache(params: Params) -> dict[str, Any]:
    name, folder = cache_param(params)
    params.refuse_unknown()
    root = Root(root_of(name, folder, cache_roots()))
    number = move_to_trash(root, name, folder, lambda: unused(folder))
    forget_result(folder)
    return {"trash": number}


def restore_from_trash(params: Params) -> dict[str, Any]:
    number = params.text("id")
    params.refuse_unknown()
    row = restore(number, trash_roots())
    return {"name": row.name, "kind": row.kind}


def empty_trash(params: Params) -> dict[str, Any]:
    numbers = params.texts("ids")
    params.refuse_unknown()
    return {"bytes": remove_for_good(numbers, trash_roots())}


def verify_cache(params: Params) -> dict[str, Any]:
    name, folder = cache_param(params)
    params.refuse_unknown()
    return {"job": JOBS.start("verify", name, verifying(folder))}


def repair_cache(params: Params) -> dict[str, Any]:
    """Drop the samples that verifying found damaged: `most` is their number as the user has seen it."""
    (name, folder), most = cache_param(params), params.integer("most", 0, MOST_SAMPLES)
    accept_loss = bool(params.flag("accept_loss"))
    params.refuse_unknown()
    with unused(folder):  # a run that reads it would go on with the damaged samples
        pass
    return {"job": JOBS.start("repair", name, repairing(folder, most, accept_loss))}


def duplicate_cache(params: Params) -> dict[str, Any]:
    (name, folder), to = cache_param(params), params.text("to")
    params.refuse_unknown()
    root = root_of(name, folder, cache_roots())
    target = path_to_create(to, [root, *cache_roots()])
    return {"job": JOBS.start("duplicate", name, duplicating(folder, target, root), to)}


def export_cache(params: Params) -> dict[str, Any]:
    (name, folder), to = cache_param(params), params.text("to")
    params.refuse_unknown()
    target = path_to_create(to, [export_root()])
    return {"job": JOBS.start("export", name, exporting(folder, target, export_root()), to)}


def list_remotes(params: Params) -> dict[str, Any]:
    """The registered roots and the caches there. One that does not answer in time is listed as such."""
    again = bool(params.flag("again"))
    params.refuse_unknown()
    return {"roots": remote_rows(cache_roots(), again)}


def push_cache(params: Params) -> dict[str, Any]:
    (name, folder), remote = cache_param(params), params.text("remote")
    params.refuse_unknown()
    return _start("push", name, folder, remote, lambda place: partial(travel.push, folder, place))


def pull_cache(params: Params) -> dict[str, Any]:
    """Pull into the cache `name`, or into a new one."""
    remote, name = params.text("remote"), params.text("name")
    params.refuse_unknown()
    folder = path_to_save(name, cache_roots())
    return _start("pull", name, folder, remote, lambda place: partial(travel.pull, place, folder))


def sync_cache(params: Params) -> dict[str, Any]:
    (name, folder), remote = cache_param(params), params.text("remote")
    keep = params.text("keep", "") or None
    params.refuse_unknown()
    if keep not in (None, *travel.KEEP):
        raise Refused(f"keep: expected one of {', '.join(travel.KEEP)}")
    return _start("sync", name, folder, remote, lambda place: partial(travel.sync, folder, place, keep))


def _start(
    kind: str, name: str, folder: Path, remote: str, carry: Callable[[Address], Callable[..., travel.TravelReport]]
) -> dict[str, Any]:
    """Start a job between a folder and a remote cache, named as `studio/my_set`: never by an address."""
    try:
        place = remote_place(remote)
    except CacheError as error:
        raise Refused(str(error)) from None
    return {"job": JOBS.start(kind, name, travelling(carry(place), folder), "/".join(parse_name(remote)))}


def list_jobs(params: Params) -> dict[str, Any]:
    params.refuse_unknown()
    return {"jobs": JOBS.rows()}


def cancel_job(params: Params) -> dict[str, Any]:
    number = params.text("id")
    params.refuse_unknown()
    JOBS.cancel(number)
    return {}


def _notifying(change: Callable[[Params], dict[str, Any]]) -> Callable[[Params], dict[str, Any]]:
    def change_and_notify(params: Params) -> dict[str, Any]:
        done = change(params)
        caches_changed()
        return done

    return change_and_notify
