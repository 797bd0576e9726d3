"""The example workflows for common base models, each through the loaders that its files come with."""

import json
from pathlib import Path
from typing import Any

from .workflow import ModelFile, Node, Out, Workflow

FORECASTS = Path(__file__).resolve().parents[2] / "docs" / "memory.json"  # of `python dev.py memory`
IMAGES = "input/my_images"
HUB = "https://huggingface.co"
SD15 = ModelFile(
    "checkpoints",
    f"{HUB}/Comfy-Org/stable-diffusion-v1-5-archive/resolve/main/v1-5-pruned-emaonly-fp16.safetensors",
)
SDXL = ModelFile(
    "checkpoints", f"{HUB}/stabilityai/stable-diffusion-xl-base-1.0/resolve/main/sd_xl_base_1.0.safetensors"
)
FLUX = ModelFile("diffusion_models", f"{HUB}/Comfy-Org/flux1-dev/resolve/main/flux1-dev.safetensors")
FLUX_TEXTS = [
    ModelFile("text_encoders", f"{HUB}/comfyanonymous/flux_text_encoders/resolve/main/{name}.safetensors")
    for name in ("clip_l", "t5xxl_fp16")
]
FLUX_VAE = ModelFile("vae", f"{HUB}/Comfy-Org/Lumina_Image_2.0_Repackaged/resolve/main/split_files/vae/ae.safetensors")
Z_IMAGE = ModelFile(
    "diffusion_models",
    f"{HUB}/Comfy-Org/z_image/resolve/main/split_files/diffusion_models/z_image_bf16.safetensors",
)
Z_IMAGE_TEXT = ModelFile(
    "text_encoders", f"{HUB}/Comfy-Org/z_image_turbo/resolve/main/split_files/text_encoders/qwen_3_4b.safetensors"
)
Z_IMAGE_VAE = ModelFile("vae", f"{HUB}/Comfy-Org/z_image_turbo/resolve/main/split_files/vae/ae.safetensors")
Z_IMAGE_TURBO = ModelFile(
    "diffusion_models",
    f"{HUB}/Comfy-Org/z_image_turbo/resolve/main/split_files/diffusion_models/z_image_turbo_bf16.safetensors",
)
NOTE = """# Train a LoRA on {base}

1. Put 10 to 50 images into **input/my_images** below ComfyUI's folder, each with a caption: **cat.png** with \
**cat.txt**. Then press **R** and choose the folder in **Image Folder Dataset**.
2. {choose} If a file is missing, ComfyUI offers to download it.
3. Press **Run**. Images are encoded once. Sample images and the loss appear in **Train LoRA (StreamCache)** and in \
the tab Training (Shift+T).

{memory}The LoRA is saved to **output/loras**, where Load LoRA finds it. Stopping keeps the progress: run again with \
mode **resume**.

No model yet? Start with *01 First steps*.
"""
MEMORY = """**Memory.** With checkpointing, as set here, training needs about {full} GB; with a base in fp8 {fp8} GB; \
with **offload** and **activation_offload** (advanced inputs) less than 2 GB, but it is slower. Train LoRA says \
before the first step whether it fits.

"""
DISTILLED = """
## A distilled base

Z-Image Turbo was taught to draw in eight steps without CFG. Plain training undoes that: images become blurred. \
Here **guidance_target** 3 lets the LoRA learn images as the base shows them, and **preservation_weight** 0.2 keeps \
what the base draws for other captions (both among the advanced inputs of Train LoRA). Sample images use the base's \
own 8 steps and CFG 1.

If you have a *training adapter* for this base, choose it in **training_adapter** and set **guidance_target** to 1. \
The same works for Klein and other few-step bases. More: [docs/distilled.md]({docs}).
"""
GUIDED = """
## A distilled base

Flux.1 dev was taught to draw with guidance as an input. Here **guidance** and **guidance_target** 3.5 let the LoRA \
learn images as the base shows them, **preservation_weight** 0.2 keeps what the base draws for other captions, and \
**resolution_shift** draws timesteps as Flux is sampled (all among the advanced inputs of Train LoRA). More: \
[docs/distilled.md]({docs}).
"""
DOCS = "https://github.com/streamcache/streamcache/blob/main/docs/distilled.md"
# Train LoRA's settings for a base that draws in few steps without CFG.
KEPT = {"preservation_weight": 0.2, "preservation_share": 0.25, "sample_cfg": 1.0}
FEW_STEPS = {**KEPT, "sample_steps": 8, "guidance_target": 3.0, "guidance_schedule": "sigma"}
# … and for one whose guidance is an input.
GUIDANCE = {**KEPT, "guidance": 3.5, "guidance_target": 3.5, "resolution_shift": "flux"}


