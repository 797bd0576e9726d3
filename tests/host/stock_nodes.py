"""Scenario: stock nodes run on data in memory and on the same data loaded lazily from a cache, to compare results."""

import copy
import platform
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.dataset_cache.format.lazy import LazyTensor

from .difference import difference
from .families import CAPTIONS, FAMILIES, Loaded, call, encode, load


@dataclass(frozen=True)
class Data:
    """The data of a case. `label` separates the files of the eager and the lazy run."""

    models: Loaded
    latents: list[dict]
    conditionings: list[list]
    label: str


def sample(data: Data, positive: list, latent: dict) -> Any:
    return call(
        "KSampler",
        model=data.models.model,
        seed=7,
        steps=2,
        cfg=4.0,
        sampler_name="euler",
        scheduler="normal",
        positive=positive,
        negative=data.conditionings[2],
        latent_image=latent,
        denoise=0.6,
    )


def batch_pair(data: Data) -> Any:
    return call("LatentBatch", samples1=data.latents[0], samples2=data.latents[1])


def upscale(data: Data, method: str) -> Any:
    return call("LatentUpscale", samples=data.latents[2], upscale_method=method, width=128, height=64, crop="center")


def resized(data: Data, node: str, **inputs: Any) -> Any:
    """A node that scales its second latent to the size of the first."""
    return call(node, samples1=data.latents[0], samples2=data.latents[2], **inputs)


def combine(data: Data) -> Any:
    return call("ConditioningCombine", conditioning_1=data.conditionings[0], conditioning_2=data.conditionings[1])


def concat(data: Data) -> Any:
    return call("ConditioningConcat", conditioning_to=data.conditionings[0], conditioning_from=data.conditionings[1])


def average(data: Data) -> Any:
    first, second = data.conditionings[:2]
    return call("ConditioningAverage", conditioning_to=first, conditioning_from=second, conditioning_to_strength=0.3)


def set_range(data: Data) -> Any:
    return call("ConditioningSetTimestepRange", conditioning=data.conditionings[1], start=0.2, end=0.8)


def composite(data: Data) -> Any:
    return call("LatentComposite", samples_to=data.latents[2], samples_from=data.latents[0], x=16, y=8, feather=8)


def masked(data: Data) -> Any:
    mask = torch.zeros(1, 64, 64)
    mask[:, 16:48] = 1
    return call("SetLatentNoiseMask", samples=data.latents[0], mask=mask)


def save_latent(data: Data) -> Any:
    from folder_paths import get_output_directory

    call("SaveLatent", samples=data.latents[2], filename_prefix=f"latents/{data.label}")
    (file,) = Path(get_output_directory()).glob(f"latents/{data.label}_*.latent")
    return file.read_bytes()


def preview(data: Data) -> Any:
    from folder_paths import get_temp_directory

    (images,) = call("VAEDecode", vae=data.models.vae, samples=data.latents[2])
    (shown,) = call("PreviewImage", images=images)["ui"]["images"]
    return (Path(get_temp_directory()) / shown["filename"]).read_bytes()


def save_training_dataset(data: Data) -> Any:
    call(
        "SaveTrainingDataset",
        latents=data.latents,
        conditioning=data.conditionings,
        folder_name=[data.label],
        shard_size=[2],
    )
    return call("LoadTrainingDataset", folder_name=data.label)


def bucket(data: Data) -> Any:
    return call("ResolutionBucket", latents=data.latents, conditioning=data.conditionings)


def train(data: Data, latents: list[dict], conditionings: list[list], bucketed: bool) -> Any:
    torch.manual_seed(3)  # Core's seed does not affect the initial values of its adapters.
    scalars = {
        "model": data.models.model, "batch_size": 1, "steps": 2, "grad_accumulation_steps": 1, "learning_rate": 0.001,
        "rank": 2, "optimizer": "AdamW", "loss_function": "MSE", "seed": 5, "training_dtype": "bf16",
        "lora_dtype": "fp32", "quantized_backward": False, "algorithm": "LoRA", "gradient_checkpointing": False,
        "checkpoint_depth": 1, "offloading": False, "existing_lora": "[None]", "bucket_mode": bucketed,
        "bypass_mode": False,
    }  # fmt: skip
    lists = {name: [value] for name, value in scalars.items()}
    return call("TrainLoraNode", latents=latents, positive=conditionings, **lists)


