"""Text without provable padding: whatever is done with a cache, every conditioning comes back bit for bit."""

import copy
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.dataset_cache import (
    UNUSED,
    CacheError,
    CacheWriter,
    LazyTensor,
    SampleFacts,
    clean,
    compact,
    duplicate,
    export,
    map_tensors,
    merge,
    migrate,
    open_cache,
    overview,
    realize,
    repair,
    verify,
)
from streamcache.dataset_cache.format import manifest as manifests
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.lora_train.data.prefetch import Uploader
from streamcache.lora_train.forecast.shapes import Shapes

from ..support.datasets import blob_place, flip
from ..support.padding import KINDS, caption, padded
from ..support.samples import EVERY_DTYPE, bits, counted_reads, same, shard_files
from ..support.small_parts import CHANNELS, TEXT, latent_of, run_training

COUNT = 12


def latent(i: int) -> dict[str, Any]:
    return {"samples": bits((1, 4, 8, 8), seed=i), "number": i}


def put(writer: CacheWriter, i: int, text: Any = None) -> None:
    writer.put(f"latent {i}", latent(i), "latent")
    writer.put(f"caption {i}", caption(i) if text is None else text, "conditioning")
    writer.sample(
        {"latent": [f"latent {i}"], "conditioning": [f"caption {i}"]}, SampleFacts(f"caption {i}", f"{i}.png")
    )


def write(path: Path, numbers: range = range(COUNT), make: Callable[[int], Any] = caption, **options: Any) -> Path:
    with CacheWriter(path, **options) as writer:
        for i in numbers:
            put(writer, i, make(i))
    return path


def templated(i: int) -> list:
    """As encoders that read from left to right make them: all begin with the rows of a template."""
    template = bits((1, 40, 64), torch.float32, 99)
    return [[torch.cat([template, bits((1, 5 + i % 7, 64), torch.float32, i)], 1), {"number": i}]]


def check(path: Path, numbers: range = range(COUNT), make: Callable[[int], Any] = caption) -> None:
    assert list(verify(path)) == []
    for checked in (False, True):
        with open_cache(path, check=checked) as cache:
            assert [sample.caption for sample in cache] == [f"caption {i}" for i in numbers]
            for sample, i in zip(cache, numbers, strict=True):
                assert same(sample.conditioning, make(i)) and same(sample.realize().latent, latent(i))
            draw, buffers = random.Random(1), cache.buffers(4)
            for n in range(12):
                chosen = draw.choices(range(len(numbers)), k=draw.randint(1, 4))
                batch = cache.read_batch(chosen, buffers=buffers if n % 2 else None)
                assert same(batch.conditionings, [make(numbers[i]) for i in chosen])
                assert same(batch.latents, torch.cat([latent(numbers[i])["samples"] for i in chosen]))


def stored_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in shard_files(path))


