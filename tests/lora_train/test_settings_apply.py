"""Every setting reaches the part that it is for: if it changes, so does what a run computes, writes or is built of."""

import functools
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from streamcache.dataset_cache import CacheWriter, Dataset, open_cache
from streamcache.lora_train import loop
from streamcache.lora_train.config import TRAIN_SETTINGS, TrainConfig
from streamcache.lora_train.memory import compiled
from streamcache.lora_train.run.folder import open_run
from streamcache.lora_train.run.metrics import read_metrics

from ..support.small_parts import SHAPES, SmallDenoiser, decode, latent_of, make_dataset, run_training, words_of

BASE = {"steps": 6, "batch_size": 4, "rank": 2, "learning_rate": 1e-2, "precision": "fp32", "clip_norm": 0.0}
# The other value of each setting, and the settings without which it has no effect.
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "steps": (5, {}),
    "epochs": (2, {}),
    "batch_size": (3, {}),
    "accumulate": (2, {}),
    "seed": (1, {}),
    "deterministic": (True, {}),
    "adapter": ("loha", {}),
    "rank": (3, {}),
    "alpha": (1.0, {}),
    "rank_stabilised": (True, {}),
    "dora": (True, {}),
    "dora_axis": ("output", {"dora": True}),
    "lokr_factor": (2, {"adapter": "lokr"}),
    "adapter_dropout": (0.5, {}),
    "adapter_dtype": ("bf16", {}),
    "targets": ("all", {}),
    "start_from": ("start.safetensors", {}),
    "group_ranks": ({"up": 3}, {}),
    "group_alphas": ({"up": 0.5}, {}),
    "training_adapter": ("adapter.safetensors", {}),
    "naming": ("kohya", {}),
    "save_dtype": ("bf16", {}),
    "learning_rate": (1e-3, {}),
    "group_rates": ({"up": 1e-3}, {}),
    "optimizer": ("SGD", {}),
    "other_optimizer": ("Lion", {}),
    "optimizer_args": ({"amsgrad": True, "betas": (0.5, 0.6)}, {}),
    "lora_plus": (4.0, {}),
    "scale_weight_norms": (1e-3, {}),
    "weight_decay": (0.5, {}),
    "beta1": (0.5, {}),
    "beta2": (0.5, {}),
    "epsilon": (1e-2, {}),
    "lr_schedule": ("linear", {}),
    "warmup_steps": (3, {}),
    "lr_cycles": (2, {"lr_schedule": "cosine_restarts"}),
    "lr_power": (2.0, {"lr_schedule": "polynomial"}),
    "lr_floor": (0.5, {"lr_schedule": "linear"}),
    "clip_norm": (1e-3, {"optimizer": "SGD"}),
    "ema_decay": (0.9, {}),
    "loss": ("l1", {}),
    "huber_delta": (0.5, {"loss": "huber"}),
    "huber_schedule": ("snr", {"loss": "huber"}),
    "weighting": ("min_snr", {}),
    "min_snr_gamma": (1.0, {"weighting": "min_snr"}),
    "timesteps": ("logit_normal", {}),
    "logit_mean": (0.5, {"timesteps": "logit_normal"}),
    "logit_std": (0.5, {"timesteps": "logit_normal"}),
    "shift": (3.0, {}),
    "resolution_shift": ("sd3", {}),
    "t_min": (0.5, {}),
    "t_max": (0.5, {}),
    "noise_offset": (0.1, {}),
    "multires_noise": (4, {}),
    "multires_discount": (0.9, {"multires_noise": 4}),
    "input_perturbation": (0.1, {}),
    "masked_loss": (True, {}),
    "unmasked_weight": (0.5, {"masked_loss": True}),
    "normalise_masks": (True, {"masked_loss": True}),
    "prior_weight": (0.5, {}),
    "caption_dropout": (0.5, {}),
    "preservation_weight": (1.0, {}),
    "preservation_share": (0.5, {"preservation_weight": 1.0}),
    "preservation_caption": ("caption 3", {"preservation_weight": 1.0}),
    "guidance_target": (3.0, {}),
    "guidance_schedule": ("sigma", {"guidance_target": 3.0}),
    "precision": ("bf16", {}),
    "checkpointing": (True, {}),
    "activation_offload": (True, {}),
    "compile": (True, {}),
    "attention": ("math", {}),
    "prefetch": (0, {}),
    "set_samples": ({"main": 5}, {}),
    "set_weights": ({"main": 0.5}, {}),
    "batch_split": ("full", {}),
    "validation_share": (0.3, {}),
    "validation_every": (2, {"validation_share": 0.3}),
    "validation_samples": (2, {"validation_share": 0.3}),
    "save_every": (2, {}),
    "keep_states": (3, {"save_every": 1}),
    "export_every": (2, {}),
    "export_epochs": (1, {"batch_size": 8}),
    "keep_exports": (1, {"export_every": 2}),
    "keep_exports_by": (
        "validation",
        # The rate is far too high, so that the last is not the best.
        {"export_every": 1, "keep_exports": 1, "validation_share": 0.3, "learning_rate": 3.0, "clip_norm": 1.0},
    ),
    "trigger_words": ("zxq cat", {}),
    "tag_statistics": (False, {}),
    "sample_every": (2, {}),
    "sample_captions": (("caption 3",), {"sample_every": 3, "sample_steps": 1}),
    "sample_steps": (2, {"sample_every": 3}),
    "sample_seed": (2, {"sample_every": 3, "sample_steps": 1}),
    "tensorboard": (True, {}),
}
# They say which run to open; tests of `open_run` and of the state show them.
OF_THE_FOLDER = {"name", "mode", "accept_changes"}


