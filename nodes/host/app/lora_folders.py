"""Where trained LoRAs and their runs lie in the host's folders, and the LoRAs that the host has."""

from __future__ import annotations

import os
from pathlib import Path

import folder_paths

from ....lora_train import TrainError

KEY = "loras"
RUNS = "streamcache_runs"
NONE = "[none]"


def lora_folder() -> Path:
    """`output/loras`, which the host's LoRA loaders look into."""
    return Path(folder_paths.get_output_directory()) / KEY


def runs_folder() -> Path:
    """Beside the LoRAs, not among them: saved states are no LoRAs to choose from."""
    return Path(folder_paths.get_output_directory()) / RUNS


def list_loras() -> list[str]:
    """The files that the host's LoRA loaders offer. The host remembers the list until a folder changes."""
    return [NONE, *folder_paths.get_filename_list(KEY)]


def find_lora(name: str) -> str:
    """The path of a LoRA by the name in that list; empty for none."""
    if name in ("", NONE):
        return ""
    path = folder_paths.get_full_path(KEY, name) if name in list_loras() else None
    if path is None:
        raise TrainError(f'start_from = "{name}": the host has no such LoRA; choose one of the list')
    return path


def lora_stamp(path: str | Path) -> tuple[int, int] | None:
    """Changes with the file; None for no file."""
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if found else None
