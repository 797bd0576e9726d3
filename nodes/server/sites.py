"""Sites: which page a request comes from. What changes something is done only for the server's own pages."""

from collections.abc import Mapping
from urllib.parse import urlsplit


def cross_site(headers: Mapping[str, str], open_to_others: bool = False) -> str:
    """Why a request that would change something is refused: another site's page sent it. Empty if it is not.

    The host checks this for loopback addresses; here it holds for every address, unless the host was started to answer
    other sites, when it checks nothing either.
    """
    if open_to_others:
        return ""
    # The browser itself says so, and no page can: right also behind a proxy that gives the server another name.
    site = headers.get("Sec-Fetch-Site")
    if site == "same-origin":
        return ""
    if site in ("cross-site", "same-site"):
        return "the request comes from another site's page"
    origin = headers.get("Origin")
    if origin is None or _same(origin, headers.get("Host", "")):
        return ""
    return f"the request comes from a page of {origin[:100]}"


def _same(origin: str, host: str) -> bool:
    try:
        found, wanted = urlsplit(origin), urlsplit("//" + host)
        if not found.hostname or found.hostname != wanted.hostname:
            return False
        return None in (found.port, wanted.port) or found.port == wanted.port
    except ValueError:  # no address at all
        return False
