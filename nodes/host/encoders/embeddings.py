"""Embeddings: files that captions name (`embedding:style`), and that enter what the host makes of these captions."""

import functools
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import folder_paths

from ....dataset_cache import Surroundings, digest_of, file_identity

_NAMED = re.compile(r"embedding:([^\s<\[]+)")
_EXTENSIONS = ("", ".safetensors", ".pt", ".bin")


def surroundings() -> Surroundings:
    """The embeddings of the host as they are now. A caption's are hashed only when it is looked at."""
    files = {path: [found.st_size, found.st_mtime_ns] for path, found in sorted(_listed())}
    identity = functools.cache(file_identity)
    return Surroundings(digest_of(files) if files else "", lambda caption: _named_in(caption, files, identity))


def _listed() -> Iterator[tuple[str, os.stat_result]]:
    for root in folder_paths.get_folder_paths("embeddings"):
        for folder, _, names in os.walk(root, followlinks=True):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    yield path, os.stat(path)


def _named_in(caption: str, files: Collection[str], identity: Callable[[str], str]) -> str:
    named = [name for found in _NAMED.findall(caption) for name in _readings(found)]
    # The host takes one of the files that a name may mean; which one is its business, so all of them count.
    used = [path for name in dict.fromkeys(named) for path in files if _means(name, path)]
    return digest_of([identity(path) for path in dict.fromkeys(used)]) if used else ""


def _readings(text: str) -> Iterator[str]:
    """`style`, `style,` and `style:1.2)` all name style."""
    yield text
    yield re.split(r"[:,()]", text)[0]


def _means(name: str, path: str) -> bool:
    wanted = name.replace("\\", "/").strip("/")
    plain = Path(path).as_posix()
    return bool(wanted) and any(plain.endswith(f"/{wanted}{extension}") for extension in _EXTENSIONS)
