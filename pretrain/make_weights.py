"""Runs in ComfyUI's Python: trains the tiny models and writes their weights. Half an hour on one core.

    python make_weights.py <ComfyUI folder> <folder for intermediate results> [autoencoder | model | join]

Each part is kept in that folder, so that an interrupted run continues with the next one. The two trainings do not need
each other and may run at the same time.
"""

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def main(host: str, folder: str, *parts: str) -> None:
    headless = _load(ROOT / "nodes" / "host" / "headless.py")
    headless.enter_host(host, ["--cpu"])
    headless.register_package()
    import torch

    torch.set_num_threads(1)  # the models are so small that a second thread gains little
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for part in parts or PARTS:
        file = place / f"{part}.pt"
        if not file.exists():
            torch.save(PARTS[part](place), file)


def train_autoencoder(place: Path) -> Any:
    from streamcache.pretrain.autoencoder import train_autoencoder

    weights = train_autoencoder(say).state_dict()
    return {name: value for name, value in weights.items() if name.startswith("taesd_")}


def train_model(place: Path) -> Any:
    import torch

    from streamcache.nodes.host.tiny import make_clip, new_network
    from streamcache.pretrain import model

    clip, network = make_clip(), new_network()

    def encode_text(text: str) -> tuple[Any, Any]:
        ((tokens, extra),) = clip.encode_from_tokens_scheduled(clip.tokenize(text))
        return tokens.clone(), extra["pooled_output"].clone()

    buckets = model.encode_pictures(encode_text, say)
    model.train_model(network, buckets, encode_text(""), say, lambda weights: torch.save(weights, place / "last.pt"))
    return network.state_dict()


def join(place: Path) -> Any:
    import torch

    from streamcache.nodes.host.tiny import FILE, write_weights

    parts = [torch.load(place / f"{part}.pt", weights_only=True) for part in ("model", "autoencoder")]
    write_weights(FILE, *parts)
    return {}


PARTS: dict[str, Callable[[Path], Any]] = {"autoencoder": train_autoencoder, "model": train_model, "join": join}


def say(what: str, step: int, steps: int, loss: float) -> None:
    if step % 50 == 0 or step == steps:
        print(f"{time.strftime('%X')} {what} {step} of {steps}, loss {loss:.4f}", flush=True)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*sys.argv[1:])
