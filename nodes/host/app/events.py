"""Events: what the server tells all pages that are open, and what only one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server import PromptServer


def tell_pages(event: str, facts: Mapping[str, Any], owner: str | None = None, private: Mapping[str, Any] = {}) -> None:
    """Send an event to every page; `private` facts only to the page `owner`. Any thread may call it."""
    server = getattr(PromptServer, "instance", None)
    for client in list(getattr(server, "sockets", ())):
        server.send_sync(event, {**facts, **private} if client == owner else dict(facts), client)


def caches_changed() -> None:
    """A cache appeared, changed or went: lists of them are out of date."""
    tell_pages("streamcache.caches", {})


def asking_client() -> str | None:
    """The page whose workflow runs now."""
    return getattr(getattr(PromptServer, "instance", None), "client_id", None)
