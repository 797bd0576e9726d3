"""The node Image Folder Dataset: a folder of images with captions and masks, as a source for Encode Dataset."""

from typing import Any

from comfy_api.latest import io

from ..dataset_cache import (
    SOURCE_SETTINGS,
    CacheError,
    FolderSource,
    digest_of,
    load_source,
    walk_folder,
)
from . import sockets
from .host.app import source_roots
from .library import Choices, list_folders, path_of_folder, problem_of
from .setting_inputs import read_inputs, setting_input

_FOLDERS = Choices(lambda: list_folders(source_roots()))
# Saved workflows have the widgets by position: add new ones at the end.
MAIN = ("trigger", "masks", "repeats", "prior", "prompt")
ADVANCED = (
    "recursive",
    "set",
    "weight",
    "samples",
    "caption_lines",
    "caption_fallback",
    "caption_prefix",
    "caption_suffix",
    "tag_shuffles",
    "keep_tags",
    "caption_seed",
)


class StreamCacheImageFolder(io.ComfyNode):
    """Outputs a folder as a source. Nothing is read until the dataset is encoded."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheImageFolder",
            display_name="Image Folder Dataset",
            category=sockets.CATEGORY,
            description="A folder of images with captions and masks, to be encoded. Chain several to combine folders.",
            search_aliases=["training images", "load dataset", "kohya folder", "captions", "regularization images"],
            inputs=_inputs(),
            outputs=[sockets.Source.Output("source", display_name="source", tooltip="For Encode Dataset.")],
        )

    @classmethod
    def validate_inputs(cls, folder: str) -> bool | str:
        return problem_of(folder, lambda text: path_of_folder(text, source_roots()))

    @classmethod
    def fingerprint_inputs(cls, folder: str, recursive: bool = True, **others: Any) -> str:
        """Changes when a relevant file changes. One listing per folder, one stat per file; nothing is opened."""
        try:
            listings, _ = walk_folder(str(path_of_folder(folder, source_roots())), recursive)
        except CacheError as error:
            return str(error)
        return digest_of([[listing.directory, listing.digest.hex()] for listing in listings])

    @classmethod
    def execute(
        cls, folder: str, source: tuple[FolderSource, ...] | None = (), prompt: str = "", **values: Any
    ) -> io.NodeOutput:
        path = path_of_folder(folder, source_roots())
        given = {**read_inputs(SOURCE_SETTINGS, values), "prompt": prompt.strip() or None}
        if given.get("prior") and given.get("set", "main") == "main":
            given["set"] = "prior"
        return io.NodeOutput((*(source or ()), load_source(path, given, folder)))


NODES = [StreamCacheImageFolder]


def _inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "folder",
            options=_FOLDERS.names(),
            tooltip="A folder in ComfyUI's input folder or a datasets folder.",
        ),
        *(setting_input(SOURCE_SETTINGS[name]) for name in MAIN),
        sockets.Source.Input("source", optional=True, tooltip="Another folder, which comes before this one."),
        *(setting_input(SOURCE_SETTINGS[name], **sockets.ADVANCED) for name in ADVANCED),
    ]
