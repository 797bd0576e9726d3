"""The demo: the pack's main job on a small made-up dataset, one line a step. `python dev.py demo` runs it."""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from ..dataset_cache import Bucket, CacheWriter, open_cache, verify

COLOURS = {"red": "#d33", "green": "#2a4", "blue": "#36c", "yellow": "#eb3"}
SHAPES = ("circle", "square")
SIZES = ((256, 256), (320, 192), (192, 320))
DOWNSCALE = 8
BATCH = 4
CHART_WIDTH = 40


@dataclass(frozen=True)
class Picture:
    """A drawn picture and what a person would write under it."""

    path: Path
    caption: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python dev.py demo", description="The main job on a made-up dataset.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where everything goes (default: demo)")
    out = parser.parse_args(arguments).out
    sys.stdout.reconfigure(errors="replace")  # a console that cannot draw bars shows question marks
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    pictures = draw_pictures(out / "pictures")
    write_cache(out / "cache", pictures)
    print_buckets(out / "cache")
    read_epoch(out / "cache")
    problems = check(out / "cache")
    say("Done", f"{len(pictures)} pictures cached and read in {time.monotonic() - started:.1f} s; see {out}/")
    say("Left", "encoding with a model and training; the stand-ins above take their place")
    return 1 if problems else 0


def draw_pictures(folder: Path) -> list[Picture]:
    """One picture of every colour and shape in every size."""
    folder.mkdir(parents=True)
    wanted = [(colour, shape, size) for colour in COLOURS for shape in SHAPES for size in SIZES]
    pictures = []
    for colour, shape, (width, height) in wanted:
        picture = Picture(folder / f"{colour}_{shape}_{width}x{height}.png", f"a {colour} {shape}")
        _draw(colour, shape, (width, height)).save(picture.path)
        pictures.append(picture)
    captions = {picture.caption for picture in pictures}
    say("Draw", f"{len(pictures)} pictures in {len(SIZES)} sizes with {len(captions)} captions")
    return pictures


def write_cache(path: Path, pictures: Sequence[Picture]) -> None:
    """Latents and conditionings are made by stand-ins here: a shrunken picture, and numbers drawn from the caption."""
    started = time.monotonic()
    with CacheWriter(path, provenance={"encoder": "demo stand-ins"}) as writer:
        for picture in pictures:
            with Image.open(picture.path) as image:
                size, latent = image.size, _shrink(image)
            writer.add(
                latent={"samples": latent},
                conditioning=_numbers_of(picture.caption),
                caption=picture.caption,
                source=picture.path.name,
                original_size=size,
            )
    files = [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    say("Save", f"{len(pictures)} samples in {len(files)} files, {size / 1e6:.2f} MB, {_ms(started)}")


def print_buckets(path: Path) -> None:
    started = time.monotonic()
    cache = open_cache(path)
    buckets = {bucket: len(indices) for bucket, indices in cache.buckets().items()}
    say("Open", f"{len(cache)} samples in {len(buckets)} buckets, {_ms(started)}, no tensor read")
    for line in _chart(buckets):
        say("", line)
    latent = cache[0].latent["samples"]
    say("Look", f'{cache[0].source}, "{cache[0].caption}", latent {list(latent.shape)} {latent.dtype}, still on disk')


def read_epoch(path: Path) -> None:
    started = time.monotonic()
    cache = open_cache(path)
    batches = [indices[i : i + BATCH] for indices in cache.buckets().values() for i in range(0, len(indices), BATCH)]
    read = [cache.read_batch(batch.tolist()) for batch in batches]
    size = sum(batch.latents.nbytes for batch in read)
    say("Read", f"{len(read)} batches of {BATCH}, {size / 1e6:.2f} MB of latents, {_ms(started)}")


def check(path: Path) -> int:
    problems = list(verify(path))
    for problem in problems:
        say("", str(problem))
    say("Check", f"{len(problems)} problems" if problems else "every byte is as it was written")
    return len(problems)


def say(step: str, text: str) -> None:
    print(f"{step:6} {text}", flush=True)


def _draw(colour: str, shape: str, size: tuple[int, int]) -> Image.Image:
    image = Image.new("RGB", size, "#eee")
    (width, height), radius = size, min(size) // 3
    box = (width // 2 - radius, height // 2 - radius, width // 2 + radius, height // 2 + radius)
    pen = ImageDraw.Draw(image)
    draw_shape = pen.ellipse if shape == "circle" else pen.rectangle
    draw_shape(box, fill=COLOURS[colour])
    return image


def _shrink(image: Image.Image) -> torch.Tensor:
    """[1, 4, H/8, W/8]: red, green, blue and brightness."""
    small = image.resize((image.width // DOWNSCALE, image.height // DOWNSCALE), Image.Resampling.BOX)
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(small.height, small.width, 3)
    colours = pixels.permute(2, 0, 1).float() / 127.5 - 1
    return torch.cat([colours, colours.mean(0, keepdim=True)])[None].half()


def _numbers_of(caption: str) -> list:
    generator = torch.Generator().manual_seed(int.from_bytes(caption.encode()[-7:], "big"))
    text = torch.randn(1, 8, 64, generator=generator).half()
    return [[text, {"pooled_output": text.mean(1)}]]


def _chart(buckets: dict[Bucket, int]) -> Iterator[str]:
    largest = max(buckets.values())
    for bucket, count in sorted(buckets.items(), key=lambda item: item[0].shape):
        size = "×".join(str(n * DOWNSCALE) for n in reversed(bucket.shape[-2:]))
        yield f"{size:>9} {'█' * max(1, count * CHART_WIDTH // largest)} {count}"


def _ms(started: float) -> str:
    return f"{(time.monotonic() - started) * 1e3:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
