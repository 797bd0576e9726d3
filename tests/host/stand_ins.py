"""Scenario: stand-ins for a CLIP and a VAE in ComfyUI are loaded, freed, modified and used by several threads."""

import copy
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import comfy.hooks
import psutil
import torch
from comfy.nested_tensor import NestedTensor
from comfy_execution.utils import CurrentNodeContext

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.nodes.host.app import folders
from streamcache.nodes.host.app.codecs import register_host_types
from streamcache.nodes.host.encoders import on_demand
from streamcache.nodes.host.encoders.encoders import text_encoder
from streamcache.nodes.host.encoders.loaders import clip_files, clip_on_demand, vae_on_demand

from .difference import difference
from .families import FAMILIES
from .tiny_models import TEXT_ENCODER

PREFIX = "clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj.weight"


def run(base: Path) -> dict:
    # As in a node: outside of nodes, nothing is loaded.
    with CurrentNodeContext("prompt", "1"):
        return {
            "memory": memory(),
            "threads": threads(),
            "frozen": frozen(),
            "copies": copies(),
            "patches": patches(),
            "hooks": hooks(),
            "vae patcher": vae_patcher(),
            "between nodes": between_nodes(),
            "long call": long_call(),
            "two phases": two_phases(),
            "nested": nested(base),
            "roots": roots(base),
        }


def new_clip() -> on_demand.OnDemandClip:
    return clip_on_demand(clip_files([TEXT_ENCODER]), FAMILIES["eps"].clip_type)


def new_vae() -> on_demand.OnDemandVae:
    return vae_on_demand(FAMILIES["eps"].vae)


def encode(clip: Any, text: str = "a cat") -> Any:
    return clip.encode_from_tokens_scheduled(clip.tokenize(text))


def memory() -> dict:
    """E2: in megabytes, before the model is loaded, while it is used, and after."""
    process, clip = psutil.Process(), new_clip()
    with clip.lease():
        encode(clip)  # torch has now allocated what it keeps for itself
    gc.collect()
    before = process.memory_info().rss
    with clip.lease():
        encode(clip)
        during = process.memory_info().rss
    after = process.memory_info().rss
    return {"during": (during - before) / 1e6, "after": (after - before) / 1e6, "loaded": clip.loaded}


def threads() -> dict:
    """E4: four threads use it at once."""
    clip, start = new_clip(), threading.Barrier(4)

    def work(number: int) -> Any:
        start.wait()
        with torch.inference_mode(), clip.lease():
            return encode(clip, "the same")

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    return {"loads": clip.loads, "difference": next((d for r in results if (d := difference(results[0], r))), None)}


def frozen() -> dict:
    """E3: training is refused, and it stays in eval mode."""
    clip = new_clip()
    with clip.lease():
        model = clip.cond_stage_model
        try:
            model.train()
            refused = False
        except CacheError:
            refused = True
        modes = {module.training for module in model.modules()}
        grads = {parameter.requires_grad for parameter in model.parameters()}
    return {"refused": refused, "training": list(modes), "requires grad": list(grads)}


def copies() -> dict:
    """E1: copies share the model and have their own settings."""
    clip = new_clip()
    skipped = clip.clone()
    skipped.clip_layer(-2)
    twins = [copy.copy(clip), copy.deepcopy(clip)]
    with clip.lease():
        plain, other = encode(clip), encode(skipped)
        found = [difference(plain, encode(twin)) for twin in twins]
    return {
        "loads": clip.loads,
        "twins": found,
        "skip differs": difference(plain, other) is not None,
        "identities": len({text_encoder(c).identity for c in (clip, skipped, *twins)}),
    }


def patches() -> dict:
    """Patches on a stand-in are applied again after it was freed."""
    clip = new_clip()
    patched = clip.clone()
    with clip.lease():
        plain = encode(clip)
        taken = patched.add_patches({PREFIX: ("diff", (torch.full((768, 768), 0.01),))}, 1.0)
        first = encode(patched)
    freed = not clip.loaded
    with patched.lease():
        second = encode(patched)
    return {
        "taken": len(taken),
        "freed": freed,
        "loads": clip.loads,
        "same after reload": difference(first, second),
        "differs from plain": difference(plain, first) is not None,
    }


