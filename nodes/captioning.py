"""The nodes Source Images and Write Captions: images of a folder for captioning nodes, and texts as caption files."""

from typing import Any

import psutil
from comfy_api.latest import io, ui
from comfy_execution.graph_utils import ExecutionBlocker

from ..dataset_cache import CHOICES, CacheError, FolderSource, byte_count, curate, digest_of, plural, walk_folder
from . import sockets
from .host.app import NodeProgress, source_roots
from .library import Choices, list_folders, path_of_folder, problem_of

WHICH = ("all", "without caption")
IF_CAPTIONED = ("keep", "replace")
LINES = ("join", "variants")
_CAPTIONS = (".txt", ".caption", ".json", ".jsonl")
_PIXEL_BYTES = 12  # three channels of float32
_SHARE = 0.75  # of the free memory
_FOLDERS = Choices(lambda: list_folders(source_roots()))


class StreamCacheSourceImages(io.ComfyNode):
    """Reads the images. It runs again if images change, but not if only captions do: captioning takes long."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheSourceImages",
            display_name="Source Images",
            category=sockets.CATEGORY,
            description="The images of a folder one by one, for captioning nodes, with names for Write Captions.",
            search_aliases=["caption images", "load images from folder", "tagger", "auto caption"],
            inputs=[
                io.Combo.Input(
                    "folder",
                    options=_FOLDERS.names(),
                    tooltip="A folder in ComfyUI's input folder or a datasets folder.",
                ),
                io.Combo.Input("images", options=list(WHICH), tooltip="All images, or only those without a caption."),
                io.Int.Input(
                    "max_side",
                    default=1024,
                    min=0,
                    max=16384,
                    step=8,
                    tooltip="Larger images are scaled down to this longer side, in pixels (0 = as they are).",
                ),
                io.Int.Input(
                    "count",
                    default=0,
                    min=0,
                    max=1_000_000,
                    **sockets.ADVANCED,
                    tooltip="Only the first N of these images, if not all fit into memory (0 = all).",
                ),
                io.Boolean.Input(
                    "recursive", default=True, **sockets.ADVANCED, tooltip="Include images in subfolders."
                ),
            ],
            outputs=[
                io.Image.Output("image", display_name="images", is_output_list=True, tooltip="One by one."),
                io.String.Output(
                    "name", display_name="names", is_output_list=True, tooltip="Their names, for Write Captions."
                ),
                io.String.Output(
                    "caption", display_name="captions", is_output_list=True, tooltip="Their captions so far."
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, folder: str) -> bool | str:
        return problem_of(folder, lambda text: path_of_folder(text, source_roots()))

    @classmethod
    def fingerprint_inputs(cls, folder: str, images: str = WHICH[0], recursive: bool = True, **others: Any) -> str:
        try:
            listings, _ = walk_folder(str(path_of_folder(folder, source_roots())), recursive)
        except CacheError as error:
            return str(error)
        counts = [(x.directory, name, stamp.hex()) for x in listings for name, stamp in x.rows()]
        if images == WHICH[0]:
            counts = [row for row in counts if row[1] == CHOICES or not row[1].lower().endswith(_CAPTIONS)]
        return digest_of(counts)

    @classmethod
    def execute(
        cls, folder: str, images: str = WHICH[0], max_side: int = 1024, count: int = 0, recursive: bool = True
    ) -> io.NodeOutput:
        source = curate.SourceFolder(path_of_folder(folder, source_roots()), recursive)
        view = source.read(lambda done, total: NodeProgress.check())
        found = list(curate.images_to_caption(view, images == WHICH[1]).items())
        if not found:
            why = "has a caption for every image" if images == WHICH[1] else "contains no images that can be used"
            return io.NodeOutput(*[ExecutionBlocker(f"{folder}: {why}")] * 3)
        found = found[: count or None]
        _check_memory(sum(_pixels(image.width, image.height, max_side) for _, image in found), len(found))
        watch = NodeProgress()
        pictures = []
        for number, (_, image) in enumerate(found):
            watch(number, len(found))
            pictures.append(sockets.image(view.picture(image.name, max_side)))
        return io.NodeOutput(pictures, [name for name, _ in found], [image.caption.text for _, image in found])


class StreamCacheWriteCaptions(io.ComfyNode):
    """Writes caption files next to the images of a source, and hands the source on."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheWriteCaptions",
            display_name="Write Captions",
            category=sockets.CATEGORY,
            description="Writes texts, for example of a captioning node, to the caption files of a folder. "
            "Existing captions are kept unless told otherwise.",
            search_aliases=["save captions", "caption files", "auto caption", "tagger"],
            is_input_list=True,
            is_output_node=True,
            inputs=[
                sockets.Source.Input("source", tooltip="The folder of the images, from Image Folder Dataset."),
                io.String.Input("texts", force_input=True, tooltip="One text per image."),
                io.String.Input(
                    "names",
                    force_input=True,
                    optional=True,
                    tooltip="The images that the texts belong to, from Source Images. None: all images in order.",
                ),
                io.Combo.Input(
                    "if_exists",
                    options=list(IF_CAPTIONED),
                    tooltip="If an image has a caption: keep it, or replace it.",
                ),
                io.Combo.Input(
                    "lines",
                    options=list(LINES),
                    **sockets.ADVANCED,
                    tooltip="Join several lines of a text to one caption, or keep them as variants.",
                ),
            ],
            outputs=[
                sockets.Source.Output("source", display_name="source", tooltip="For Encode Dataset, after writing.")
            ],
        )

    @classmethod
    def execute(
        cls,
        source: list[tuple[FolderSource, ...]],
        texts: list[str],
        if_exists: list[str],
        names: list[str] | None = None,
        lines: list[str] | None = None,
    ) -> io.NodeOutput:
        done = curate.write_captions(
            source[0],
            texts,
            names or None,
            overwrite=sockets.first(if_exists) == IF_CAPTIONED[1],
            variants=sockets.first(lines) == LINES[1],
        )
        return io.NodeOutput(source[0], ui=ui.PreviewText("\n".join(done.lines())))


NODES = [StreamCacheSourceImages, StreamCacheWriteCaptions]


def _pixels(width: int, height: int, side: int) -> int:
    scale = min(1.0, side / max(width, height)) if side else 1.0
    return round(width * scale) * round(height * scale)


def _check_memory(pixels: int, count: int) -> None:
    """ComfyUI keeps a list of images in memory as a whole."""
    needed, free = pixels * _PIXEL_BYTES, psutil.virtual_memory().available
    if needed > free * _SHARE:
        raise CacheError(
            f"{plural(count, 'image')} take {byte_count(needed)} in memory, and {byte_count(free)} are free; lower "
            "max_side, or set count and images = without caption, and run several times"
        )
