"""Answers: how every route of the pack reads what it is asked, works aside from the event loop, and says no.

Answers are JSON. A refusal is `{"error": "a sentence for people"}` with a 4xx status. What changes anything is a POST
with a JSON body, which no page of another site can send.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from comfy.cli_args import args

from ...dataset_cache import CacheBusy
from .refusals import Refused
from .sites import cross_site

log = logging.getLogger("streamcache")

PREFIX = "/streamcache"
MAX_BODY = 64 * 1024
MAX_TEXT = 2000
MAX_ITEMS = 500
_FRESH = {"Cache-Control": "no-store"}
_NUMBER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class Picture:
    """An answer that is an image. One that is `lasting` never changes under its address."""

    data: bytes
    type: str
    lasting: bool = False


class Question:
    """The parameters of a request. Reading one checks its type and range; what nobody read is refused."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()

    def text(self, name: str, default: str | None = None) -> str:
        value = self._take(name, default)
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise Refused(f"{name}: a text of at most {MAX_TEXT:,} characters is expected")
        return value

    def integer(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self._take(name, default)
        number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if type(number) is not int or not least <= number <= most:
            raise Refused(f"{name}: a whole number from {least:,} to {most:,} is expected")
        return number

    def texts(self, name: str) -> list[str]:
        value = self._take(name, None)
        texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not texts or not 1 <= len(value) <= MAX_ITEMS:
            raise Refused(f"{name}: a list of 1 to {MAX_ITEMS} texts is expected")
        return value

    def end(self) -> None:
        """Every parameter has been read; one that is left is a mistake of the caller."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            known = ", ".join(sorted(self._read)) or "none"
            raise Refused(f"{unknown[0][:60]}: is no parameter here; there are: {known}")

    def _take(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self._values.get(name, default)
        if value is None:
            raise Refused(f"{name}: is missing")
        return value


Handler = Callable[[Question], Any]


class Routes:
    """Adds routes to the host's table. A handler is a plain function of a question; it runs in a thread."""

    def __init__(self, table: web.RouteTableDef) -> None:
        self._table = table
        self._methods: dict[str, set[str]] = {}

    def get(self, path: str, handler: Handler) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await _answer(handler, lambda: _query(request))

        self._methods.setdefault(path, set()).update(("GET", "HEAD"))
        self._table.get(PREFIX + path)(answer)

    def post(self, path: str, handler: Handler) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            problem = cross_site(request.headers, bool(args.enable_cors_header))
            if problem:
                return _refusal(403, problem)
            body = await _read(request)
            return await _answer(handler, lambda: _body(request, body))

        self._methods.setdefault(path, set()).add("POST")
        self._table.post(PREFIX + path)(answer)

    def close(self) -> None:
        """Other methods and other paths are refused in JSON, too."""
        for path, methods in self._methods.items():
            self._table.route("*", PREFIX + path)(_only(methods))
        self._table.route("*", PREFIX + "/{rest:.*}")(_nothing_here)


async def _read(request: web.Request) -> bytes | None:
    """The body, or None if it is too long."""
    if (request.content_length or 0) > MAX_BODY:
        return None
    data = await request.content.read(MAX_BODY + 1)
    while len(data) <= MAX_BODY and not request.content.at_eof():
        data += await request.content.read(MAX_BODY + 1 - len(data))
    return data if len(data) <= MAX_BODY else None


async def _answer(handler: Handler, ask: Callable[[], Question]) -> web.StreamResponse:
    try:
        # Off the event loop: neither a folder on a slow disk nor a long answer must stop the server.
        found = await asyncio.to_thread(lambda: _written(handler(ask())))
    except Refused as refusal:
        return _refusal(refusal.status, str(refusal))
    except CacheBusy as error:
        return _refusal(409, str(error))
    except ValueError as error:  # the pack's own errors are kin of it
        return _refusal(400, str(error))
    except FileNotFoundError:
        return _refusal(409, "what was asked for went away meanwhile; look again")
    except OSError as error:
        log.exception("A route could not read or write")
        return _refusal(500, f"{error.filename or 'a file'}: {error.strerror or error}")
    except Exception as error:  # a mistake of ours: pages read JSON, and whoever reports it finds it in the log
        log.exception("A route failed")
        return _refusal(500, f"this failed ({type(error).__name__}); the server's log says where")
    if isinstance(found, Picture):
        lasting = "private, max-age=31536000, immutable" if found.lasting else "no-cache"
        return web.Response(
            body=found.data,
            content_type=found.type,
            headers={"Cache-Control": lasting, "X-Content-Type-Options": "nosniff"},
        )
    return web.Response(body=found, content_type="application/json", charset="utf-8", headers=_FRESH)


def _written(found: Any) -> Picture | bytes:
    return found if isinstance(found, Picture) else json.dumps(found, allow_nan=False).encode()


def _query(request: web.Request) -> Question:
    if len(set(request.query)) != len(request.query):
        raise Refused("a parameter is given twice")
    return Question(request.query)


def _body(request: web.Request, data: bytes | None) -> Question:
    if data is None:
        raise Refused(f"the body is longer than {MAX_BODY:,} bytes", 413)
    if request.content_type != "application/json":
        raise Refused("the body must be JSON: set Content-Type to application/json", 415)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused("the body is no JSON") from None
    if not isinstance(values, dict):
        raise Refused("the body must be a JSON object")
    return Question(values)


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status, headers=_FRESH)


def _only(methods: set[str]) -> Callable[[web.Request], Any]:
    async def refuse(request: web.Request) -> web.Response:
        allowed = ", ".join(sorted(methods))
        answer = _refusal(405, f"{request.method} is not possible here; use {allowed}")
        answer.headers["Allow"] = allowed
        return answer

    return refuse


async def _nothing_here(request: web.Request) -> web.Response:
    return _refusal(404, f"there is nothing at {request.path[:200]}; docs/api.md lists what there is")
