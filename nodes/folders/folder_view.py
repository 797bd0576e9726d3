"""One folder of images on a page: its images page by page, filtered and sorted, with their captions."""

from __future__ import annotations

from typing import Any

from ...dataset_cache import Transform, curate
from .open_folders import FolderNow
from .query import Query

MAX_PAGE = 500  # images on one page
MAX_CAPTION = 20_000  # characters that are shown


def view_page(now: FolderNow, query: Query, start: int, count: int) -> dict[str, Any]:
    """`count` images that match, beginning with match `start`."""
    found = query.images(now)
    return {
        "state": now.state,
        "total": len(found),
        "all": len(now.view.images),
        "start": start,
        "reading": not now.view.whole,
        "locked": curate.protection_of(now.root),
        "images": [image_row(image, query.transform) for image in found[start : start + count]],
    }


def image_row(image: curate.FolderImage, transform: Transform, most: int = MAX_CAPTION) -> dict[str, Any]:
    """What a page shows of an image. `stamp` is that of its caption, which an edit sends back."""
    caption = image.caption
    return {
        "name": image.name,
        "width": image.width,
        "height": image.height,
        "bytes": image.bytes,
        "modified": image.modified / 1e9,
        "caption": caption.text[:most],
        "cut": len(caption.text) > most,
        "lines": len(image.lines),
        "stamp": caption.stamp,
        "locked": caption.locked,
        "problem": image.problem or caption.problem,
        "excluded": image.excluded,
        "repeats": image.repeats,
        "mask": image.masked,
        "mask_stamp": image.mask_stamp.hex(),
        "bucket": curate.bucket_of(image, transform),
        "crop": curate.crop_of(image, transform),
        "image_stamp": image.stamp.hex(),
    }
