"""Reading ahead: the bytes of the shards, with the fewest requests, whatever happens to server, disk and processes."""

import errno
import gc
import logging
import multiprocessing
import random
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import Cache, CacheError, Traffic, open_cache, use_cache_limit
from streamcache.dataset_cache.ahead.read_ahead import GRAIN, ReadAhead, pieces_of
from streamcache.dataset_cache.format import LocalStorage

from ...support.datasets import content, flip, write_set
from ...support.processes import needs_fork
from ...support.range_server import Line, serving
from ...support.served import open_served, settle, write_even

COUNT = 12


@pytest.fixture(scope="module")
def even(tmp_path_factory) -> Path:
    return write_even(tmp_path_factory.mktemp("even") / "cache", COUNT)


@pytest.fixture
def served(even) -> Iterator[tuple[str, Line]]:
    with serving(even) as found:
        yield found


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    yield use_cache_limit
    use_cache_limit(None)


@pytest.fixture
def copies(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("STREAMCACHE_CACHE_DIR", str(tmp_path / "copies"))
    return tmp_path / "copies" / "blocks"


def files_of(copies: Path) -> list[Path]:
    return sorted(path for path in copies.glob("*/*") if path.parent.name != "readers")


def orders(epochs: int, seed: int, count: int = COUNT) -> list[int]:
    draw = random.Random(seed)
    return [i for _ in range(epochs) for i in draw.sample(range(count), count)]


def batches(order: list[int], size: int = 1) -> list[tuple[list[int], dict]]:
    return [(order[i : i + size], {}) for i in range(0, len(order), size)]


def read_all(cache: Cache, order: list[int], size: int = 1, calm: bool = False) -> None:
    """Read the batches in their order, each as the local cache has it. `calm`: after everything that can be is here."""
    local = open_cache(Path(cache.path))
    for rows, _ in batches(order, size):
        if calm:
            settle(cache._files.ahead)
        assert torch.equal(cache.read_batch(rows).latents, local.read_batch(rows).latents)


def train(cache: Cache, order: list[int], size: int = 1, calm: bool = False) -> Traffic:
    cache.coming(iter(batches(order, size)))
    read_all(cache, order, size, calm)
    return cache.traffic


def fewest(order: list[int], room: int, keeps_last: bool) -> int:
    """By trying everything: the fewest pieces to fetch. `keeps_last`: the one before is not read yet, so it stays."""

    @lru_cache(None)
    def rest(at: int, here: frozenset[int]) -> int:
        if at == len(order):
            return 0
        if order[at] in here:
            return rest(at + 1, here)
        if len(here) < room:
            return 1 + rest(at + 1, here | {order[at]})
        held = {order[at - 1]} if keeps_last else set()
        return 1 + min(rest(at + 1, here - {gone} | {order[at]}) for gone in here - held)

    return rest(0, frozenset())


def least_recently_used(order: list[int], room: int) -> int:
    here, fetched = OrderedDict(), 0
    for piece in order:
        if piece in here:
            here.move_to_end(piece)
            continue
        fetched += 1
        here[piece] = None
        if len(here) > room:
            here.popitem(last=False)
    return fetched


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("room", [3, 4])
def test_f5_no_other_choice_of_what_to_keep_would_fetch_less(seed, room, tmp_path, copies, limit) -> None:
    path = write_even(tmp_path / "cache", 6)
    order = orders(4, seed, 6)
    limit(room * GRAIN)
    with serving(path) as (address, line), open_served(path, address) as cache:
        traffic = train(cache, order, calm=True)
        fetched = len(line.requests) if traffic.requests == traffic.fetched else traffic.fetched
    assert traffic.fetched == fetched == fewest(order, room, keeps_last=True)
    assert fewest(order, room, keeps_last=False) <= traffic.fetched
    assert traffic.hits == len(order) - traffic.fetched and traffic.lost == 0


def test_f5_what_was_used_last_is_not_what_is_kept(even, served, copies, limit) -> None:
    """With half of the pieces kept, the oldest in use would go just before it is needed again, in most epochs."""
    order = orders(6, 5)
    limit(COUNT // 2 * GRAIN)
    with open_served(even, served[0]) as cache:
        traffic = train(cache, order, calm=True)
    assert traffic.fetched < least_recently_used(order, COUNT // 2) * 0.85


def test_f5_within_the_limit_everything_is_fetched_once(even, served, copies) -> None:
    order = orders(4, 1)
    with open_served(even, served[0]) as cache:
        traffic = train(cache, order, 3)
        assert (traffic.fetched, traffic.evictions, traffic.lost) == (COUNT, 0, 0)
        assert traffic.bytes == sum(size for *_, size in served[1].requests)
    with open_served(even, served[0]) as cache:  # a later run
        again = train(cache, orders(1, 2), 3)
    assert again.requests == 0 and again.hits == COUNT and "100% of 12 reads from local copies" in str(again)


def test_f5_adjacent_pieces_come_in_one_request(even, served, copies) -> None:
    with open_served(even, served[0]) as cache:
        traffic = train(cache, list(range(COUNT)), 2, calm=True)
    assert traffic.fetched == COUNT and traffic.requests < COUNT // 2


def test_f5_the_limit_holds_and_nothing_fetched_ahead_goes_before_it_is_read(even, served, copies, limit) -> None:
    limit(5 * GRAIN)
    order = orders(5, 3)
    with open_served(even, served[0]) as cache:
        cache.coming(iter(batches(order, 2)))
        for at in range(0, len(order), 2):
            settle(cache._files.ahead)
            before = cache.traffic
            read_all(cache, order[at : at + 2], 2)
            assert cache.traffic.late == before.late and cache.traffic.lost == 0
            assert sum(file.stat().st_size for file in files_of(copies)) <= 5 * (GRAIN + 16)
        assert cache.traffic.evictions > 0


def test_f5_the_end_of_an_epoch_is_no_border(even, served, copies, limit) -> None:
    """Before the last batch of an epoch is read, the first ones of the next are here."""
    order = orders(2, 9)
    with open_served(even, served[0]) as cache:
        cache.coming(iter(batches(order)))
        read_all(cache, order[: COUNT - 1])
        settle(cache._files.ahead)
        requests = len(served[1].requests)
        read_all(cache, order[COUNT - 1 :])
        assert len(served[1].requests) == requests


def test_f5_a_run_goes_on_in_the_middle(even, served, copies, limit) -> None:
    order = orders(3, 4)
    limit(4 * GRAIN)
    with open_served(even, served[0]) as cache:
        train(cache, order[:17])
    with open_served(even, served[0]) as cache:
        traffic = train(cache, order[17:], calm=True)
    assert traffic.hits > 0 and traffic.lost == 0


@pytest.mark.parametrize("size", [1, 2 * GRAIN])
def test_f5_a_limit_below_two_batches_streams_without_stalling(size, even, served, copies, limit, caplog) -> None:
    limit(size)
    order = orders(3, 6)
    with open_served(even, served[0]) as cache:
        traffic = train(cache, order, 4)
    assert traffic.fetched == COUNT and not files_of(copies)  # memory holds all of this small set
    assert len([record for record in caplog.records if "no further local copies" in record.message]) == 1


def test_f5_without_local_copies_nothing_is_written(even, served, copies, limit, caplog) -> None:
    limit(0)
    with open_served(even, served[0]) as cache:
        train(cache, orders(2, 6), 4)
    assert not copies.exists() and not caplog.records


def test_f5_a_folder_that_cannot_be_written_to_is_noticed_once(even, served, copies, caplog) -> None:
    copies.parent.mkdir(parents=True)
    copies.write_text("in the way")
    with open_served(even, served[0]) as cache:
        train(cache, orders(2, 6), 4)
    (notice,) = [record.message for record in caplog.records]
    assert "blocks: no further local copies are kept (File exists)" in notice and copies.read_text() == "in the way"


@pytest.mark.parametrize("room", [0, 5])
def test_f5_a_full_disk_streams_on_and_is_noticed_once(room, even, served, copies, monkeypatch, caplog) -> None:
    create = LocalStorage.create

    def full(self, name, durable=True):
        if len(files_of(copies)) >= room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(self, name, durable)

    monkeypatch.setattr(LocalStorage, "create", full)
    with open_served(even, served[0]) as cache:
        traffic = train(cache, orders(3, 6), 2)
    assert len(files_of(copies)) == room and traffic.fetched >= COUNT
    (notice,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert "No space left on device" in notice


def test_f5_a_write_that_fails_half_way_leaves_nothing(even, served, copies, monkeypatch) -> None:
    move, calls = LocalStorage.move, []

    def failing(self, name, to):
        calls.append(name)
        if len(calls) == 3:
            raise OSError(errno.EIO, "Input/output error")
        move(self, name, to)

    monkeypatch.setattr(LocalStorage, "move", failing)
    with open_served(even, served[0]) as cache:
        train(cache, orders(2, 6), 2)
    assert all(not file.name.startswith(".") for file in files_of(copies))


DAMAGE = {
    "a flipped bit": lambda file: flip(file, file.stat().st_size // 2),
    "a flipped bit in the checksum": lambda file: flip(file, file.stat().st_size - 1),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"more"),
    "gone": lambda file: file.unlink(),
    "another piece": lambda file: file.write_bytes(max(file.parent.glob("[0-9a-f]*"), key=str).read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_f5_damaged_copies_are_found_and_fetched_again(damage, even, served, copies) -> None:
    with open_served(even, served[0]) as cache:
        train(cache, orders(1, 7), 3)
    victims = files_of(copies)[:5]
    for file in victims:
        DAMAGE[damage](file)
    with open_served(even, served[0]) as cache:
        traffic = train(cache, orders(2, 8), 3)
    assert traffic.fetched == len(victims)


def test_f5_a_piece_that_vanished_while_it_was_needed_is_fetched_again(even, served, copies) -> None:
    order = orders(2, 7)
    with open_served(even, served[0]) as cache:
        cache.coming(iter(batches(order)))
        settle(cache._files.ahead)
        for file in files_of(copies):
            file.unlink()
        read_all(cache, order)
        assert cache.traffic.lost == COUNT and cache.traffic.fetched == 2 * COUNT


def test_f5_what_comes_damaged_is_fetched_again_and_never_trained_on(even, served, copies) -> None:
    seen: set[int] = set()

    def flip_once(name: str, offset: int, data: bytes) -> tuple[int, bytes]:
        first = offset not in seen
        seen.add(offset)
        return 206, bytes([data[0] ^ 1]) + data[1:] if first else data

    served[1].fault = flip_once
    with open_served(even, served[0]) as cache:
        assert train(cache, orders(2, 7), 3).lost > 0
    served[1].fault = lambda name, offset, data: (206, data[:-1] + bytes([data[-1] ^ 1]))
    for file in files_of(copies):
        file.unlink()
    with (
        open_served(even, served[0]) as cache,
        pytest.raises(CacheError, match=r"sample 3 \(3\.png\): its bytes came damaged from .*, twice; push"),
    ):
        cache.read_batch([3])


def test_f5_an_error_reaches_the_read_that_needs_the_piece_and_no_other(even, served, copies) -> None:
    local = open_cache(even)
    order = orders(1, 11)
    with open_served(even, served[0]) as cache:
        ((_, offset, _),) = cache._batches.ranges([order[7]], ("latent",), {})
        served[1].fault = lambda name, at, data: (500, b"") if at <= offset < at + len(data) else (206, data)
        cache.coming(iter(batches(order)))
        settle(cache._files.ahead)
        read_all(cache, order[:7])
        with pytest.raises(CacheError, match="the server answered 500"):
            cache.read_batch([order[7]])
        assert not cache._files.ahead._asked and not cache._files.ahead._held  # nothing is kept for that batch
        read_all(cache, order[8:])
        served[1].fault = None  # the server is well again
        assert torch.equal(cache.read_batch([order[7]]).latents, local.read_batch([order[7]]).latents)


def test_f5_a_server_that_fails_is_not_asked_for_everything_that_comes(even, served, copies) -> None:
    served[1].fault = lambda name, at, data: (503, b"")
    with open_served(even, served[0]) as cache:
        cache.coming(iter(batches(orders(50, 11))))
        settle(cache._files.ahead)
        assert 0 < len(served[1].requests) <= 40


def test_f5_reading_ahead_ends_with_the_last_reference_to_a_cache_that_was_not_closed(even, served, copies) -> None:
    before = set(threading.enumerate())

    def ours() -> set[str]:
        found = {thread.name for thread in set(threading.enumerate()) - before}
        return found & {"streamcache-ahead", "streamcache-fetch"}

    cache = open_served(even, served[0])
    cache.coming(iter(batches(orders(20, 7))))
    settle(cache._files.ahead)
    cache.read_batch([0])
    gone = weakref.ref(cache._files.ahead)
    assert len(ours()) == 2
    del cache
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (gone() or ours()):
        gc.collect()
        time.sleep(0.1)
    assert gone() is None and not ours()


def test_f5_a_short_answer_is_an_error(even, served, copies) -> None:
    served[1].fault = lambda name, at, data: (206, data[:-1])
    with open_served(even, served[0]) as cache, pytest.raises(CacheError, match="65,535 of 65,536 bytes came"):
        cache.read_batch([0])


def test_f5_nothing_is_asked_of_the_server_but_the_ranges_that_are_read(even, served, copies) -> None:
    """No size, no header, no credentials per shard."""
    with open_served(even, served[0]) as cache:
        train(cache, orders(1, 1), 4)
        wanted = {offset for i in range(COUNT) for _, offset, _ in cache._batches.ranges([i], ("latent",), {})}
        asked = [(offset, size) for _, offset, size in served[1].requests]
        assert len(asked) == cache.traffic.requests
        assert all(offset in wanted for offset, _ in asked) and sum(size for _, size in asked) == COUNT * GRAIN


def test_f5_a_batch_that_no_order_foresaw_is_fetched_side_by_side(even, served, copies) -> None:
    at_once, most, lock = [0], [0], threading.Lock()

    def count(name: str, offset: int, data: bytes) -> tuple[int, bytes]:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        time.sleep(0.2)
        with lock:
            at_once[0] -= 1
        return 206, data

    served[1].fault = count
    with open_served(even, served[0]) as cache:
        cache.read_batch([0, 3, 6, 9])
    assert most[0] == 4


def test_f5_small_samples_share_pieces_and_variants_are_followed(tmp_path, copies) -> None:
    path = write_set(tmp_path / "cache", range(60))
    with serving(path) as (address, line), open_served(path, address) as cache:
        local = open_cache(path)
        buckets = [rows.tolist() for rows in local.buckets().values()]
        order = [(rows[i : i + 4], {"conditioning": [(i + k) % 2 for k in range(len(rows[i : i + 4]))]})
                 for rows in buckets for i in range(0, len(rows), 4)]  # fmt: skip
        cache.coming(iter(order))
        for rows, variants in order:
            ours, theirs = (c.read_batch(rows, variants=variants) for c in (cache, local))
            assert torch.equal(ours.latents, theirs.latents)
            pairs = zip(ours.conditionings, theirs.conditionings, strict=True)
            assert all(torch.equal(a[0][0], b[0][0]) for a, b in pairs)
        assert cache.traffic.bytes < 8 * sum(shard.bytes for shard in cache.manifest.shards)
        assert content(cache) == content(path)
        assert line.requests


def test_f5_a_subset_numbers_its_samples_itself(even, served, copies) -> None:
    with open_served(even, served[0]) as cache:
        subset = cache[3:9]
        subset.coming(iter(batches([5, 1, 3])))
        settle(cache._files.ahead)
        requests = len(served[1].requests)
        for i in (5, 1, 3):
            assert subset.read_batch([i]).indices == [i]
        assert len(served[1].requests) == requests and subset.traffic.fetched == 3


def test_f5_two_readers_share_their_copies(even, served, copies) -> None:
    with open_served(even, served[0]) as one, open_served(even, served[0]) as other:
        train(one, orders(2, 1), 3)
        traffic = train(other, orders(2, 2), 3)
    assert traffic.requests == 0 and traffic.hits == 2 * COUNT


def test_f5_evictions_spare_what_another_reader_has_fetched_and_not_used(tmp_path, copies, limit) -> None:
    ours, theirs = write_even(tmp_path / "ours", 8), tmp_path / "theirs"
    write_even(theirs, 30)
    limit(10 * GRAIN)
    with CacheOf(ours) as cache, CacheOf(theirs) as other:
        order = orders(1, 1, 8)
        cache.coming(iter(batches(order)))
        settle(cache._files.ahead)
        assert cache.traffic.fetched == 8
        train(other, orders(2, 2, 30))
        read_all(cache, order)
        assert cache.traffic.lost == 0 and cache.traffic.fetched == 8


def test_f5_copies_of_other_datasets_make_room_the_oldest_first(tmp_path, copies, limit) -> None:
    first, second = write_even(tmp_path / "first", 10), tmp_path / "second"
    with CacheOf(first) as cache:
        train(cache, list(range(10)))
    for n, file in enumerate(sorted(files_of(copies), key=lambda file: int(file.name.split("-")[0], 16))):
        LocalStorage(file.parent).touch(file.name, 1000 + n)
    limit(10 * GRAIN)
    write_even(second, 20)
    with serving(second) as (address, _), open_served(second, address) as cache:
        train(cache, [15, 16, 17, 18])  # other samples than the first ten
    left = [file for file in files_of(copies) if file.stat().st_mtime < 2000]
    assert sorted(file.stat().st_mtime for file in left) == [1004, 1005, 1006, 1007, 1008, 1009]


class CacheOf:
    """A cache behind a server of its own."""

    def __init__(self, path: Path) -> None:
        self._serving, self._path = serving(path), path

    def __enter__(self) -> Cache:
        self._cache = open_served(self._path, self._serving.__enter__()[0])
        return self._cache

    def __exit__(self, *_: object) -> None:
        self._cache.close()
        self._serving.__exit__(None, None, None)


def test_f5_a_lower_limit_is_kept_from_the_next_opening_on(even, served, copies, limit) -> None:
    with open_served(even, served[0]) as cache:
        train(cache, orders(1, 1))
    limit(4 * GRAIN)
    with open_served(even, served[0]) as cache:
        train(cache, orders(1, 2)[:1])
        assert len(files_of(copies)) <= 4


def test_f5_reading_ahead_ends_with_the_order_and_leaves_no_thread(even, served, copies) -> None:
    served[1].latency = 0.01
    with open_served(even, served[0]) as cache:
        cache.coming(iter(batches(orders(100, 1))))
        read_all(cache, orders(100, 1)[:5])
        cache.coming(())
    end = time.monotonic() + 30
    while own_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert own_threads() == []


def own_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name in ("streamcache-fetch", "streamcache-ahead")]


def test_f5_an_order_that_breaks_off_with_an_error_does_not_hide_the_batches_before(even, served, copies) -> None:
    def broken() -> Iterator[tuple[list[int], dict]]:
        yield from batches([1, 2])
        raise RuntimeError("no more")

    with open_served(even, served[0]) as cache:
        cache.coming(broken())
        read_all(cache, [1, 2, 3])
        with pytest.raises(CacheError, match="does not exist"):
            cache.coming(iter([([COUNT + 1], {})]))
            cache.read_batch([COUNT + 1])


def test_f5_reads_from_other_threads_do_not_disturb_the_order(even, served, copies, limit) -> None:
    """Validation and sample images read what they need, also what is not here, while the trainer reads on."""
    limit(4 * GRAIN)
    order, stop = orders(30, 2), threading.Event()
    with open_served(even, served[0]) as cache:
        failed: list[BaseException] = []

        def look() -> None:
            try:
                while not stop.is_set():
                    read_all(cache, orders(1, time.monotonic_ns() % 1000), 3)
            except BaseException as error:
                failed.append(error)

        others = [threading.Thread(target=look) for _ in range(3)]
        for thread in others:
            thread.start()
        train(cache, order, 2)
        stop.set()
        for thread in others:
            thread.join(60)
        assert not failed and cache._files.ahead._read == len(order)


def test_f5_a_closed_cache_reads_nothing_more(even, served, copies) -> None:
    with open_served(even, served[0]) as cache:
        sample = cache[0]
    with pytest.raises(CacheError, match="closed"):
        sample.latent["samples"] + 1


@needs_fork
def test_f5_a_forked_process_reads_on_by_itself(even, served, copies) -> None:
    with open_served(even, served[0]) as cache:
        cache.coming(iter(batches(orders(3, 1))))
        read_all(cache, orders(3, 1)[:2])
        queue = multiprocessing.get_context("fork").Queue()
        child = multiprocessing.get_context("fork").Process(target=_read_in_child, args=(cache, queue))
        child.start()
        assert queue.get(timeout=60) == [float(open_cache(even).read_batch([i]).latents.sum()) for i in range(COUNT)]
        child.join(60)
        read_all(cache, orders(3, 1)[2:])


def _read_in_child(cache: Cache, queue) -> None:
    torch.set_num_threads(1)
    queue.put([float(cache.read_batch([i]).latents.sum()) for i in range(COUNT)])


def test_f5_ranges_are_divided_into_pieces_that_contain_them() -> None:
    draw, end = random.Random(0), 10 * GRAIN + 777
    for _ in range(2000):
        offset = draw.randrange(end)
        size = min(draw.choice([1, 100, GRAIN - 1, GRAIN, GRAIN + 1, 3 * GRAIN]), end - offset)
        pieces = pieces_of(3, offset, size, end)
        starts = [location - (3 << 40) for location, _ in pieces]
        assert starts[0] <= offset and starts[-1] + pieces[-1][1] >= offset + size
        assert all(a + s == b for (a, s), b in zip([*zip(starts, [s for _, s in pieces])], starts[1:]))
        assert starts[-1] + pieces[-1][1] <= end


def test_f5_any_range_of_a_shard_is_what_the_file_contains(even, served, copies) -> None:
    draw = random.Random(1)
    with open_served(even, served[0]) as cache:
        ahead: ReadAhead = cache._files.ahead
        data = (even / "shards" / cache.manifest.shards[0].file).read_bytes()
        for _ in range(60):
            offset = draw.randrange(len(data))
            size = min(draw.choice([1, 7, 5000, GRAIN, 2 * GRAIN + 5]), len(data) - offset)
            cut = draw.randrange(size + 1)
            memory = np.empty(size, "u1").data
            ahead.read(0, offset, [memory[:cut], memory[cut:]], size)
            assert bytes(memory) == data[offset : offset + size]