def train_on_sd15(w: Workflow) -> None:
    _train_on_checkpoint(w, "SD 1.5", SD15, resolution=512)


def train_on_sdxl(w: Workflow) -> None:
    _train_on_checkpoint(w, "SDXL", SDXL, resolution=1024)


def _train_on_checkpoint(w: Workflow, base: str, file: ModelFile, resolution: int) -> None:
    choose = f"Choose any {base} checkpoint in **Load Checkpoint**."
    w.note(NOTE.format(base=base, choose=choose, memory=""), 0, 400)
    loaded = w.add("CheckpointLoaderSimple", 0, files=[file], ckpt_name=file.name)
    _train(w, loaded(0), loaded(1), loaded(2), resolution)


def _memory(base: str) -> str:
    """The figures of the table in docs/memory.md."""
    found = json.loads(FORECASTS.read_text())[base]["checkpointing"]
    full, fp8 = found["peak"], found["peak"] - found["weights"] // 2
    return MEMORY.format(full=f"{full / 1e9:.1f}", fp8=f"{fp8 / 1e9:.1f}")


def train_on_flux(w: Workflow) -> None:
    memory = _memory("Flux.1 dev")
    choose = "Choose the model, the text encoders and the VAE."
    w.note(NOTE.format(base="Flux.1 dev", choose=choose, memory=memory) + GUIDED.format(docs=DOCS), 0, 580)
    model = w.add("UNETLoader", 0, files=[FLUX], unet_name=FLUX.name)
    names = {"clip_name1": FLUX_TEXTS[0].name, "clip_name2": FLUX_TEXTS[1].name}
    clip = w.add("DualCLIPLoader", 0, files=FLUX_TEXTS, **names, type="flux")
    _train(w, model(), clip(), _vae(w, FLUX_VAE)(), 1024, checkpointing=True, **GUIDANCE)


def train_on_z_image(w: Workflow) -> None:
    _train_on_z_image(w, "Z-Image", Z_IMAGE)


def train_on_z_image_turbo(w: Workflow) -> None:
    _train_on_z_image(w, "Z-Image Turbo", Z_IMAGE_TURBO, DISTILLED.format(docs=DOCS), **FEW_STEPS)


def _train_on_z_image(w: Workflow, base: str, file: ModelFile, more: str = "", **settings: Any) -> None:
    memory = _memory("Z-Image")
    note = NOTE.format(base=base, choose="Choose the model, the text encoder and the VAE.", memory=memory)
    w.note(note + more, 0, 620 if more else 460)
    model = w.add("UNETLoader", 0, files=[file], unet_name=file.name)
    clip = w.add("CLIPLoader", 0, files=[Z_IMAGE_TEXT], clip_name=Z_IMAGE_TEXT.name, type="lumina2")
    _train(w, model(), clip(), _vae(w, Z_IMAGE_VAE)(), 1024, checkpointing=True, **settings)


def _vae(w: Workflow, file: ModelFile) -> Node:
    return w.add("VAELoader", 0, files=[file], vae_name=file.name)


def _train(w: Workflow, model: Out, clip: Out, vae: Out, resolution: int, **settings: Any) -> None:
    folder = w.add("StreamCacheImageFolder", 1, folder=IMAGES)
    plan = w.add("StreamCacheEncode", 1, source=folder(), vae=vae, clip=clip, resolution=resolution)
    saved = w.add("StreamCacheCacheSave", 1, room=100, dataset=plan(), name="my_dataset")
    links = {"model": model, "dataset": saved(), "vae": vae}
    trained = w.add("StreamCacheTrain", 2, room=120, name="my_lora", **links, **settings)
    w.add("PreviewImage", 3, title="Loss", room=200, images=trained(3))
