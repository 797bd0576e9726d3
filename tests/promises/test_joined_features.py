"""An index of several files and trimmed text, alone and together: whatever is done with a cache, at addresses too."""

import pickle
from pathlib import Path

import pytest

from streamcache.dataset_cache import (
    EXPORT_FORMATS,
    CacheError,
    CacheWriter,
    Part,
    clean,
    compact,
    duplicate,
    export,
    export_as,
    gather,
    import_cache,
    merge,
    open_cache,
    overview,
    preview_clean,
    read_manifest,
    repair,
    storage_at,
    usage,
    verify,
)
from streamcache.dataset_cache.travel import AHEAD, SAME, Travel, pull, push, relation_of, sync, unfinished_in

from ..support.datasets import blob_place, content, flip, folder_bytes
from ..support.joined import COUNT, KINDS, REQUIRES, append, growing, plain_texts, write, write_joined
from ..support.remote_servers import BUCKET
from ..support.samples import same


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def near(tmp_path: Path, kind: str) -> Path:
    return write_joined(tmp_path / "near", kind)


@pytest.fixture
def far(s3: str, tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.parent.name}/{tmp_path.name}/set"


def index_files(place: Path | str) -> set[str]:
    return {name for name in storage_at(place).list() if name.startswith("index-")}


# The features that a cache requires


def test_f10_a_cache_requires_what_any_of_its_index_files_needs(tmp_path: Path):
    path = write(tmp_path / "set", range(4), trim=False)
    assert read_manifest(path).requires == ()
    with growing():
        write(path, range(4, 6), append=True)
        assert read_manifest(path).requires == ("padding", "segments")
        write(path, range(6, 7), append=True, trim=False)
    assert read_manifest(path).requires == ("padding", "segments")
    compact(path)
    assert read_manifest(path).requires == ("padding",) and plain_texts(path)


def test_f10_a_trimmed_base_is_required_whatever_follows_it(tmp_path: Path):
    path = write(tmp_path / "set", range(4))
    with growing():
        write(path, range(4, 6), append=True, trim=False)
    assert read_manifest(path).requires == ("padding", "segments") and plain_texts(path)


def test_f10_without_the_last_trimmed_entry_nothing_is_required_and_the_preview_is_exact(tmp_path: Path):
    path = write(tmp_path / "set", range(4), trim=False)
    with growing():
        write(path, range(4, 6), append=True)
        with CacheWriter(path, trim=False) as writer:
            assert writer.adopt_sets()
            writer.keep(0, 4)
    assert read_manifest(path).requires == ("padding", "segments")
    open_cache(path).close()  # readers leave leases here, so older generations need not be kept
    plan = preview_clean(path)
    before = folder_bytes(path)
    clean(plan)
    locks = sum(file.stat().st_size for file in path.glob(".lock*"))
    assert read_manifest(path).requires == () and index_files(path) == {read_manifest(path).index_name}
    assert folder_bytes(path) - locks == before - plan.bytes
    assert len(open_cache(path)) == 4 and plain_texts(path) and list(verify(path)) == []


# push, pull and sync


def test_f6_every_index_file_travels(near: Path, far: str, tmp_path: Path, kind: str):
    files = index_files(near)
    assert push(near, far).files == len(read_manifest(near).shards) + len(files) and index_files(far) == files
    pull(far, tmp_path / "copy")
    assert index_files(tmp_path / "copy") == files and list(verify(tmp_path / "copy")) == []
    assert content(tmp_path / "copy") == content(near) and plain_texts(tmp_path / "copy")
    append(tmp_path / "copy", kind, range(COUNT, COUNT + 2))
    assert sync(tmp_path / "copy", far).action == "push" and sync(near, far).action == "pull"
    assert content(near) == content(far_cache(far)) and relation_of(near, far) == SAME
    assert list(verify(near)) == [] and read_manifest(near).requires == REQUIRES[kind]


