"""Faults of remote places: which pass and are tried again, and what is said about the others.

The texts of other libraries never get into a message: they may contain signatures of requests.
"""

import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

from ...errors import CacheError, CacheUnreachable
from ..address import Address

# Kinds of faults.
MISSING, NO_BUCKET, DENIED, NO_CREDENTIALS = "missing", "no bucket", "denied", "no credentials"
CONFLICT, PASSING, REFUSED, UNSUPPORTED, NO_RANGES = "conflict", "passing", "refused", "unsupported", "no ranges"
CHANGED, TOO_SHORT = "changed", "too short"

REQUEST_SECONDS = 25  # the longest that one request takes
_LAST_START_SECONDS = 28  # after this long, nothing is tried again: a call ends within a minute
_PASSING = {408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529, 598, 599}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 4.0
_UNREADABLE = {DENIED, NO_CREDENTIALS, PASSING, REFUSED, NO_RANGES}  # these say nothing about the content
_ENVIRONMENT = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    "hf": "set HF_TOKEN or log in with `hf auth login`",
}
T = TypeVar("T")


class Fault(Exception):
    """A request failed. `detail` is safe to show: a status, a code or a number, never a text from elsewhere."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind, detail)
        self.kind, self.detail = kind, detail


def patiently(request: Callable[[], T]) -> T:
    """The result of a request, which is sent again after a pause if its fault may pass."""
    started, pause = time.monotonic(), _FIRST_PAUSE
    while True:
        try:
            return request()
        except Fault as fault:
            ends = time.monotonic() - started + pause > _LAST_START_SECONDS
            if fault.kind not in (PASSING, TOO_SHORT) or ends:
                raise
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE)


def explain(place: Address, fault: Fault) -> CacheError:
    """The error for users: place, found, expected, remedy."""
    detail = f" ({fault.detail})" if fault.detail else ""
    texts = {
        MISSING: 'is missing; restore it, or run "streamcache verify" on the cache',
        NO_BUCKET: f"there is no bucket or container {place.host!r}; check its name, and the endpoint and region",
        DENIED: f"access was denied{detail}; use credentials that may do this: {_credentials(place)}",
        NO_CREDENTIALS: f"no credentials were found; {_credentials(place)}, or mark a public place as anonymous "
        "in remotes.toml",
        CONFLICT: "was written by another process meanwhile; read it again",
        PASSING: f"cannot be reached{detail}, also not after {_LAST_START_SECONDS} seconds; check the address and the "
        "network, and try again",
        REFUSED: f"the request was refused{detail}; check the address, and the endpoint and region in remotes.toml",
        UNSUPPORTED: "this kind of address is read-only; push to s3://, gs://, az:// or hf:// instead",
        NO_RANGES: "the server sends only whole files, and reading needs ranges; use a server that supports them, "
        "or download the dataset",
        CHANGED: f"was replaced while it was being read{detail}; open the cache again",
        TOO_SHORT: f"the server sent fewer bytes than it announced{detail}, also in further attempts; try again, and "
        "if it stays so, upload the file again",
    }
    kind = CacheUnreachable if fault.kind in _UNREADABLE else CacheError
    return kind(f"{place}: {texts[fault.kind]}")


def of_status(status: int, text: str = "") -> Fault:
    """The fault that an HTTP status stands for. Only known codes are taken from the text."""
    code = re.search(r"<Code>([A-Za-z]{1,40})</Code>", text)
    detail = f"status {status}, {code[1]}" if code else f"status {status}"
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return Fault(NO_BUCKET)
    if status == 404 or status == 410:
        return Fault(MISSING)
    if status in (401, 403):
        return Fault(DENIED, detail)
    if status in (409, 412):
        return Fault(CONFLICT, detail)
    return Fault(PASSING if status in _PASSING else REFUSED, detail)


def _credentials(place: Address) -> str:
    return _ENVIRONMENT.get(place.scheme, "the server wants some, and http addresses have none")
