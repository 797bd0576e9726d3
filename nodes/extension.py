"""The extension that ComfyUI loads: the list of all nodes, and the setup at start."""

from comfy_api.latest import ComfyExtension, io

from ..dataset_cache import use_memory_folder
from . import (
    cache,
    captioning,
    clean,
    encode,
    image_folder,
    loaders,
    merge,
    preview,
    realize,
    select,
)
from .grid import NODES as GRID_NODES
from .host.app import protect_examples, register_host_types, register_recipes, state_root
from .server import add_routes
from .training import NODES as TRAINING_NODES

MODULES = (image_folder, captioning, encode, cache, select, realize, preview, merge, clean, loaders)


class StreamCacheExtension(ComfyExtension):
    async def on_load(self) -> None:
        register_host_types()
        use_memory_folder(state_root())
        protect_examples()
        register_recipes()
        add_routes()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [*(node for module in MODULES for node in module.NODES), *TRAINING_NODES, *GRID_NODES]
