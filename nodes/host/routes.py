"""Routes: what the pack's widgets ask the server for. They only read, and every path is contained."""

import asyncio
from collections.abc import Callable

from aiohttp import web
from server import PromptServer

from .. import paths
from .folders import cache_roots, source_roots

CACHES = "/streamcache/caches"
FOLDERS = "/streamcache/folders"


def add_routes() -> None:
    _add_list(CACHES, lambda: paths.list_names(cache_roots()))
    _add_list(FOLDERS, lambda: paths.list_folders(source_roots()))


def _add_list(route: str, names: Callable[[], list[str]]) -> None:
    @PromptServer.instance.routes.get(route)
    async def get(request: web.Request) -> web.Response:
        # Off the event loop: a folder on a slow disk must not stop the server.
        return web.json_response(await asyncio.to_thread(names))
