"""The example workflows of the pack, each written once, for the canvas and for headless runs. The names are shown."""

from collections.abc import Callable
from typing import Any

from .bases import train_on_flux, train_on_sd15, train_on_sdxl, train_on_z_image, train_on_z_image_turbo
from .blueprint import fold
from .first_steps import first_steps
from .workflow import Node, Workflow

MODEL, VAE = "sd_xl_base_1.0.safetensors", "sdxl_vae.safetensors"
CLIPS = {"clip_name": "clip_l.safetensors", "clip_name2": "clip_g.safetensors", "type": "sdxl"}
IMAGES, CACHE, CORE = "input/my_images", "my_dataset", "my_core_dataset"


def build_a_cache(w: Workflow) -> None:
    plan = encode_folder(w)
    saved = w.add("StreamCacheCacheSave", 2, room=100, dataset=plan(), name=CACHE)
    w.add("StreamCachePreview", 3, room=330, dataset=saved())
    w.note(
        "# Build a cache\n\nPut captioned images into **input/my_images** (**cat.png** with **cat.txt**), choose "
        "your VAE and text encoders, and run. The cache is saved to **output/streamcache**.\n\nAfter changing images "
        "or captions, run it again: only the changes are encoded. The VAE and the text encoders use memory only "
        "while they encode.",
        2,
        210,
    )


def train_from_a_cache(w: Workflow) -> None:
    load = w.add("StreamCacheCacheLoad", 0, name=CACHE)
    train(w, load, 1)
    w.note(
        "# Train from a cache\n\nThe cache streams from disk, so memory use does not grow with its size. The LoRA is "
        "saved to **output/loras**, where Load LoRA finds it.\n\nStopping keeps the progress: run again with mode "
        "**resume**.",
        0,
        180,
    )


def build_and_train(w: Workflow) -> None:
    plan = encode_folder(w)
    train(w, plan, 2)
    w.note(
        "# From images to a LoRA\n\nTrain LoRA first encodes the plan into a cache with the run's name, frees the "
        "encoders, and then trains. A second run encodes only what changed.",
        1,
        150,
    )


def train_from_a_shared_cache(w: Workflow) -> None:
    load = w.add("StreamCacheCacheLoad", 0, name="shared/their_dataset")
    w.add("StreamCachePreview", 0, room=300, dataset=load())
    train(w, load, 1, validation_share=0.05, validation_every=50)
    w.note(
        "# Train from a shared cache\n\nA cache is a folder of plain safetensors files: copy it to "
        "**output/streamcache/shared** and train. The images, the VAE and the text encoders are not needed. It "
        "contains no code, so caches from other people are safe to use.",
        2,
        180,
    )


def convert_cores_dataset(w: Workflow) -> None:
    old = w.add("LoadTrainingDataset", 0, folder_name=CORE)
    vae = w.add("StreamCacheLoadVae", 0, vae_name=VAE)
    saved = w.add("StreamCacheCacheSave", 1, room=100, latents=old(0), conditioning=old(1), name=CACHE)
    w.add("StreamCachePreview", 2, room=330, dataset=saved(), vae=vae())
    w.note(
        "# Convert core's dataset\n\nThis turns a dataset saved by Save Training Dataset into a streamable cache. "
        "Batches are split into samples.\n\nIf the dataset does not fit into memory: `streamcache convert "
        "datasets/my_core_dataset --to output/streamcache/my_dataset`",
        0,
        180,
    )


