"""Caches of diffusion-pipe: `cache/<model>/…/latents/`, each with shards of `torch.save` files and a database of where
they are.

An item has its latent (scaled), the path of its image and its captions. `text_embeddings_1/`, `…_2/` beside it have
an item for each caption of each image, in order.
"""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ...errors import CacheError
from ..format import is_link, is_regular
from ..index import SampleFacts
from . import conditionings
from .comfy_shard import first_line, open_file
from .files import MAX_FILE_BYTES, is_record, read_pickled
from .found_sample import FoundSample, Skipped
from .image_folder import ImageFolder, stem_of, walk_files, whole_text
from .latent_space import (
    FLUX,
    FLUX2,
    HUNYUAN_IMAGE,
    HUNYUAN_VIDEO,
    HUNYUAN_VIDEO_15,
    SD3,
    SDXL,
    WAN21,
    LatentSpace,
    loss_weights,
)

_DATABASE = "metadata.db"
# Of names only: a view, a virtual table or a computed column would run what the file asks for.
_TABLE = re.compile(r"CREATE TABLE [\w\"]+\s*\([\w, ]*\)")
_STEPS = 20_000_000  # of SQLite's virtual machine: a hostile database could compute forever
_SPACES: dict[str, LatentSpace] = {
    "sdxl": SDXL,
    "sd3": SD3,
    "auraflow": SDXL,
    **dict.fromkeys(("flux", "chroma", "lumina_2", "hidream", "omnigen2", "z_image"), FLUX),
    **dict.fromkeys(("flux2", "ernie_image"), FLUX2),
    **dict.fromkeys(("wan", "qwen_image", "krea2", "cosmos_predict2"), WAN21),
    "hunyuan-video": HUNYUAN_VIDEO,
    "hunyuan_video_1.5": HUNYUAN_VIDEO_15,
    "hunyuan_image": HUNYUAN_IMAGE,
}
_KEYS = {"latents", "image_spec", "mask", "caption"}


