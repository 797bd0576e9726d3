"""Routes: what the pack's pages ask the server for. Every path is contained, and only a POST changes anything."""

from server import PromptServer

from . import cache_routes, run_routes, upkeep_routes
from .http import Routes


def register_routes() -> None:
    routes = Routes(PromptServer.instance.routes)
    for family in (cache_routes, upkeep_routes, run_routes):
        family.add(routes)
    routes.close()
