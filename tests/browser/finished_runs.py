"""Finished runs on disk with everything that a long training leaves: curves, validation, LoRA files, prompts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

from streamcache.lora_train.samples import sample_file_name
from streamcache.tests.browser.training_page import write_run
from streamcache.tests.host.server import Server

EPOCH = 100  # steps
SECONDS = 2.0  # per step
SETTINGS = {"rank": 8, "learning_rate": 0.0002, "optimizer": "AdamW", "steps": 400, "caption_dropout": 0.1}


def falling(steps: int, seed: int = 0, spike: int = 0) -> list[float]:
    """Losses that fall and are noisy. One at the step `spike` is far too high."""
    draw = np.random.default_rng(seed)
    losses = 0.1 + 0.3 * np.exp(-np.arange(steps) / (steps / 4)) + draw.normal(0, 0.02, steps)
    if spike:
        losses[spike - 1] = 900.0
    return np.abs(losses).tolist()


def write_finished(
    server: Server, name: str, losses: Sequence[float], exports: Sequence[int] = (), **facts: Any
) -> Path:
    """Returns the folder of the run."""
    folder = write_run(server, name, losses, name=name, **SETTINGS).parent
    rows: list[dict[str, Any]] = []
    for step, loss in enumerate(losses, 1):
        row = {"step": step, "epoch": (step - 1) // EPOCH, "loss": loss, "learning_rate": 2e-4 * (1 - step / 800)}
        rows.append({**row, "time": step * SECONDS, "gradient_norm": 1 + loss})
        if step % 25 == 0:
            rows.append({"step": step, "validation": loss + 0.02})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loras = server.base / "output" / "loras"
    loras.mkdir(parents=True, exist_ok=True)
    names = [f"{name}-{step:06}.safetensors" for step in exports]
    for file in (*names, f"{name}.safetensors"):
        save_file({"a": np.zeros(2, np.float32)}, loras / file)
    listed = [
        {"file": file, "step": step, "epoch": 0, "loss": losses[step - 1], "validation": losses[step - 1] + 0.02}
        for file, step in zip(names, exports)
    ]
    described = json.loads((folder / "run.json").read_text())
    described |= {"lora": str(loras / f"{name}.safetensors"), "exports": listed, **facts}
    (folder / "run.json").write_text(json.dumps(described))
    return folder


def draw_samples(folder: Path, steps: Sequence[int], prompts: int) -> None:
    for step in steps:
        for prompt in range(prompts):
            color = (40 + 60 * prompt, 200 - step // 4, 90)
            Image.new("RGB", (64, 64), color).save(folder / "samples" / sample_file_name(step, prompt))
