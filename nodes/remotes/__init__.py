"""Registered remote roots: the caches there, what is here of them, and pushing to them."""

from .pushing import NO_ROOT, push_saved, push_target, root_names
from .roots import REMOTE_ROOTS
from .view import remote_rows

__all__ = ["NO_ROOT", "REMOTE_ROOTS", "push_saved", "push_target", "remote_rows", "root_names"]
