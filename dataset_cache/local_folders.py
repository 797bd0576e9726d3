"""The folders on this machine that belong to no dataset: what is remembered, local copies, and the user's own file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

STATE_DIR = "STREAMCACHE_STATE_DIR"
CACHE_DIR = "STREAMCACHE_CACHE_DIR"
_NAME = "streamcache"
_chosen: Path | None = None


def use_memory_folder(folder: Path) -> None:
    """Keep memories in this folder from now on, unless STREAMCACHE_STATE_DIR is set."""
    global _chosen
    _chosen = folder


def memory_folder() -> Path:
    """STREAMCACHE_STATE_DIR, else the folder chosen by the program, else the platform's cache folder."""
    return _given() or _platform_cache() / _NAME


def copies_folder() -> Path:
    """Where local copies of remote files are: STREAMCACHE_CACHE_DIR, else in the platform's cache folder."""
    given = os.environ.get(CACHE_DIR)
    return Path(given) if given else _platform_cache() / _NAME / "remote"


def remotes_file() -> Path:
    """`remotes.toml`, which only the user edits: beside the memories if their place was chosen, else with settings."""
    return (_given() or _platform_settings() / _NAME) / "remotes.toml"


def _given() -> Path | None:
    given = os.environ.get(STATE_DIR) or _chosen
    return Path(given) if given else None


def _platform_cache() -> Path:
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")


def _platform_settings() -> Path:
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
