"""Sources: pictures, captions and masks on disk or in memory."""

from .captions import CAPTION_FALLBACKS, CAPTION_LINES, METADATA, SIDECARS, Captions
from .collect import Findings, Item, collect_folder, collect_list
from .images import RENDER_VERSION, Picture, is_image, render_image
from .inventory import Counts, Inventory, take_inventory
from .masks import MASK_MODES, MASK_VERSION, Masks, decode_mask, is_mask, render_mask
from .memory import Origin, State, open_state, state_file, state_folder, use_state_folder
from .pictures import FilePicture, Reading
from .scan import UNSETTLED, Listing, is_settled, stamp_of, walk_folder
from .source import Excluded, FolderSource, ListSource, Note, Source, check_sets
from .source_files import Facts, content_hash, read_bytes
from .thumbnails import THUMBNAIL, decode_thumbnail, encode_thumbnail
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
    "FilePicture",
    "Findings",
    "FolderSource",
    "Inventory",
    "Item",
    "ListSource",
    "Listing",
    "Masks",
    "Note",
    "Origin",
    "Picture",
    "Placement",
    "Reading",
    "Source",
    "State",
    "Transform",
    "bucket_sizes",
    "check_sets",
    "collect_folder",
    "collect_list",
    "content_hash",
    "decode_mask",
    "decode_thumbnail",
    "encode_thumbnail",
    "is_image",
    "is_mask",
    "is_settled",
    "open_state",
    "place_image",
    "read_bytes",
    "render_image",
    "render_mask",
    "stamp_of",
    "state_file",
    "state_folder",
    "take_inventory",
    "use_state_folder",
    "walk_folder",
]
