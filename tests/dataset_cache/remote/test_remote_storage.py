"""A dataset at an address is read as one in a folder: the same bytes, the same reports, the same errors."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import (
    CacheError,
    CacheWriter,
    clean,
    compact,
    export,
    merge,
    open_cache,
    overview,
    preview_clean,
    realize,
    repair,
    storage_at,
    usage,
    verify,
)

from ...support.datasets import content, write_set
from ...support.fault_proxy import fault_proxy
from ...support.remote_servers import BUCKET, request, upload
from ...support.samples import assert_holds, sample, write_cache

COUNT = 9
ROOT = Path(__file__).parents[3]


@pytest.fixture
def address(s3, tmp_path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}/my_set"


@pytest.fixture
def pair(address, tmp_path) -> tuple[str, Path]:
    """A dataset at an address, and the same in a folder."""
    folder = write_set(tmp_path / "my_set", range(COUNT))
    upload(folder, storage_at(address))
    return address, folder


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def test_f4_samples_batches_and_named_entries_are_those_of_the_folder(pair):
    address, folder = pair
    remote, local = open_cache(address), open_cache(folder)
    assert content(remote) == content(local)
    for check in (False, True):
        for group in local.buckets().values():
            rows = group.tolist()
            ours, theirs = open_cache(address, check).read_batch(rows), local.read_batch(rows)
            assert torch.equal(ours.latents, theirs.latents) and ours.captions == theirs.captions
            for mine, other in zip(ours.conditionings, theirs.conditionings, strict=True):
                assert torch.equal(mine[0][0], other[0][0])
    assert torch.equal(realize(remote.entry("empty caption"))[0][0], realize(local.entry("empty caption"))[0][0])


def test_f4_the_address_is_shown_as_it_was_typed(pair):
    address, _ = pair
    cache = open_cache(address)
    assert str(cache.path) == address and cache.path.name == "my_set" and "my_set: 9 samples" in repr(cache)
    with pytest.raises(CacheError, match=f"^{address}: no entry is stored"):
        cache.entry("missing")
    cache.close()
    with pytest.raises(CacheError, match=f"^{address}: this cache is closed"):
        cache.read_batch([0])


def test_f4_reports_are_those_of_the_folder(pair, tmp_path):
    address, folder = pair
    assert list(verify(address)) == list(verify(folder)) == []
    ours, theirs = overview(address).to_json(), overview(folder).to_json()
    assert ours.pop("path") == address and theirs.pop("path") and ours == theirs
    assert usage(address).fields == usage(folder).fields and usage(address).missing == ()


def test_f4_a_dataset_at_an_address_is_exported_to_a_folder(pair, tmp_path):
    address, folder = pair
    export(address, tmp_path / "copy")
    assert content(open_cache(tmp_path / "copy")) == content(open_cache(folder)) and not list(verify(tmp_path / "copy"))


def test_f4_damage_and_loss_are_found_as_in_a_folder(pair):
    address, folder = pair
    remote, shard = storage_at(address), sorted((folder / "shards").glob("s-*"))[0]
    name = f"shards/{shard.name}"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    remote.replace(name, bytes(data))
    found = [str(problem) for problem in verify(address)]
    assert found == [str(problem) for problem in verify(folder)] and "damaged" in found[0]
    remote.remove(name)
    shard.unlink()
    assert [str(problem) for problem in verify(address)] == [str(problem) for problem in verify(folder)]
    with pytest.raises(CacheError, match=f"{address}/{name}: is missing; restore it"):
        open_cache(address).read_batch([0])


def test_a_batch_asks_for_everything_at_once_and_joins_what_lies_together(address, s3, tmp_path):
    folder = write_cache(tmp_path / "my_set", 30)
    upload(folder, storage_at(address))
    rows = list(range(0, 30, 3))
    with fault_proxy(s3) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        patch.setattr("streamcache.dataset_cache.remote.remote_storage.HEAD_BYTES", 1)
        patch.setattr("streamcache.dataset_cache.remote.obstore_client._stores", {})
        patch.setattr("streamcache.dataset_cache.ahead.read_ahead.GRAIN", 64)
        patch.setenv("STREAMCACHE_CACHE_LIMIT", "0")
        cache = open_cache(address)
        proxy.clear()
        cache.read_batch(rows)
        assert len(proxy.seen) == 1, "ten rows near each other are one request"
        patch.setattr("streamcache.dataset_cache.ahead.fetcher.GAP_BYTES", -1)
        cache = open_cache(address)
        proxy.clear()
        proxy.latency = 0.2
        batch = cache.read_batch(rows)
        assert len(proxy.seen) == len(rows) and proxy.most_in_flight > 3
    assert same_bits(batch.latents, open_cache(folder).read_batch(rows).latents)


def test_a_reader_keeps_its_generation_or_says_that_it_is_gone(address, tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMCACHE_CACHE_LIMIT", "0")  # local copies would be there even then
    remote, folder = storage_at(address), write_cache(tmp_path / "my_set", 3)
    upload(folder, remote)
    old = open_cache(address)
    shards = remote.list("shards")
    with CacheWriter(folder, append=True) as writer:
        writer.add(**sample(3))
    upload(folder, remote)
    assert len(open_cache(address)) == 4 and len(old) == 3
    assert_holds(old, range(3))
    assert len(pickle.loads(pickle.dumps(old))) == 3
    for name in shards:
        remote.remove(f"shards/{name}")
    with pytest.raises(CacheError, match=f"{address}/shards/.*: is missing"):
        pickle.loads(pickle.dumps(old)).read_batch([0])


def test_a_shard_that_was_replaced_by_another_is_refused(address, tmp_path):
    remote, folder = storage_at(address), write_cache(tmp_path / "my_set", 3)
    upload(folder, remote)
    cache, name = open_cache(address), f"shards/{remote.list('shards')[0]}"
    remote.replace(name, bytes(remote.open(name).size + 9))
    with pytest.raises(CacheError, match="its bytes came damaged from s3://.*, twice; push the dataset there again"):
        cache.read_batch([0])


def test_what_is_not_there_is_said_in_one_sentence(s3, tmp_path):
    with pytest.raises(CacheError, match=f"^s3://{BUCKET}/nothing/here: no such cache$"):
        open_cache(f"s3://{BUCKET}/nothing/here")
    with pytest.raises(CacheError, match="there is no bucket or container 'no-bucket'; check its name"):
        open_cache("s3://no-bucket/set")
    request(s3, "PUT", f"/{BUCKET}/{tmp_path.name}/dataset.json", b'{"format": 99}')
    with pytest.raises(CacheError, match="needs format 99, but this StreamCache reads format 1; update StreamCache"):
        open_cache(f"s3://{BUCKET}/{tmp_path.name}")


def test_nothing_is_built_or_changed_in_place_at_an_address(pair, tmp_path):
    address, _ = pair
    before = storage_at(address).list()
    plan = preview_clean(address, ["unused"])
    for change in (
        lambda: CacheWriter(address),
        lambda: CacheWriter(address, append=True),
        lambda: compact(address),
        lambda: repair(address),
        lambda: clean(plan),
        lambda: export(tmp_path / "my_set", f"{address}2"),
    ):
        with pytest.raises(CacheError, match="is an address, where nothing is built or changed in place; do this"):
            change()
    assert storage_at(address).list() == before and not storage_at(f"{address}2").exists()


def test_verify_reads_ahead_instead_of_asking_for_each_tensor(address, s3, tmp_path, monkeypatch):
    upload(write_cache(tmp_path / "my_set", 60), storage_at(address))
    with fault_proxy(s3) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        monkeypatch.setattr("streamcache.dataset_cache.remote.remote_storage.HEAD_BYTES", 1 << 10)
        monkeypatch.setattr("streamcache.dataset_cache.remote.obstore_client._stores", {})
        assert list(verify(address)) == []
        ranges = [seen for seen in proxy.seen if "/shards/" in seen.path and seen.range]
        assert len(ranges) < 10, "180 tensors"


def test_f4_several_datasets_at_addresses_are_merged_into_a_folder(pair, tmp_path):
    address, _ = pair
    merge([address, write_set(tmp_path / "other", range(COUNT, COUNT + 2))], tmp_path / "merged")
    assert len(open_cache(tmp_path / "merged")) == COUNT + 2 and not list(verify(tmp_path / "merged"))


def test_nothing_of_other_packages_is_loaded_before_an_address_is_used(tmp_path):
    folder = write_cache(tmp_path / "my_set", 2)
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support.package import register_package
register_package()
from streamcache.dataset_cache import open_cache, storage_at
open_cache({str(folder)!r}).read_batch([0])
storage_at("s3://bucket/set"), storage_at("hf://datasets/owner/name")
print([name for name in ("obstore", "huggingface_hub", "boto3", "s3fs") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert run.stdout.strip() == "[]", run.stderr


WORKER = """
import sys, torch
sys.path.insert(0, {root!r})
from tests.support.package import register_package
register_package()
from streamcache.dataset_cache import open_cache

