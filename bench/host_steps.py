"""Runs in ComfyUI's Python: steps of core's trainer and of ours on the same model and data, and their memory.

python host_steps.py speed <host folder> <base directory> <family> <batch size> <rounds>
python host_steps.py memory <host folder> <base directory> <core | ours> <samples>
"""

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHAPES = {"flow": (16, 32, 32), "eps": (4, 16, 16)}
TEXTS = {"flow": (4096, 2048), "eps": (768, 768)}
WARM, COUNTED = 1, 6  # steps
RANK, RATE = 4, 1e-4


def main(job: str, host: str, base: str, *arguments: str) -> None:
    inside = _load("inside", ROOT / "tests" / "host" / "inside.py")
    inside.enter_host(host, base)
    inside.register_package()
    import torch

    torch.set_num_threads(1)
    with torch.inference_mode():
        print(json.dumps(JOBS[job](Path(base), *arguments)))


def speed(base: Path, family: str, batch: str, rounds: str) -> dict[str, list[float]]:
    """Processor seconds per step, the two in turns: a long training minus a short one, to exclude the set-up.

    With one thread this is the time of a step on an idle machine; reading ahead counts in full.
    """
    from streamcache.tests.host.families import load

    model = load(family).model
    samples = _samples(family, 8)
    dataset = _write(base / f"bench-{family}", samples)
    contestants: dict[str, Callable[[int], None]] = {
        "core": lambda steps: _core(model, samples, int(batch), steps),
        "ours": lambda steps: _ours(model, dataset, int(batch), steps, base),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(int(rounds) + 1):
        for name, work in contestants.items():
            short, long = (_time(lambda n=steps, w=work: w(n)) for steps in (WARM, WARM + COUNTED))
            seconds[name].append((long - short) / COUNTED)
    return {name: values[1:] for name, values in seconds.items()}


def memory(base: Path, who: str, count: str) -> dict[str, int]:
    """Anonymous memory at the first model call of the first step, minus that before the data was there."""
    from streamcache.bench.memory import anonymous_bytes
    from streamcache.tests.host.families import load

    model = load("flow").model
    path = _write(base / f"bench-memory-{count}", _samples("flow", int(count)))
    seen: list[int] = []
    kind, start = type(model.model.diffusion_model), anonymous_bytes()
    own = kind.forward

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(anonymous_bytes() - start)
        return own(self, *args, **kwargs)

    kind.forward = noting
    if who == "core":
        from streamcache.dataset_cache import open_cache

        cache = open_cache(path)
        stored = [cache[i].realize() for i in range(len(cache))]
        _core(model, [(s.latent, s.conditioning) for s in stored], 1, 1)
    else:
        _ours(model, path, 1, 1, base)
    return {"bytes": seen[0]}


JOBS = {"speed": speed, "memory": memory}


def _core(model: Any, samples: list[tuple[dict, list]], batch: int, steps: int) -> None:
    from streamcache.tests.host.families import call

    scalars = {
        "model": model, "batch_size": batch, "steps": steps, "grad_accumulation_steps": 1, "learning_rate": RATE,
        "rank": RANK, "optimizer": "AdamW", "loss_function": "MSE", "seed": 1, "training_dtype": "fp32",
        "lora_dtype": "fp32", "quantized_backward": False, "algorithm": "LoRA", "gradient_checkpointing": False,
        "checkpoint_depth": 1, "offloading": False, "existing_lora": "[None]", "bucket_mode": False,
        "bypass_mode": False,
    }  # fmt: skip
    latents, positive = [s[0] for s in samples], [s[1] for s in samples]
    call("TrainLoraNode", latents=latents, positive=positive, **{name: [value] for name, value in scalars.items()})


def _ours(model: Any, dataset: Path, batch: int, steps: int, base: Path) -> None:
    from streamcache.dataset_cache import open_cache
    from streamcache.lora_train import TrainConfig, TrainHooks
    from streamcache.nodes.host import HostSettings
    from streamcache.nodes.library import SampleImages
    from streamcache.nodes.training import train_lora

    # Core adapts every layer, so this does too.
    config = TrainConfig(
        name="bench", mode="overwrite", steps=steps, batch_size=batch, rank=RANK, learning_rate=RATE, targets="all",
        save_every=0, precision="fp32", seed=1,
    )  # fmt: skip
    train_lora(
        model,
        open_cache(dataset),
        config,
        HostSettings(),
        SampleImages(),
        base / "loras",
        base / "runs",
        lambda run: nullcontext(TrainHooks()),
    )


def _samples(family: str, count: int) -> list[tuple[dict, list]]:
    import torch

    generator = torch.Generator().manual_seed(1)
    width, pooled = TEXTS[family]
    return [
        (
            {"samples": torch.randn(1, *SHAPES[family], generator=generator)},
            [[torch.randn(1, 77, width, generator=generator), {"pooled_output": torch.randn(1, pooled)}]],
        )
        for _ in range(count)
    ]


def _write(path: Path, samples: list[tuple[dict, list]]) -> Path:
    from streamcache.dataset_cache import CacheWriter

    with CacheWriter(path) as writer:
        for latent, conditioning in samples:
            writer.add(latent=latent, conditioning=conditioning)
    return path


def _time(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*sys.argv[1:])
