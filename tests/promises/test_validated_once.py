"""Row A11: a process that has looked at a file does not look at it again, from Python and on the command line."""

from pathlib import Path
from typing import Any

import pytest

from streamcache.cli.main import main
from streamcache.dataset_cache import open_cache
from streamcache.lora_train import TrainConfig, open_run, train
from streamcache.reference import model as reference
from streamcache.reference.denoiser import ReferenceDenoiser

from ..support.file_calls import file_calls
from ..support.fixtures import settle

EPOCHS, SAMPLES, BATCH = 3, 6, 2


@pytest.fixture
def encoded(tmp_path: Path, picture) -> Path:
    for n in range(SAMPLES):
        picture(f"set/{n}.png", size=(64, 64), seed=n, caption=f"caption {n}")
    settle()
    command = ["encode", tmp_path / "set", "--to", tmp_path / "cache", "--reference", "--resolution", "64"]
    assert main([str(part) for part in command]) == 0
    size = reference.ModelSize(width=32, depth=1, heads=2)
    reference.save_model(tmp_path / "base.safetensors", reference.ReferenceModel(size))
    return tmp_path


def train_from_python(folder: Path) -> None:
    denoiser = ReferenceDenoiser(reference.load_model(folder / "base.safetensors"))
    with open_run(folder / "runs", "test") as run, open_cache(folder / "cache") as cache:
        train(denoiser, cache, TrainConfig(epochs=EPOCHS, batch_size=BATCH, rank=2), run)


def train_by_command(folder: Path) -> None:
    paths = {"dataset": "cache", "out": "out/my_lora.safetensors", "model": "base.safetensors"}
    flags = [part for name, path in paths.items() for part in (f"--{name}", str(folder / path))]
    settings = ["--rank", "2", "--batch-size", str(BATCH), "--epochs", str(EPOCHS)]
    assert main(["train", "--reference", *flags, *settings]) == 0


@pytest.mark.parametrize("door", [train_from_python, train_by_command])
def test_a11_from_the_second_epoch_on_no_file_is_looked_at(encoded: Path, door: Any, monkeypatch: pytest.MonkeyPatch):
    counts, real = [], ReferenceDenoiser.prepare
    with file_calls(encoded / "cache", encoded / "set") as calls:

        def prepare(self: ReferenceDenoiser, batch: Any) -> Any:
            counts.append(len(calls))
            return real(self, batch)

        monkeypatch.setattr(ReferenceDenoiser, "prepare", prepare)
        door(encoded)
    steps = SAMPLES // BATCH
    assert len(counts) == EPOCHS * steps
    assert counts[0] > 0, "the cache was opened while calls were recorded"
    assert calls[counts[steps] : counts[-1]] == []
