"""Identity of an encoder: a hash of its weights. Files are hashed once; unchanged ones are not read again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import xxhash

from ...errors import CacheError
from ..local_folders import memory_folder
from ..sources import UNSETTLED, Facts, SourceMemory, is_settled, stamp_of

_CHUNK = 8 << 20


def digest_of(value: Any) -> str:
    """The hash of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


def file_identity(path: str | os.PathLike[str]) -> str:
    """Hash of a weight file's content, independent of its name. An unchanged file is not opened again."""
    path = os.path.abspath(path)
    try:
        stamp = stamp_of(os.stat(path))
        with SourceMemory(memory_folder() / "weights.sqlite") as memory:
            known = memory.weights(path)
            if known is not None and known[0] == stamp:
                return known[1].content.hex()
            started = time.time_ns()
            content = _hash_file(path)
            unchanged = stamp_of(os.stat(path)) == stamp and is_settled(stamp, started)
            memory.remember_weights(path, stamp if unchanged else UNSETTLED, Facts(content))
    except OSError as error:
        raise CacheError(f"{path}: the weights cannot be read: {error.strerror or error}") from error
    return content.hex()


def files_identity(paths: Iterable[str | os.PathLike[str]]) -> str:
    """Hash of a model in several files, in this order."""
    return digest_of([file_identity(path) for path in paths])


def object_identity(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hash of weights that have no file: names, dtypes, shapes and bytes, in any order."""
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        if tensor.is_meta:
            raise CacheError(f"{name}: has no values (it is on the meta device); load the weights first")
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():
            # As bytes: numpy has no bfloat16 and no float8.
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _hash_file(path: str) -> bytes:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()
