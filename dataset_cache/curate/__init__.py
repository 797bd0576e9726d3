"""Curation of source folders: captions are edited, images excluded and repeated, and every edit can be undone."""

from .caption_edits import (
    CaptionChange,
    CaptionEdit,
    EditPreview,
    add_prefix,
    add_suffix,
    append_tag,
    in_turn,
    preview_captions,
    preview_edit,
    remove_tag,
    replace_text,
    set_text,
)
from .caption_file import CaptionText
from .caption_list import match_names, read_caption_list
from .captioning import images_to_caption, write_captions
from .first_look import look_first
from .look_alikes import cache_hashes, folder_hashes, look_alikes
from .selection import (
    IMAGE_ORDERS,
    ImageFilter,
    bucket_of,
    count_buckets,
    count_caption_lengths,
    count_subfolders,
    count_tags,
    count_words,
    crop_of,
    select_images,
    sort_images,
)
from .source_folder import FolderImage, FolderView, SourceFolder, protect_folder, protection_of
from .writing import EditConflict, EditResult, apply_changes, choose_images, last_edit, undo_edit

__all__ = [
    "IMAGE_ORDERS",
    "CaptionChange",
    "CaptionEdit",
    "CaptionText",
    "EditConflict",
    "EditPreview",
    "EditResult",
    "FolderImage",
    "FolderView",
    "ImageFilter",
    "SourceFolder",
    "add_prefix",
    "add_suffix",
    "append_tag",
    "apply_changes",
    "bucket_of",
    "cache_hashes",
    "choose_images",
    "count_buckets",
    "count_caption_lengths",
    "count_subfolders",
    "count_tags",
    "count_words",
    "crop_of",
    "folder_hashes",
    "images_to_caption",
    "in_turn",
    "last_edit",
    "look_alikes",
    "look_first",
    "match_names",
    "preview_captions",
    "preview_edit",
    "protect_folder",
    "protection_of",
    "read_caption_list",
    "remove_tag",
    "replace_text",
    "select_images",
    "set_text",
    "sort_images",
    "undo_edit",
    "write_captions",
]