@pytest.fixture(params=[caption, templated], ids=["padding", "template"])
def make(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    return request.param


def test_f10_a_trimmed_cache_is_smaller_and_says_so(tmp_path, make):
    whole, trimmed = write(tmp_path / "whole", make=make, trim=False), write(tmp_path / "trimmed", make=make)
    check(whole, make=make)
    check(trimmed, make=make)
    assert stored_bytes(trimmed) < 0.5 * stored_bytes(whole)
    assert read_manifest(whole).requires == () and read_manifest(trimmed).requires == ("padding",)
    facts, all_bytes = (
        overview(trimmed),
        sum(t.numel() * t.element_size() for i in range(COUNT) for t in tensors_of(make(i))),
    )
    if make is caption:
        assert facts.bytes_untrimmed == all_bytes
        assert 0.5 * all_bytes < facts.bytes_trimmed < all_bytes
        assert facts.bytes_shared == overview(whole).bytes_shared - facts.bytes_trimmed
    else:
        assert facts.bytes_trimmed == 0 and facts.shared > 2 > overview(whole).shared == 1


def tensors_of(structure: Any) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    map_tensors(structure, lambda tensor: found.setdefault(id(tensor), tensor))
    return list(found.values())


@pytest.mark.parametrize("kind", KINDS)
def test_f10_every_type_survives_the_disk(tmp_path, kind):
    def text(i: int) -> list:
        return [[padded(EVERY_DTYPE[i], (1, 64, 300), kind, i), {"also": padded(EVERY_DTYPE[i], (1, 64, 40), kind, i)}]]

    check(write(tmp_path / "set", range(len(EVERY_DTYPE)), text), range(len(EVERY_DTYPE)), text)


def test_f10_reading_takes_only_what_is_stored(tmp_path):
    cache = open_cache(write(tmp_path / "set"))
    realize(cache[0].conditioning)  # the header of the shard is read too
    with counted_reads() as sizes:
        sample = cache[3]
        text, facts = sample.conditioning[0]
        assert isinstance(text, LazyTensor) and text.shape == (1, 96, 32) and text.dtype == torch.float32
        assert text[0, 2:5].shape == (3, 32) and facts["attention_mask"].numel() == 96 and not sizes
        text.realize()
        assert sum(sizes) == 7 * 32 * 4 + 6 * 4, "seven words, and the signs of six rows of zeros"
        sizes.clear()
        cache.read_batch([3, 4, 5], fields=["conditioning"])
        assert 0 < sum(sizes) < 0.5 * 3 * 96 * 32 * 4


def test_f10_lazy_tensors_behave_as_if_they_were_whole(tmp_path):
    cache, given = open_cache(write(tmp_path / "set")), caption(3)
    found = cache[3].conditioning
    text, whole = found[0][0], given[0][0]
    assert found[0][1]["again"][0] is text
    for look in (
        lambda t: t[0, 1:90:7],
        lambda t: t.transpose(1, 2)[..., 3],
        lambda t: t.view(96, 32).unbind(0)[95],
        lambda t: torch.cat([t, t[:, -1:]], 1),
        lambda t: t.view(torch.int32) * 2,
    ):
        assert same(look(text), look(whole))
    assert same(copy.deepcopy(found), given) and same(pickle.loads(pickle.dumps(found)), given)
    assert same(pickle.loads(pickle.dumps(cache[3])).conditioning, given)
    assert same(realize(found), given)
    text[0, 90] += 1.0
    assert bool((text[0, 90] == whole[0, 90] + 1).all()) and same(text[0, :90], whole[0, :90])
    assert same(cache[3].conditioning, given)


def test_f10_a_batch_can_be_sent_to_another_process(tmp_path):
    batch = open_cache(write(tmp_path / "set")).read_batch([1, 7])
    assert same(pickle.loads(pickle.dumps(batch)).conditionings, [caption(1), caption(7)])


def test_f10_samples_with_variants_and_without_captions_are_read(tmp_path):
    with CacheWriter(tmp_path / "set") as writer:
        for i in range(COUNT):
            put(writer, i)
        writer.sample({"latent": ["latent 1"], "conditioning": ["caption 3", "caption 4"]}, SampleFacts("two"))
        writer.sample({"latent": ["latent 2"]}, SampleFacts("none"))
    cache = open_cache(tmp_path / "set", check=True)
    assert same(cache.sample(COUNT, {"conditioning": 1}).conditioning, caption(4))
    batch = cache.read_batch([COUNT, COUNT + 1, 0], variants={"conditioning": [1, 0, 0]})
    assert same(batch.conditionings, [caption(4), None, caption(0)])
    assert cache[COUNT + 1].conditioning is None


def test_f10_copies_merges_and_compacted_caches_are_trimmed_too(tmp_path, make):
    source = write(tmp_path / "set", make=make)
    more = write(tmp_path / "more", range(COUNT, 2 * COUNT), make, trim=False)
    with CacheWriter(source) as writer:  # some entries are not used any more
        for i in range(6):
            put(writer, i, make(i))
    for name, copied in (("exported", export), ("duplicated", duplicate)):
        copied(source, tmp_path / name)
        check(tmp_path / name, range(6), make)
        assert read_manifest(tmp_path / name).requires == ("padding",)
    merge([source, more], tmp_path / "merged")
    check(tmp_path / "merged", [*range(6), *range(COUNT, 2 * COUNT)], make)
    assert read_manifest(tmp_path / "merged").requires == ("padding",)
    compact(source)
    clean(source, [UNUSED])
    check(source, range(6), make)
    assert migrate(source) is False and stored_bytes(source) < 0.5 * stored_bytes(more)


def test_f10_samples_copied_through_lazy_tensors_are_trimmed_again(tmp_path):
    source = open_cache(write(tmp_path / "whole", trim=False))
    with CacheWriter(tmp_path / "set") as writer:
        for sample in source:
            writer.add(sample.latent, sample.conditioning, sample.caption, sample.source)
    check(tmp_path / "set")
    assert read_manifest(tmp_path / "set").requires == ("padding",)


@pytest.mark.parametrize("by_key", [True, False], ids=["by key", "by content"])
def test_f10_entries_of_an_older_cache_are_kept_and_mixed_with_trimmed_ones(tmp_path, by_key):
    def save(numbers: range, **options: Any) -> int:
        with CacheWriter(tmp_path / "set", append=True, **options) as writer:
            for i in numbers:
                if by_key:
                    put(writer, i)
                else:
                    writer.add(latent(i), caption(i), f"caption {i}", f"{i}.png")
        return stored_bytes(tmp_path / "set")

    before = save(range(6), trim=False)
    assert save(range(6)) == before and read_manifest(tmp_path / "set").requires == ()
    assert save(range(6, COUNT)) < 1.5 * before
    check(tmp_path / "set", [*range(6), *range(6), *range(6, COUNT)])
    after = stored_bytes(tmp_path / "set")
    if by_key:
        assert save(range(COUNT), trim=False) == after, "trimmed entries are not stored again either"


def test_f10_entries_that_a_killed_writer_left_are_taken_over(tmp_path, make):
    writer = CacheWriter(tmp_path / "set")
    for i in range(6):
        put(writer, i, make(i))
    writer.close()
    with CacheWriter(tmp_path / "set") as writer:
        assert writer.recovered_entries == COUNT
        for i in range(COUNT):
            put(writer, i, make(i))
    check(tmp_path / "set", make=make)


def test_f10_an_older_version_refuses_the_cache_and_one_without_padding_opens(tmp_path, monkeypatch):
    path = write(tmp_path / "set")
    open_cache(path).close()
    with monkeypatch.context() as older:
        older.setattr(manifests, "SUPPORTED_FEATURES", frozenset())
        for use in (open_cache, CacheWriter, migrate):
            with pytest.raises(CacheError, match=r"needs the features \['padding'\].*update StreamCache to open it"):
                use(path)
    with CacheWriter(path) as writer:
        put(writer, 50, [[bits((1, 7, 16))]])
    assert read_manifest(path).requires == ("padding",), "unused entries count"
    clean(path, [UNUSED])
    assert read_manifest(path).requires == ()
    monkeypatch.setattr(manifests, "SUPPORTED_FEATURES", frozenset())
    assert len(open_cache(path)) == 1


@pytest.mark.parametrize("tensor", range(4))
def test_f10_a_flipped_bit_in_any_part_is_found_and_repaired(tmp_path, tensor):
    """Rows, pooled output and mask, then the signs."""
    path = write(tmp_path / "set")
    file, offset = blob_place(path, "caption 5", tensor)
    flip(file, offset + 3)
    (problem,) = verify(path)
    assert problem.sample == 5 and problem.kind == "damaged"
    cache = open_cache(path, check=True)
    with pytest.raises(CacheError, match="sample 5 .*stored bytes are damaged"):
        realize(cache[5].conditioning)
    with pytest.raises(CacheError, match="sample 5 .*stored bytes are damaged"):
        cache.read_batch([4, 5])
    cache.close()
    assert [source for _, source in repair(path, accept_loss=True).samples] == ["5.png"]
    check(path, [i for i in range(COUNT) if i != 5])
    with CacheWriter(path) as writer:
        for i in range(COUNT):
            put(writer, i)
    check(path)


def test_f10_damage_in_shared_rows_names_every_caption_that_has_them(tmp_path):
    path = write(tmp_path / "set", make=templated)
    file, offset = blob_place(path, "caption 5", 1)
    flip(file, offset)
    assert {problem.sample for problem in verify(path)} == set(range(1, COUNT)), "the first was stored whole"


def test_f10_a_damaged_layout_is_reported_and_asks_for_no_memory(tmp_path):
    path = write(tmp_path / "set", range(1))
    (index,) = path.glob("index-*.safetensors")
    data = index.read_bytes()
    assert data.count(b'"padded":[[0,1,96,') == 1
    index.write_bytes(data.replace(b'"padded":[[0,1,96,', b'"padded":[[0,9,96,'))
    assert [problem.kind for problem in verify(path)] == ["damaged"]
    with pytest.raises(CacheError):
        open_cache(path)


def test_f10_what_was_trimmed_is_not_copied_to_the_device(tmp_path, monkeypatch):
    batch = open_cache(write(tmp_path / "set")).read_batch([1, 2, 3])
    copied: list[int] = []
    monkeypatch.setattr(Uploader, "_copy", lambda self, t: copied.append(t.numel() * t.element_size()) or t.clone())
    uploader = Uploader(torch.device("cpu"))
    sent = batch.map(uploader._copy)
    assert same(sent.conditionings, [caption(1), caption(2), caption(3)]) and same(sent.latents, batch.latents)
    assert sum(copied) < 0.5 * 3 * 96 * 32 * 4
    assert sent.conditionings[0][0][1]["again"][0] is sent.conditionings[0][0][0]
    assert sent.captions == batch.captions and sent.indices == [1, 2, 3]


def test_f10_a_forecast_counts_the_restored_conditioning(tmp_path):
    batch = open_cache(write(tmp_path / "set")).read_batch([1, 2, 3])
    assert [row[0][0].shape for row in Shapes().of_batch(batch).conditionings] == [(1, 96, 32)] * 3


def test_f10_training_gives_the_same_losses_and_the_same_lora(tmp_path):
    found = []
    for trim in (True, False):
        folder = tmp_path / str(trim)
        with CacheWriter(folder / "set", trim=trim) as writer:
            for i in range(16):
                text = (
                    padded(torch.float32, (1, 300, TEXT), "both", i, words=4 + i % 9)
                    .nan_to_num(0.0, 0.0, 0.0)
                    .clamp(-3, 3)
                )
                writer.add(latent_of(i, (8, 8)), [[text, {}]], f"caption {i}", f"{i}.png")
        dataset = open_cache(folder / "set")
        assert (
            dataset.manifest.requires == (("padding",) if trim else ())
            and dataset[0].latent["samples"].shape[1] == CHANNELS
        )
        result = run_training(folder, dataset, steps=12, batch_size=3)
        rows = [json.loads(line) for line in (folder / "runs/test/metrics.jsonl").read_text().splitlines()]
        found.append(([row["loss"] for row in rows if "loss" in row], result.lora.read_bytes()))
    assert len(found[0][0]) == 12 and found[0][0] == found[1][0]


@pytest.mark.parametrize("trim", [True, False])
def test_f10_samples_of_a_plain_script_are_trimmed_unless_told_otherwise(tmp_path, trim):
    with CacheWriter(tmp_path / "set", trim=trim) as writer:
        for i in range(COUNT):
            writer.add(latent(i), caption(i), f"caption {i}", f"{i}.png", other=caption(i), mask=torch.zeros(1, 64, 64))
        assert (writer.trimmed_bytes > 0) == trim
    cache = open_cache(tmp_path / "set", check=True)
    assert all(same(realize(sample.fields["other"]), caption(i)) for i, sample in enumerate(cache))
    assert cache.manifest.requires == (("padding",) if trim else ()), "only conditionings are trimmed"


def test_f10_a_batch_is_restored_in_the_memory_of_its_buffers(tmp_path):
    cache = open_cache(write(tmp_path / "set"))
    buffers, draw = cache.buffers(4), random.Random(3)
    memory = set()
    for n in range(40):
        chosen = draw.choices(range(COUNT), k=1 + n % 4)
        batch = cache.read_batch(chosen, buffers=buffers)
        assert same(batch.conditionings, [caption(i) for i in chosen])
        memory.add(batch.conditionings[0][0][0].untyped_storage().data_ptr())
        own = [row[0][0].data_ptr() for row in batch.conditionings]
        assert len({*own}) == len(own)
    assert len(memory) <= 4, "it grows with the first batches"
    kept = cache.read_batch([1, 2])
    cache.read_batch([3, 4])
    assert same(kept.conditionings, [caption(1), caption(2)])