class Rows(torch.utils.data.Dataset):
    def __init__(self, cache): self.cache = cache
    def __len__(self): return {count}
    def __getitem__(self, i):
        if self.cache is None: self.cache = open_cache(sys.argv[1])
        return self.cache.read_batch([i]).latents.contiguous().view(torch.uint8).long().sum()

if __name__ == "__main__":
    cache = open_cache(sys.argv[1]) if sys.argv[3] == "opened" else None
    how = {{"num_workers": 2, "multiprocessing_context": sys.argv[2]}}
    loader = torch.utils.data.DataLoader(Rows(cache), batch_size=None, **how)
    print(sum(int(part) for part in loader))
    print(len(open_cache(sys.argv[1]).read_batch([0]).indices))
"""


@pytest.mark.parametrize(
    ("method", "parent"),
    [pytest.param("spawn", "opened", marks=pytest.mark.slow), ("fork", "new"), ("fork", "opened")],
)
def test_f8_workers_read_from_an_address_or_say_how_to_start_them(address, tmp_path, method, parent):
    if method == "fork" and not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    folder, script = write_cache(tmp_path / "my_set", COUNT), tmp_path / "workers.py"
    upload(folder, storage_at(address))
    script.write_text(WORKER.format(root=str(ROOT), count=COUNT))
    command = [sys.executable, script, address, method, parent]
    # Without local copies: a forked worker needs no request for what its parent has read.
    environment = {**os.environ, "STREAMCACHE_CACHE_LIMIT": "0"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=ROOT, env=environment)
    if (method, parent) == ("fork", "opened"):
        assert 'start workers with "spawn"' in run.stderr and run.returncode == 1, "an error at once, and no hang"
        return
    local = [open_cache(folder).read_batch([i]).latents.contiguous().view(torch.uint8) for i in range(COUNT)]
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(sum(int(latent.long().sum()) for latent in local)), "1"]
