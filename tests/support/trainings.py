"""Small real trainings for the tests of sweeps and queues: a dataset, a reference model, and the program itself."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import xxhash
from safetensors.torch import load_file

from streamcache.dataset_cache import CacheWriter
from streamcache.reference import model as reference
from streamcache.reference.encoders import encode_caption, encode_image
from streamcache.reference.images import creatures

from .package import run_python

PROGRAM = "from streamcache.cli.__main__ import main; sys.exit(main())"
# Python imports it at its start, so it holds for the children of a program too.
NO_FILE_LOCKS = """\
import errno, fcntl
def flock(*_):
    raise OSError(errno.ENOLCK, "no locks available")
fcntl.flock = flock
"""


def make_parts(folder: Path) -> None:
    """`set` and `base.safetensors`. The weights are random, so that every setting makes another LoRA."""
    model = reference.ReferenceModel(reference.ModelSize(width=32, depth=1, heads=2))
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            weight.copy_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
    reference.save_model(folder / "base.safetensors", model)
    with CacheWriter(folder / "set") as writer:
        for picture in creatures(8):
            pixels = torch.from_numpy(np.asarray(picture.image, np.float32) / 255)
            latent, text = {"samples": encode_image(pixels)}, encode_caption(picture.caption)
            writer.add(latent=latent, conditioning=text, caption=picture.caption)


def training(folder: Path, out: str = "my_lora", steps: int = 20) -> list[str]:
    """Flags of `streamcache train`."""
    paths = f"--dataset={folder / 'set'}", f"--model={folder / 'base.safetensors'}", f"--out={folder / out}.safetensors"
    return [*paths, "--reference", f"--steps={steps}", "--batch-size=2", "--rank=2", "--save-every=10"]


def start(*arguments: object, locks: Path | None = None, **options) -> subprocess.Popen:
    """Start the program in a process group of its own. With `locks`, a folder for it, the drive has no file locks."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if locks is not None:
        locks.mkdir(exist_ok=True)
        (locks / "sitecustomize.py").write_text(NO_FILE_LOCKS)
        environment["PYTHONPATH"] = str(locks)
    command = run_python(PROGRAM, *map(str, arguments))
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True, **options
    )


def finish(process: subprocess.Popen, seconds: float = 600) -> tuple[int, str, str]:
    """The exit code, and what it printed to stdout and to stderr."""
    printed, errors = process.communicate(timeout=seconds)
    return process.returncode, printed, errors


def kill(process: subprocess.Popen, whole: bool) -> None:
    """Kill a process, or its whole group: then its training has no chance to save either."""
    if whole:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    for stream in (process.stdout, process.stderr):
        stream.close()


def wait_until(done: Callable[[], object], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)


def steps_of(run: Path) -> list[int]:
    """The steps in the metrics of a run, each as often as it was trained."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row["step"] for row in rows if "loss" in row]


def digests(folder: Path) -> dict[str, str]:
    """The LoRAs in a folder by name, as hashes of their tensors."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        digest = xxhash.xxh3_128()
        for name, tensor in sorted(load_file(path).items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        found[path.name] = digest.hexdigest()
    return found


def random_moment(seed: int) -> Callable[[float], None]:
    """Waits for up to so many seconds."""
    numbers = random.Random(seed)
    return lambda most: time.sleep(numbers.uniform(0, most))
