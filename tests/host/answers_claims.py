"""Scenario: how routes respond, in ComfyUI's Python with its web server library."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .claims import claim, hold

SECONDS = 200  # only against a hang


def run(base: Path) -> dict:
    return hold("answers_claims", globals())


def ask(handlers: dict[str, Callable[[Any], Any]], asking: Callable[[Callable], Any]) -> Any:
    """Run `asking` with a function that sends requests to a server with these GET routes; return its result."""
    from aiohttp import ClientSession, ClientTimeout, web

    from streamcache.nodes.server.http import PREFIX, Routes

    async def main() -> Any:
        table = web.RouteTableDef()
        routes = Routes(table)
        for path, handler in handlers.items():
            routes.get(path, handler)
        routes.close()
        app = web.Application()
        app.add_routes(table)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            address = f"http://127.0.0.1:{runner.addresses[0][1]}{PREFIX}"
            async with ClientSession(timeout=ClientTimeout(SECONDS)) as session:

                async def get(path: str) -> tuple[int, Any]:
                    async with session.get(address + path) as answer:
                        return answer.status, json.loads(await answer.read())

                return await asking(get)
        finally:
            await runner.cleanup()

    return asyncio.run(main())


@claim
def a_slow_route_does_not_block_others() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(params: Any) -> dict:
        begun.set()
        return {"released": go_on.wait(SECONDS / 3)}

    async def asking(get: Callable) -> list:
        first = asyncio.create_task(get("/slow"))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        second = await get("/quick")
        go_on.set()
        return [second, await first]

    found = ask({"/slow": slow, "/quick": lambda params: {"still": not go_on.is_set()}}, asking)
    # On the event loop, the slow one would have timed out before the quick one was handled.
    assert found == [(200, {"still": True}), (200, {"released": True})], found


@claim
def a_long_response_is_serialized_off_the_event_loop_too() -> None:
    threads = []

    class Recording(dict):
        def items(self) -> Any:
            threads.append(threading.current_thread())
            return super().items()

    async def asking(get: Callable) -> Any:
        return await get("/long"), threading.current_thread()

    found, loop = ask({"/long": lambda params: {"a": Recording(b=1)}}, asking)
    assert found == (200, {"a": {"b": 1}}) and threads and loop not in threads


@claim
def all_errors_are_reported_as_json() -> None:
    def nest(params: Any) -> Any:
        found: list = []
        for _ in range(200_000):
            found = [found]
        return found

    def fail(error: Exception) -> Callable[[Any], Any]:
        def handler(params: Any) -> Any:
            raise error

        return handler

    errors = [TypeError("x"), OverflowError("x"), RecursionError("x"), KeyError("x"), MemoryError(), RuntimeError("x")]
    handlers = {f"/{n}": fail(error) for n, error in enumerate(errors)}
    handlers |= {"/nested": nest, "/set": lambda params: {1}, "/nan": lambda params: float("nan")}

    async def asking(get: Callable) -> dict:
        return {path: await get(path) for path in handlers}

    for path, (status, answer) in ask(handlers, asking).items():
        assert status == (400 if path == "/nan" else 500) and answer["error"], (path, status, answer)