CASES: dict[str, Callable[[Data], Any]] = {
    "KSampler": lambda d: sample(d, d.conditionings[0], d.latents[0]),
    "KSampler on LatentBatch": lambda d: sample(d, d.conditionings[1], batch_pair(d)[0]),
    "KSampler on ConditioningCombine": lambda d: sample(d, combine(d)[0], d.latents[2]),
    "KSampler on ConditioningSetTimestepRange": lambda d: sample(d, set_range(d)[0], d.latents[0]),
    "KSampler on SetLatentNoiseMask": lambda d: sample(d, d.conditionings[0], masked(d)[0]),
    "VAEDecode": lambda d: call("VAEDecode", vae=d.models.vae, samples=d.latents[2]),
    "LatentUpscale": lambda d: upscale(d, "nearest-exact"),
    "LatentUpscale bislerp": lambda d: upscale(d, "bislerp"),
    "LatentUpscale bilinear": lambda d: upscale(d, "bilinear"),
    "LatentUpscale bicubic": lambda d: upscale(d, "bicubic"),
    "LatentUpscale area": lambda d: upscale(d, "area"),
    "LatentUpscaleBy": lambda d: call("LatentUpscaleBy", samples=d.latents[2], upscale_method="bicubic", scale_by=1.5),
    "LatentBlend with resizing": lambda d: resized(d, "LatentBlend", blend_factor=0.3),
    "LatentAdd with resizing": lambda d: resized(d, "LatentAdd"),
    "LatentSubtract with resizing": lambda d: resized(d, "LatentSubtract"),
    "LatentInterpolate with resizing": lambda d: resized(d, "LatentInterpolate", ratio=0.4),
    "LatentBatch with resizing": lambda d: resized(d, "LatentBatch"),
    "LatentMultiply": lambda d: call("LatentMultiply", samples=d.latents[0], multiplier=0.7),
    "LatentRotate": lambda d: call("LatentRotate", samples=d.latents[2], rotation="90 degrees"),
    "LatentCrop": lambda d: call("LatentCrop", samples=d.latents[2], width=32, height=48, x=16, y=8),
    "LatentBatch": batch_pair,
    "LatentComposite": composite,
    "RepeatLatentBatch": lambda d: call("RepeatLatentBatch", samples=d.latents[0], amount=3),
    "LatentFromBatch": lambda d: call("LatentFromBatch", samples=d.latents[0], batch_index=0, length=1),
    "ConditioningCombine": combine,
    "ConditioningAverage": average,
    "ConditioningConcat": concat,
    "ConditioningSetTimestepRange": set_range,
    "SaveLatent": save_latent,
    "ResolutionBucket": bucket,
    "SaveTrainingDataset": save_training_dataset,
    "PreviewImage": preview,
    "TrainLoraNode": lambda d: train(d, d.latents[:2], d.conditionings[:2], bucketed=False),
    "TrainLoraNode on several shapes": lambda d: train(d, d.latents, d.conditionings, bucketed=False),
    "TrainLoraNode on ResolutionBucket": lambda d: train(d, *bucket(d), bucketed=True),
}


def run(base: Path) -> dict:
    """Per family and case: the difference, the error, and whether a lazy tensor kept its values."""
    outcome: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__, "families": {}}
    for name in FAMILIES:
        models = load(name)
        latents, conditionings = encode(models)
        path = base / "caches" / name
        write_cache(path, latents, conditionings)
        eager = Data(models, latents, conditionings, f"{name}-eager")
        cases = {case: compare(function, eager, path) for case, function in CASES.items()}
        outcome["families"][name] = {"cache": check_cache(path, latents, conditionings), "cases": cases}
    return outcome


def write_cache(path: Path, latents: list[dict], conditionings: list[list]) -> None:
    with CacheWriter(path, provenance={"made by": "a test"}) as writer:
        for i, (latent, conditioning) in enumerate(zip(latents, conditionings, strict=True)):
            writer.add(latent=latent, conditioning=conditioning, caption=CAPTIONS[i], source=f"{i}.png")


def check_cache(path: Path, latents: list[dict], conditionings: list[list]) -> dict:
    """The cache itself in ComfyUI's torch and Python: reads return what was stored, one by one and as a batch."""
    cache = open_cache(path, check=True)
    stored = [(sample.latent, sample.conditioning) for sample in (cache[i].realize() for i in range(len(cache)))]
    batch = cache.read_batch([1, 0])
    rows = torch.cat([latents[1]["samples"], latents[0]["samples"]])
    return {
        "stored": difference(list(zip(latents, conditionings, strict=True)), stored),
        "batch": difference([rows, [conditionings[1], conditionings[0]]], [batch.latents, batch.conditionings]),
        "buckets": sorted(len(indices) for indices in cache.buckets().values()),
    }


def compare(case: Callable[[Data], Any], eager: Data, path: Path) -> dict:
    cache = open_cache(path)
    samples = [cache[i] for i in range(len(cache))]
    data = Data(
        eager.models,
        [s.latent for s in samples],
        [s.conditioning for s in samples],
        eager.label.replace("eager", "lazy"),
    )
    lazy = list(lazy_tensors([data.latents, data.conditionings]))
    assert len(lazy) == 3 * len(samples), "a latent, a text and a pooled text for each sample"
    # A node that writes to its inputs would spoil the comparison, so it gets a copy.
    own = Data(eager.models, *copy.deepcopy((eager.latents, eager.conditionings)), eager.label)
    started = time.perf_counter()
    try:
        found = difference(case(own), case(data))
        error = None
    except Exception:
        found, error = None, traceback.format_exc(limit=-6)
    kept = sum(tensor.is_real for tensor in lazy)
    return {"difference": found, "error": error, "kept": kept, "seconds": time.perf_counter() - started}


def lazy_tensors(value: Any) -> Any:
    if isinstance(value, LazyTensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from lazy_tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from lazy_tensors(item)