def far_cache(address: str):
    return open_cache(address, check=True)


def test_f6_only_new_index_files_travel_and_pruning_keeps_those_that_are_continued(near: Path, far: str, kind: str):
    push(near, far)
    for n in range(3):
        before = set(read_manifest(near).index_names)
        append(near, kind, range(COUNT + n, COUNT + n + 1))
        new = set(read_manifest(near).index_names) - before
        assert push(near, far).files == len(new) + 2  # and a shard of each kind
    report = push(near, far, Travel(prune=True, grace=0))
    kept = index_files(far)
    assert kept >= set(read_manifest(near).index_names) and content(far_cache(far)) == content(near)
    assert bool(report.pruned.files) == (kind == "padding")
    compact(near)
    append(near, kind, range(20, 21))
    push(near, far)
    append(near, kind, range(21, 22))
    push(near, far)
    assert push(near, far, Travel(prune=True, grace=0)).pruned.files
    assert list(verify(far)) == [] or (kind == "padding" and content(far_cache(far)) == content(near))


def test_f6_an_interrupted_journey_goes_on_and_is_shown_as_far_as_it_came(
    near: Path, far: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    push(near, far)
    copy = tmp_path / "copy"
    pull(far, copy)
    append(near, kind, range(COUNT, COUNT + 3))
    push(near, far)
    from streamcache.dataset_cache.travel import journey

    with monkeypatch.context() as patch:
        patch.setattr(journey, "_publish", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pull(far, copy)
    assert len(open_cache(copy)) == COUNT
    found = unfinished_in(copy)
    assert found is not None and found.arrived == found.total, "everything was here, also the older index files"
    assert pull(far, copy).resumed > 0 and content(copy) == content(near)
    assert unfinished_in(copy) is None and relation_of(copy, far) == SAME


# Reading at an address


def test_f4_at_an_address_everything_is_read_as_in_a_folder(near: Path, far: str):
    push(near, far)
    cache = open_cache(far)
    assert content(cache) == content(near) and plain_texts(far)
    for rows in open_cache(near).buckets().values():
        ours, theirs = (open_cache(place).read_batch(rows.tolist()) for place in (near, far))
        assert same(ours.conditionings, theirs.conditionings) and same(ours.latents, theirs.latents)
    copy = pickle.loads(pickle.dumps(cache))
    assert content(copy) == content(near)
    assert overview(far).fields == overview(near).fields and usage(far).index == usage(near).index
    assert list(verify(far)) == []


def test_f4_only_new_index_files_are_copied_and_a_reader_keeps_its_generation(
    near: Path, far: str, kind: str, state_dir: Path
):
    push(near, far)
    reader, before = open_cache(far), content(near)
    copies = {file.name: file.stat().st_ino for file in (state_dir / "copies/indexes").rglob("index-*")}
    assert set(copies) == set(read_manifest(near).index_names)
    append(near, kind, range(COUNT, COUNT + 1))
    push(near, far, Travel(prune=True, grace=0))
    assert content(reader) == before and content(pickle.loads(pickle.dumps(reader))) == before
    assert content(far_cache(far)) == content(near)
    after = {file.name: file.stat().st_ino for file in (state_dir / "copies/indexes").rglob("index-*")}
    assert after.items() >= copies.items() and set(after) >= set(read_manifest(near).index_names)


@pytest.mark.parametrize("number", range(3))
def test_f4_verify_reads_every_index_file_at_the_address_not_its_local_copy(far: str, tmp_path: Path, number: int):
    near = write_joined(tmp_path / "set", "both")
    push(near, far)
    assert len(open_cache(far)) == COUNT, "all index files are here now"
    name, storage = read_manifest(near).index_names[number], storage_at(far)
    storage.replace(name, (near / name).read_bytes()[:-1] + b"x")
    (problem,) = verify(far)
    assert (problem.kind, problem.place) == ("damaged", name)
    storage.remove(name)
    (problem,) = verify(far)
    assert (problem.kind, problem.place) == ("missing", name)
    push(near, far, Travel(verify=True))
    assert list(verify(far)) == []


def test_f5_what_comes_is_read_ahead_over_all_index_files(near: Path, far: str):
    push(near, far)
    cache = open_cache(far)
    order = [rows.tolist()[n : n + 2] for rows in cache.buckets().values() for n in range(0, len(rows), 2)] * 2
    variants = [{"conditioning": [n % 2] * len(rows)} for n, rows in enumerate(order)]
    cache.coming(zip(order, variants, strict=True))
    local = open_cache(near)
    for rows, chosen in zip(order, variants, strict=True):
        ours, theirs = (each.read_batch(rows, variants=chosen) for each in (local, cache))
        assert same(ours.conditionings, theirs.conditionings) and same(ours.latents, theirs.latents)
    cache.coming(())
    assert cache.traffic is not None and cache.traffic.hits > 0


# Copies, formats of other tools, merging, repairing


@pytest.mark.parametrize("there", [False, True], ids=["folder", "address"])
def test_f9_copies_exports_and_merges_have_the_same_samples(
    near: Path, request: pytest.FixtureRequest, tmp_path: Path, there: bool
):
    place = near
    if there:
        place = request.getfixturevalue("far")
        push(near, place)
    export(place, tmp_path / "copy")
    duplicate(place, tmp_path / "twin")
    other = write(tmp_path / "other", range(50, 53))
    merge([place, other], tmp_path / "merged")
    for name in ("copy", "twin"):
        assert content(tmp_path / name) == content(near) and list(verify(tmp_path / name)) == []
    assert content(tmp_path / "merged") == content(near) + content(other) and plain_texts(tmp_path / "merged")
    for form in EXPORT_FORMATS if pytest.importorskip("pyarrow") else ():
        export_as(place, tmp_path / form, form)
        import_cache(tmp_path / form, tmp_path / f"{form} again")
        assert content(tmp_path / f"{form} again") == content(near)
        again = read_manifest(tmp_path / f"{form} again").requires
        assert set(again) == {"padding"} & set(read_manifest(near).requires), "trimmed if the exported cache was"


@pytest.mark.parametrize("there", [False, True], ids=["folder", "address"])
def test_f10_gathered_samples_bring_their_features_along(near: Path, far: str, tmp_path: Path, kind: str, there: bool):
    push(near, far)
    cache = open_cache(far if there else near)
    gather([Part(cache[COUNT - 3 :]), Part(cache[:2])], tmp_path / "part")
    found = content(tmp_path / "part")
    assert found == [content(near)[i] for i in (*range(COUNT - 3, COUNT), 0, 1)]
    trimmed = ("padding",) if kind != "segments" else ()
    assert read_manifest(tmp_path / "part").requires == trimmed and list(verify(tmp_path / "part")) == []


def test_repair_works_in_a_folder_and_says_what_to_do_at_an_address(near: Path, far: str):
    push(near, far)
    flip(*blob_place(near, f"latent {COUNT - 1}"))
    push_damaged(near, far)
    problems = list(verify(far))
    assert [problem.sample for problem in problems] == [COUNT - 1] and problems == list(verify(near))
    with pytest.raises(CacheError, match="is an address, where nothing is built or changed in place.*push it"):
        repair(far, accept_loss=True)
    report = repair(near, accept_loss=True)
    assert [number for number, _ in report.samples] == [COUNT - 1] and list(verify(near)) == []
    assert len(open_cache(near)) == COUNT - 1 and plain_texts(near)
    assert relation_of(near, far) == AHEAD and push(near, far).files
    assert content(far_cache(far)) == content(near)


def push_damaged(folder: Path, address: str) -> None:
    """The shards as they are in the folder now."""
    for name in storage_at(folder).list("shards"):
        storage_at(address).replace(f"shards/{name}", (folder / "shards" / name).read_bytes())
