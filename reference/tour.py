"""The demo: the pack's main job on a made-up dataset, from pictures to a trained LoRA. `python dev.py demo` runs it."""

import argparse
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from ..dataset_cache import (
    Cache,
    EncodeReport,
    FolderSource,
    Plan,
    Settings,
    Transform,
    encode,
    make_plan,
    open_cache,
    verify,
)
from ..lora_train import TrainConfig, TrainHooks, TrainResult, build_network, open_run, read_lora, train
from . import model as reference
from .demo_report import Story, write_story
from .denoiser import SHIFT, ReferenceDenoiser
from .encoders import CHANNELS, ReferenceImageEncoder, ReferenceTextEncoder, decode_images, encode_caption
from .images import Picture, creatures, shapes
from .pretrain import Recipe, pretrain

CONCEPT, OTHERS = "zogglewump", "shapes"
ASKED = (
    "a zogglewump on blue",
    "a zogglewump on green",
    "a zogglewump on orange",
    "a zogglewump on white",
    "a red circle on blue",
    "a green star on white",
)
MARK = ".streamcache-demo"  # a folder that holds it may be emptied again
SAMPLE_STEPS = 16
ADAPTER = {"rank": 16, "targets": "all, !*.near"}  # all but the layers that are smaller than the rank


@dataclass(frozen=True)
class Scale:
    """How large the demo is."""

    pictures: int = 36
    base_steps: int = Recipe.steps
    base_pictures: int = Recipe.pictures
    steps: int = 300
    sample_every: int = 75


FULL = Scale()
SMALL = Scale(pictures=8, base_steps=3, base_pictures=32, steps=4, sample_every=2)  # to see that everything works


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python dev.py demo", description="The main job on a made-up dataset.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where everything goes (default: demo)")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that everything works")
    args = parser.parse_args(arguments)
    # The model is so small that a second thread gains little, and on a busy machine the two wait for each other.
    torch.set_num_threads(1)
    try:
        return 1 if run_demo(args.out, SMALL if args.quick else FULL) else 0
    except FileExistsError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def run_demo(out: Path, scale: Scale) -> int:
    """Every step of the main job, one line each. Returns how many problems the cache has in the end."""
    began = time.monotonic()
    clear(out)
    draw_pictures(out / "pictures", scale)
    encoded = encode_pictures(out)
    dataset = open_dataset(out / "cache")
    denoiser = make_base(out / "base.safetensors", scale)
    before = draw_asked(denoiser)
    result, run = train_lora(denoiser, dataset, out, scale)
    after = draw_with_lora(denoiser, result.lora)
    story = Story(dataset, encoded, result, run, ASKED, before, after, scale.base_pictures, time.monotonic() - began)
    page = write_story(out, story)
    problems = check(out / "cache")
    say("Done", f"in {time.monotonic() - began:.0f} s; open {page}, or look at the PNGs beside it")
    say("Left", "out: ComfyUI's models and nodes, which need a ComfyUI (`python dev.py host` says how to get one)")
    return problems


