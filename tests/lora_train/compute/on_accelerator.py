"""Trains in a process of its own on the pretend accelerator, and on the CPU, and prints what differed as JSON.

python on_accelerator.py <folder> <with or without streams>
"""

import json
import sys
import traceback
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train import TrainConfig, TrainHooks, open_run, train
from streamcache.lora_train.compute import allocated_bytes, can_pin, supports_bf16, upload
from streamcache.lora_train.loop import _Loop
from streamcache.reference.denoiser import ReferenceDenoiser
from streamcache.reference.encoders import CHANNELS, decode_images, encode_caption
from streamcache.reference.model import ModelSize, ReferenceModel

from ...support.accelerator import Accelerator, start

BASE = {"steps": 3, "batch_size": 4, "rank": 2, "learning_rate": 1e-2, "precision": "fp32", "save_every": 0}
BASE_LORA = "base.safetensors"  # in the folder of the runs
EVERYTHING = {
    "steps": 6, "accumulate": 2, "ema_decay": 0.9, "caption_dropout": 0.3, "noise_offset": 0.1, "masked_loss": True,
    "validation_share": 0.2, "validation_every": 3, "save_every": 2, "sample_every": 3, "sample_steps": 2,
    "lr_schedule": "cosine", "warmup_steps": 2, "weighting": "min_snr", "timesteps": "logit_normal", "shift": 2.0,
}  # fmt: skip
# Settings → what a step must wait for. Only those of other packages, or of torch's own scaler, are not ours to change.
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "everything": (EVERYTHING, set()),
    "LoHa": ({"adapter": "loha", "targets": "all"}, set()),
    "LoKr": ({"adapter": "lokr", "targets": "all"}, set()),
    "OFT": ({"adapter": "oft", "rank": 4, "targets": "all"}, set()),
    "LoRA on all layers": ({"targets": "all"}, set()),
    "DoRA, input axis": ({"dora": True, "targets": "all"}, set()),
    "DoRA, output axis": ({"dora": True, "dora_axis": "output", "targets": "all"}, set()),
    "adapter dropout": ({"adapter_dropout": 0.3}, set()),
    "checkpointing": ({"checkpointing": True, "adapter_dropout": 0.3}, set()),
    "weights in bf16": ({"adapter_dtype": "bf16", "precision": "bf16"}, set()),
    "no prefetching": ({"prefetch": 0}, set()),
    "Adam": ({"optimizer": "Adam"}, set()),
    "SGD": ({"optimizer": "SGD"}, set()),
    "Adafactor": ({"optimizer": "Adafactor"}, set()),
    "bf16": ({"precision": "bf16"}, set()),
    "fp16": ({"precision": "fp16"}, set()),
    "guided target": ({"guidance_target": 3.0, "guidance_schedule": "sigma"}, set()),
    "preservation": ({"preservation_weight": 0.5, "preservation_caption": "caption 3"}, set()),
    "training adapter": ({"training_adapter": BASE_LORA}, set()),
    "further noise": ({"multires_noise": 4, "input_perturbation": 0.1, "resolution_shift": "flux"}, set()),
    "scheduled Huber": ({"loss": "huber", "huber_schedule": "snr"}, set()),
    "normalised masks": ({"masked_loss": True, "normalise_masks": True}, set()),
    "ranks by pattern": ({"group_ranks": {"blocks*": 3}, "group_alphas": {"blocks*": 1.0}}, set()),
    "LoRA+ and limited norms": ({"lora_plus": 16.0, "scale_weight_norms": 0.01, "targets": "all"}, set()),
    "activation offload": ({"activation_offload": True}, set()),
    "activation offload of blocks": ({"activation_offload": True, "checkpointing": True}, set()),
    "fp16 with Adafactor": ({"precision": "fp16", "optimizer": "Adafactor"}, {"_local_scalar_dense"}),
}
WAITS = {"_local_scalar_dense", "copy from pageable memory"}
# Optimizers of other packages: what a step waits for inside them is not ours to change.
PACKAGES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "Prodigy": ("prodigyopt", {"optimizer": "Prodigy"}, WAITS),
    "AdamWScheduleFree": ("schedulefree", {"optimizer": "AdamWScheduleFree"}, set()),
    "SGDScheduleFree": ("schedulefree", {"optimizer": "SGDScheduleFree"}, set()),
    "CAME": ("pytorch_optimizer", {"other_optimizer": "CAME"}, set()),
    "Lion": ("pytorch_optimizer", {"other_optimizer": "Lion"}, set()),
    "SOAP": ("pytorch_optimizer", {"other_optimizer": "SOAP"}, set()),
    "AdaBelief": ("pytorch_optimizer", {"other_optimizer": "AdaBelief"}, set()),
    "Prodigy by name": ("pytorch_optimizer", {"other_optimizer": "Prodigy"}, WAITS),
    "ProdigyPlusScheduleFree": ("prodigyplus", {"other_optimizer": "ProdigyPlusScheduleFree"}, WAITS),
}
LOW = {"bf16", "fp16"}  # on the CPU torch lowers other operations than on accelerators


