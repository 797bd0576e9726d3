"""The demo's report: its pictures as PNGs, and one page that tells the story."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ..dataset_cache import Cache, EncodeReport, decode_thumbnail
from ..lora_train import (
    Curves,
    Section,
    TrainResult,
    draw_grid,
    format_seconds,
    plot_buckets,
    plot_loss,
    read_curves,
    render_page,
)

DOWNSCALE = 8
SHEET_COLUMNS = 12


@dataclass(frozen=True)
class Story:
    """What happened."""

    dataset: Cache
    encoded: EncodeReport
    result: TrainResult
    run: Path
    asked: Sequence[str]
    before: Sequence[Image.Image]
    after: Sequence[Image.Image]
    base_pictures: int
    seconds: float


def write_story(out: Path, story: Story) -> Path:
    """Write the PNGs and report.html; returns the page."""
    curves = read_curves(story.run / "metrics.jsonl")
    pictures = {
        "before_after": draw_before_after(story),
        "loss": plot_loss(curves.losses, curves.validation),
        "samples": _read(story.run / "samples.png"),
        "contact_sheet": draw_contact_sheet(story.dataset),
        "buckets": plot_buckets(count_sizes(story.dataset)),
        "data_wait": _read(story.run / "time.png"),
    }
    for name, picture in pictures.items():
        picture.save(out / f"{name}.png")
    words = (
        f"A small base model that has seen {story.base_pictures:,} pictures of shapes, but never the creature, "
        "learns it from a cached dataset. Model, encoders and pictures are made up, so that all of it runs on a CPU."
    )
    page = render_page("StreamCache demo", words, count_numbers(story, curves), tell_story(pictures))
    (out / "report.html").write_text(page, encoding="utf-8")
    return out / "report.html"


def tell_story(pictures: Mapping[str, Image.Image]) -> list[Section]:
    """The sections of the page, the most telling first."""
    return [
        Section(
            "Before and after",
            pictures["before_after"],
            "The same captions and seeds, without and with the saved LoRA. The last two captions are of what the base "
            "model knew before: prior pictures trained beside the creature keep them.",
        ),
        Section("Loss", pictures["loss"], "Held-out pictures are measured with the same noise every time."),
        Section("While training", pictures["samples"]),
        Section("Dataset", pictures["contact_sheet"], "Thumbnails out of the cache; the pictures are not needed."),
        Section("Buckets", pictures["buckets"]),
        Section("Time", pictures["data_wait"], "Batches are read while the one before trains."),
    ]


def draw_before_after(story: Story) -> Image.Image:
    return draw_grid(
        [story.before, story.after], ["base model", "with LoRA"], story.asked, "Before and after", cell=128
    )


def draw_contact_sheet(dataset: Cache) -> Image.Image:
    """Every thumbnail, one set after the other."""
    rows, names = [], []
    sets = dataset.column("set")
    for number, name in enumerate(dataset.sets):
        members = [index for index in range(len(dataset)) if sets[index] == number]
        for start in range(0, len(members), SHEET_COLUMNS):
            chosen = members[start : start + SHEET_COLUMNS]
            rows.append([decode_thumbnail(dataset[index].fields["thumbnail"]) for index in chosen])
            names.append(name if start == 0 else "")
    return draw_grid(rows, names, title=f"{len(dataset)} samples", cell=64)


def count_sizes(dataset: Cache) -> dict[str, int]:
    """Samples by the size of their pictures."""
    return {
        f"{bucket.shape[-1] * DOWNSCALE} × {bucket.shape[-2] * DOWNSCALE}": len(members)
        for bucket, members in dataset.buckets().items()
    }


def count_numbers(story: Story, curves: Curves) -> dict[str, str]:
    first, last = (curves.validation[place][1] if curves.validation else 0.0 for place in (0, -1))
    return {
        "whole demo": format_seconds(story.seconds),
        "training": f"{story.result.steps} steps, {format_seconds(story.result.seconds)}",
        "waiting for data": f"{story.result.data_wait:.2%}",
        "held-out loss": f"{first:.3f} → {last:.3f}",
        "encoded once": f"{story.encoded.samples} samples, {story.encoded.seconds:.1f} s",
        "LoRA": f"{story.result.lora.stat().st_size / 1e6:.1f} MB",
    }


def _read(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.copy()