class ItemCache:
    """One folder of items: `metadata.db` says where each is in which shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / _DATABASE
        if is_link(path) or not is_regular(path):
            raise CacheError(f"{path}: is not a file of its own; copy the cache again")
        self._sizes: dict[int, list[tuple[int, int]]] = {}
        try:
            # Read as it is: no journal is applied or written.
            database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
            try:
                self._places = self._read(database)
            finally:
                database.close()
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise CacheError(f"{path}: cannot be read as a database: {first_line(error)}") from error

    def _read(self, database: sqlite3.Connection) -> list[tuple[int, int]]:
        database.set_progress_handler(lambda: 1, _STEPS)
        database.execute("PRAGMA trusted_schema = OFF")
        rows = database.execute("SELECT name, type, sql FROM sqlite_master").fetchall()
        plain = {name for name, kind, sql in rows if kind == "table" and _TABLE.fullmatch(str(sql))}
        if "items" not in plain:
            raise CacheError(f"{self.folder / _DATABASE}: has no table of items; another program wrote it")
        places = [(int(a), int(b)) for a, b in database.execute("SELECT shard, shard_index FROM items")]
        for shard in {shard for shard, _ in places}:
            if f"shard_{shard}" not in plain:
                raise CacheError(f"{self.folder / _DATABASE}: has no table of shard {shard}")
            found = database.execute(f"SELECT offset, size FROM shard_{shard:d}")
            self._sizes[shard] = [(int(offset), int(size)) for offset, size in found]
        return places

    def __len__(self) -> int:
        return len(self._places)

    def item(self, number: int) -> dict[str, Any]:
        shard, index = self._places[number]
        path = self.folder / f"shard_{shard}.bin"
        place = f"{path}: item {number}"
        sizes = self._sizes[shard]
        offset, size = sizes[index] if 0 <= index < len(sizes) else (-1, 0)
        if is_link(path) or not 0 < size <= MAX_FILE_BYTES or offset < 0:
            raise CacheError(f"{place}: its place in the file is not valid")
        with open_file(path) as file:
            file.seek(0, 2)
            if offset + size > file.tell():
                raise CacheError(f"{place}: ends after the file")
            file.seek(offset)
            data = file.read(size)
        return read_pickled(data, place, lambda value: is_record(value, ("image_spec",)))


class DiffusionPipeCache:
    """A folder of images with `cache/<model>` in it, or that folder itself."""

    def __init__(self, folder: Path, images: Path | None, names: list[str]) -> None:
        self.kind = "diffusion-pipe"
        self._folder, self._names = folder, names
        self._images = ImageFolder(images or folder)

    def __iter__(self) -> Iterator[FoundSample | Skipped]:
        for name in self._names:
            place = Path(name).parent
            space = _SPACES.get(_model_of(self._folder / place))
            if space is None:
                yield Skipped(name, f"latents of {_model_of(self._folder / place)!r}, whose scaling is not known")
                continue
            try:
                items = ItemCache(self._folder / place)
                texts = _Texts(self._folder / place.parent, _model_of(self._folder / place))
            except CacheError as error:
                yield Skipped(name, str(error))
                continue
            for number in range(len(items)):
                try:
                    yield self._read(items, number, space, texts)
                except CacheError as error:
                    yield Skipped(f"{place.as_posix()}#{number}", str(error))

    def _read(self, items: ItemCache, number: int, space: LatentSpace, texts: "_Texts") -> FoundSample:
        item = items.item(number)
        others = sorted(set(item) - _KEYS)
        stored, spec = item.get("latents"), _spec(item)
        if others:
            raise CacheError(f"has {others[0]}, an input of the model that is not imported")
        if not isinstance(stored, torch.Tensor):
            raise CacheError("has no latents")
        latent = space.latent(stored, True)
        image = self._images.matching(spec[1])
        found = item.get("caption")
        captions = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
        if not captions and image:
            captions = list(whole_text(self._images.text(stem_of(image))))
        words, without = texts.of(spec, len(captions))
        crop = (0, 0, latent.shape[-1] * space.downscale, latent.shape[-2] * space.downscale)
        name = image or spec[1].replace("\\", "/").rpartition("/")[2]
        facts = SampleFacts(tuple(captions), name, self._images.size(image), crop)
        place = f"{items.folder.relative_to(self._folder).as_posix()}#{number}"
        return FoundSample(place, facts, [latent], _masks(item.get("mask"), latent), words, without)


class _Texts:
    """The text encoder outputs of a folder: for each image, where those of its captions are."""

    def __init__(self, folder: Path, model: str) -> None:
        self._caches: list[ItemCache] = []
        self._where: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._reason = f"text encoder outputs of {model} are not imported"
        if model != "flux":
            return
        self._reason = "no text encoder outputs"
        folders = [folder / f"text_embeddings_{number}" for number in (1, 2)]
        if all(is_regular(one / _DATABASE) for one in folders):
            self._caches = [ItemCache(one) for one in folders]
            for number in range(min(map(len, self._caches))):
                self._where[_spec(self._caches[0].item(number))].append(number)

    def of(self, spec: tuple[str, str], captions: int) -> tuple[list[Any], str]:
        """A conditioning for each caption of an image, or why there is none."""
        numbers = self._where.get(spec, [])
        if len(numbers) != captions or not numbers:
            return [], self._reason if not numbers else f"{len(numbers)} text encoder outputs for {captions} captions"
        try:
            return [self._conditioning(number, spec) for number in numbers], ""
        except CacheError as error:
            return [], str(error)

    def _conditioning(self, number: int, spec: tuple[str, str]) -> Any:
        merged: dict[str, Any] = {}
        for cache in self._caches:
            item = cache.item(number)
            if _spec(item) != spec:
                raise CacheError(f"{cache.folder}: item {number} belongs to another image than beside it")
            merged |= item
        t5, pooled = merged.get("t5_embed"), merged.get("clip_embed")
        if not isinstance(t5, torch.Tensor) or not isinstance(pooled, torch.Tensor):
            raise CacheError("its text encoder outputs have no t5_embed and clip_embed")
        return conditionings.flux(t5, pooled)


def open_diffusion_pipe(folder: Path, images: Path | None) -> DiffusionPipeCache | None:
    names = [name for name in walk_files(folder, _DATABASE) if Path(name).parent.name == "latents"]
    return DiffusionPipeCache(folder, images, names) if names else None


def _model_of(place: Path) -> str:
    """The model in a path such as `…/cache/flux/ar_frames_1.000_1/cache_1.0x1024x1024x1/latents`."""
    parts = place.resolve().parts
    found = [i for i, part in enumerate(parts[:-1]) if part == "cache"]
    return parts[found[-1] + 1] if found else ""


def _spec(item: dict[str, Any]) -> tuple[str, str]:
    """The archive, if any, and the path of an item's image."""
    spec = item["image_spec"]
    if not isinstance(spec, list | tuple) or len(spec) != 2 or not isinstance(spec[1], str):
        raise CacheError("names no image")
    return str(spec[0] or ""), spec[1]


def _masks(mask: Any, latent: torch.Tensor) -> list[torch.Tensor]:
    return [loss_weights(mask, latent)] if isinstance(mask, torch.Tensor) else []
