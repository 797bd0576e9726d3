"""The demo, `python dev.py demo`: the whole job on a made-up dataset, from images to a trained LoRA and a report."""

import argparse
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ..dataset_cache import (
    Cache,
    EncodeReport,
    FolderSource,
    Plan,
    Settings,
    Transform,
    byte_count,
    contact_sheet,
    encode,
    make_plan,
    open_cache,
    samples_by_bucket,
    verify,
)
from ..lora_train import (
    Curves,
    Section,
    TrainConfig,
    TrainHooks,
    TrainResult,
    build_network,
    draw_grid,
    format_seconds,
    open_run,
    plot_buckets,
    plot_loss,
    read_curves,
    read_lora,
    render_page,
    train,
)
from .denoiser import SHIFT, ReferenceDenoiser
from .encoders import (
    CHANNELS,
    ReferenceImageEncoder,
    ReferenceTextEncoder,
    decode_images,
    encode_caption,
)
from .images import CaptionedImage, creatures, shapes
from .model import save_model
from .pretrain import PretrainConfig, pretrain

CONCEPT, OTHERS = "zogglewump", "shapes"
PROMPTS = (
    "a zogglewump on blue",
    "a zogglewump on green",
    "a zogglewump on orange",
    "a zogglewump on white",
    "a red circle on blue",
    "a green star on white",
)
MARK = ".streamcache-demo"  # the demo empties only a folder that contains this file
SAMPLE_STEPS = 16
ADAPTER: dict[str, Any] = {"rank": 16, "targets": "all, !*.near"}  # without the layers that are smaller than the rank


@dataclass(frozen=True)
class Scale:
    """The size of the demo."""

    images: int = 36
    base_steps: int = PretrainConfig.steps
    base_images: int = PretrainConfig.images
    steps: int = 300
    sample_every: int = 75


FULL = Scale()
QUICK = Scale(images=8, base_steps=3, base_images=32, steps=4, sample_every=2)


@dataclass(frozen=True)
class Story:
    """What the report shows."""

    dataset: Cache
    encoded: EncodeReport
    result: TrainResult
    run: Path
    before: Sequence[Image.Image]
    after: Sequence[Image.Image]
    base_images: int
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    text = "Encode a small made-up dataset, train a LoRA on it, and write a report. Needs neither ComfyUI nor a GPU."
    parser = argparse.ArgumentParser(prog="python dev.py demo", description=text)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the results (default: demo)")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to check that everything works")
    args = parser.parse_args(arguments)
    # The model is so small that a second thread gains little, and on a busy machine the two wait for each other.
    torch.set_num_threads(1)
    try:
        return 1 if run_demo(args.out, QUICK if args.quick else FULL) else 0
    except FileExistsError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def run_demo(out: Path, scale: Scale) -> int:
    """Run every step and print a line for each. Returns the number of problems found in the cache at the end."""
    began = time.monotonic()
    clear(out)
    draw_dataset(out / "images", scale)
    encoded = encode_dataset(out)
    dataset = open_dataset(out / "cache")
    denoiser = make_base_model(out / "base.safetensors", scale)
    before = sample_prompts(denoiser)
    result, run = train_lora(denoiser, dataset, out, scale)
    after = sample_with_lora(denoiser, result.lora)
    story = Story(dataset, encoded, result, run, before, after, scale.base_images, time.monotonic() - began)
    page = write_report(out, story)
    problems = check(out / "cache")
    say("Done", f"in {time.monotonic() - began:.0f} s; open {page}, or the PNGs next to it")
    say("Skipped", "ComfyUI's models and nodes, which are not part of the demo")
    return problems


