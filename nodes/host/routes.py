"""Routes: what the pack's pages ask the server for. They only read, and every path is contained."""

import asyncio

from aiohttp import web
from server import PromptServer

from .. import paths
from .folders import cache_roots


def add_routes() -> None:
    @PromptServer.instance.routes.get("/streamcache/caches")
    async def list_caches(request: web.Request) -> web.Response:
        # Off the event loop: a folder on a slow disk must not stop the server.
        return web.json_response(await asyncio.to_thread(paths.list_names, cache_roots()))
