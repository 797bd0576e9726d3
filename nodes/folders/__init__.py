"""Folders of images as pages show and edit them: what is in them now, filtered and sorted, previews, look-alikes."""

from .alike import MAX_GROUPS, find_alike, groups_of
from .charts import folder_charts
from .folder_view import MAX_PAGE, image_row, view_page
from .open_folders import LAST, FolderNow, forget_first, look_at, look_first
from .previews import KINDS, MAX_EDITS, MAX_SHOWN, PREVIEWS, make_edit
from .query import Query
from .sample_source import find_source

__all__ = [
    "KINDS",
    "LAST",
    "MAX_EDITS",
    "MAX_GROUPS",
    "MAX_PAGE",
    "MAX_SHOWN",
    "PREVIEWS",
    "FolderNow",
    "Query",
    "find_alike",
    "find_source",
    "folder_charts",
    "forget_first",
    "groups_of",
    "image_row",
    "look_at",
    "look_first",
    "make_edit",
    "view_page",
]
