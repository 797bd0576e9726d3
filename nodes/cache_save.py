"""The node Streamable Cache Save: a plan, a dataset or the host's own lists become a cache under a name."""

from typing import Any

from comfy_api.latest import io

from ..dataset_cache.errors import CacheError
from . import freshness, paths, sockets
from .host.events import caches_changed
from .host.folders import cache_roots
from .host.progress import NodeProgress
from .saving import Given, save

IF_EXISTS = ("update", "refuse")


class StreamCacheCacheSave(io.ComfyNode):
    """Saves a dataset, encoding what is new in it, and hands it on."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheCacheSave",
            display_name="Streamable Cache Save",
            category=sockets.CATEGORY,
            description="Saves a dataset as a cache that streams from disk. Only what is new is encoded; a save "
            "that was stopped goes on where it was.",
            search_aliases=["save training dataset", "save latents", "save dataset", "convert dataset"],
            is_input_list=True,
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            inputs=_inputs(),
            outputs=[sockets.Dataset.Output("dataset", display_name="dataset", tooltip="The saved dataset.")],
        )

    @classmethod
    def validate_inputs(cls, name: str) -> bool | str:
        return _problem(name)

    @classmethod
    def fingerprint_inputs(cls, name: list[str], **others: Any) -> Any:
        try:
            return freshness.fingerprint(paths.path_to_save(name[0], cache_roots()), str(cls.hidden.unique_id))
        except CacheError as error:
            return str(error)

    @classmethod
    def execute(
        cls,
        name: list[str],
        dataset: list = (),
        latents: list = (),
        conditioning: list = (),
        captions: list = (),
        if_exists: list[str] = ("update",),
    ) -> io.NodeOutput:
        path = paths.path_to_save(name[0], cache_roots())
        _refuse_collision(name[0], cls.hidden.prompt or {}, cls.hidden.unique_id, path.exists(), if_exists[0])
        given = Given(dataset[0] if dataset else None, latents, conditioning, captions)
        watch = NodeProgress()
        saved = save(given, name[0], path, watch)
        freshness.leave(path, str(cls.hidden.unique_id), saved.handle.generation)
        caches_changed()
        watch.show("\n".join(saved.lines))
        return io.NodeOutput(saved.handle, ui={"text": ["\n".join(saved.lines)], "streamcache": [saved.facts]})


NODES = [StreamCacheCacheSave]


def _inputs() -> list[io.Input]:
    return [
        io.String.Input("name", default="my_dataset", tooltip="The cache's name below output/streamcache."),
        sockets.Dataset.Input("dataset", optional=True, tooltip="A plan from Encode Dataset, or a dataset to copy."),
        io.Latent.Input("latents", optional=True, tooltip="Latents of other nodes, instead of a dataset."),
        io.Conditioning.Input("conditioning", optional=True, tooltip="The conditioning of each of these latents."),
        io.String.Input(
            "captions",
            optional=True,
            force_input=True,
            tooltip="The texts of these conditionings, to be shown and searched.",
        ),
        io.Combo.Input(
            "if_exists",
            options=list(IF_EXISTS),
            default="update",
            **sockets.RARE,
            tooltip="If the name is taken: make that cache hold this dataset, reusing what is in it, or refuse.",
        ),
    ]


def _problem(name: Any) -> bool | str:
    name = name[0] if isinstance(name, (list, tuple)) else name
    if name is not None:  # None: linked, so it is looked at when it is known
        try:
            paths.path_to_save(name, cache_roots())
        except CacheError as error:
            return str(error)
    return True


def _refuse_collision(name: str, prompt: dict, node_id: str | None, exists: bool, if_exists: str) -> None:
    if exists and if_exists == "refuse":
        raise CacheError(f"there is a dataset {name} already; choose another name, or set if_exists to update")
    saves = {number: node for number, node in prompt.items() if node.get("class_type") == "StreamCacheCacheSave"}
    others = [number for number, node in saves.items() if number != node_id and _same(node["inputs"].get("name"), name)]
    if others:
        raise CacheError(f"node {others[0]} of this workflow saves to {name} too; give the two different names")


def _same(other: Any, name: str) -> bool:
    return isinstance(other, str) and other.strip().replace("\\", "/") == name.strip().replace("\\", "/")
