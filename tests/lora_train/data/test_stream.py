"""BatchStream: the trainer's batches, shared out among processes and workers, from any position on."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from streamcache.dataset_cache import Cache, CacheWriter, Subset, open_cache
from streamcache.errors import TrainError
from streamcache.lora_train import TrainConfig
from streamcache.lora_train.data import stream as stream_file
from streamcache.lora_train.data.stream import BatchStream
from streamcache.lora_train.session import make_order

from ...support.samples import same, sample, write_cache

COUNT, SEED = 23, 7


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    with open_cache(write_cache(tmp_path_factory.mktemp("stream") / "set", COUNT)) as opened:
        yield opened


def of_training(dataset, epoch: int, **settings) -> list[list[int]]:
    """The batches that the trainer draws for an epoch."""
    order, _ = make_order(dataset, TrainConfig(seed=SEED, **settings))
    drawn = order.epoch(epoch)
    return [order.plan(drawn, place).indices for place in range(len(order))]


def read(stream: BatchStream) -> list[list[int]]:
    return [batch.indices for batch in stream]


def test_f8_batches_come_in_the_order_of_training(cache: Cache):
    stream = BatchStream(cache, 4, SEED)
    for epoch in (0, 1, 5):
        stream.set_epoch(epoch)
        assert stream.epoch == epoch and read(stream) == of_training(cache, epoch, batch_size=4)
    full = BatchStream(cache, 4, SEED, full_batches=True)
    assert read(full) == of_training(cache, 0, batch_size=4, batch_split="full")


def test_f8_the_order_follows_sets_repeats_and_variants(tmp_path: Path):
    with CacheWriter(tmp_path / "set") as writer:
        writer.describe_set("many", {"weight": 0.5})
        writer.describe_set("prior", {"prior": True})
        for i in range(12):
            writer.add(**sample(i), repeats=1 + i % 2, set=("many", "prior", "")[i % 3])
    with open_cache(tmp_path / "set") as cache:
        stream = BatchStream(cache, 2, SEED)
        assert read(stream) == of_training(cache, 0, batch_size=2)
        assert {i % 3 for batch in read(stream) for i in batch} == {0, 1, 2}


def test_f8_a_batch_has_what_its_samples_have(cache: Cache):
    for batch in BatchStream(cache, 3, SEED):
        for row, i in enumerate(batch.indices):
            assert same(batch.latents[row : row + 1], cache[i].realize().latent["samples"])
            assert same(batch.conditionings[row], cache[i].realize().conditioning)
            assert batch.captions[row] == cache[i].caption
    first = next(iter(BatchStream(cache, 3, SEED, fields=["latent"])))
    assert first.conditionings == [] and first.latents is not None


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_f8_processes_and_workers_read_every_batch_once(cache: Cache, monkeypatch: pytest.MonkeyPatch, world: int):
    expected = of_training(cache, 2, batch_size=2)
    for workers in (1, 2, 3):
        found: dict[int, list[int]] = {}
        for rank in range(world):
            stream = BatchStream(cache, 2, SEED, rank=rank, world_size=world)
            stream.set_epoch(2)
            parts = []
            for worker in range(workers):
                info = type("Info", (), {"id": worker, "num_workers": workers})
                monkeypatch.setattr(stream_file, "get_worker_info", lambda info=info: info)
                parts.append(read(stream))
            monkeypatch.setattr(stream_file, "get_worker_info", get_worker_info)
            # As the DataLoader takes them: one from each worker in turn.
            merged = [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]
            assert merged == read(stream) and len(merged) == len(stream)
            found |= {rank + world * i: batch for i, batch in enumerate(merged)}
        assert [found[number] for number in sorted(found)] == expected


def test_f8_even_gives_every_process_as_many_batches(cache: Cache):
    expected = of_training(cache, 0, batch_size=2)
    streams = [BatchStream(cache, 2, SEED, rank=rank, world_size=5, even=True) for rank in range(5)]
    assert len(expected) % 5 and {len(stream) for stream in streams} == {len(expected) // 5}
    assert sorted(b for stream in streams for b in read(stream)) == sorted(expected[: len(expected) // 5 * 5])


def test_f8_a_stream_goes_on_at_any_batch(cache: Cache):
    for rank in range(2):
        stream = BatchStream(cache, 2, SEED, rank=rank, world_size=2)
        stream.set_epoch(3)
        whole = read(stream)
        for start in range(len(whole) + 1):
            stream.set_epoch(3, start)
            assert read(stream) == whole[start:] and len(stream) == len(whole) - start
        stream.set_epoch(4)
        assert read(stream) != whole  # and from its beginning again
        with pytest.raises(TrainError, match=f"batch from 0 to {len(whole)}"):
            stream.set_epoch(3, len(whole) + 1)


def test_f8_subsets_and_copies_give_the_same_batches(cache: Cache):
    part = Subset(Subset(cache, range(2, 20)), range(0, 18, 2))
    stream = BatchStream(part, 2, SEED)
    stream.set_epoch(2)
    assert sorted(i for batch in read(stream) for i in batch) == list(range(9))
    assert read(stream) == of_training(part, 2, batch_size=2)
    twin = pickle.loads(pickle.dumps(stream))
    assert twin.epoch == 2 and read(twin) == read(stream)


def test_f8_a_loader_without_workers_counts_what_is_left(cache: Cache):
    stream = BatchStream(cache, 4, SEED)
    loader = DataLoader(stream, batch_size=None)
    stream.set_epoch(1, 2)
    assert len(loader) == len(stream) and [b.indices for b in loader] == of_training(cache, 1, batch_size=4)[2:]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"rank": -1}, "rank -1"),
        ({"batch_size": 0}, "batch_size = 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(cache: Cache, wrong: dict, message: str):
    with pytest.raises(TrainError, match=message):
        BatchStream(cache, **wrong)


def test_a_batch_maps_every_tensor_and_pins(cache: Cache, monkeypatch: pytest.MonkeyPatch):
    batch = cache.read_batch([0, 3])
    doubled = batch.map(lambda tensor: tensor.double())
    assert doubled.latents.dtype == torch.float64 and doubled.captions == batch.captions
    assert doubled.conditionings[1][0][1]["pooled_output"].dtype == torch.float64
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    assert torch.equal(torch.nan_to_num(batch.pin_memory().latents), torch.nan_to_num(batch.latents + 1))