class Bench:
    """The device, a dataset, and runs on either device."""

    def __init__(self, folder: Path, device: Accelerator, streams: bool) -> None:
        self.folder, self.device, self.streams, self.number = folder, device, streams, 0
        self.dataset = make_dataset(folder / "set")
        self.within_step = False
        own = _Loop._step

        def watched(loop: _Loop, loader: Any) -> None:
            self.within_step = True
            try:
                own(loop, loader)
            finally:
                self.within_step = False

        _Loop._step = watched
        note = device.note
        device.note = lambda what: note(what) if self.within_step else None

    def train(
        self, device: str, settings: dict[str, Any], mode: str = "new", name: str = "", hooks: TrainHooks | None = None
    ) -> dict[str, torch.Tensor]:
        """Train; returns the saved LoRA."""
        self.number += 1
        self.device.waits.clear()
        model = ReferenceModel(ModelSize(width=16, depth=1, heads=2)).to(device)
        if settings.get("training_adapter") == BASE_LORA:
            settings = {**settings, "training_adapter": str(self.base_lora)}
        config = TrainConfig(**{**BASE, **settings})
        with open_run(self.folder / "runs", name or f"run{self.number}", mode) as run:
            result = train(ReferenceDenoiser(model), self.dataset, config, run, hooks=hooks, decode=decode_images)
        return load_file(result.lora)

    @cached_property
    def base_lora(self) -> Path:
        """A LoRA for the model, to train on top of."""
        self.train("cpu", {"targets": "all"}, name="base")
        return next((self.folder / "runs/base").glob("*.safetensors"))


def make_dataset(path: Path) -> Any:
    """Two shapes, captions of two lengths, weights and masks."""
    with CacheWriter(path) as writer:
        for number in range(12):
            random = torch.Generator().manual_seed(number)
            shape = (4, 4 + 2 * (number % 2))
            writer.add(
                {"samples": torch.randn(1, CHANNELS, *shape, generator=random)},
                (longer if number % 4 == 3 else list)(
                    encode_caption("a red circle on a blue square " * (1 + number % 3))
                ),
                f"caption {number}",
                f"{number}.png",
                weight=0.5 if number % 3 else 1.0,
                mask=torch.rand(1, 8 * shape[0], 8 * shape[1], generator=random),
            )
        writer.put("none", encode_caption(""), "conditioning")
        writer.name("empty caption", "none")
    dataset = open_cache(path)
    assert dataset.manifest.requires == ("padding",)
    return dataset


def longer(conditioning: list) -> list:
    """With so much padding that it is stored without it."""
    ((tokens, facts),) = conditioning
    more = torch.zeros(1, 120, tokens.shape[-1])
    more[:, :3, ::2] = -0.0
    return [[torch.cat([tokens, more], 1), facts]]


