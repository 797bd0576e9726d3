"""The nodes that output models: Load CLIP and Load VAE (On Demand), which load them when used, and Tiny Models."""

from typing import Any

from comfy_api.latest import io

from . import sockets
from .host.encoders import NO_FILE, clip_files, clip_names, clip_on_demand, clip_types, vae_names, vae_on_demand

_CATEGORY = f"{sockets.CATEGORY}/loaders"


class StreamCacheLoadClip(io.ComfyNode):
    """A CLIP that takes no memory while it is not in use."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheLoadClip",
            display_name="Load CLIP (On Demand)",
            category=_CATEGORY,
            description="A text encoder that is loaded when used and freed afterwards. Works with any CLIP input.",
            search_aliases=["clip loader", "lazy clip", "text encoder", "dual clip", "free text encoder"],
            inputs=_clip_inputs(),
            outputs=[io.Clip.Output("clip", display_name="CLIP", tooltip="Loads on first use.")],
        )

    @classmethod
    def execute(
        cls,
        clip_name: str,
        type: str,
        clip_name2: str = NO_FILE,
        clip_name3: str = NO_FILE,
        clip_name4: str = NO_FILE,
        device: str = "default",
    ) -> io.NodeOutput:
        names = [name for name in (clip_name, clip_name2, clip_name3, clip_name4) if name != NO_FILE]
        return io.NodeOutput(clip_on_demand(clip_files(names), type, device))


class StreamCacheLoadVae(io.ComfyNode):
    """A VAE that takes no memory while it is not in use."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheLoadVae",
            display_name="Load VAE (On Demand)",
            category=_CATEGORY,
            description="A VAE that is loaded when used and freed afterwards. Works with any VAE input.",
            search_aliases=["vae loader", "lazy vae", "free vae"],
            inputs=[io.Combo.Input("vae_name", options=vae_names(), tooltip="The same VAEs as in Load VAE.")],
            outputs=[io.Vae.Output("vae", display_name="VAE", tooltip="Loads on first use.")],
        )

    @classmethod
    def execute(cls, vae_name: str) -> io.NodeOutput:
        return io.NodeOutput(vae_on_demand(vae_name))


class StreamCacheTinyModels(io.ComfyNode):
    """A model, a text encoder and a VAE for first steps: they come with the pack."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheTinyModels",
            display_name="Tiny Models (StreamCache)",
            category=_CATEGORY,
            description="A tiny model that draws colored shapes, with its text encoder and VAE. To try everything "
            "without a download, on any computer. Draw and train at 128×128.",
            search_aliases=["test model", "example model", "tutorial", "first steps", "checkpoint"],
            outputs=[
                io.Model.Output("model", display_name="MODEL", tooltip="Draws colored shapes on plain backgrounds."),
                io.Clip.Output("clip", display_name="CLIP", tooltip='For captions such as "a red circle on blue".'),
                io.Vae.Output("vae", display_name="VAE", tooltip="For latents of the tiny model."),
            ],
        )

    @classmethod
    def execute(cls) -> io.NodeOutput:
        from .host.tiny import tiny_models  # on use: ComfyUI starts faster

        return io.NodeOutput(*tiny_models())


NODES = [StreamCacheLoadClip, StreamCacheLoadVae, StreamCacheTinyModels]


def _clip_inputs() -> list[Any]:
    names = clip_names()
    further = [
        io.Combo.Input(
            f"clip_name{number}",
            options=[NO_FILE, *names],
            default=NO_FILE,
            optional=True,
            advanced=number > 2,
            tooltip="Another text encoder, for models that use several.",
        )
        for number in (2, 3, 4)
    ]
    return [
        io.Combo.Input("clip_name", options=names, tooltip="The same text encoders as in Load CLIP."),
        io.Combo.Input("type", options=clip_types(), tooltip="The model family to encode text for."),
        *further,
        io.Combo.Input(
            "device",
            options=["default", "cpu"],
            default="default",
            optional=True,
            advanced=True,
            tooltip="The device to encode text on.",
        ),
    ]
