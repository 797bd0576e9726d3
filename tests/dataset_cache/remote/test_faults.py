"""Faults of networks and servers: the same bytes as from a folder, or one clear sentence within a minute."""

import itertools
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, CacheUnreadable, open_cache, storage_at, verify
from streamcache.dataset_cache.address import Address
from streamcache.dataset_cache.remote.faults import PASSING, Fault, explain, of_status, patiently
from streamcache.dataset_cache.remote.obstore_client import ObstoreClient
from streamcache.dataset_cache.remote.roots import Options

from ...support.datasets import content, write_set
from ...support.fault_proxy import (
    CUT,
    CUT_BODY,
    LIE_SIZE,
    LIE_TAG,
    NO_RANGES,
    STALL,
    TRUNCATE,
    WRONG_RANGE,
    FaultProxy,
    fault_proxy,
)
from ...support.remote_servers import BUCKET, upload

REMOTE = "streamcache.dataset_cache.remote"
_numbers = itertools.count()


@pytest.fixture
def proxy(s3, monkeypatch) -> Iterator[FaultProxy]:
    """S3 behind a proxy; what waits, waits less than usual."""
    with fault_proxy(s3) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        monkeypatch.setattr(f"{REMOTE}.obstore_client._STALL_SECONDS", 1)
        monkeypatch.setattr(f"{REMOTE}.faults._FIRST_PAUSE", 0.01)
        monkeypatch.setattr(f"{REMOTE}.faults._LONGEST_PAUSE", 0.2)
        monkeypatch.setattr(f"{REMOTE}.remote_storage.HEAD_BYTES", 64)  # so that ranges are asked for
        monkeypatch.setattr("streamcache.dataset_cache.ahead.read_ahead.GRAIN", 64)  # and no more than is read
        yield proxy


@pytest.fixture
def pair(proxy, tmp_path) -> tuple[str, Path]:
    """A dataset behind the proxy, at an address of its own, and the same in a folder."""
    folder = write_set(tmp_path / "my_set", range(6))
    address = f"s3://{BUCKET}/faults-{next(_numbers)}/{tmp_path.name}"
    upload(folder, storage_at(address))
    proxy.clear()
    return address, folder


@pytest.mark.parametrize("fault", [429, 500, 503, CUT, CUT_BODY, TRUNCATE])
def test_f4_faults_that_pass_change_nothing(proxy, pair, fault):
    address, folder = pair
    hit = set()

    def every_other(seen, number):
        """Each request once: the second attempt of it is passed on."""
        key = (seen.method, seen.path, seen.range)
        return None if key in hit or hit.add(key) else fault

    proxy.fault = every_other
    assert content(open_cache(address)) == content(open_cache(folder))
    assert list(verify(address)) == [] and len(hit) > 5


def test_f4_a_stalled_answer_is_asked_for_again(proxy, pair):
    address, folder = pair
    cache = open_cache(address)
    stalled = iter([STALL])
    proxy.fault = lambda seen, number: next(stalled, None)
    started = time.monotonic()
    assert cache.read_batch([0]).captions == open_cache(folder).read_batch([0]).captions
    assert time.monotonic() - started < 20 and next(stalled, None) is None


def test_f4_answers_in_another_order_change_nothing(proxy, pair, monkeypatch):
    address, folder = pair
    monkeypatch.setattr("streamcache.dataset_cache.ahead.fetcher.GAP_BYTES", -1)
    monkeypatch.setattr(f"{REMOTE}.remote_file._FIRST_WINDOW", 1)
    remote = open_cache(address, check=True)
    proxy.fault = lambda seen, number: time.sleep(0.05 * (number % 3))
    for group in open_cache(folder).buckets().values():
        remote.read_batch(group.tolist())
    assert proxy.most_in_flight > 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [(503, "cannot be reached \\(status 503\\), also not after"), (CUT, "cannot be reached"),
     (TRUNCATE, "cannot be reached|sent fewer bytes"), (403, "access was denied .*AWS_PROFILE"),
     (400, "the request was refused \\(status 400\\); check"),
     (WRONG_RANGE, "was replaced while it was being read .*asked for bytes from|cannot be reached")],
)  # fmt: skip
def test_f4_faults_that_stay_are_said_in_one_sentence(proxy, pair, monkeypatch, fault, message):
    address, _ = pair
    monkeypatch.setattr(f"{REMOTE}.faults._LAST_START_SECONDS", 1)
    cache = open_cache(address)
    cache.read_batch([0])
    proxy.fault = lambda seen, number: fault
    with pytest.raises(CacheError, match=message) as raised:
        cache.read_batch([1])
    text = str(raised.value)
    assert text.startswith(f"{address}/shards/s-") and "\n" not in text and "planted" not in text
    assert raised.value.__cause__ is None, "the error of the library, which may contain a signature, is not shown"