def check_case(bench: Bench, settings: dict[str, Any], allowed: set[str]) -> None:
    """The same LoRA on both devices, and no step waits."""
    there = bench.train("gpu:0", settings)
    if bench.streams:  # without pinned memory every copy waits
        for wait in bench.device.waits:
            assert wait.what in allowed, f"{wait.what} in {wait.thread}: {wait.place}"
    assert all(value.isfinite().all() for value in there.values())
    here = bench.train("cpu", settings)
    assert not bench.device.waits
    rough = settings.get("precision") in LOW
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=0.2 if rough else 1e-5, atol=5e-2 if rough else 1e-6)


def check_resume(bench: Bench) -> None:
    """A run that is stopped on the accelerator continues there bit for bit."""
    settings = {**EVERYTHING, "adapter_dropout": 0.3}
    whole = bench.train("gpu:0", settings, name="whole")
    seen: list[int] = []
    stop = TrainHooks(progress=lambda progress: seen.append(progress.step), stop=lambda: len(seen) >= 3)
    bench.train("gpu:0", settings, name="parts", hooks=stop)
    again = bench.train("gpu:0", settings, name="parts", mode="resume")
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def check_uploads(bench: Bench) -> None:
    """Batches arrive late, on a stream of their own."""
    before = bench.device.late
    bench.train("gpu:0", {"steps": 8})
    assert bench.device.late > before + 8 if bench.streams else bench.device.late == 0


def check_facts(bench: Bench) -> None:
    device = torch.device("gpu:0")
    assert can_pin(device) == bench.streams and supports_bf16(device) and allocated_bytes(device) == 12345
    sent = upload(torch.arange(3), device)
    assert sent.device == device and sent.cpu().tolist() == [0, 1, 2]
    assert upload(sent, device) is sent


def check_detector(bench: Bench) -> None:
    """The pretend accelerator notices what it is for."""
    there = torch.ones(3, device="gpu:0")
    mistakes: dict[str, Callable[[], object]] = {
        "_local_scalar_dense": lambda: there[0].item(),
        "_to_copy": lambda: there.cpu(),
        "nonzero": lambda: there.nonzero(),
        "copy from pageable memory": lambda: torch.ones(3).to("gpu:0"),
        "index": lambda: there[torch.tensor([True, False, True]).to("gpu:0")],
    }
    bench.within_step = True
    for what, mistake in {**mistakes, "bool": lambda: bool(there[0] > 0), "list": lambda: there.tolist()}.items():
        bench.device.waits.clear()
        mistake()
        assert bench.device.waits, what
        assert what not in mistakes or what in {wait.what for wait in bench.device.waits}, bench.device.waits
    bench.within_step = False
    try:
        there + torch.ones(3)
    except RuntimeError as error:
        assert "two devices" in str(error)
    else:
        raise AssertionError("two devices in one operation")


OTHERS: dict[str, Callable[[Bench], None]] = {
    "resume": check_resume,
    "uploads": check_uploads,
    "facts": check_facts,
    "detector": check_detector,
}


def cases_for(kind: str) -> dict[str, tuple[dict[str, Any], set[str]]]:
    """The cases of the device with streams; without them, only the way of a batch differs."""
    if kind == "plain":
        return {name: CASES[name] for name in ("everything", "no prefetching")}
    return CASES | {
        name: (settings, waits) for name, (package, settings, waits) in PACKAGES.items() if find_spec(package)
    }


def main(folder: str, streams: str) -> None:
    torch.set_num_threads(1)
    bench = Bench(Path(folder), start(streams == "streams"), streams == "streams")
    checks: dict[str, Callable[[], None]] = {
        name: lambda case=case: check_case(bench, *case) for name, case in cases_for(streams).items()
    }
    checks |= {name: lambda check=check: check(bench) for name, check in OTHERS.items()}
    outcome: dict[str, str | None] = {}
    for name, check in checks.items():
        try:
            check()
            outcome[name] = None
        except Exception:
            outcome[name] = traceback.format_exc(limit=-6)
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
