"""The user's own file `remotes.toml`: names for addresses, and how to reach them. No program writes it.

    [roots.studio]
    address = "s3://bucket/sets"
    endpoint = "https://minio.studio.example"    # for stores that are not the usual one of this kind
    region = "eu-central-1"
    profile = "studio"                           # of the files that AWS' own tools read
    anonymous = true                             # a public place, which wants no credentials

A widget or a route names a root and a path below it, never an address: a workflow must not make a server call out.
"""

import importlib
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...errors import CacheError
from ..address import Address, is_address
from ..local_folders import remotes_file


@dataclass(frozen=True)
class Options:
    """How to reach addresses. Credentials are not among them: they stay where other tools look for them too."""

    endpoint: str = ""
    region: str = ""
    profile: str = ""
    anonymous: bool = False


@dataclass(frozen=True)
class _Root:
    address: Address
    options: Options


def roots() -> dict[str, str]:
    """The registered addresses by name; empty without a file."""
    return {name: str(root.address) for name, root in _read(remotes_file()).items()}


def place_of(text: str) -> str:
    """What a user typed as the place of a cache: `root/name` is an address, everything else stays what it is."""
    place = text.replace("\\", "/")
    try:
        return resolve(place) if not is_address(text) and place.partition("/")[0] in roots() else text
    except CacheError:
        if Path(text).exists():  # a mistake in remotes.toml is none of a local cache's
            return text
        raise


def resolve(place: str) -> str:
    """The address that `name/path below it` stands for."""
    name, _, below = place.partition("/")
    known = _read(remotes_file())
    if name not in known:
        listed = ", ".join(known) or "none"
        raise CacheError(f"{place!r}: no remote root has the name {name!r}; registered in {remotes_file()}: {listed}")
    root = str(known[name].address)
    return str(Address.parse(f"{root}/{below}" if below else root))


def options_for(address: Address) -> Options:
    """The options of the registered root that this address is in, the innermost one."""
    found = [root for root in _read(remotes_file()).values() if _is_below(address, root.address)]
    return max(found, key=lambda root: len(root.address.path)).options if found else Options()


def _is_below(address: Address, root: Address) -> bool:
    return address == root or str(address).startswith(f"{root}/")


def _read(path: Path) -> dict[str, _Root]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise CacheError(f"{path}: cannot be read: {error}") from error
    toml = _toml()
    try:
        content = toml.loads(text)
    except ValueError as error:
        raise CacheError(f"{path}: is not TOML: {error}") from error
    tables = content.pop("roots", {})
    if content or not isinstance(tables, dict):
        raise CacheError(f"{path}: contains {next(iter(content), 'roots')!r}; expected tables [roots.NAME] only")
    return {name: _root(f"{path}: root {name!r}", name, table) for name, table in tables.items()}


def _root(place: str, name: str, table: Any) -> _Root:
    if not name or "/" in name or not name.isprintable():
        raise CacheError(f"{place}: is not a name; use letters, digits and dashes")
    if not isinstance(table, dict) or not isinstance(table.get("address"), str):
        raise CacheError(f'{place}: has no address; expected address = "s3://bucket/path"')
    given = {key: value for key, value in table.items() if key != "address"}
    known = {field.name: type(field.default) for field in fields(Options)}
    for key, value in given.items():
        if key not in known:
            raise CacheError(
                f"{place}: {key!r} is not an option; expected address, {', '.join(known)}. Credentials do not belong "
                "here: give them in the environment or in the files of the store's own tools"
            )
        if type(value) is not known[key]:
            raise CacheError(f"{place}: {key} must be a {'text' if known[key] is str else 'true or false'}")
    try:
        for address in filter(None, [given.get("endpoint")]):
            Address.parse(address)  # refuses passwords
        return _Root(Address.parse(table["address"]), Options(**given))
    except CacheError as error:
        raise CacheError(f"{place}: {error}") from None


def _toml() -> Any:
    try:
        return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise CacheError("remotes.toml needs Python 3.11, or the package tomli: pip install tomli") from None