def hooks() -> dict:
    """A modification that cannot be replayed keeps the model loaded."""
    clip = new_clip()
    changed = clip.clone()
    changed.patcher.forced_hooks = comfy.hooks.HookGroup()
    clip._shared.let_go()
    return {"loaded": clip.loaded, "kept": changed.patcher.forced_hooks is not None, "loads": clip.loads}


def vae_patcher() -> dict:
    """As in Select VAE Device: a copy with its own patcher."""
    vae = new_vae()
    other = copy.copy(vae)
    other.patcher = other.patcher.clone()
    vae._shared.let_go()
    image = torch.full((1, 64, 64, 3), 0.4)
    return {
        "loaded": vae.loaded,
        "same module": other.patcher.model is other.first_stage_model,
        "difference": difference(vae.encode(image), other.encode(image)),
        "loads": vae.loads,
    }


def between_nodes() -> dict:
    """The executor inspects outputs between nodes, in a thread without a running node."""
    clip, vae = new_clip(), new_vae()
    seen: list = []

    def look() -> None:
        for model in (clip, vae):
            seen.append(getattr(model, "patcher", None) is None and not model.is_dynamic())
            seen.append(getattr(model, "get_models", None) is None)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return {"seen": seen, "loads": clip.loads + vae.loads}


@contextmanager
def short_linger(seconds: float = 0.05) -> Iterator[None]:
    before, on_demand.LINGER_SECONDS = on_demand.LINGER_SECONDS, seconds
    try:
        yield
    finally:
        on_demand.LINGER_SECONDS = before


def freed(model: Any) -> bool:
    end = time.monotonic() + 60
    while model.loaded and time.monotonic() < end:
        time.sleep(0.02)
    return not model.loaded


def long_call() -> dict:
    """A call that starts before the model would be freed and ends after that."""
    clip = new_clip()
    with short_linger():
        clip.tokenize("a cat")
        with clip._shared.call():
            patcher = clip.patcher
            time.sleep(0.4)
            same = clip._patcher is patcher
        del patcher
        return {"same": same, "loads": clip.loads, "freed": freed(clip)}


def two_phases() -> dict:
    """A phase in another thread ends in the middle of ours."""
    clip = new_clip()

    def other() -> None:
        with torch.inference_mode(), clip.lease():
            encode(clip)

    with clip.lease():
        patcher = clip.patcher
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        same = clip._patcher is patcher
        del patcher
    return {"same": same, "loads": clip.loads, "freed": not clip.loaded and clip._patcher is None}


def nested(base: Path) -> dict:
    """ComfyUI's NestedTensor is stored and read back, lazily and in memory."""
    register_host_types()
    latent = {"samples": NestedTensor([torch.rand(1, 4, 2, 8, 8), torch.rand(1, 8, 5)])}
    with CacheWriter(base / "nested") as writer:
        writer.add(latent=latent, conditioning=[[torch.rand(1, 2, 3), {}]])
    sample = open_cache(base / "nested")[0]
    lazy, real = sample.latent["samples"], sample.realize().latent["samples"]
    return {
        "type": type(real).__name__,
        "lazy": difference(latent["samples"].tensors, lazy.tensors),
        "real": difference(latent["samples"].tensors, real.tensors),
        "works": bool(torch.equal((lazy + 1).tensors[0], latent["samples"].tensors[0] + 1)),
    }


def roots(base: Path) -> list[str]:
    """Folders that the user registers are roots, after the pack's own."""
    import folder_paths

    folder_paths.add_model_folder_path("streamcache", str(base / "registered"))
    try:
        return [path.relative_to(base).as_posix() for path in folders.cache_roots()]
    finally:
        del folder_paths.folder_names_and_paths["streamcache"]
