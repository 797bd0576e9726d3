"""Nodes of these tests that look at what flows between other nodes in the host."""

import hashlib
import os

import folder_paths
import torch
from aiohttp import web
from comfy.sd1_clip import SDClipModel
from comfy_api.latest import ComfyExtension, io
from server import PromptServer

# A further root of caches, as a user registers one in extra_model_paths.yaml.
folder_paths.add_model_folder_path("streamcache", os.path.join(folder_paths.base_path, "further"))


@PromptServer.instance.routes.get("/probe/routes")
async def list_routes(request: web.Request) -> web.Response:
    """Every route that answers something, with its method; those for all methods only refuse."""
    found = [(route.method, route.resource.canonical) for route in request.app.router.routes() if route.resource]
    return web.json_response(sorted(row for row in set(found) if row[0] not in ("*", "HEAD")))


FORWARDS: list[int] = []  # rows of each forward of a text encoder
_forward = SDClipModel.forward


def _count(self, tokens):
    FORWARDS.append(len(tokens))
    return _forward(self, tokens)


SDClipModel.forward = _count


@PromptServer.instance.routes.get("/probe/forwards")
async def list_forwards(request: web.Request) -> web.Response:
    """The forwards since the last request."""
    found = FORWARDS[:]
    FORWARDS.clear()
    return web.json_response(found)


class ProbeModel(io.ComfyNode):
    """Hands a CLIP or VAE on, and tells how often it was loaded and what identity it has."""

    @classmethod
    def define_schema(cls):
        template = io.MatchType.Template("model")
        return io.Schema(
            node_id="ProbeModel",
            is_output_node=True,
            not_idempotent=True,
            inputs=[
                io.MatchType.Input("model", template),
                io.Int.Input("turn", default=0),
                io.AnyType.Input("after", optional=True),
            ],
            outputs=[io.MatchType.Output(template, id="same")],
        )

    @classmethod
    def execute(cls, model, turn, after=None):
        facts = {"loads": getattr(model, "loads", -1), "loaded": getattr(model, "loaded", True), "object": id(model)}
        return io.NodeOutput(model, ui={"facts": [facts]})


class ProbeIdentity(io.ComfyNode):
    """Tells the identity that encoding with a CLIP or VAE has."""

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ProbeIdentity",
            is_output_node=True,
            inputs=[
                io.Clip.Input("clip", optional=True),
                io.Vae.Input("vae", optional=True),
                io.Int.Input("turn", default=0),
            ],
        )

    @classmethod
    def execute(cls, turn, clip=None, vae=None):
        import sys

        encoders = next(m for n, m in sys.modules.items() if n.endswith("streamcache.nodes.host.encoders.encoders"))
        found = {}
        if clip is not None:
            found["clip"] = encoders.text_encoder(clip).identity
        if vae is not None:
            found["vae"] = encoders.image_encoder(vae).identity
        found["loaded"] = bool(getattr(clip if clip is not None else vae, "loaded", True))
        return io.NodeOutput(ui={"identity": [found]})


class ProbeStructure(io.ComfyNode):
    """Tells what a latent or conditioning consists of, and a hash of its values."""

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ProbeStructure",
            is_output_node=True,
            inputs=[
                io.Latent.Input("latent", optional=True),
                io.Conditioning.Input("conditioning", optional=True),
                io.Int.Input("turn", default=0),
            ],
        )

    @classmethod
    def execute(cls, turn, latent=None, conditioning=None):
        value = latent if latent is not None else conditioning
        return io.NodeOutput(ui={"structure": [{"kinds": kinds(value), "hash": digest(value)}]})


def kinds(value):
    if isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {tuple(value.shape)} {value.dtype}"
    if isinstance(value, dict):
        return {str(key): kinds(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [kinds(item) for item in value]
    return type(value).__name__


def digest(value):
    hasher = hashlib.sha256()

    def add(item):
        if isinstance(item, torch.Tensor):
            hasher.update(item.detach().clone().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(item, dict):
            for key in item:
                hasher.update(str(key).encode())
                add(item[key])
        elif isinstance(item, (list, tuple)):
            for part in item:
                add(part)
        else:
            hasher.update(repr(item).encode())

    add(value)
    return hasher.hexdigest()


class Probes(ComfyExtension):
    async def get_node_list(self):
        return [ProbeModel, ProbeIdentity, ProbeStructure]


async def comfy_entrypoint():
    return Probes()
