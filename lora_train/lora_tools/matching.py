"""Which layers of several LoRA files are the same, and what they are called in a new file."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import TrainError
from .names import component_of, is_sdxl, respell, same_name
from .reader import LoraReader

Sources = list[tuple[int, str]]  # (number of the file, its prefix)


def match_layers(files: Sequence[LoraReader]) -> dict[str, Sources]:
    """Prefix in the new file → where it is found. The new file has the naming of the first one.

    Files for different models are refused: those that say so, and those without a common layer in a part that both
    have (the model, a text encoder).
    """
    _refuse_other_bases(files)
    matched: dict[str, Sources] = {}  # by the name that all spellings share
    for number, file in enumerate(files):
        for prefix in file.layers:
            sources = matched.setdefault(_shared_name(prefix), [])
            if sources and sources[-1][0] == number:
                raise TrainError(
                    f'{file.where}: "{sources[-1][1]}" and "{prefix}" are the same layer; expected it once'
                )
            sources.append((number, prefix))
    for number in range(1, len(files)):
        _refuse_strangers(files, number, matched)
    return {_new_prefix(files, sources): sources for sources in matched.values()}


def _shared_name(prefix: str) -> str:
    return f"{component_of(prefix)} {same_name(prefix)}"


def _new_prefix(files: Sequence[LoraReader], sources: Sources) -> str:
    number, prefix = sources[0]
    naming = files[0].naming
    if number == 0 or files[number].naming == naming:
        return prefix
    for number, prefix in sources:
        new = respell(prefix, naming, files[number].metadata)
        if new is not None:
            return new
    raise TrainError(
        f"{files[number].where}: {prefix} has no name in the naming of {files[0].path.name} ({naming}) that follows "
        f"from its own; convert one of the files first: streamcache lora convert --naming {naming} --comfyui FOLDER"
    )


def _refuse_other_bases(files: Sequence[LoraReader]) -> None:
    """Refuse files whose metadata name different families; the versions of one family's name vary."""
    first = files[0]
    for other in files[1:]:
        keys = [key for key in ("modelspec.architecture", "ss_base_model_version") if key in first.metadata]
        for key in keys:
            ours, theirs = first.metadata[key], other.metadata.get(key)
            alike = theirs is None or ours == theirs or (is_sdxl(first.metadata) and is_sdxl(other.metadata))
            if not alike and not _share_layers(first, other):
                raise TrainError(
                    f"{other.where}: is for {theirs}, but {first.path.name} is for {ours}; they cannot be combined"
                )


def _share_layers(first: LoraReader, other: LoraReader) -> bool:
    return bool({_shared_name(prefix) for prefix in first.layers} & {_shared_name(prefix) for prefix in other.layers})


def _refuse_strangers(files: Sequence[LoraReader], number: int, matched: dict[str, Sources]) -> None:
    own = {_shared_name(prefix): prefix for prefix in files[number].layers}
    earlier = {name: sources[0] for name, sources in matched.items() if sources[0][0] < number}
    for component in sorted({component_of(prefix) for prefix in own.values()}):
        here = [name for name in own if name.startswith(f"{component} ")]
        before = [name for name in earlier if name.startswith(f"{component} ")]
        if before and not set(here) & set(before):
            place, prefix = earlier[before[0]]
            raise TrainError(
                f"{files[number].where}: has no layer in common with {files[place].path.name}: it has "
                f'"{own[here[0]]}", the other has "{prefix}"; they are for different models, or in namings that only '
                "the model translates (streamcache lora convert --comfyui FOLDER)"
            )
