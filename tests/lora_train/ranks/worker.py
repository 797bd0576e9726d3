"""One rank of the tests: trains scenarios one after the other, in one process, with real gloo connections.

An order is JSON: a name of `SCENARIOS`, the name of the run, and what is different.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.loop import train_in_run
from streamcache.lora_train.ranks import ALONE, Ranks, open_ranks
from streamcache.lora_train.ranks.group import Group
from streamcache.lora_train.run.hooks import TrainHooks, TrainResult
from streamcache.reference import ReferenceDenoiser, decode_images
from streamcache.reference import model as reference
from streamcache.reference.encoders import encode_caption, encode_image
from streamcache.reference.images import creatures

PLAIN: dict[str, Any] = {"steps": 6, "batch_size": 4, "rank": 2, "learning_rate": 1e-3, "seed": 3, "save_every": 3}
# Everything that a step can do at once. Batches of 3 buckets, of which some have fewer rows than there are ranks.
FULL: dict[str, Any] = {
    **PLAIN,
    "accumulate": 2,
    "masked_loss": True,
    "normalise_masks": True,
    "prior_weight": 0.5,
    "clip_norm": 0.01,
    "ema_decay": 0.9,
    "caption_dropout": 0.3,
    "adapter_dropout": 0.2,
    "noise_offset": 0.1,
    "multires_noise": 3,
    "input_perturbation": 0.1,
    "preservation_weight": 0.1,
    "validation_share": 0.1,
    "validation_every": 3,
    "export_every": 2,
    "sample_every": 3,
    "sample_steps": 1,
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "full": FULL,
    "exact": {**FULL, "deterministic": True},
    "free": {**PLAIN, "optimizer": "AdamWScheduleFree"},
    "fp16": {**PLAIN, "precision": "fp16"},
    "bf16": {**PLAIN, "precision": "bf16"},
}


def make_parts(folder: Path) -> None:
    """A model with random weights, and 21 samples of three sizes with masks, weights and a prior set."""
    model = reference.ReferenceModel(reference.ModelSize(width=32, depth=1, heads=2))
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            weight.copy_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
    reference.save_model(folder / "base.safetensors", model)
    with CacheWriter(folder / "set") as writer:
        for number, picture in enumerate(creatures(21)):
            size = [(64, 64), (64, 48), (48, 64)][number % 3]
            pixels = torch.tensor(list(picture.image.resize(size, Image.Resampling.BOX).tobytes()), dtype=torch.uint8)
            latent = encode_image(pixels.reshape(size[1], size[0], 3).float() / 255)
            mask = torch.zeros(1, *latent.shape[-2:])
            mask[:, : 1 + number % 4] = 1
            place = "class" if number > 15 else "main"
            words = {"conditioning": encode_caption(picture.caption), "caption": f"{number} {picture.caption}"}
            extra = {} if number % 5 == 0 else {"mask": mask}
            writer.add({"samples": latent}, **words, source=f"{number}.png", set=place, **extra)
        writer.describe_set("main", {"prior": False})
        writer.describe_set("class", {"prior": True})
        writer.put("nothing said", encode_caption(""), "conditioning")
        writer.name("empty caption", "nothing said")


class Watched(ReferenceDenoiser):
    """The reference model; at one call something happens to one rank."""

    trouble: Any = None
    calls = 0

    def predict(self, x_t: Any, t: Any, conditioning: Any) -> Any:
        self.calls += torch.is_grad_enabled()
        out = super().predict(x_t, t, conditioning)
        return out if self.trouble is None else self.trouble(self, out)


def trouble(kind: str, call: int) -> Any:
    def happen(denoiser: Watched, out: Any) -> Any:
        if denoiser.calls != call:
            return out
        if kind == "error":
            raise ValueError("the disk of this rank is gone")
        if kind == "interrupt":
            raise KeyboardInterrupt
        if kind == "kill":
            os._exit(9)
        return out * torch.nan

    return happen


def run_scenario(folder: Path, ranks: Ranks, scenario: str, name: str, change: dict[str, Any]) -> dict[str, Any]:
    """Train; what this rank has read, and how it ended."""
    read: list[int] = []
    out: dict[str, Any] = {"error": "", "kind": ""}
    try:
        result = train_scenario(folder, ranks, scenario, name, change, read)
        out |= {"step": result.step, "stopped": result.stopped}
    except BaseException as error:
        out |= {"error": str(error), "kind": type(error).__name__}
        ranks.tell(error)
    return {**out, "latent bytes": sum(read), "batches": len(read)}


def train_scenario(
    folder: Path, ranks: Ranks, scenario: str, name: str, change: dict[str, Any], read: list[int]
) -> TrainResult:
    only = change.pop("only", {})
    change = {**change, **only.get(str(ranks.rank), {})}
    denoiser = Watched(reference.load_model(folder / change.pop("base", "base.safetensors")))
    dataset = open_cache(folder / change.pop("set", "set"))
    own_read = dataset.read_batch

    def counting(indices: Any, **options: Any) -> Any:
        batch = own_read(indices, **options)
        read.append(batch.latents.nbytes if batch.latents is not None else 0)
        return batch

    dataset.read_batch = counting
    if "trouble" in change:
        denoiser.trouble = trouble(*change.pop("trouble"))
    stop_at = change.pop("stop_at", None)
    hooks = TrainHooks(stop=lambda: stop_at is not None and denoiser.calls >= stop_at)
    config = TrainConfig(**{**SCENARIOS[scenario], **change, "name": name})
    given = denoiser, dataset, config, folder / "runs", lambda run: run.lora, lambda run: nullcontext(hooks)
    return train_in_run(*given, decode_images, ranks=ranks)[0]


def main(folder: str, *orders: str) -> None:
    place = Path(folder)
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    with open_ranks() as first:
        for order in orders:
            scenario, name, change = json.loads(order)
            ranks = Group(first.rank, first.size) if first.size > 1 else ALONE
            found.append(run_scenario(place, ranks, scenario, name, change))
            if isinstance(ranks, Group) and not ranks.broken:
                ranks._call(torch.distributed.barrier)
            (place / f"outcome-{first.size}-{first.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
