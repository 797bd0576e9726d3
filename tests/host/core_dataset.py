"""Scenario: ComfyUI's own nodes save training datasets, which are converted in ComfyUI's Python."""

from pathlib import Path

from folder_paths import get_folder_paths

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.foreign.convert import convert

from .difference import difference
from .families import FAMILIES, call, encode, load


def run(base: Path) -> dict:
    """Per family: how the converted caches differ from the nodes' inputs, one by one and bucketed."""
    outcome = {}
    for name in FAMILIES:
        latents, conditionings = encode(load(name))
        buckets = call("ResolutionBucket", latents=latents, conditioning=conditionings)
        outcome[name] = {
            "single": save_and_convert(base, f"{name}/single", latents, conditionings),
            "bucketed": save_and_convert(base, f"{name}/bucketed", *buckets),
            "expected": len(latents),
        }
        given = list(zip(latents, conditionings, strict=True))
        # Buckets come in the order of their first sample, and the samples' own order puts the odd shape last.
        for form in ("single", "bucketed"):
            outcome[name][f"{form} difference"] = difference(given, read(base / "converted" / name / form))
    return outcome


def save_and_convert(base: Path, name: str, latents: list[dict], conditionings: list[list]) -> int:
    call("SaveTrainingDataset", latents=latents, conditioning=conditionings, folder_name=[name], shard_size=[2])
    return convert(Path(get_folder_paths("datasets")[0]) / name, base / "converted" / name).samples


def read(path: Path) -> list[tuple[dict, list]]:
    cache = open_cache(path)
    real = [cache[i].realize() for i in range(len(cache))]
    return [(sample.latent, sample.conditioning) for sample in real]
