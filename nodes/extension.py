"""The extension that the host loads: the list of all nodes, and what is set up once."""

from comfy_api.latest import ComfyExtension, io

from ..dataset_cache import use_state_folder
from . import (
    cache,
    cache_load,
    clean,
    encode,
    image_folder,
    merge,
    on_demand,
    preview,
    realize,
    select,
    train,
    train_options,
)
from .host.app import register_host_types, state_root
from .server import add_routes

DATASETS = (image_folder, encode, cache, cache_load, select, realize, preview, merge, clean, on_demand)
FAMILIES = (*DATASETS, train, train_options)


class StreamCacheExtension(ComfyExtension):
    async def on_load(self) -> None:
        register_host_types()
        use_state_folder(state_root())
        add_routes()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [node for family in FAMILIES for node in family.NODES]
