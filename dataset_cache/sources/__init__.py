"""Sources: images, captions and masks, on disk or in memory, before encoding."""

from .captions import CAPTION_FALLBACKS, CAPTION_LINES, METADATA, SIDECARS, Captions
from .folder_source import FolderSource
from .images import RENDER_VERSION, THUMBNAIL, Picture, decode_thumbnail
from .list_source import ListSource
from .masks import MASK_MODES, MASK_VERSION, Masks, grey_mask, render_mask
from .memory import (
    Origin,
    SourceMemory,
    memory_folder,
    open_memory,
    remembered_folders,
    use_memory_folder,
)
from .scan import Counts, Inventory, take_inventory, walk_folder
from .source import Excluded, Item, Listed, Note, Source, check_sets
from .source_files import UNSETTLED, Facts, FileRecord, Listing, Reading, SourceImage, is_settled, stamp_of
from .transforms import BUCKET_STEPS, CROPS, Placement, Transform, bucket_sizes, place_image

__all__ = [
    "BUCKET_STEPS",
    "CAPTION_FALLBACKS",
    "CAPTION_LINES",
    "CROPS",
    "MASK_MODES",
    "MASK_VERSION",
    "METADATA",
    "RENDER_VERSION",
    "SIDECARS",
    "THUMBNAIL",
    "UNSETTLED",
    "Captions",
    "Counts",
    "Excluded",
    "Facts",
    "FileRecord",
    "FolderSource",
    "Inventory",
    "Item",
    "ListSource",
    "Listed",
    "Listing",
    "Masks",
    "Note",
    "Origin",
    "Picture",
    "Placement",
    "Reading",
    "Source",
    "SourceImage",
    "SourceMemory",
    "Transform",
    "bucket_sizes",
    "check_sets",
    "decode_thumbnail",
    "grey_mask",
    "is_settled",
    "memory_folder",
    "open_memory",
    "place_image",
    "remembered_folders",
    "render_mask",
    "stamp_of",
    "take_inventory",
    "use_memory_folder",
    "walk_folder",
]
