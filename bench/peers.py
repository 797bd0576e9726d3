"""Other ways to store the same samples, and the limit: reading the bytes of a batch and nothing else."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from .examples import LATENT, POOLED, SIZE_NAMES, TEXT, Example

SHARD_SAMPLES = 500


class Loaded(NamedTuple):
    """What a trainer needs from a batch: stacked latents and the conditioning of each sample."""

    latents: torch.Tensor
    conditionings: list[Any]


Read = Callable[[Sequence[int]], Loaded]


class Peer(NamedTuple):
    """One way to store samples. `open` may prepare the whole set; the function it returns reads one batch."""

    write: Callable[[Path, Iterable[Example]], None]
    open: Callable[[Path], Read]


def conditioning_of(text: torch.Tensor, pooled: torch.Tensor, sizes: Sequence[int]) -> list[Any]:
    return [[text, {"pooled_output": pooled, **dict(zip(SIZE_NAMES, sizes))}]]


def join(parts: Iterable[tuple[torch.Tensor, list[Any]]]) -> Loaded:
    latents, conditionings = zip(*parts)
    return Loaded(torch.cat(latents), list(conditionings))


def named(example: Example) -> dict[str, torch.Tensor]:
    return {
        "latent": example.latent,
        "text": example.text,
        "pooled": example.pooled,
        "sizes": torch.tensor(example.sizes),
    }


def from_named(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, list[Any]]:
    conditioning = conditioning_of(tensors["text"], tensors["pooled"], tensors["sizes"].tolist())
    return tensors["latent"], conditioning


def from_mapped(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, list[Any]]:
    """safetensors returns views of the mapped file: nothing is read until they are copied."""
    latent, conditioning = from_named(tensors)
    return latent, copy_of(conditioning)


def copy_of(conditioning: list[Any]) -> list[Any]:
    text, facts = conditioning[0]
    return [[text.clone(), {**facts, "pooled_output": facts["pooled_output"].clone()}]]


def shards_of(examples: Iterable[Example]) -> Iterable[list[Example]]:
    shard: list[Example] = []
    for example in examples:
        shard.append(example)
        if len(shard) == SHARD_SAMPLES:
            yield shard
            shard = []
    if shard:
        yield shard


def write_pickle_shards(folder: Path, examples: Iterable[Example]) -> None:
    """As ComfyUI's SaveTrainingDataset does: lists of latents and conditionings, pickled by torch."""
    for number, shard in enumerate(shards_of(examples)):
        content = {
            "latents": [{"samples": example.latent} for example in shard],
            "conditioning": [example.conditioning for example in shard],
        }
        torch.save(content, folder / f"shard_{number:04d}.pkl")


def open_pickle_shards(folder: Path) -> Read:
    """As ComfyUI's loader does: load everything into memory. A batch is a copy that the trainer may change."""
    shards = [torch.load(path, weights_only=True) for path in sorted(folder.glob("shard_*.pkl"))]
    latents = [latent["samples"] for shard in shards for latent in shard["latents"]]
    conditionings = [conditioning for shard in shards for conditioning in shard["conditioning"]]

    def read_one(i: int) -> tuple[torch.Tensor, list[Any]]:
        return latents[i], copy_of(conditionings[i])

    return lambda indices: join(read_one(i) for i in indices)


def write_safe_open_shards(folder: Path, examples: Iterable[Example]) -> None:
    for number, shard in enumerate(shards_of(examples)):
        tensors = {f"{e.number}.{name}": tensor for e in shard for name, tensor in named(e).items()}
        save_file(tensors, folder / f"{number:04d}.safetensors")


