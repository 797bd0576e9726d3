"""Scales: how many pixels a latent pixel of a VAE covers, remembered so that no VAE is loaded to tell."""

import contextlib
import json
import os
from collections.abc import Callable

from ....dataset_cache import state_folder

_FILE = "vae-scales.json"


def known(identity: str, find: Callable[[], int]) -> int:
    """The remembered scale, or what `find` says."""
    scales = _read()
    if identity not in scales:
        scales[identity] = find()
        _write(scales)
    return scales[identity]


def _read() -> dict[str, int]:
    try:
        scales = json.loads((state_folder() / _FILE).read_text(encoding="utf-8"))
        return {key: value for key, value in scales.items() if type(value) is int and value > 0}
    except (OSError, ValueError, AttributeError):
        return {}


def _write(scales: dict[str, int]) -> None:
    folder = state_folder()
    with contextlib.suppress(OSError):  # where nothing can be kept, the VAE is asked again next time
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{_FILE}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(scales), encoding="utf-8")
        os.replace(temporary, folder / _FILE)