class Named(SmallDenoiser):
    def export_names(self, naming: str) -> dict[str, str]:
        return {name: f"{naming}.{name}" for name in self.layers}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Three buckets of 6, 5 and 5 samples with masks, and prior samples."""
    path = tmp_path_factory.mktemp("settings") / "set"
    with CacheWriter(path) as writer:
        for number in range(22):
            shape = SHAPES[number % 3]
            mask = torch.zeros(1, *shape)
            mask[:, : shape[0] // 2] = 1
            place = {"set": "main" if number < 16 else "class"}
            caption = f"caption {number}"
            writer.add(latent_of(number, shape), words_of(number), caption, mask=mask, **place)
        writer.describe_set("main", {"prior": False})
        writer.describe_set("class", {"prior": True})
        writer.put("nothing said", words_of(-1), "conditioning")
        writer.name("empty caption", "nothing said")
    return open_cache(path)


@pytest.fixture(scope="module")
def known() -> dict[str, list[Any]]:
    """Outcomes with the value that a setting has by default, by the settings that it needs."""
    return {}


def outcome(folder: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> list[Any]:
    """Everything that settings can change: batches, numbers and files of a run, and how its parts are called."""
    seen: list[Any] = []
    denoiser = Named()
    with monkeypatch.context() as patch, open_run(folder, "run") as run:
        for name in ("Prefetcher", "saving_memory", "attention_kernel"):
            patch.setattr(loop, name, _noting(name, getattr(loop, name), seen))
        patch.setattr(loop, "compiled", _noting("compiled", functools.partial(compiled, backend="eager"), seen))
        patch.setattr(loop, "write_report", lambda *_: None)  # it takes most of the time
        loop.train(denoiser, dataset, TrainConfig(**{**BASE, **settings}), run, decode=decode)
    seen += [(call["shape"], call["t"], call["text"].sum().item()) for call in denoiser.calls]
    seen += [{**row, "time": 0, "waited": 0} for row in read_metrics(run.metrics)]
    with safe_open(run.lora, framework="pt") as file:
        seen += [(name, str(file.get_tensor(name))) for name in sorted(file.keys())]
        told = ("modelspec.trigger_phrase", "ss_caption_count")
        seen += [(name, file.metadata().get(name)) for name in told]
    seen += sorted(path.name for path in run.folder.glob("*.safetensors"))
    seen += sorted(path.name for path in (run.folder / "states").iterdir())
    pictures = sorted(run.samples.glob("*")) if run.samples.exists() else []
    seen += [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in pictures]
    return [*seen, (run.folder / "events").exists()]


def _noting(name: str, part: Any, seen: list[Any]) -> Any:
    @functools.wraps(part, updated=())
    def call(*given: Any) -> Any:
        seen.append((name, [value for value in given if isinstance(value, (int, str))]))
        return part(*given)

    return call


def test_every_setting_is_examined_here() -> None:
    assert set(CHANGES) | OF_THE_FOLDER == set(TRAIN_SETTINGS)


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_changes_changes_the_run(
    tmp_path: Path, dataset: Dataset, known: dict[str, list[Any]], monkeypatch, name: str
) -> None:
    if name == "tensorboard":
        pytest.importorskip("tensorboardX")
    value, needed = CHANGES[name]
    if name == "other_optimizer":
        pytest.importorskip("pytorch_optimizer")
    if name in ("start_from", "training_adapter"):
        value = str(run_training(tmp_path / "first", make_dataset(tmp_path / "first-set"), steps=3).lora)
    key = repr(needed)
    if key not in known:
        known[key] = outcome(tmp_path / "before", dataset, monkeypatch, needed)
    assert outcome(tmp_path / "after", dataset, monkeypatch, {**needed, name: value}) != known[key]


def test_the_same_settings_give_exactly_the_same_run(tmp_path: Path, dataset: Dataset, monkeypatch) -> None:
    """Otherwise the comparison above would show nothing."""
    one, other = (outcome(tmp_path / name, dataset, monkeypatch, {}) for name in ("one", "other"))
    assert one == other


@pytest.mark.parametrize(("split", "rows"), [("even", {2, 3}), ("full", {1, 2, 4})])
def test_batch_split_reaches_the_batches(tmp_path: Path, split: str, rows: set[int]) -> None:
    """Buckets of 6, 5 and 5 samples at batch size 4."""
    denoiser = SmallDenoiser()
    run_training(tmp_path, make_dataset(tmp_path / "set", 16), denoiser, epochs=1, batch_split=split)
    assert {call["rows"] for call in denoiser.calls} == rows and sum(call["rows"] for call in denoiser.calls) == 16
