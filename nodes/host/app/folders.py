"""The host's folders that the pack reads from and writes to."""

import os
from pathlib import Path

import folder_paths

KEY = "streamcache"


def cache_roots() -> list[Path]:
    """Where caches are: `output/streamcache`, then the folders that the user registered under the key `streamcache`."""
    registered = folder_paths.folder_names_and_paths.get(KEY, ([], ()))[0]
    own = os.path.join(folder_paths.get_output_directory(), KEY)
    return [Path(path) for path in dict.fromkeys([own, *registered])]


def export_root() -> Path:
    """Where copies for elsewhere are put."""
    return Path(folder_paths.get_output_directory()) / "streamcache_export"


def source_roots() -> dict[str, list[Path]]:
    """Where images may be read from, by the label that a folder's name may begin with."""
    datasets = folder_paths.folder_names_and_paths.get("datasets", ([], ()))[0]
    return {"input": [Path(folder_paths.get_input_directory())], "datasets": [Path(path) for path in datasets]}


def state_root() -> Path:
    """Where the pack remembers what files looked like; the host serves nothing of it."""
    return Path(folder_paths.get_system_user_directory(KEY))