def clear(out: Path) -> None:
    """Empty what an earlier demo left, and nothing else."""
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise FileExistsError(f"{out} holds other files than a demo's; give another folder with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).touch()


def draw_pictures(folder: Path, scale: Scale) -> None:
    """The new concept, and pictures of other things that keep the model from forgetting them."""
    save_pictures(folder / CONCEPT, creatures(scale.pictures))
    save_pictures(folder / OTHERS, shapes(scale.pictures, seed=1))
    say(
        "Draw", f"{scale.pictures} captioned pictures of a made-up creature, {scale.pictures} of shapes, in three sizes"
    )


def save_pictures(folder: Path, pictures: Iterable[Picture]) -> None:
    folder.mkdir(parents=True)
    for number, picture in enumerate(pictures):
        picture.image.save(folder / f"{number:03}.png")
        (folder / f"{number:03}.txt").write_text(picture.caption, encoding="utf-8")


def encode_pictures(out: Path) -> EncodeReport:
    """Encode once; the second time there is nothing to do."""
    report = encode(plan_pictures(out), out / "cache")
    entries = ", ".join(f"{count} {name}s" for name, count in sorted(report.encoded.items()))
    say("Encode", f"{report.samples} samples in {len(report.buckets)} buckets, {report.seconds:.1f} s ({entries})")
    again = encode(plan_pictures(out), out / "cache")
    say("Again", f"{len(again.made)} entries encoded the second time, {again.seconds * 1e3:.0f} ms")
    return report


def plan_pictures(out: Path) -> Plan:
    sources = [
        FolderSource(out / "pictures" / CONCEPT, set=CONCEPT),
        FolderSource(out / "pictures" / OTHERS, set=OTHERS, prior=True),
    ]
    settings = Settings(Transform((64,), step=8))
    images, texts = ReferenceImageEncoder(), ReferenceTextEncoder()
    return make_plan(sources, image_encoder=images, text_encoder=texts, settings=settings)


def open_dataset(path: Path) -> Cache:
    began = time.monotonic()
    cache = open_cache(path)
    latent = cache[0].latent["samples"]
    took = (time.monotonic() - began) * 1e3
    say("Open", f"{len(cache)} samples in {took:.1f} ms; the first latent is {list(latent.shape)}, still on disk")
    return cache


def make_base(path: Path, scale: Scale) -> ReferenceDenoiser:
    """There is no model to download: a small one learns shapes first, and has never seen the creature."""
    began = time.monotonic()
    say("Base", f"pre-training a small model on {scale.base_pictures:,} other pictures, coloured shapes …")
    recipe = Recipe(steps=scale.base_steps, pictures=scale.base_pictures)
    model = pretrain(recipe, progress=lambda step, steps, loss: tick("Base", step, steps, loss))
    reference.save(path, model)
    say("Base", f"{recipe.steps} steps in {time.monotonic() - began:.0f} s; it never saw a {CONCEPT}")
    return ReferenceDenoiser(model)


def train_lora(denoiser: ReferenceDenoiser, dataset: Cache, out: Path, scale: Scale) -> tuple[TrainResult, Path]:
    config = TrainConfig(
        steps=scale.steps,
        batch_size=6,
        **ADAPTER,
        learning_rate=5e-3,
        ema_decay=0.98,
        lr_schedule="cosine",
        warmup_steps=10,
        timesteps="logit_normal",
        shift=SHIFT,
        caption_dropout=0.05,
        prior_weight=0.5,
        validation_share=0.1,
        validation_every=max(scale.steps // 12, 1),
        sample_every=scale.sample_every,
        sample_captions=tuple(dict.fromkeys(dataset.captions(index)[0] for index in range(4))),
        sample_steps=SAMPLE_STEPS,
    )
    hooks = TrainHooks(progress=lambda step: tick("Train", step.step, step.steps, step.smooth))
    with open_run(out / "runs", CONCEPT) as run:
        result = train(denoiser, dataset, config, run, out / f"{CONCEPT}.safetensors", hooks, decode_images)
    size = result.lora.stat().st_size / 1e6
    say("Train", f"{result.steps} steps in {result.seconds:.0f} s, {result.data_wait:.2%} of it waiting for data")
    say("Save", f"{result.lora} ({size:.1f} MB)")
    return result, run.folder


def draw_asked(denoiser: ReferenceDenoiser) -> list[Image.Image]:
    shape = (CHANNELS, 8, 8)
    latents = [denoiser.sample(encode_caption(words), shape, 5 + n, SAMPLE_STEPS) for n, words in enumerate(ASKED)]
    return [picture for latent in latents for picture in decode_images(latent)]


def draw_with_lora(denoiser: ReferenceDenoiser, path: Path) -> list[Image.Image]:
    """From the saved file, as anybody would use it."""
    network = build_network(denoiser, TrainConfig(**ADAPTER).adapters(), read_lora(path)).eval()
    with network.attached(denoiser.adaptable()):
        return draw_asked(denoiser)


def check(path: Path) -> int:
    problems = list(verify(path))
    for problem in problems:
        say("", str(problem))
    say("Check", f"{len(problems)} problems" if problems else "every byte of the cache is as it was written")
    return len(problems)


def say(step: str, words: str) -> None:
    print(f"{step:6} {words}", flush=True)


def tick(step: str, done: int, total: int, loss: float) -> None:
    if sys.stdout.isatty() and (done % 10 == 0 or done == total):
        end = "\r" if done < total else "\r" + " " * 60 + "\r"
        print(f"{step:6} step {done} of {total}, loss {loss:.3f}   ", end=end, flush=True)


if __name__ == "__main__":
    sys.exit(main())
