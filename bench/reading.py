"""Reading random batches: our reader against the limit and against other formats, in turns in one process."""

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import cycle
from pathlib import Path

import torch

from ..dataset_cache import Batch, CacheWriter, open_cache
from .examples import EXAMPLE_BYTES, Example, make_example, make_examples
from .peers import PEERS, Limit, Loaded, Read
from .rounds import Settings, Times, take_turns, warm
from .table import Figure

BATCH = 4
LIMIT = "raw preadv"
REUSED, FRESH = "reused buffers", "fresh tensors"
CAPTION_SHARE = 20  # samples per caption if captions repeat


def measure_reading(folder: Path, settings: Settings) -> list[Figure]:
    """Every sample has its own caption: one run of bytes per sample."""
    count = settings.samples
    write_cache(folder / "cache", count)
    readers = {name: _open_peer(name, folder, count) for name in PEERS}
    readers |= our_readers(folder / "cache")
    check(readers, count)
    warm(folder)
    with closing(Limit(folder / "cache", count, count, BATCH)) as limit:
        times = race({LIMIT: limit.read, **readers}, count, settings)
    group = f"Reading random batches of {BATCH} ({count:,} samples of {EXAMPLE_BYTES // 1000} KB, warm)"
    targets = {REUSED: 1.12, FRESH: 1.20}
    faster = {"safe_open shards": 2.5, "a .pt per sample": 15.0, "an .npz per sample": 20.0}
    return [
        *limit_figures(group, times, targets),
        *(Figure(group, name, times.ratio(name, LIMIT), "× limit") for name in PEERS),
        *(
            Figure(group, f"{FRESH} against {name}", times.ratio(name, FRESH), "× faster", faster.get(name), True)
            for name in PEERS
        ),
    ]


def measure_repeated_captions(folder: Path, settings: Settings) -> list[Figure]:
    """Captions repeat: two runs of bytes per sample, anywhere in the shards."""
    count, captions = settings.samples, max(1, settings.samples // CAPTION_SHARE)
    write_cache(folder / "cache", count, captions)
    readers = our_readers(folder / "cache")
    check(readers, count, captions)
    warm(folder)
    with closing(Limit(folder / "cache", count, captions, BATCH)) as limit:
        times = race({LIMIT: limit.read, **readers}, count, settings)
    group = f"Reading if captions repeat ({count:,} samples, {captions} captions)"
    return limit_figures(group, times, {REUSED: 1.15, FRESH: None})


def limit_figures(group: str, times: Times, targets: dict[str, float | None]) -> list[Figure]:
    limit = Figure(group, LIMIT, times.median(LIMIT) * 1e3, "ms per batch", note="the limit: 1.00")
    ours = [Figure(group, name, times.ratio(name, LIMIT), "× limit", target) for name, target in targets.items()]
    return [limit, *ours]


def write_cache(path: Path, count: int, captions: int | None = None) -> None:
    with CacheWriter(path, provenance={"made by": "bench"}) as writer:
        for example in make_examples(count, captions):
            add_example(writer, example)


def add_example(writer: CacheWriter, example: Example) -> None:
    writer.add(
        latent={"samples": example.latent},
        conditioning=example.conditioning,
        caption=f"caption {example.sizes}",
        source=f"{example.number:06d}.png",
    )


def our_readers(path: Path) -> dict[str, Read]:
    cache = open_cache(path)
    # Two buffers in turn, as in the trainer: one batch trains while the next one loads.
    slots = cycle([cache.buffers(BATCH), cache.buffers(BATCH)])
    return {
        REUSED: lambda indices: _loaded(cache.read_batch(indices, buffers=next(slots))),
        FRESH: lambda indices: _loaded(cache.read_batch(indices)),
    }


def check(readers: dict[str, Read], count: int, captions: int | None = None) -> None:
    """Only a reader that returns what was written is measured."""
    indices = [count - 1, 0, count // 2, 1]
    expected = [make_example(i, captions) for i in indices]
    for name, read in readers.items():
        loaded = read(indices)
        assert torch.equal(loaded.latents, torch.cat([e.latent for e in expected])), name
        for found, example in zip(loaded.conditionings, expected, strict=True):
            text, facts = found[0]
            wanted_text, wanted = example.conditioning[0]
            assert torch.equal(text, wanted_text), name
            assert torch.equal(facts.pop("pooled_output"), wanted.pop("pooled_output")), name
            assert facts == wanted, name


def race(readers: dict[str, Callable[[Sequence[int]], object]], count: int, settings: Settings) -> Times:
    """All readers read the same batches; every round has new ones, so that none is in the processor's cache."""
    order = random.Random(0)
    rounds = [[order.sample(range(count), BATCH) for _ in range(settings.batches)] for _ in range(settings.rounds + 1)]
    return take_turns(readers, rounds)


def _open_peer(name: str, folder: Path, count: int) -> Read:
    place = folder / "".join(c if c.isalnum() else "_" for c in name)
    place.mkdir()
    PEERS[name].write(place, make_examples(count))
    return PEERS[name].open(place)


def _loaded(batch: Batch) -> Loaded:
    return Loaded(batch.latents, batch.conditionings)
