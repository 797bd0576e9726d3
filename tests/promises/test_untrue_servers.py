"""A server may send anything: what is not the dataset is refused, with the name of its sample or file."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, CacheWriter, duplicate, export, merge, open_cache, storage_at, verify
from streamcache.dataset_cache.travel import push

from ..support.datasets import shard_files
from ..support.fault_proxy import NO_RANGES, WRONG_RANGE, FaultProxy, fault_proxy
from ..support.remote_servers import BUCKET, range_server
from ..support.samples import bits

REMOTE = "streamcache.dataset_cache.remote"
COUNT = 6
READS: dict[str, Callable] = {
    "batch": lambda cache: cache.read_batch([COUNT - 1]),
    "lazy": lambda cache: cache[COUNT - 1].realize(),
    "entry": lambda cache: cache.stored_entry(cache.keys(COUNT - 1)["latent"][0]),
}


def write(path: Path, seed: int) -> Path:
    """Every seed has shards of the same size."""
    with CacheWriter(path) as writer:
        for i in range(COUNT):
            writer.add(
                latent={"samples": bits((1, 4, 32, 32), seed=seed + i)},
                conditioning=[[bits((1, 3, 8), seed=seed + i), {}]],
                source=f"{i}.png",
            )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "set", 0)


@pytest.fixture
def far(s3: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address, whose files are not read with their first bytes."""
    monkeypatch.setattr(f"{REMOTE}.remote_storage.HEAD_BYTES", 64)
    address = f"s3://{BUCKET}/{tmp_path.parent.name}/{tmp_path.name}/set"
    push(folder, address)
    return address


def replace_shard(far: str, folder: Path, change: Callable[[bytes], bytes]) -> str:
    (shard,) = shard_files(folder)
    storage_at(far).replace(f"shards/{shard.name}", change(shard.read_bytes()))
    return shard.name


SPOILED: dict[str, Callable[[bytes, bytes], bytes]] = {
    "of another dataset": lambda own, other: other,
    "longer, of another dataset": lambda own, other: other + b"more",
    "the header is right": lambda own, other: own[:4096] + other[4096:],
    "truncated": lambda own, other: own[:-5000],
    "empty": lambda own, other: b"",
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_f4_a_shard_that_was_replaced_at_its_address_is_refused(
    folder: Path, far: str, tmp_path: Path, spoil: Callable[[bytes, bytes], bytes]
):
    (other,) = shard_files(write(tmp_path / "other", 100))
    name = replace_shard(far, folder, lambda own: spoil(own, other.read_bytes()))
    for what, read in READS.items():
        with open_cache(far) as cache, pytest.raises(CacheError, match=f"{name}|sample {COUNT - 1} \\(5.png\\)"):
            read(cache)
            pytest.fail(what)
    problems = list(verify(far))
    assert f"shards/{name}" in {problem.place for problem in problems} and COUNT - 1 in {p.sample for p in problems}
    for copy in (export, duplicate):
        with pytest.raises(CacheError, match=name):
            copy(far, tmp_path / copy.__name__)
        assert not (tmp_path / copy.__name__ / "dataset.json").exists()
    with pytest.raises(CacheError, match=name):
        merge([far], tmp_path / "merged")
    replace_shard(far, folder, lambda own: own)
    export(far, tmp_path / "export")
    assert list(verify(tmp_path / "export")) == []


@pytest.mark.parametrize("fault", [NO_RANGES, WRONG_RANGE])
def test_f4_an_answer_with_other_bytes_than_were_asked_for_is_refused(
    folder: Path, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
):
    """The whole file with status 200, and a range that is shifted."""
    pytest.importorskip("obstore")
    monkeypatch.setattr(f"{REMOTE}.faults._LAST_START_SECONDS", 0.5)
    monkeypatch.setattr(f"{REMOTE}.remote_storage.HEAD_BYTES", 64)
    (shard,) = shard_files(folder)
    with range_server(tmp_path) as server, fault_proxy(server) as proxy:
        address = f"http://{proxy.address}/set"
        for what, read in READS.items():
            with open_cache(address) as cache, spoiling(proxy, fault), pytest.raises(CacheError, match=shard.name):
                read(cache)
                pytest.fail(what)
        with spoiling(proxy, fault):
            (problem,) = verify(address)
        assert problem.place == f"shards/{shard.name}" and re.search("ranges|replaced|reached", str(problem))
        assert list(verify(address)) == []
        with spoiling(proxy, fault), pytest.raises(CacheError, match=shard.name):
            export(address, tmp_path / "copy")


class spoiling:
    """Every answer with bytes of a shard is spoiled."""

    def __init__(self, proxy: FaultProxy, fault: str) -> None:
        self._proxy, self._fault = proxy, fault

    def __enter__(self) -> None:
        self._proxy.fault = lambda seen, number: (
            self._fault if seen.method == "GET" and "/shards/" in seen.path else None
        )

    def __exit__(self, *exc: object) -> None:
        self._proxy.fault = lambda seen, number: None
