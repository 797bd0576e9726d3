"""Workflows of these tests, written as code. Inputs that are not given get the defaults of the server."""

from typing import Any

from .families import FAMILIES, Family
from .server import Server
from .tiny_models import TEXT_ENCODER

Link = list  # [node id, output number]
_INFO: dict[tuple[str, str], dict] = {}


class Graph:
    """A workflow under construction. `add` returns the node's id; `graph(id, 1)` is a link to its second output."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.prompt: dict[str, Any] = {}

    def __call__(self, node: str, output: int = 0) -> Link:
        return [node, output]

    def add(self, class_type: str, **inputs: Any) -> str:
        node = str(len(self.prompt) + 1)
        self.prompt[node] = {"class_type": class_type, "inputs": {**defaults(self._server, class_type), **inputs}}
        return node


def defaults(server: Server, class_type: str) -> dict[str, Any]:
    key = (server.address, class_type)
    if key not in _INFO:
        _INFO[key] = server.client.get(f"/object_info/{class_type}")[class_type]["input"]
    found = {}
    for name, spec in {**_INFO[key].get("required", {}), **_INFO[key].get("optional", {})}.items():
        kind, options = spec[0], spec[1] if len(spec) > 1 else {}
        if "default" in options:
            found[name] = options["default"]
        elif isinstance(kind, list) and kind:
            found[name] = kind[0]
        elif kind == "COMBO" and options.get("options"):
            found[name] = options["options"][0]
    return found


def loaders(graph: Graph, family: str, on_demand: bool = True) -> tuple[str, str]:
    """A VAE and a CLIP node of a family."""
    names: Family = FAMILIES[family]
    if not on_demand:
        vae = graph.add("VAELoader", vae_name=names.vae)
        return vae, graph.add("CLIPLoader", clip_name=TEXT_ENCODER, type=names.clip_type)
    vae = graph.add("StreamCacheLoadVae", vae_name=names.vae)
    return vae, graph.add("StreamCacheLoadClip", clip_name=TEXT_ENCODER, type=names.clip_type)


def save_folder(
    graph: Graph,
    folder: str,
    name: str,
    family: str = "flow",
    on_demand: bool = True,
    texts: bool = True,
    **encode: Any,
) -> str:
    """Folder → Encode Dataset → Streamable Cache Save; returns the id of the last. Captions take most of the time."""
    source = graph.add("StreamCacheImageFolder", folder=folder)
    vae, clip = loaders(graph, family, on_demand)
    settings = {"resolution": 64, "step": "16", "thumbnail": 64, **encode}
    links = {"source": graph(source), "vae": graph(vae), **({"clip": graph(clip)} if texts else {})}
    plan = graph.add("StreamCacheEncode", **links, **settings)
    return graph.add("StreamCacheCacheSave", name=name, dataset=graph(plan))
