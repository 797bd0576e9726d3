"""The writer: one sample in memory, each blob stored once, flushed at intervals, published in one step."""

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, SampleFacts, open_cache
from streamcache.dataset_cache.format import segment
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.write.repack import SMALL_SHARDS, merge_small

from ...support.samples import (
    assert_holds,
    bits,
    conditioning,
    latent,
    put_sample,
    same,
    sample,
    shard_files,
    write_cache,
)
from .stored_bytes import data_bytes

pytestmark = pytest.mark.usefixtures("platform")


def test_added_samples_are_read_back(tmp_path):
    assert_holds(open_cache(write_cache(tmp_path / "set", 7), check=True), range(7))


def test_every_fact_of_a_sample_is_kept(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        number = w.add(
            **{**sample(0), "caption": ["one", "two", ""]},
            repeats=3,
            weight=0.25,
            set="prior",
            mask={"m": bits((2, 2))},
        )
        w.add(**sample(1), set="main")
        w.describe_set("prior", {"prior": True})
    cache = open_cache(tmp_path / "set")
    found = cache[number]
    assert (found.captions, found.caption, found.repeats, found.weight, found.set) == (
        ("one", "two", ""),
        "one",
        3,
        0.25,
        "prior",
    )
    assert cache.column("repeats").tolist() == [3, 1] and cache.column("weight").tolist() == [0.25, 1.0]
    assert [list(cache.sets)[n] for n in cache.column("set")] == ["prior", "main"]
    assert cache.sets == {"prior": {"prior": True}, "main": {}}
    assert cache.column("original_size").tolist() == [[640, 480], [641, 480]]
    assert cache.fields == ("latent", "conditioning", "mask") and cache.variants("mask").tolist() == [1, 0]
    assert same(found.fields["mask"], {"m": bits((2, 2))}) and "mask" not in cache[1].fields


def test_samples_without_entries_are_kept(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        w.sample({}, SampleFacts(captions="nothing yet", source="a.png"))
    cache = open_cache(tmp_path / "set")
    assert (cache[0].caption, cache[0].latent, dict(cache[0].fields)) == ("nothing yet", None, {})
    assert cache.read_batch([0]).latents is None
    write_cache(tmp_path / "set", 1, append=True)
    assert same(open_cache(tmp_path / "set")[1].latent, latent(0))


# Streaming and deduplication


def test_c8_saving_a_dataset_again_is_streamed_too(tmp_path):
    write_cache(tmp_path / "one", 6)
    with CacheWriter(tmp_path / "two") as w:
        for one in open_cache(tmp_path / "one"):
            w.add(one.latent, one.conditioning, one.caption, one.source, one.original_size, one.crop)
            assert not one.latent["samples"].is_real
    assert_holds(open_cache(tmp_path / "two", check=True), range(6))


def test_equal_bytes_of_another_type_or_shape_are_not_the_same(tmp_path):
    given = [torch.zeros(4, dtype=torch.int32), torch.zeros(4), torch.zeros(2, 2), torch.zeros(16, dtype=torch.uint8)]
    with CacheWriter(tmp_path / "set") as w:
        for tensor in given:
            w.add(thing=tensor)
    assert all(same(one.fields["thing"], tensor) for one, tensor in zip(open_cache(tmp_path / "set"), given))


# Keys


def test_a_key_is_put_once_and_found_later(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        assert not w.has("a")
        w.put("a", latent(0), field="latent")
        w.put("a", latent(1), field="latent")
        w.put(b"0123456789abcdef", conditioning(0), field="conditioning")
        w.name("empty caption", b"0123456789abcdef")
        assert w.has("a") and w.has(b"0123456789abcdef")
    cache = open_cache(tmp_path / "set")
    assert len(cache) == 0 and cache.has("a") and not cache.has("b")
    assert same(cache.entry("a"), latent(0))
    assert same(cache.entry(cache.named["empty caption"]), conditioning(0))
    assert read_manifest(tmp_path / "set").counts == {"samples": 0, "entries": 2, "unused": 1}


def test_a4_unused_entries_are_kept_and_found(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        put_sample(w, 0)
    with CacheWriter(tmp_path / "set") as w:
        put_sample(w, 1)
    assert_holds(open_cache(tmp_path / "set"), [1])
    with CacheWriter(tmp_path / "set") as w:
        w.once("latent 0", lambda: pytest.fail("it is stored"), "latent")
        put_sample(w, 0)
    assert_holds(open_cache(tmp_path / "set"), [0])
    assert read_manifest(tmp_path / "set").counts["unused"] == 2


def test_variants_are_read_by_number(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        for n in range(3):
            w.put(f"text {n}", conditioning(n), "conditioning")
        w.put("latent", latent(0), "latent")
        w.sample(
            {"latent": ["latent"], "conditioning": ["text 0", "text 1", "text 2"]},
            SampleFacts(captions=["a", "b", "c"]),
        )
        w.sample({"latent": ["latent"], "conditioning": ["text 2"]}, SampleFacts(captions="z"))
    cache = open_cache(tmp_path / "set", check=True)
    assert cache.variants("conditioning").tolist() == [3, 1]
    for n in range(3):
        chosen = cache.sample(0, {"conditioning": n})
        assert same(chosen.conditioning, conditioning(n)) and chosen.caption == "abc"[n]
        batch = cache.read_batch([0, 1], variants={"conditioning": [n, 0]})
        assert same(batch.conditionings, [conditioning(n), conditioning(2)]) and batch.captions == ["abc"[n], "z"]
    with pytest.raises(CacheError, match="sample 1.*variant 1 of conditioning.*has 1"):
        cache.read_batch([0, 1], variants={"conditioning": [1, 1]})
    with pytest.raises(CacheError, match="variant 3 of conditioning"):
        cache.sample(0, {"conditioning": 3}).realize()


def test_a24_eight_threads_asking_for_one_key_make_it_once(tmp_path):
    made = []

    def make() -> list:
        made.append(threading.get_ident())
        time.sleep(0.02)
        return conditioning(0)

    with CacheWriter(tmp_path / "set") as w, ThreadPoolExecutor(8) as pool:
        start = threading.Barrier(8, timeout=300)

        def encode(n: int) -> None:
            if n < 8:
                start.wait()
            w.once("one caption", make, "conditioning")
            w.put(f"latent {n}", latent(n, (1, 4, 8, 8)), "latent")
            w.sample({"latent": [f"latent {n}"], "conditioning": ["one caption"]}, SampleFacts(source=f"{n}.png"))

        list(pool.map(encode, range(50)))
    cache = open_cache(tmp_path / "set", check=True)
    assert len(made) == 1 and len(cache) == 50
    assert data_bytes(tmp_path / "set") == 50 * 512 + 5 * 16 * 4 + 12 * 2
    for one in cache:
        number = int(one.source.removesuffix(".png"))
        assert same(one.latent, latent(number, (1, 4, 8, 8))) and same(one.conditioning, conditioning(0))


def test_after_a_failed_make_the_next_thread_tries(tmp_path):
    attempts = []

    def make() -> list:
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("out of memory")
        return conditioning(0)

    with CacheWriter(tmp_path / "set") as w:
        with pytest.raises(RuntimeError):
            w.once("key", make, "conditioning")
        w.once("key", make, "conditioning")
        w.once("key", make, "conditioning")
    assert len(attempts) == 2


def test_concurrent_adds_lose_nothing(tmp_path):
    with CacheWriter(tmp_path / "set", flush_bytes=2000) as w, ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda i: w.add(**sample(i)), range(60)))
    assert sorted(numbers) == list(range(60))
    cache = open_cache(tmp_path / "set", check=True)
    for i, number in enumerate(numbers):
        assert same(cache[number].latent, latent(i)) and cache[number].caption == f"caption {i}"


# Publishing


def test_c10_saving_fewer_samples_leaves_none_of_the_old(tmp_path):
    write_cache(tmp_path / "set", 10)
    write_cache(tmp_path / "set", 4, first=20)
    assert_holds(open_cache(tmp_path / "set"), range(20, 24))


def test_append_continues_after_the_last_run(tmp_path):
    path = write_cache(tmp_path / "set", 3, provenance={"by": "me"})
    identity = open_cache(path).id
    for first in (3, 4, 6):
        write_cache(path, 2 if first == 4 else 1, first=first, append=True)
    cache = open_cache(path, check=True)
    assert_holds(cache, range(7))
    assert cache.provenance == {"by": "me"} and cache.id == identity


def test_a_field_added_later_is_a_hole_in_earlier_samples(tmp_path):
    write_cache(tmp_path / "set", 3)
    with CacheWriter(tmp_path / "set", append=True) as w:
        w.add(**sample(3), mask=bits((4,)))
    cache = open_cache(tmp_path / "set", check=True)
    assert_holds(cache, range(4))
    assert cache.variants("mask").tolist() == [0, 0, 0, 1]
    batch = cache.read_batch([0, 3])
    assert batch.masks[0] is None and same(batch.masks[1], bits((4,)))
    assert cache.read_batch([0]).masks is None


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a14_an_error_publishes_nothing_and_keeps_what_was_stored(tmp_path, error):
    path = write_cache(tmp_path / "set", 2)
    with pytest.raises(error), CacheWriter(path) as w:
        for i in range(10, 14):
            put_sample(w, i)
        raise error
    assert_holds(open_cache(path), range(2))
    with CacheWriter(path) as w:
        assert w.recovered_entries == 8
        for i in range(10, 16):
            assert w.has(f"latent {i}") == (i < 14)
            put_sample(w, i)
    assert_holds(open_cache(path, check=True), range(10, 16))
    assert not (path / segment.BUILD).exists()


def test_a14_a_stop_at_forty_percent_leaves_sixty_to_do(tmp_path):
    made = []

    def encode(w: CacheWriter, i: int) -> None:
        w.once(f"latent {i}", lambda: made.append(i) or latent(i), "latent")
        w.sample({"latent": [f"latent {i}"]})

    with pytest.raises(KeyboardInterrupt), CacheWriter(tmp_path / "set") as w:
        for i in range(4):
            encode(w, i)
        raise KeyboardInterrupt
    with CacheWriter(tmp_path / "set") as w:
        for i in range(10):
            encode(w, i)
    assert made == list(range(10))


def test_three_errors_in_a_row_lose_nothing(tmp_path):
    for run in range(3):
        with pytest.raises(RuntimeError), CacheWriter(tmp_path / "set") as w:
            for i in range(3 * run, 3 * run + 3):
                put_sample(w, i)
            raise RuntimeError
    with CacheWriter(tmp_path / "set") as w:
        assert w.recovered_entries == 18
        for i in range(9):
            put_sample(w, i)
    assert_holds(open_cache(tmp_path / "set", check=True), range(9))


def test_empty_tensors_survive_a_crash_with_others(tmp_path):
    """They stand at the same place as the tensor behind them."""
    given = {f"key {n}": [torch.empty(0, 3), bits((5,), seed=n)] for n in range(3)}
    with pytest.raises(RuntimeError), CacheWriter(tmp_path / "set") as w:
        for key, structure in given.items():
            w.put(key, structure, "thing")
        w.put("empty", torch.empty(0, 3), "thing")
        raise RuntimeError
    with CacheWriter(tmp_path / "set") as w:
        assert w.recovered_entries == 4
    cache = open_cache(tmp_path / "set", check=True)
    assert all(same(cache.entry(key), structure) for key, structure in given.items())


# Compaction


def test_many_small_runs_leave_few_shards(tmp_path):
    path = tmp_path / "set"
    counts = []
    for i in range(20):
        write_cache(path, 1, first=i, append=True)
        open_cache(path)  # so that readers are known by their leases
        counts.append(len(read_manifest(path).shards))
    assert max(counts) < SMALL_SHARDS
    assert_holds(open_cache(path, check=True), range(20))
    assert len(shard_files(path)) == counts[-1], "what was merged is gone"


def test_compaction_keeps_collisions_thumbnails_and_empty_tensors_apart(tmp_path, monkeypatch):
    monkeypatch.setitem(merge_small.__globals__, "SMALL_SHARDS", 3)
    given = []
    for n in range(5):
        thing = {"t": bits((n * 7,), torch.uint8, n), "none": torch.empty(0), "same": bits((3,))}
        given.append((thing, bits((4, 4), torch.uint8, 50 + n)))
        with CacheWriter(tmp_path / "set", append=True) as w:
            w.add(thing=given[-1][0], thumbnail=given[-1][1])
    cache = open_cache(tmp_path / "set", check=True)
    for one, (thing, thumbnail) in zip(cache, given, strict=True):
        assert same(one.realize().fields["thing"], thing) and same(one.fields["thumbnail"], thumbnail)
    assert {listed.file[0] for listed in read_manifest(tmp_path / "set").shards} == {"s", "t"}
    assert "thumbnail" not in cache.read_batch([0]).fields


def test_a_damaged_small_shard_does_not_stop_publishing(tmp_path, monkeypatch):
    monkeypatch.setitem(merge_small.__globals__, "SMALL_SHARDS", 3)
    path = write_cache(tmp_path / "set", 1)
    write_cache(path, 1, first=1, append=True)
    first = shard_files(path)[0]
    first.write_bytes(b"x" * first.stat().st_size)
    write_cache(path, 1, first=2, append=True)
    cache = open_cache(path, check=True)
    assert len(cache) == 3 and same(cache[2].latent, latent(2)) and same(cache[1].latent, latent(1))


# Two writers


def test_a_closed_writer_refuses_to_write(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        w.add(**sample(0))
    w.close()
    for use in (
        lambda: w.add(**sample(1)),
        lambda: w.put("k", 1, "thing"),
        lambda: w.sample({}),
        lambda: w.once("k", lambda: 1, "thing"),
        w.publish,
        w.flush,
        lambda: w.describe_set("a", {}),
    ):
        with pytest.raises(CacheError, match="closed"):
            use()
    assert not (tmp_path / "set" / segment.BUILD).exists()


# What is refused


@pytest.mark.parametrize(
    "facts",
    [
        {"repeats": -1},
        {"repeats": 1 << 32},
        {"repeats": 1.5},
        {"repeats": "2"},
        {"weight": "heavy"},
        {"weight": None},
        {"original_size": (1,)},
        {"original_size": (1 << 31, 0)},
        {"original_size": None},
        {"original_size": 5},
        {"crop": (0, 0, 5)},
        {"crop": (0.5, 0, 1, 1)},
        {"caption": 7},
        {"caption": b"bytes"},
        {"caption": ["a", None]},
        {"source": None},
        {"source": Path("a.png")},
        {"set": 3},
    ],
    ids=str,
)
def test_c9_facts_that_cannot_be_stored_are_refused_before_anything_is_written(tmp_path, facts):
    with CacheWriter(tmp_path / "set") as w:
        with pytest.raises(CacheError):
            w.add(**{**sample(0), **facts})
        with pytest.raises(CacheError):
            w.sample({}, SampleFacts(**{name.replace("caption", "captions"): value for name, value in facts.items()}))
        assert not (tmp_path / "set" / segment.BUILD).exists()
        w.add(**sample(1))
    assert_holds(open_cache(tmp_path / "set"), [1])


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (0, 4, 8, 8), ()], ids=str)
def test_c9_a_batched_latent_is_refused_by_every_call(tmp_path, shape):
    with CacheWriter(tmp_path / "set") as w:
        with pytest.raises(CacheError, match=r"latent.*\[1, …\]"):
            w.add(latent={"samples": bits(shape)})
        with pytest.raises(CacheError, match=r"latent.*\[1, …\]"):
            w.put("key", {"samples": bits(shape)}, field="latent")
        w.put("key", {"samples": bits(shape)}, field="other")
        with pytest.raises(CacheError, match=r"\[1, …\]"):
            w.sample({"latent": ["key"]})


def test_c9_latents_of_one_sample_must_share_a_bucket(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        w.put("a", latent(0), "latent")
        w.put("b", latent(1), "latent")
        with pytest.raises(CacheError, match=r"sample 0 \(x.png\).*differ in shape"):
            w.sample({"latent": ["a", "b"]}, SampleFacts(source="x.png"))


def test_c9_unknown_keys_and_bad_ones_are_refused(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        with pytest.raises(CacheError, match="latent.*'missing'.*put"):
            w.sample({"latent": ["missing"]})
        with pytest.raises(CacheError, match="empty caption.*put"):
            w.name("empty caption", "missing")
        for key in (b"", b"short", b"x" * 17):
            with pytest.raises(CacheError, match="16 bytes"):
                w.put(key, 1, "thing")
        for field in ("", None, 3):
            with pytest.raises(CacheError, match="expected a name"):
                w.put("key", 1, field)
        with pytest.raises(CacheError, match="expected a name"):
            w.sample({"": []})
    assert len(open_cache(tmp_path / "set")) == 0


# Names and places


@pytest.mark.parametrize(
    "name", ["ünï čode 数据集 🐈", "with  spaces ", "a" * 200, "-dash", "%20+#?&=", "dots.in.it", "'quotes'"]
)
def test_unusual_folder_names_work(tmp_path, name):
    path = tmp_path / name
    text = "c\x00ption " + name + "\ud800" + "x" * 20_000
    with CacheWriter(path) as w:
        w.add(**{**sample(0), "source": name * 50, "caption": text}, set=name, **{name: bits((2,))})
    cache = open_cache(str(path))
    assert (cache[0].source, cache[0].caption, cache[0].set) == (name * 50, text, name)
    assert same(cache[0].fields[name], bits((2,))) and cache.fields[-1] == name
    write_cache(path, 1, append=True)


def test_missing_parent_folders_are_created(tmp_path):
    write_cache(tmp_path / "a" / "b" / "c", 1)
    assert len(open_cache(tmp_path / "a" / "b" / "c")) == 1


@pytest.mark.parametrize("name", ["x" * 300, "zero\x00byte"])
def test_c9_invalid_folder_names_raise_a_cache_error(tmp_path, name):
    for use in (CacheWriter, open_cache):
        with pytest.raises(CacheError):
            use(tmp_path / name)


def test_c9_a_file_instead_of_the_folder_is_refused(tmp_path):
    (tmp_path / "set").write_text("hello")
    with pytest.raises(CacheError, match="is a file"):
        CacheWriter(tmp_path / "set")
    with pytest.raises(CacheError, match="no such cache"):
        open_cache(tmp_path / "set")
    assert (tmp_path / "set").read_text() == "hello"


# Intervals


def test_a13_entries_are_flushed_by_bytes_and_by_time(tmp_path, monkeypatch):
    flushes: list[int] = []
    real: Callable = segment.Segment.flush
    monkeypatch.setattr(segment.Segment, "flush", lambda self: flushes.append(1) or real(self))
    with CacheWriter(tmp_path / "bytes", flush_bytes=4000) as w:
        for i in range(20):
            put_sample(w, i)
        by_bytes = len(flushes)
    assert 3 <= by_bytes <= 10
    with CacheWriter(tmp_path / "time", flush_seconds=0.0) as w:
        before = len(flushes)
        for i in range(5):
            put_sample(w, i)
        assert len(flushes) - before == 10


def test_an_unused_writer_leaves_no_files(tmp_path):
    path = write_cache(tmp_path / "set", 1)
    with pytest.raises(RuntimeError), CacheWriter(path):
        raise RuntimeError
    assert not (path / segment.BUILD).exists() and not (path / ".lock.holder").exists()


def test_weights_and_sizes_survive_as_numbers(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        w.add(
            latent=latent(0),
            weight=np.float32(0.5),
            repeats=np.int64(4),
            original_size=np.array([3, 4]),
            crop=[1, 2, 3, 4],
        )
    found = open_cache(tmp_path / "set")[0]
    assert (found.weight, found.repeats, found.original_size, found.crop) == (0.5, 4, (3, 4), (1, 2, 3, 4))


def test_a_latent_without_a_bucket_is_announced_once_and_counted(tmp_path):
    with CacheWriter(tmp_path / "set") as writer:
        writer.add(latent(0), source="good.png")
        with pytest.warns(
            UserWarning, match=r'sample 1 \(odd\.png\): its latent has no tensor under "samples"'
        ) as found:
            for _ in range(3):
                writer.add({"other": latent(1)["samples"]}, source="odd.png")
        assert len(found) == 1 and writer.without_bucket == 3


def test_f3_records_of_a_large_build_do_not_wait_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[CacheWriter.__module__], "WAITING_BYTES", 4000)
    most = 0
    with CacheWriter(tmp_path / "set") as w:
        for n in range(200):
            w.put(f"key {n}", bits((4,), seed=n), "thing")
            most = max(most, w._store.waiting_bytes)
        (journal,) = (tmp_path / "set" / ".build").rglob("journal")
        assert journal.stat().st_size > 10_000
    assert 0 < most < 4000 and open_cache(tmp_path / "set").has("key 199")
