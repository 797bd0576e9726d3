"""The routes of caches."""

from .. import paths
from .answers import Question, Routes
from .folders import cache_roots


def add(routes: Routes) -> None:
    routes.get("/caches", list_caches)


def list_caches(question: Question) -> dict:
    question.end()
    return {"caches": [{"name": name} for name in paths.list_names(cache_roots())]}
