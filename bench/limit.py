"""The limit: `os.preadv` of the very bytes of a batch, at known places, into prepared memory, and nothing else."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from .examples import LATENT, POOLED, TEXT


class Run(NamedTuple):
    """Adjacent bytes of a file."""

    file: int
    offset: int
    size: int


class Limit:
    """Reads batches of samples that were written in order of their number, found by the shards' own headers."""

    def __init__(self, cache: Path, samples: int, captions: int, batch: int) -> None:
        self._files: list[int] = []
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
        for file in self._files:
            os.close(file)

    def _tensors(self, cache: Path) -> Iterator[tuple[tuple[int, ...], Run]]:
        for path in sorted(cache.glob("shards/*.safetensors")):
            file = os.open(path, os.O_RDONLY)
            self._files.append(file)
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
