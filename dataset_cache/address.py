"""An address: the place of a dataset that is not in a folder of this machine, such as `s3://bucket/my_set`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from ..errors import CacheError

# At least two letters: `C://data` is a folder on Windows.
_SHAPE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_NO_PORT = re.compile(r":(?![0-9]+$)(?![^\[]*\])")  # colons are also in `[::1]`
_MISTYPED = re.compile(r"(s3|gs|az|hf|https?):(?!//)[/\\]?", re.IGNORECASE)


@dataclass(frozen=True)
class Address:
    """Stands for a remote dataset where a path stands for a local one: it has a name, parts below it, and a text.

    It never contains a secret: `parse` refuses passwords and signatures. It is no path: what opens files refuses it.
    """

    scheme: str
    host: str  # or the bucket
    path: str = ""  # without slashes at its ends

    @classmethod
    def parse(cls, text: str) -> Address:
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise CacheError(f"{text}: is not an address; expected scheme://host/path, such as s3://bucket/my_set")
        scheme, rest = match[1].lower(), match[2]
        _refuse_user(scheme, rest)
        rest, *query = re.split(r"[?#]", rest, maxsplit=1)
        host, _, path = rest.partition("/")
        found = cls(scheme, host, path.rstrip("/"))
        if query:  # it may contain a signature
            raise CacheError(
                f'{found}: was given with a part after "?" or "#", which an address lacks; leave that out, and give '
                "credentials in the environment"
            )
        found._check()
        return found

    def _check(self) -> None:
        if not self.host:
            raise CacheError(f"{self}: names no host or bucket; expected {self.scheme}://host/path")
        parts = self.path.split("/") if self.path else []
        # Web servers take `%2e%2e` for `..`, which would lead out of a registered root.
        plain = {part: unquote(part) for part in (self.host, *parts)}
        wrong = [part for part, text in plain.items() if text in ("", ".", "..") or {"/", "\\"} & set(text)]
        if wrong or not str(self).isprintable():
            found = f"the part {wrong[0]!r}" if wrong else "characters that no address has"
            raise CacheError(f"{str(self)!r}: contains {found}; write the whole address with single slashes")

    @property
    def name(self) -> str:
        """The last part, by which messages and reports call the dataset."""
        return self.path.rpartition("/")[2] or self.host

    def __truediv__(self, below: str) -> Address:
        joined = "/".join(part for part in (self.path, str(below).strip("/")) if part)
        return Address(self.scheme, self.host, joined)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}" + (f"/{self.path}" if self.path else "")


def is_address(text: object) -> bool:
    """Whether a text that a user typed is an address and not the path of a folder."""
    return isinstance(text, Address) or (isinstance(text, str) and _SHAPE.fullmatch(text) is not None)


def local_folder(place: str | Path | Address) -> Path:
    """The folder that a user named where no address will do. A slash too few in one must not make a folder `s3:`."""
    text = str(place)
    if is_address(place):
        address = Address.parse(text)  # refuses secrets, which the message would repeat
        raise CacheError(
            f"{address}: is an address; choose a folder here, and use push and pull to bring a cache there"
        )
    if match := _MISTYPED.match(text):
        address = Address.parse(f"{match[1]}://{text[match.end() :]}")
        raise CacheError(f"{text}: looks like an address; expected {address}, or a folder")
    return Path(text)


def is_same_place(one: Path | Address, other: Path | Address) -> bool:
    """Whether both are one folder that exists, also through links and in another case."""
    return one.samefile(other) if isinstance(one, Path) and isinstance(other, Path) else one == other


def is_inside(place: Path | Address, folder: Path | Address) -> bool:
    if isinstance(place, Path) and isinstance(folder, Path):
        return folder.resolve() in place.resolve().parents
    return type(place) is type(folder) and str(place).startswith(f"{folder}/")


def _refuse_user(scheme: str, rest: str) -> None:
    """Also of a password with a slash in it, which looks as if the host ended there: behind a host comes a port."""
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in host or _NO_PORT.search(host):
        shown = re.split(r"[?#]", rest.rpartition("@")[2])[0] if "@" in rest else "…"
        raise CacheError(
            f"{scheme}://{shown}: was given with a user name or password, which would end up in files and logs; "
            "leave that out, and give credentials in the environment"
        )
