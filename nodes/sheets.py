"""Sheets: pictures that show what a dataset holds: a contact sheet by bucket, and the bucket chart."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from PIL import Image

from ..dataset_cache import THUMBNAIL, CacheError, decode_thumbnail
from ..lora_train import draw_grid, plot_buckets

COLUMNS = 8
Decode = Callable[[dict], Image.Image]  # a latent → its picture


def size_name(width: int, height: int) -> str:
    return f"{width}×{height}"


def bucket_counts(dataset: Any) -> dict[str, int]:
    """Samples by the size they are encoded at, or by the latent's shape where pixels are not known."""
    sizes = Counter(map(tuple, dataset.column("crop")[:, 2:].tolist()))
    if set(sizes) == {(0, 0)}:
        return {str(bucket): len(rows) for bucket, rows in dataset.buckets().items()}
    return {size_name(*size): count for size, count in sizes.most_common()}


def contact_sheet(dataset: Any, count: int, cell: int, decode: Decode | None, tell: Callable[[], None]) -> Image.Image:
    """Samples evenly over the dataset, in rows by size."""
    step = max(1, len(dataset) // max(count, 1))
    rows: dict[str, list[Image.Image]] = {}
    for number in range(0, len(dataset), step)[:count]:
        tell()
        sample = dataset.sample(number)
        rows.setdefault(size_name(*sample.crop[2:]), []).append(_picture(sample, decode))
    lines = [(name, found[at : at + COLUMNS]) for name, found in rows.items() for at in range(0, len(found), COLUMNS)]
    shown = sum(map(len, rows.values()))
    names = ["" if name == size_name(0, 0) else name for name, _ in lines]
    return draw_grid([row for _, row in lines], names, title=f"{shown:,} of {len(dataset):,} samples", cell=cell)


def bucket_chart(dataset: Any) -> Image.Image:
    return plot_buckets(bucket_counts(dataset))


def _picture(sample: Any, decode: Decode | None) -> Image.Image:
    data = sample.fields.get(THUMBNAIL)
    if data is not None:
        return decode_thumbnail(data)
    if decode is None or sample.latent is None:
        raise CacheError("this dataset keeps no thumbnails; connect a VAE to see its latents as pictures")
    return decode(sample.latent)
