"""The node Image Folder Dataset: a folder of images, with captions and masks, as a source to encode."""

from typing import Any

from comfy_api.latest import io

from ..dataset_cache import (
    CAPTION_FALLBACKS,
    CAPTION_LINES,
    MASK_MODES,
    CacheError,
    Captions,
    FolderSource,
    Masks,
    digest_of,
    walk_folder,
)
from . import sockets
from .host.app import source_roots
from .library import Choices, list_folders, path_of_folder, problem_of

_FOLDERS = Choices(lambda: list_folders(source_roots()))


class StreamCacheImageFolder(io.ComfyNode):
    """A folder of images. Nothing is read until the dataset is encoded."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheImageFolder",
            display_name="Image Folder Dataset",
            category=sockets.CATEGORY,
            description="A folder of images with captions and masks beside them, to be encoded. Several chain.",
            search_aliases=["training images", "load dataset", "kohya folder", "captions", "regularization images"],
            inputs=_inputs(),
            outputs=[sockets.Source.Output("source", display_name="source", tooltip="For Encode Dataset.")],
        )

    @classmethod
    def validate_inputs(cls, folder: str) -> bool | str:
        return problem_of(folder, lambda text: path_of_folder(text, source_roots()))

    @classmethod
    def fingerprint_inputs(cls, folder: str, recursive: bool = True, **others: Any) -> str:
        """The state of every relevant file: one listing a folder, one stat a file, nothing opened."""
        try:
            listings, _ = walk_folder(str(path_of_folder(folder, source_roots())), recursive)
        except CacheError as error:
            return str(error)
        return digest_of([[listing.directory, listing.digest.hex()] for listing in listings])

    @classmethod
    def execute(
        cls,
        folder: str,
        trigger: str = "",
        masks: str = "none",
        repeats: int = 1,
        prior: bool = False,
        prompt: str = "",
        source: tuple = (),
        recursive: bool = True,
        set: str = "main",
        weight: float = 1.0,
        samples: int = 0,
        **captions: Any,
    ) -> io.NodeOutput:
        path = path_of_folder(folder, source_roots())
        added = FolderSource(
            path,
            recursive=recursive,
            set="prior" if prior and set == "main" else set,
            captions=Captions(trigger=trigger, **{_CAPTIONS[name]: value for name, value in captions.items()}),
            masks=Masks(masks),
            repeats=repeats,
            weight=weight,
            prior=prior,
            prompt=prompt.strip() or None,
            samples=samples or None,
        )
        return io.NodeOutput((*(source or ()), added))


NODES = [StreamCacheImageFolder]
_CAPTIONS = {
    "caption_lines": "lines",
    "caption_fallback": "fallback",
    "caption_prefix": "prefix",
    "caption_suffix": "suffix",
    "tag_shuffles": "shuffles",
    "keep_tags": "keep_tags",
    "caption_seed": "seed",
}


def _inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "folder",
            options=_FOLDERS.names(),
            tooltip="A folder below ComfyUI's input folder or a datasets folder.",
        ),
        io.String.Input(
            "trigger",
            default="",
            tooltip="A word for the new concept. It replaces [trigger] in captions, or stands before them.",
        ),
        io.Combo.Input(
            "masks",
            options=list(MASK_MODES),
            default="none",
            tooltip="Where masks for masked loss are: name-masklabel.png files, a folder named masks, the alpha "
            "channel, or the first of these that an image has.",
        ),
        io.Int.Input(
            "repeats",
            default=1,
            min=1,
            max=100_000,
            tooltip="How often each image counts in an epoch. A folder named 10_subject multiplies it by 10.",
        ),
        io.Boolean.Input(
            "prior",
            default=False,
            tooltip="Class images for prior preservation: they keep the model from forgetting how the class looks.",
        ),
        io.String.Input(
            "prompt",
            default="",
            tooltip="One caption for all images of this folder instead of their own. Class images need one.",
        ),
        sockets.Source.Input("source", optional=True, tooltip="Another folder that comes before this one."),
        *_set_inputs(),
        *_caption_inputs(),
    ]


def _set_inputs() -> list[io.Input]:
    return [
        io.Boolean.Input("recursive", default=True, **sockets.RARE, tooltip="Take the images of subfolders too."),
        io.String.Input(
            "set",
            default="main",
            **sockets.RARE,
            tooltip="The name of these images as a group with settings of its own.",
        ),
        io.Float.Input(
            "weight",
            default=1.0,
            min=0.0,
            max=100.0,
            step=0.05,
            **sockets.RARE,
            tooltip="How much each counts in the loss.",
        ),
        io.Int.Input(
            "samples",
            default=0,
            min=0,
            max=10_000_000,
            **sockets.RARE,
            tooltip="How many images of this set an epoch draws, anew each time; 0 takes all of them.",
        ),
    ]


def _caption_inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "caption_lines",
            options=list(CAPTION_LINES),
            default="variants",
            **sockets.RARE,
            tooltip="What several lines in a caption file are: variants to choose from each epoch, one text, or "
            "only the first counts.",
        ),
        io.Combo.Input(
            "caption_fallback",
            options=list(CAPTION_FALLBACKS),
            default="empty",
            **sockets.RARE,
            tooltip="The caption of images without a caption file: none, or their folder's name.",
        ),
        io.String.Input("caption_prefix", default="", **sockets.RARE, tooltip="Text put before every caption."),
        io.String.Input("caption_suffix", default="", **sockets.RARE, tooltip="Text put after every caption."),
        io.Int.Input(
            "tag_shuffles",
            default=0,
            min=0,
            max=64,
            **sockets.RARE,
            tooltip="So many shuffled orders of comma-separated tags are encoded ahead as variants; 0 keeps the order.",
        ),
        io.Int.Input(
            "keep_tags", default=0, min=0, max=100, **sockets.RARE, tooltip="So many first tags stay where they are."
        ),
        io.Int.Input(
            "caption_seed", default=0, min=0, max=2**31 - 1, **sockets.RARE, tooltip="Decides how tags are shuffled."
        ),
    ]
