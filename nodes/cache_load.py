"""The node Streamable Cache Load: a saved dataset by its name."""

from typing import Any

from comfy_api.latest import io

from ..dataset_cache import CacheError, read_manifest
from . import sockets
from .host.app import cache_roots
from .library import Choices, handle_of, list_names, path_to_open, problem_of, published_generation, summarize

_CACHES = Choices(lambda: list_names(cache_roots()))


def name_input(tooltip: str) -> io.Input:
    """A list of all caches; names that it does not show yet are checked by `name_problem`.

    Not a remote list: the front end sets such a widget to the first choice when the list arrives, and a saved workflow
    would silently load another dataset.
    """
    return io.Combo.Input("name", options=_CACHES.names(), tooltip=tooltip)


def name_problem(name: str | None) -> bool | str:
    return problem_of(name, lambda: path_to_open(name, cache_roots()))


class StreamCacheCacheLoad(io.ComfyNode):
    """Opens a dataset. Nothing of it is read but its description."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheCacheLoad",
            display_name="Streamable Cache Load",
            category=sockets.CATEGORY,
            description="Opens a saved dataset by its name, in milliseconds, whatever its size. Select Samples makes "
            "lists of it.",
            search_aliases=["load training dataset", "load latents", "load dataset", "open cache"],
            has_intermediate_output=True,  # so that its summary is shown also when the host has its result already
            inputs=[name_input("A dataset below output/streamcache, or below a folder registered as streamcache.")],
            outputs=[
                sockets.Dataset.Output("dataset", display_name="dataset", tooltip="The dataset as it is now."),
                io.Int.Output("samples", display_name="samples", tooltip="How many samples it has."),
            ],
        )

    @classmethod
    def validate_inputs(cls, name: str) -> bool | str:
        return name_problem(name)

    @classmethod
    def fingerprint_inputs(cls, name: str) -> Any:
        """A cache that was saved anew is loaded anew; an unchanged one is not."""
        try:
            return published_generation(path_to_open(name, cache_roots()), name)
        except CacheError as error:
            return str(error)

    @classmethod
    def execute(cls, name: str) -> io.NodeOutput:
        path = path_to_open(name, cache_roots())
        handle = handle_of(name, path)
        manifest = read_manifest(path)
        shown = {"streamcache": [summarize(name, path, manifest)]} if manifest is not None else None
        return io.NodeOutput(handle, len(handle), ui=shown)


NODES = [StreamCacheCacheLoad]
