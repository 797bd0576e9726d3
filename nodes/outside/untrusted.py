"""Untrusted input: requests from other sites' pages, and values from manifests and run files that anyone may have
written. Requests are refused; values are truncated and made JSON-safe."""

import ipaddress
import math
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

LATEST = 1e11  # seconds since 1970; a later time is invalid
ALLOWED_HOSTS = "STREAMCACHE_ALLOWED_HOSTS"  # environment variable: host names, separated by commas
# No site on the internet can have a name that ends like this: the endings are reserved or not in use there, and
# fritz.box belongs to the maker of these routers.
_LOCAL_ENDINGS = (
    *(".localhost", ".local", ".internal", ".home.arpa"),
    *(".lan", ".home", ".corp", ".localdomain", ".fritz.box"),
)
_DEPTH, _ITEMS, _TEXT = 8, 200, 2000


class Refused(ValueError):
    """A request that is not carried out. The message is shown to the user; `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def cross_site(headers: Mapping[str, str], open_to_others: bool = False) -> str:
    """Why to refuse a request that changes something: a page of another site sent it. Empty if none did.

    ComfyUI checks this for loopback addresses only; this checks every address, unless ComfyUI was started with
    --enable-cors-header and so checks nothing either.
    """
    if open_to_others:
        return ""
    # Browsers set this header and pages cannot, so it is right even behind a proxy that renames the server.
    site = headers.get("Sec-Fetch-Site")
    if site == "same-origin":
        return ""
    if site in ("cross-site", "same-site"):
        return "the request comes from another site's page"
    origin = headers.get("Origin")
    if origin is None or _same_host(origin, headers.get("Host", "")):
        return ""
    return f"the request comes from a page of {origin[:100]}"


def foreign_host(headers: Mapping[str, str], allowed: Iterable[str] = ()) -> str:
    """Why to refuse a request whose Host is another site's name. Empty if it is not.

    A site can let its name resolve to this machine (DNS rebinding). Then the browser treats its pages as ComfyUI's own,
    and only the name reveals them. An address, a name without a dot and a name with a local ending cannot be a site's.
    """
    # Browsers send this header over HTTPS, and to localhost. A site has no certificate for its name on this machine, so
    # the request came through the user's own proxy.
    if "Sec-Fetch-Site" in headers:
        return ""
    name = _host_name(headers.get("Host", "localhost"))
    if name and ("." not in name or name.endswith(_LOCAL_ENDINGS) or _is_address(name)):
        return ""
    if name and any(_fits(name, each) for each in allowed):
        return ""
    return f"the host name {name[:100]} is not allowed; add it to the environment variable {ALLOWED_HOSTS}"


def allowed_hosts(listed: str, listen: str) -> list[str]:
    """The names in the environment variable, and those that ComfyUI listens on. Each may have a port or be a URL."""
    names = (_host_name(each.rpartition("://")[2]) for each in re.split(r"[,;\s]+", f"{listed},{listen}"))
    return [name for name in names if name]


def cut(value: Any, depth: int = _DEPTH) -> Any:
    """The value as plain JSON: long texts and lists are truncated; NaN and infinite numbers become null."""
    if isinstance(value, str):
        return cut_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value if value is None or value.bit_length() <= 64 else None
    if depth and isinstance(value, dict):
        return {cut_text(str(key)): cut(item, depth - 1) for key, item in list(value.items())[:_ITEMS]}
    if depth and isinstance(value, (list, tuple)):
        return [cut(item, depth - 1) for item in value[:_ITEMS]]
    return "…"


def cut_text(text: str, length: int = _TEXT) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def as_dict(value: Any) -> dict[str, Any]:
    """The value if it is a dict, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, otherwise an empty one."""
    return value if isinstance(value, list) else []


def as_number(value: Any, most: float) -> float:
    """The value if it is a number from 0 to below `most`, otherwise 0."""
    return float(value) if type(value) in (int, float) and 0 <= value < most else 0.0


def as_time(value: Any) -> float:
    """The value if it is a time since 1970, otherwise 0. One in the future, by a wrong clock, counts as now."""
    return min(as_number(value, LATEST), time.time())


def as_count(value: Any) -> int:
    """The value if it is a count that JavaScript represents exactly, otherwise 0."""
    return value if type(value) is int and 0 <= value < 1 << 53 else 0


def _host_name(host: str) -> str:
    try:
        return (urlsplit("//" + host).hostname or "").rstrip(".")
    except ValueError:  # not a valid address
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _fits(name: str, allowed: str) -> bool:
    """`*.example.com` allows every name below example.com, `*` every name."""
    return allowed in (name, "*") or (allowed.startswith("*.") and name.endswith(allowed[1:]))


def _same_host(origin: str, host: str) -> bool:
    try:
        found, wanted = urlsplit(origin), urlsplit("//" + host)
        if not found.hostname or found.hostname != wanted.hostname:
            return False
        return None in (found.port, wanted.port) or found.port == wanted.port
    except ValueError:  # not a valid address
        return False
