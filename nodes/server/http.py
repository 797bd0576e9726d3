"""HTTP plumbing: parse parameters, run handlers off the event loop, turn errors into JSON.

Responses are JSON; a refusal is `{"error": "a sentence for the user"}` with a 4xx status. Everything that changes
anything is a POST with a JSON body or a zip, which pages of other sites cannot send. A request under another site's
name is refused.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import web
from comfy.cli_args import args

from ...dataset_cache import CacheBusy, CacheError
from ..host.app import cache_roots
from ..library import parse_name, path_to_open
from ..outside import ALLOWED_HOSTS, Refused, allowed_hosts, cross_site, foreign_host

log = logging.getLogger("streamcache")

PREFIX = "/streamcache"
MAX_BODY = 64 * 1024
ZIP = "application/zip"
MAX_ZIP = 64 << 30  # bytes
MAX_TEXT = 2000
MAX_ITEMS = 500
_CHUNK = 1 << 20
_FULL = {getattr(errno, name, -1) for name in ("ENOSPC", "EDQUOT", "EFBIG")}
_NO_STORE = {"Cache-Control": "no-store"}
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?")
# Not the event loop's own threads, which are few: ComfyUI's pages would wait for a folder of 100,000 images.
_THREADS = ThreadPoolExecutor(32, "streamcache-http")


@dataclass(frozen=True)
class FileResponse:
    """A response that is not JSON. One that is `immutable` never changes under its address."""

    data: bytes
    type: str
    immutable: bool = False
    headers: Mapping[str, str] | None = None


class Params:
    """The parameters of a request. Reading one checks its type and range."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()

    def text(self, name: str, default: str | None = None, most: int = MAX_TEXT) -> str:
        value = self._take(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise Refused(f"{name}: expected a text of at most {most:,} characters")
        return value

    def flag(self, name: str) -> bool | None:
        """True or false; None if it is not given."""
        self._read.add(name)
        value = self._values.get(name)
        if value is None or isinstance(value, bool):
            return value
        if value not in ("true", "false"):
            raise Refused(f"{name}: expected true or false")
        return value == "true"

    def integer(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self._take(name, default)
        number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if type(number) is not int or not least <= number <= most:
            raise Refused(f"{name}: expected a whole number from {least:,} to {most:,}")
        return number

    def number(self, name: str, least: float, most: float, default: float) -> float:
        value = self._take(name, default)
        number = float(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value
        if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number <= most:
            raise Refused(f"{name}: expected a number from {least:g} to {most:g}")
        return float(number)

    def texts(self, name: str, most: int = MAX_ITEMS, least: int = 1) -> list[str]:
        value = self._take(name, None)
        texts = isinstance(value, list) and all(isinstance(each, str) and len(each) <= MAX_TEXT for each in value)
        if not texts or not least <= len(value) <= most:
            raise Refused(f"{name}: expected a list of {least} to {most:,} texts")
        return value

    def table(self, name: str) -> Params | None:
        """The parameters in an object; None if it is not given."""
        self._read.add(name)
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise Refused(f"{name}: expected an object")
        return None if value is None else Params(value)

    def tables(self, name: str, most: int) -> list[Params]:
        value = self._take(name, None)
        tables = isinstance(value, list) and all(isinstance(each, dict) for each in value)
        if not tables or not 1 <= len(value) <= most:
            raise Refused(f"{name}: expected a list of 1 to {most} objects")
        return [Params(each) for each in value]

    def has(self, name: str) -> bool:
        self._read.add(name)
        return self._values.get(name) is not None

    def refuse_unknown(self) -> None:
        """Call this when all parameters have been read: any other one is a mistake of the caller."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            known = ", ".join(sorted(self._read)) or "none"
            raise Refused(f"{unknown[0][:60]}: unknown parameter; expected: {known}")

    def _take(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self._values.get(name, default)
        if value is None:
            raise Refused(f"{name}: is missing")
        return value


# A path is sent as a download, piece by piece: a file may be larger than memory.
Handler = Callable[[Params], dict[str, Any] | FileResponse | Path]


class Routes:
    """Adds routes to the server's table. A handler is a plain function of the parameters; it runs in a thread."""

    def __init__(self, table: web.RouteTableDef) -> None:
        self._table = table
        self._methods: dict[str, set[str]] = {}

    def get(self, path: str, handler: Handler) -> None:
        async def respond(request: web.Request) -> web.StreamResponse:
            problem = _foreign(request)
            if problem:
                return _refusal(403, problem)
            return await _respond(handler, lambda: _query(request))

        self._methods.setdefault(path, set()).update(("GET", "HEAD"))
        self._table.get(PREFIX + path)(respond)

    def post(self, path: str, handler: Handler, most: int = MAX_BODY) -> None:
        """A POST whose body is JSON of at most `most` bytes."""

        async def respond(request: web.Request) -> web.StreamResponse:
            problem = _foreign(request) or cross_site(request.headers, bool(args.enable_cors_header))
            if problem:
                return _refusal(403, problem)
            body = await _read(request, most)
            return await _respond(handler, lambda: _body(request, body, most))

        self._methods.setdefault(path, set()).add("POST")
        self._table.post(PREFIX + path)(respond)

    def receive(self, path: str, place: Callable[[Params], Path]) -> None:
        """A POST whose body is a zip of any length. `place` returns where it goes; it appears there when it is
        complete."""

        async def respond(request: web.Request) -> web.StreamResponse:
            problem = _foreign(request) or cross_site(request.headers, bool(args.enable_cors_header))
            if problem:
                return _refusal(403, problem)
            if request.content_type != ZIP:
                return _refusal(415, f"the body must be a zip: set Content-Type to {ZIP}")
            return await _receive(request, lambda: place(_query(request)))

        self._methods.setdefault(path, set()).add("POST")
        self._table.post(PREFIX + path)(respond)

    def close(self) -> None:
        """Refuse other methods and other paths, in JSON too."""
        for path, methods in self._methods.items():
            self._table.route("*", PREFIX + path)(_only(methods))
        self._table.route("*", PREFIX + "/{rest:.*}")(_not_found)


def cache_param(params: Params) -> tuple[str, Path]:
    """The cache that the parameter `name` names: its name as lists show it, and its folder."""
    parts = parse_name(params.text("name"))
    try:
        folder = path_to_open("/".join(parts), cache_roots())
    except CacheError as error:
        raise Refused(str(error), 404) from None
    return "/".join(folder.parts[-len(parts) :]), folder


def _foreign(request: web.Request) -> str:
    if args.enable_cors_header:  # every site may use the server
        return ""
    return foreign_host(request.headers, allowed_hosts(os.getenv(ALLOWED_HOSTS, ""), args.listen))


async def _receive(request: web.Request, place: Callable[[], Path]) -> web.StreamResponse:
    """Store the body under a hidden name, then under its own. A body that ends early leaves nothing."""
    found: list[Path] = []
    response = await _respond(lambda _: found.append(place()) or {}, lambda: Params({}))
    if not found:
        return response
    # A name of its own: the same file may be sent again while the first request still ends.
    part = found[0].with_suffix(f".{secrets.token_hex(4)}.part")
    try:
        count = await _store(request, part)
        await asyncio.to_thread(os.replace, part, found[0])
        return web.json_response({"bytes": count}, headers=_NO_STORE)
    except Refused as refusal:
        return _refusal(refusal.status, str(refusal))
    except OSError as error:
        full = error.errno in _FULL
        return _refusal(507 if full else 409, f"the file cannot be stored: {error.strerror or error}")
    finally:
        part.unlink(missing_ok=True)


async def _store(request: web.Request, path: Path) -> int:
    count = 0
    with open(path, "xb") as file:
        try:
            async for chunk in request.content.iter_chunked(_CHUNK):
                count += len(chunk)
                if count > MAX_ZIP:
                    raise Refused(f"the zip is longer than {MAX_ZIP:,} bytes", 413)
                await asyncio.to_thread(file.write, chunk)
        except (OSError, Refused):
            raise
        except Exception:  # the connection ended: aiohttp has several errors for that
            raise Refused("the file ends too early") from None
    if request.content_length not in (None, count):
        raise Refused("the file ends too early")
    return count


async def _read(request: web.Request, most: int) -> bytes | None:
    """The body, or None if it is too long."""
    if (request.content_length or 0) > most:
        return None
    data = bytearray(await request.content.read(most + 1))
    while len(data) <= most and not request.content.at_eof():
        data += await request.content.read(most + 1 - len(data))
    return bytes(data) if len(data) <= most else None


async def _respond(handler: Handler, read_params: Callable[[], Params]) -> web.StreamResponse:
    try:
        # Off the event loop: neither a slow disk nor a long response may stop the server.
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(_THREADS, lambda: _serialize(handler(read_params())))
    except Refused as refusal:
        return _refusal(refusal.status, str(refusal))
    except CacheBusy as error:
        return _refusal(409, str(error))
    except ValueError as error:  # the base class of the pack's own errors
        return _refusal(400, str(error))
    except FileNotFoundError:
        return _refusal(409, "a file was removed in the meantime; refresh the page")
    except OSError as error:
        log.exception("A route could not read or write")
        return _refusal(500, f"{error.filename or 'a file'}: {error.strerror or error}")
    except Exception as error:  # a bug of ours: the page still gets JSON, and the log has the traceback
        log.exception("A route failed")
        return _refusal(500, f"internal error ({type(error).__name__}); see the server's log")
    if isinstance(found, Path):
        headers = {"Content-Disposition": _attachment(found.name), "X-Content-Type-Options": "nosniff"}
        return web.FileResponse(found, headers={**headers, "Content-Type": "application/octet-stream", **_NO_STORE})
    if isinstance(found, FileResponse):
        lifetime = "private, max-age=31536000, immutable" if found.immutable else "no-cache"
        headers = {"Cache-Control": lifetime, "X-Content-Type-Options": "nosniff", **(found.headers or {})}
        return web.Response(body=found.data, content_type=found.type, headers=headers)
    return web.Response(body=found, content_type="application/json", charset="utf-8", headers=_NO_STORE)


def _attachment(name: str) -> str:
    return f"attachment; filename*=UTF-8''{quote(name, safe='')}"


def _serialize(found: dict[str, Any] | FileResponse | Path) -> FileResponse | Path | bytes:
    return found if isinstance(found, FileResponse | Path) else json.dumps(found, allow_nan=False).encode()


def _query(request: web.Request) -> Params:
    if len(set(request.query)) != len(request.query):
        raise Refused("a parameter is given twice")
    return Params(request.query)


def _body(request: web.Request, data: bytes | None, most: int) -> Params:
    if data is None:
        raise Refused(f"the body is longer than {most:,} bytes", 413)
    if request.content_type != "application/json":
        raise Refused("the body must be JSON: set Content-Type to application/json", 415)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused("the body is not valid JSON") from None
    if not isinstance(values, dict):
        raise Refused("the body must be a JSON object")
    return Params(values)


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status, headers=_NO_STORE)


def _only(methods: set[str]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def refuse(request: web.Request) -> web.Response:
        allowed = ", ".join(sorted(methods))
        response = _refusal(405, f"{request.method} is not possible here; use {allowed}")
        response.headers["Allow"] = allowed
        return response

    return refuse


async def _not_found(request: web.Request) -> web.Response:
    return _refusal(404, f"{request.path[:200]}: no such route; docs/api.md lists them all")