def use_a_lazy_dataset_with_stock_nodes(w: Workflow) -> None:
    load = w.add("StreamCacheCacheLoad", 0, name=CACHE)
    model = w.add("UNETLoader", 0, unet_name=MODEL)
    clip = w.add("StreamCacheLoadClip", 0, **CLIPS)
    vae = w.add("StreamCacheLoadVae", 0, vae_name=VAE)
    chosen = w.add("StreamCacheSelect", 1, dataset=load(), limit=4)
    empty = w.add("CLIPTextEncode", 1, room=60, clip=clip(), text="")
    sampled = w.add(
        "KSampler",
        2,
        model=model(),
        positive=chosen(2),
        negative=empty(),
        latent_image=chosen(1),
        seed=1,
        steps=20,
        cfg=6.0,
        sampler_name="euler",
        scheduler="normal",
        denoise=0.6,
    )
    varied = w.add("VAEDecode", 2, samples=sampled(), vae=vae())
    as_they_are = w.add("VAEDecode", 2, samples=chosen(1), vae=vae())
    w.add("PreviewImage", 3, title="Variations of them", room=200, images=varied())
    w.add("PreviewImage", 3, title="The dataset's images", room=200, images=as_they_are())
    w.note(
        "# Stock nodes on a dataset\n\nSelect Samples outputs lists of lazy latents and conditionings. Any node "
        "accepts them and runs once per sample; data is read from disk when a node uses its values.",
        1,
        150,
    )


EXAMPLES: dict[str, Callable[[Workflow], None]] = {
    "01 First steps, no model files": first_steps,
    "02 Train on SD 1.5": train_on_sd15,
    "03 Train on SDXL": train_on_sdxl,
    "04 Train on Flux.1 dev": train_on_flux,
    "05 Train on Z-Image": train_on_z_image,
    "06 Build a cache": build_a_cache,
    "07 Train from a cache": train_from_a_cache,
    "08 Build and train in one": build_and_train,
    "09 Train from a shared cache": train_from_a_shared_cache,
    "10 Convert a dataset of ComfyUI": convert_cores_dataset,
    "11 Stock nodes on a dataset": use_a_lazy_dataset_with_stock_nodes,
    "12 Train on Z-Image Turbo, a distilled base": train_on_z_image_turbo,
}


def make_example(name: str, info: dict[str, Any]) -> Workflow:
    workflow = Workflow(info)
    EXAMPLES[name](workflow)
    return workflow


def encode_folder(w: Workflow) -> Node:
    """A folder and its encoders in column 0, the plan in column 1."""
    source = w.add("StreamCacheImageFolder", 0, folder=IMAGES)
    vae = w.add("StreamCacheLoadVae", 0, vae_name=VAE)
    clip = w.add("StreamCacheLoadClip", 0, **CLIPS)
    return w.add("StreamCacheEncode", 1, source=source(), vae=vae(), clip=clip())


def train(w: Workflow, dataset: Node, column: int, **settings: Any) -> None:
    """Train LoRA in a column, what it needs before it, and the loss after it."""
    model = w.add("UNETLoader", column - 1, unet_name=MODEL)
    links = {"model": model(), "dataset": dataset()}
    trained = w.add("StreamCacheTrain", column, room=120, name="my_lora", **links, **settings)
    w.add("PreviewImage", column + 1, title="Loss", room=200, images=trained(3))


BLUEPRINT = "Folder to LoRA"


def make_blueprint(info: dict[str, Any]) -> dict[str, Any]:
    """Images to a LoRA in one node: a folder, its encoding and the training, folded."""
    w = Workflow(info)
    source = w.add("StreamCacheImageFolder", 0, folder=IMAGES)
    plan = w.add("StreamCacheEncode", 1, source=source())
    trained = w.add("StreamCacheTrain", 2, dataset=plan(), name="my_lora")
    inputs = [("model", trained, "model"), ("vae", plan, "vae"), ("clip", plan, "clip")]
    inputs += [("folder", source, "folder"), ("trigger", source, "trigger"), ("resolution", plan, "resolution")]
    inputs += [("name", trained, "name"), ("steps", trained, "steps"), ("rank", trained, "rank")]
    description = (
        "Encodes a folder of captioned images once and trains a LoRA on it. "
        "Stop and resume at any time without losing progress."
    )
    outputs = [("lora", trained(0)), ("path", trained(2)), ("loss_plot", trained(3))]
    return fold(w, BLUEPRINT, description, inputs, outputs)