def open_safe_open_shards(folder: Path) -> Read:
    files = [safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))]

    def read_one(i: int) -> tuple[torch.Tensor, list[Any]]:
        file = files[i // SHARD_SAMPLES]
        return from_mapped({name: file.get_tensor(f"{i}.{name}") for name in ("latent", "text", "pooled", "sizes")})

    return lambda indices: join(read_one(i) for i in indices)


def write_safetensors_files(folder: Path, examples: Iterable[Example]) -> None:
    for example in examples:
        save_file(named(example), folder / f"{example.number}.safetensors")


def open_safetensors_files(folder: Path) -> Read:
    return lambda indices: join(from_mapped(load_file(folder / f"{i}.safetensors")) for i in indices)


def write_pt_files(folder: Path, examples: Iterable[Example]) -> None:
    for example in examples:
        torch.save({"latent": example.latent, "conditioning": example.conditioning}, folder / f"{example.number}.pt")


def open_pt_files(folder: Path) -> Read:
    def read_one(i: int) -> tuple[torch.Tensor, list[Any]]:
        content = torch.load(folder / f"{i}.pt", weights_only=True)
        return content["latent"], content["conditioning"]

    return lambda indices: join(read_one(i) for i in indices)


def write_npz_files(folder: Path, examples: Iterable[Example]) -> None:
    for example in examples:
        np.savez(folder / f"{example.number}.npz", **{name: t.numpy() for name, t in named(example).items()})


def open_npz_files(folder: Path) -> Read:
    def read_one(i: int) -> tuple[torch.Tensor, list[Any]]:
        with np.load(folder / f"{i}.npz") as content:
            return from_named({name: torch.from_numpy(content[name]) for name in content.files})

    return lambda indices: join(read_one(i) for i in indices)


PEERS = {
    "pickle shards, all in memory": Peer(write_pickle_shards, open_pickle_shards),
    "safe_open shards": Peer(write_safe_open_shards, open_safe_open_shards),
    "a .safetensors per sample": Peer(write_safetensors_files, open_safetensors_files),
    "a .pt per sample": Peer(write_pt_files, open_pt_files),
    "an .npz per sample": Peer(write_npz_files, open_npz_files),
}


class Run(NamedTuple):
    """Contiguous bytes of a file."""

    file: int
    offset: int
    size: int


class Limit:
    """`os.preadv` of the bytes of a batch, at known places, into prepared memory, and nothing else.

    The samples were written in the order of their numbers; the shards' headers give the places.
    """

    def __init__(self, cache: Path, samples: int, captions: int, batch: int) -> None:
        self.files: list[int] = []
        found: dict[tuple[int, ...], list[Run]] = {LATENT: [], TEXT: [], POOLED: []}
        for shape, run in self._tensors(cache):
            found.setdefault(shape, []).append(run)
        assert [len(found[shape]) for shape in (LATENT, TEXT, POOLED)] == [samples, captions, captions]
        parts = [(found[LATENT][i], found[TEXT][i % captions], found[POOLED][i % captions]) for i in range(samples)]
        self.runs = [list(_merge(part)) for part in parts]
        self._memory = torch.empty(batch * sum(run.size for run in parts[0]), dtype=torch.uint8)

    def read(self, indices: Sequence[int]) -> None:
        memory, position = memoryview(self._memory.numpy()), 0
        for i in indices:
            for file, offset, size in self.runs[i]:
                end = position + size
                os.preadv(file, [memory[position:end]], offset)
                position = end

    def close(self) -> None:
        for file in self.files:
            os.close(file)

    def _tensors(self, cache: Path) -> Iterator[tuple[tuple[int, ...], Run]]:
        for path in sorted(cache.glob("shards/*.safetensors")):
            file = os.open(path, os.O_RDONLY)
            self.files.append(file)
            size = int.from_bytes(os.pread(file, 8, 0), "little")
            header = json.loads(os.pread(file, size, 8))
            header.pop("__metadata__", None)
            for info in sorted(header.values(), key=lambda info: info["data_offsets"]):
                begin, end = info["data_offsets"]
                yield tuple(info["shape"]), Run(file, 8 + size + begin, end - begin)


def _merge(runs: Sequence[Run]) -> Iterator[Run]:
    last = runs[0]
    for run in runs[1:]:
        if (run.file, run.offset) == (last.file, last.offset + last.size):
            last = last._replace(size=last.size + run.size)
        else:
            yield last
            last = run
    yield last
