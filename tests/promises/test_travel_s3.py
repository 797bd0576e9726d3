"""push, pull and sync with a real S3 server on loopback, through a proxy that cuts connections and spoils answers."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, open_cache, read_manifest, storage_at, verify
from streamcache.dataset_cache.travel import AHEAD, SAME, Travel, carrying, pull, push, relation_of, sync

from ..support.datasets import content, shard_files, write_set
from ..support.fault_proxy import CUT, CUT_BODY, TRUNCATE, FaultProxy, Seen
from ..support.joined import growing
from ..support.processes import Child, Nursery, needs_fork, travel_until
from ..support.remote_servers import BUCKET, s3_server
from ..support.s3_roots import SECRET, registered_root

pytest.importorskip("obstore")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def proxy(server: str, state_dir: Path) -> Iterator[FaultProxy]:
    with registered_root(server, state_dir) as proxy:
        yield proxy


@pytest.fixture
def near(tmp_path: Path) -> Path:
    return write_set(tmp_path / "near", range(5))


@pytest.fixture
def far(proxy: FaultProxy, request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/{abs(hash(request.node.name)):x}"


def keys(far: str) -> set[str]:
    storage = storage_at(far)
    return {f"{folder}/{name}".lstrip("/") for folder in ("", "shards") for name in storage.sizes(folder)}


def test_f6_a_cache_goes_to_s3_and_back(near: Path, far: str, tmp_path: Path):
    assert relation_of(near, far) == AHEAD
    assert push(near, far, Travel(dry_run=True)).files == 3 and keys(far) == set()
    assert push(near, far).files == 3 and relation_of(near, far) == SAME
    assert pull(far, tmp_path / "copy").files == 3
    assert content(tmp_path / "copy") == content(near) == content(open_cache(far))
    assert list(verify(tmp_path / "copy")) == [] and push(near, far, Travel(verify=True)).files == 0
    write_set(tmp_path / "copy", range(8))
    assert sync(tmp_path / "copy", far).action == "push" and sync(near, far).action == "pull"
    assert content(near) == content(tmp_path / "copy")


def test_f6_an_uploaded_shard_is_not_uploaded_again(near: Path, far: str, proxy: FaultProxy):
    proxy.fault = lambda seen, number: 403 if seen.method == "PUT" and "index-" in seen.path else None
    with pytest.raises(CacheError):
        push(near, far)
    assert any(key.startswith("shards/") for key in keys(far)) and "dataset.json" not in keys(far)
    proxy.fault, before = (lambda seen, number: None), len(keys(far))
    assert push(near, far).files == 3 - before
    assert content(open_cache(far)) == content(near)


def test_f6_of_two_publishers_to_s3_exactly_one_wins(near: Path, far: str, tmp_path: Path):
    push(near, far)
    pull(far, tmp_path / "other")
    sides = [write_set(near, range(6)), write_set(tmp_path / "other", range(8))]
    results: list[object] = []
    start = threading.Barrier(2)

    def publish(side: Path) -> None:
        start.wait()
        try:
            results.append(push(side, far))
        except CacheError as error:
            results.append(str(error))

    threads = [threading.Thread(target=publish, args=(side,)) for side in sides]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (told,) = [each for each in results if isinstance(each, str)]
    assert open_cache(far).generation[:12] in told and len(results) == 2
    assert content(open_cache(far)) in [content(side) for side in sides]


def test_f6_a_manifest_that_was_replaced_meanwhile_is_not_overwritten(near: Path, far: str, tmp_path: Path):
    """The other one publishes in the last moment: between the last look and the conditional request."""
    push(near, far)
    pull(far, tmp_path / "other")
    write_set(near, range(6))
    write_set(tmp_path / "other", range(8))
    storage = storage_at(far)
    replace_if, raced = type(storage).replace_if, []

    def late(self, *args):
        if not raced:
            raced.append(True)
            push(tmp_path / "other", far)
        return replace_if(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(storage), "replace_if", late)
        with pytest.raises(CacheError, match="another process was first: .*8 samples"):
            push(near, far)
    assert len(open_cache(far)) == 8


@pytest.mark.parametrize("kind", [CUT, CUT_BODY, TRUNCATE, 503, 500, 429])
def test_f6_spoiled_answers_end_in_an_equal_cache_or_a_clear_error(
    near: Path, far: str, tmp_path: Path, proxy: FaultProxy, kind: str | int
):
    draw, both = random.Random(7), 0
    proxy.fault = lambda seen, number: kind if draw.random() < 0.15 else None
    for journey in (lambda: push(near, far), lambda: pull(far, tmp_path / "copy")):
        for _ in range(8):
            try:
                journey()
                both += 1
                break
            except CacheError as error:
                assert SECRET not in str(error)
    proxy.fault = lambda seen, number: None
    assert both == 2 and content(tmp_path / "copy") == content(near) == content(open_cache(far))


def test_a_cache_travels_between_a_folder_and_an_address_not_between_two_addresses(near: Path, far: str):
    push(near, far)
    for refused in (lambda: push(far, f"{far}x"), lambda: pull(far, f"{far}x"), lambda: sync(far, near)):
        with pytest.raises(CacheError, match="is an address, where the folder of a cache is expected; pull it"):
            refused()
    assert keys(f"{far}x") == set()


def test_a_push_that_left_no_manifest_is_to_be_pushed_again(near: Path, far: str):
    push(near, far)
    storage_at(far).remove("dataset.json")
    with pytest.raises(CacheError, match="dataset.json is missing, but .* are here; push it again from the folder"):
        open_cache(far)
    assert push(near, far).files == 0 and content(open_cache(far)) == content(near)


def test_f6_an_interrupted_download_goes_on_in_its_file(
    near: Path, far: str, tmp_path: Path, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
):
    push(near, far)
    monkeypatch.setattr(carrying, "PART_BYTES", 2000)
    (shard,) = shard_files(near)
    (tmp_path / "copy/.travel/incoming").mkdir(parents=True)
    (tmp_path / "copy/.travel/incoming" / shard.name).write_bytes(shard.read_bytes()[:9000])
    report = pull(far, tmp_path / "copy")
    assert report.resumed == 9000 and content(tmp_path / "copy") == content(near)


def test_f6_pruning_at_s3_keeps_the_current_and_the_last_generation(near: Path, far: str):
    for count in (5, 6, 7):
        write_set(near, range(count))
        push(near, far)
    before = keys(far)
    assert push(near, far, Travel(prune=True, grace=3600)).pruned.waiting and keys(far) == before
    assert push(near, far, Travel(prune=True, grace=0)).pruned.files
    assert keys(far) < before and content(open_cache(far)) == content(near)


def test_f7_credentials_are_in_no_file_that_travels(near: Path, far: str, tmp_path: Path, proxy: FaultProxy):
    push(near, far)
    pull(far, tmp_path / "copy")
    files = [file for folder in (near, tmp_path / "copy") for file in folder.rglob("*") if file.is_file()]
    assert not any(SECRET.encode() in file.read_bytes() for file in files)
    assert not any(SECRET in str(seen.headers) + seen.path for seen in proxy.seen)


def kills(
    what: str, moments: list[int], near: Path, far: str, tmp_path: Path, proxy: FaultProxy, append: bool = False
) -> int:
    """Kill a push or a pull when it makes its request number `moment`; how many were killed."""
    pull_target, killed = tmp_path / "target", 0
    with Nursery(tmp_path) as nursery:
        for count, moment in enumerate(moments, 5):
            push(near, far)
            pull(far, pull_target)
            source, target = (near, far) if what == "push" else (far, pull_target)
            write_set(near, range(count, count + 3), append=append)
            if what == "pull":
                push(near, far)
            old, new = content(open_cache(target)), content(near)
            proxy.clear()
            children: list[Child] = []

            def kill(seen: Seen, number: int, moment: int = moment, children: list[Child] = children) -> str | None:
                if number != moment:
                    return None
                children[0].kill()
                return CUT

            proxy.fault = kill
            children.append(nursery.start(travel_until, what, source, target, 1 << 30))
            notes = children[0].wait()
            proxy.fault = lambda seen, number: None
            killed += not notes
            assert content(open_cache(target)) in (old, new)
            (push if what == "push" else pull)(source, target)
            assert content(open_cache(target)) == new and relation_of(near, far) == SAME
    return killed


@needs_fork
@pytest.mark.parametrize("what", ["push", "pull"])
def test_f6_a_journey_to_s3_that_is_killed_goes_on(near: Path, far: str, tmp_path: Path, proxy: FaultProxy, what: str):
    assert kills(what, [3, 7, 10], near, far, tmp_path, proxy) >= 2


@needs_fork
@pytest.mark.parametrize("what", ["push", "pull"])
def test_f6_a_killed_journey_with_several_index_files_goes_on(
    near: Path, far: str, tmp_path: Path, proxy: FaultProxy, what: str
):
    with growing():
        assert kills(what, [3, 7, 10], near, far, tmp_path, proxy, append=True) >= 2
    assert len(read_manifest(near).index_files) == 4 and list(verify(far)) == [] == list(verify(tmp_path / "target"))


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("what", ["push", "pull"])
def test_f6_a_hundred_killed_journeys_to_s3_go_on(
    near: Path, far: str, tmp_path: Path, proxy: FaultProxy, what: str, part: int
):
    moments = random.Random(part).choices(range(1, 12), k=25)
    assert kills(what, moments, near, far, tmp_path, proxy) > 15