def clear(out: Path) -> None:
    """Remove the results of an earlier demo, and nothing else."""
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise FileExistsError(f"{out}: contains files that are not from a demo; choose another folder with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).touch()


def draw_dataset(folder: Path, scale: Scale) -> None:
    """Images of the new concept, and of other things so that the model does not forget them."""
    save_images(folder / CONCEPT, creatures(scale.images))
    save_images(folder / OTHERS, shapes(scale.images, seed=1))
    say("Draw", f"{scale.images} captioned images of a made-up creature, {scale.images} of shapes, in three sizes")


def save_images(folder: Path, images: Iterable[CaptionedImage]) -> None:
    folder.mkdir(parents=True)
    for number, image in enumerate(images):
        image.image.save(folder / f"{number:03}.png")
        (folder / f"{number:03}.txt").write_text(image.caption, encoding="utf-8")


def encode_dataset(out: Path) -> EncodeReport:
    """Encode, then encode again, which has nothing left to do."""
    report = encode(make_demo_plan(out), out / "cache")
    entries = ", ".join(f"{count} {name}s" for name, count in sorted(report.encoded.items()))
    say("Encode", f"{report.samples} samples in {len(report.buckets)} buckets, {report.seconds:.1f} s ({entries})")
    again = encode(make_demo_plan(out), out / "cache")
    say("Again", f"{len(again.made)} entries encoded on the second run, {again.seconds * 1e3:.0f} ms")
    return report


def make_demo_plan(out: Path) -> Plan:
    sources = [
        FolderSource(out / "images" / CONCEPT, set=CONCEPT),
        FolderSource(out / "images" / OTHERS, set=OTHERS, prior=True),
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


def make_base_model(path: Path, scale: Scale) -> ReferenceDenoiser:
    """Instead of a download: a small model learns colored shapes, but never the creature."""
    began = time.monotonic()
    say("Base", f"pre-training a small model on {scale.base_images:,} other images, colored shapes …")
    config = PretrainConfig(steps=scale.base_steps, images=scale.base_images)
    model = pretrain(config, progress=lambda step, steps, loss: tick("Base", step, steps, loss))
    save_model(path, model)
    say("Base", f"{config.steps} steps in {time.monotonic() - began:.0f} s; it never saw a {CONCEPT}")
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
    say(
        "Train",
        f"{result.steps} steps in {result.seconds:.0f} s, {result.data_wait:.1%} of the training time waiting for data",
    )
    say("Save", f"{result.lora} ({byte_count(result.lora.stat().st_size)})")
    return result, run.folder


def sample_prompts(denoiser: ReferenceDenoiser) -> list[Image.Image]:
    shape = (CHANNELS, 8, 8)
    latents = [denoiser.sample(encode_caption(text), shape, 5 + n, SAMPLE_STEPS) for n, text in enumerate(PROMPTS)]
    return [image for latent in latents for image in decode_images(latent)]


def sample_with_lora(denoiser: ReferenceDenoiser, path: Path) -> list[Image.Image]:
    """Load the saved file, as any user of it would."""
    network = build_network(denoiser, TrainConfig(**ADAPTER).adapters(), read_lora(path)).eval()
    with network.attached(denoiser.adaptable()):
        return sample_prompts(denoiser)


def write_report(out: Path, story: Story) -> Path:
    """Write the PNGs and report.html; returns the page."""
    curves = read_curves(story.run / "metrics.jsonl")
    rows, names = [story.before, story.after], ["base model", "with LoRA"]
    images = {
        "before_after": draw_grid(rows, names, PROMPTS, "Before and after", cell=128),
        "loss": plot_loss(curves.losses, curves.validation),
        "samples": _read(story.run / "samples.png"),
        "contact_sheet": contact_sheet(story.dataset, columns=9),
        "buckets": plot_buckets({label: len(rows) for label, rows in samples_by_bucket(story.dataset).items()}),
        "data_wait": _read(story.run / "time.png"),
    }
    for name, image in images.items():
        image.save(out / f"{name}.png")
    words = (
        f"A small base model was trained on {story.base_images:,} images of shapes and has never seen the creature. "
        "A LoRA learns it from a cache. Model, encoders and images are made up, so that all of it runs on a CPU."
    )
    page = render_page("StreamCache demo", words, count_numbers(story, curves), list_sections(images))
    (out / "report.html").write_text(page, encoding="utf-8")
    return out / "report.html"


def list_sections(images: Mapping[str, Image.Image]) -> list[Section]:
    """The sections of the page, the most important first."""
    return [
        Section(
            "Before and after",
            images["before_after"],
            "The same captions and seeds, without and with the saved LoRA. The last two captions show what the base "
            "model already knew: training on prior images together with the creature preserves it.",
        ),
        Section("Loss", images["loss"], "The validation loss uses the same noise every time."),
        Section("Sample images during training", images["samples"]),
        Section("Dataset", images["contact_sheet"], "Thumbnails from the cache; the image files are not read again."),
        Section("Buckets", images["buckets"]),
        Section("Time", images["data_wait"], "The next batch is read while the current one trains."),
    ]


def count_numbers(story: Story, curves: Curves) -> dict[str, str]:
    first, last = (curves.validation[place][1] if curves.validation else 0.0 for place in (0, -1))
    return {
        "whole demo": format_seconds(story.seconds),
        "training": f"{story.result.steps} steps, {format_seconds(story.result.seconds)}",
        "waiting for data": f"{story.result.data_wait:.1%}",
        "validation loss": f"{first:.3f} → {last:.3f}",
        "encoded once": f"{story.encoded.samples} samples, {story.encoded.seconds:.1f} s",
        "LoRA": byte_count(story.result.lora.stat().st_size),
    }


def check(path: Path) -> int:
    problems = list(verify(path))
    for problem in problems:
        say("", str(problem))
    found = "1 problem" if len(problems) == 1 else f"{len(problems) or 'no'} problems"
    say("Verify", f"read every byte of the cache: {found} found")
    return len(problems)


def say(step: str, text: str) -> None:
    print(f"{step:8} {text}", flush=True)


def tick(step: str, done: int, total: int, loss: float) -> None:
    if sys.stdout.isatty() and (done % 10 == 0 or done == total):
        end = "\r" if done < total else "\r" + " " * 60 + "\r"
        print(f"{step:8} step {done} of {total}, loss {loss:.3f}   ", end=end, flush=True)


def _read(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.copy()


if __name__ == "__main__":
    sys.exit(main())
