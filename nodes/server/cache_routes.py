"""The routes of caches: what there is, what is in them, and pictures of it."""

from pathlib import Path
from typing import Any

from ..host.app import cache_roots, source_roots
from .asked import asked_cache
from .cache_list import cache_row, list_rows
from .cache_view import MOST, sample_page
from .detail import cache_detail
from .http import Picture, Question, Routes
from .thumbnail import TYPE, thumbnail
from .trash import list_trash
from .upkeep_routes import trash_roots
from .views import View, view

_END = (1 << 53) - 1  # the largest number that a page knows exactly


def add(routes: Routes) -> None:
    routes.get("/caches", list_caches)
    routes.get("/cache", show_cache)
    routes.get("/cache/samples", show_samples)
    routes.get("/cache/thumbnail", show_thumbnail)


def list_caches(question: Question) -> dict[str, Any]:
    question.end()
    rows = list_rows(cache_roots(), _source_folders())
    trash = list_trash(trash_roots())
    return {"caches": [row.to_json() for row in rows], "trash": [row.to_json() for row in trash]}


def show_cache(question: Question) -> dict[str, Any]:
    name, folder = asked_cache(question)
    question.end()
    shown = view(folder)
    return cache_detail(cache_row(name, folder, _source_folders()), shown)


def show_samples(question: Question) -> dict[str, Any]:
    shown = _view(question)
    start, count = question.integer("start", 0, _END, 0), question.integer("count", 1, MOST, 100)
    search, bucket = question.text("search", ""), question.text("bucket", "")
    question.end()
    return sample_page(shown, start, count, search, bucket)


def show_thumbnail(question: Question) -> Picture:
    shown, number = _view(question), question.integer("number", 0, _END)
    generation = question.text("generation", "")
    question.end()
    return Picture(thumbnail(shown, number), TYPE, lasting=bool(generation))


def _view(question: Question) -> View:
    return view(asked_cache(question)[1], question.text("generation", ""))


def _source_folders() -> list[Path]:
    return [folder for below in source_roots().values() for folder in below]
