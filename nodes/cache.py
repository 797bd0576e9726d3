"""The node Streamable Cache Save: a plan, a dataset or the host's own lists become a cache under a name."""

from typing import Any

from comfy_api.latest import io

from ..dataset_cache import CacheError
from . import save_node, sockets
from .host.app import NodeProgress
from .library import Given, is_published, save

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
        return save_node.name_problem(sockets.first(name))

    @classmethod
    def fingerprint_inputs(cls, name: list[str], **others: Any) -> Any:
        return save_node.fingerprint(name[0], cls.hidden.unique_id)

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
        path = save_node.checked_path(name[0], cls.hidden)
        if if_exists[0] == "refuse" and is_published(path):
            raise CacheError(f"there is a dataset {name[0]} already; choose another name, or set if_exists to update")
        given = Given(dataset[0] if dataset else None, latents, conditioning, captions)
        watch = NodeProgress()
        return save_node.answer(save(given, name[0], path, watch), watch, cls.hidden.unique_id)


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
