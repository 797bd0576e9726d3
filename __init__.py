"""StreamCache: encode a dataset once, stream it from disk, train LoRAs from it."""

from typing import Any

__version__ = "0.2.0"
WEB_DIRECTORY = "./web"


async def comfy_entrypoint() -> Any:
    """Called by ComfyUI to get the nodes. They are imported only here: the rest of the pack works without ComfyUI."""
    from .nodes.host.contract import check_host

    check_host()  # first: an import of a name that ComfyUI lacks would say less
    from .nodes.extension import StreamCacheExtension

    return StreamCacheExtension()
