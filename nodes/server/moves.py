"""Moves: a cache gets another name, or goes elsewhere below its root. Nothing that is in use is moved."""

import gc
import os
from collections.abc import Sequence
from pathlib import Path

from ...dataset_cache import CacheBusy, PublishLock, holders, is_link
from ..library import close_idle, forget_result, parse_name, path_to_create, path_to_open
from . import views
from .refusals import Refused


def rename(name: str, to: str, roots: Sequence[Path]) -> Path:
    """Give a cache another name below the root it is in."""
    folder = path_to_open(name, roots)
    root = root_of(name, folder, roots)
    target = path_to_create(to, [root, *roots])
    refuse_if_in_use(folder)
    move_folder(folder, target, root)
    remove_empty_parents(folder, root)
    forget_result(folder)
    return target


def root_of(name: str, folder: Path, roots: Sequence[Path]) -> Path:
    parts = parse_name(name)
    return next(root for root in roots if root.joinpath(*parts) == folder)


def let_go(folder: Path) -> None:
    """Close what this process holds open of a cache without using it."""
    close_idle(folder)
    views.close(folder)
    if holders(folder):
        gc.collect()  # what was closed may wait for it


def refuse_if_in_use(folder: Path) -> None:
    if is_link(folder):
        raise Refused(f"{folder.name} is a link to another place; move or remove it there", 409)
    let_go(folder)
    found = holders(folder)
    if found:
        raise CacheBusy(f"{folder.name} is in use: {found[0]} reads it; try again when that is done")
    PublishLock(folder).release()  # refused while somebody writes


def move_folder(folder: Path, target: Path, root: Path | None = None) -> None:
    """Folders that `target` needs below `root` are made; if the move fails, they go again."""
    # Without the lock, whose file could not be moved on Windows while it is held.
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, target)
    except OSError as error:
        if root is not None:
            remove_empty_parents(target, root)
        raise Refused(
            f"{folder.name} cannot be moved: {error.strerror or error}; close whatever has its files open", 409
        ) from error


def remove_empty_parents(folder: Path, root: Path) -> None:
    """The folders between a root and what was moved away, from the inner ones on, as far as they are empty."""
    for above in folder.parents:
        if above == root or root not in above.parents or is_link(above):
            return
        try:
            above.rmdir()
        except OSError:  # something else lies in it
            return