@pytest.mark.parametrize(
    ("fault", "message"),
    [(LIE_SIZE, "was replaced while it was being read .*99,999,999 now"),
     (LIE_TAG, "was replaced while it was being read \\(it has another tag\\); open the cache again")],
)  # fmt: skip
def test_f4_an_open_file_that_seems_to_be_another_is_refused(proxy, pair, fault, message):
    address, folder = pair
    name = next((folder / "shards").iterdir()).name
    file = storage_at(address).open(f"shards/{name}")
    proxy.fault = lambda seen, number: fault
    with pytest.raises(CacheError, match=message):
        file.read(4096, 64)


@pytest.mark.parametrize("fault", [LIE_SIZE, LIE_TAG])
def test_f4_a_batch_is_compared_with_its_hashes_whatever_the_server_says_of_its_file(proxy, pair, fault):
    address, folder = pair
    cache = open_cache(address)
    proxy.fault = lambda seen, number: fault
    assert cache.read_batch([1]).latents.equal(open_cache(folder).read_batch([1]).latents)


def test_f4_verify_names_what_cannot_be_reached_and_does_not_call_it_damaged(proxy, pair, monkeypatch):
    address, _ = pair
    monkeypatch.setattr(f"{REMOTE}.faults._LAST_START_SECONDS", 0.5)
    proxy.fault = lambda seen, number: 503 if "/shards/" in seen.path and seen.method == "GET" else None
    assert {problem.kind for problem in verify(address)} == {"unreadable"}


def test_f4_a_server_without_ranges_is_refused(proxy, pair):
    address, _ = pair
    proxy.fault = lambda seen, number: NO_RANGES
    with pytest.raises(CacheError, match="the server sends only whole files, and reading needs ranges"):
        open_cache(address)


def test_a_manifest_that_is_replaced_while_it_is_read_is_never_mixed(proxy, pair, tmp_path):
    address, _ = pair
    other = write_set(tmp_path / "other", range(3))
    text = (other / "dataset.json").read_bytes()
    upload(other, storage_at(address))
    replaced = iter([True])

    def replace(seen, number):
        if "dataset.json" in seen.path and seen.range and seen.range != "bytes=0-63" and next(replaced, None):
            proxy.fault = lambda seen, number: None
            storage_at(address).replace("dataset.json", text.replace(b'"format": 1', b'"format": 1 '))

    proxy.fault = replace
    with pytest.raises(CacheError, match="dataset.json: was replaced while it was being read .*; open the cache again"):
        open_cache(address)
    assert len(open_cache(address)) == 3


def test_nothing_is_tried_for_longer_than_a_minute(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(f"{REMOTE}.faults.time.monotonic", lambda: now[0])
    monkeypatch.setattr(f"{REMOTE}.faults.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def slow() -> None:
        now[0] += 25  # as long as a request may take
        raise Fault(PASSING)

    with pytest.raises(Fault):
        patiently(slow)
    assert now[0] <= 60


def test_only_what_says_nothing_about_the_content_is_unreadable():
    place = Address.parse("s3://bucket/set")
    for status, kind in [(403, True), (500, True), (429, True), (400, True), (404, False)]:
        assert isinstance(explain(place, of_status(status)), CacheUnreadable) is kind
    assert "AccessDenied" in str(explain(place, of_status(403, "<Code>AccessDenied</Code> token=secret")))
    assert "secret" not in str(explain(place, of_status(403, "<Code>AccessDenied</Code> token=secret")))


@pytest.mark.parametrize("name", ["credential-store", "dns-range-redirect"])
def test_f4_the_name_of_a_bucket_is_not_taken_for_a_cause(s3, monkeypatch, name):
    """The errors of obstore contain the address that was asked."""
    pytest.importorskip("obstore")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(Fault) as raised:
            ObstoreClient(Address.parse(f"s3://{name}/credential/dns"), Options()).get("credential", 0, 1)
    assert (raised.value.kind, raised.value.detail) == (PASSING, "no connection")
