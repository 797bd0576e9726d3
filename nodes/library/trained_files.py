"""The files of a training as saved outputs, which ComfyUI's assets and jobs show, and what is said about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ...lora_train import Run, TrainResult, sample_images

LISTED = 6  # files that are named in a text


def trained_files(result: TrainResult, run: Run, output: Path) -> dict[str, list[dict[str, str]]]:
    """The last sample images and the loss plot, and all LoRA files; those outside of the output folder are left out."""
    samples = sample_images(run.samples).get(result.step, {}).values()
    return {
        "images": _saved([*samples, run.folder / "loss.png"], output),
        "loras": _saved([*result.exports, result.lora], output),
    }


def describe_files(result: TrainResult) -> list[str]:
    """Lines about the LoRA files beside the last one."""
    found = []
    if result.exports:
        found.append(
            f"LoRA files of earlier steps ({len(result.exports):,}): {_names([p.name for p in result.exports])}"
        )
    if result.missing:
        found.append(f"Missing LoRA files, moved or deleted since: {_names(result.missing)}")
    return found


def _saved(paths: Iterable[Path], output: Path) -> list[dict[str, str]]:
    output = output.absolute()
    inside = [path for path in (path.absolute() for path in paths) if path.is_relative_to(output) and path.is_file()]
    places = [(path.name, path.parent.relative_to(output).as_posix()) for path in inside]
    return [{"filename": name, "subfolder": "" if place == "." else place, "type": "output"} for name, place in places]


def _names(names: Sequence[str]) -> str:
    return ", ".join([*names[:LISTED], *(["…"] if len(names) > LISTED else [])])
