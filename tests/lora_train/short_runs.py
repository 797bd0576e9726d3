"""Short runs and what they leave on disk."""

from pathlib import Path

import torch

from streamcache.lora_train.run.metrics import read_curves
from streamcache.lora_train.run.saved_state import read_state


def losses(folder: Path, name: str = "test") -> list[tuple[int, float]]:
    return read_curves(folder / "runs" / name / "metrics.jsonl").losses


def last_state(folder: Path, name: str = "test"):
    return read_state(sorted((folder / "runs" / name / "states").glob("*.safetensors"))[-1])


def assert_same_state(a, b) -> None:
    assert (a.step, a.position) == (b.step, b.position)
    for part in ("adapter", "ema"):
        one, other = getattr(a, part), getattr(b, part)
        assert list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)
    for number, moments in a.optimizer["state"].items():
        for name, value in moments.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(b.optimizer["state"][number][name]))


FULL = {
    "steps": 20,
    "accumulate": 2,
    "caption_dropout": 0.3,
    "adapter_dropout": 0.2,
    "ema_decay": 0.9,
    "lr_schedule": "cosine",
    "warmup_steps": 3,
    "noise_offset": 0.1,
    "validation_share": 0.1,
    "validation_every": 4,
    "save_every": 10,
    "sample_every": 5,
    "sample_steps": 2,
}
