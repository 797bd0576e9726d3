"""The routes that change caches: clean, rename, delete and restore, and the jobs that verify and copy."""

from collections.abc import Callable
from typing import Any

from ..host.app import cache_roots, caches_changed, export_root, runs_folder, send_event
from ..library import forget_result, parse_name, path_to_create
from . import cleaning, trash
from .asked import asked_cache
from .http import Question, Routes
from .jobs import Jobs
from .moves import refuse_if_in_use, rename, root_of
from .trash import Root
from .upkeep import duplicating, exporting, verifying


def _tell(job: dict[str, Any]) -> None:
    send_event("streamcache.job", job)
    if job["kind"] == "duplicate" and job["state"] == "done":
        caches_changed()


JOBS = Jobs(_tell)


def add(routes: Routes) -> None:
    routes.get("/cache/clean", preview_clean)
    routes.get("/jobs", list_jobs)
    changes: dict[str, Callable[[Question], dict[str, Any]]] = {
        "/cache/clean": clean_cache,
        "/cache/rename": rename_cache,
        "/cache/delete": delete_cache,
        "/trash/restore": restore,
        "/trash/empty": empty_trash,
    }
    for path, change in changes.items():
        routes.post(path, _telling(change))
    routes.post("/cache/verify", verify_cache)
    routes.post("/cache/duplicate", duplicate_cache)
    routes.post("/cache/export", export_cache)
    routes.post("/job/cancel", cancel_job)


def trash_roots() -> list[Root]:
    return [*map(Root, cache_roots()), Root(runs_folder(), trash.RUN)]


def preview_clean(question: Question) -> dict[str, Any]:
    _, folder = asked_cache(question)
    question.end()
    return cleaning.preview(folder)


def clean_cache(question: Question) -> dict[str, Any]:
    (_, folder), plan = asked_cache(question), question.text("plan")
    categories = question.texts("categories")
    question.end()
    return cleaning.carry_out(folder, plan, categories)


def rename_cache(question: Question) -> dict[str, Any]:
    (name, _), to = asked_cache(question), question.text("to")
    question.end()
    rename(name, to, cache_roots())
    return {"name": "/".join(parse_name(to))}


def delete_cache(question: Question) -> dict[str, Any]:
    name, folder = asked_cache(question)
    question.end()
    root = Root(root_of(name, folder, cache_roots()))
    number = trash.throw_away(root, name, folder, lambda: refuse_if_in_use(folder))
    forget_result(folder)
    return {"trash": number}


def restore(question: Question) -> dict[str, Any]:
    number = question.text("id")
    question.end()
    row = trash.restore(number, trash_roots())
    return {"name": row.name, "kind": row.kind}


def empty_trash(question: Question) -> dict[str, Any]:
    numbers = question.texts("ids")
    question.end()
    return {"bytes": trash.remove_for_good(numbers, trash_roots())}


def verify_cache(question: Question) -> dict[str, Any]:
    name, folder = asked_cache(question)
    question.end()
    return {"job": JOBS.start("verify", name, verifying(folder))}


def duplicate_cache(question: Question) -> dict[str, Any]:
    (name, folder), to = asked_cache(question), question.text("to")
    question.end()
    root = root_of(name, folder, cache_roots())
    target = path_to_create(to, [root, *cache_roots()])
    return {"job": JOBS.start("duplicate", name, duplicating(folder, target, root), to)}


def export_cache(question: Question) -> dict[str, Any]:
    (name, folder), to = asked_cache(question), question.text("to")
    question.end()
    target = path_to_create(to, [export_root()])
    return {"job": JOBS.start("export", name, exporting(folder, target, export_root()), to)}


def list_jobs(question: Question) -> dict[str, Any]:
    question.end()
    return {"jobs": JOBS.rows()}


def cancel_job(question: Question) -> dict[str, Any]:
    number = question.text("id")
    question.end()
    JOBS.cancel(number)
    return {}


def _telling(change: Callable[[Question], dict[str, Any]]) -> Callable[[Question], dict[str, Any]]:
    def answer(question: Question) -> dict[str, Any]:
        done = change(question)
        caches_changed()
        return done

    return answer
