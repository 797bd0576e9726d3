"""The manifest: what a newer or a foreign hand wrote is kept or refused, and nothing in it leads out of the folder."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format import manifest
from streamcache.dataset_cache.format.manifest import MANIFEST, Manifest, read_manifest

from ...support.samples import assert_holds, sample, shard_files, write_cache


def edit(path: Path, change: Callable[[dict], Any], sign: bool = True) -> None:
    """Change the manifest, with the generation that a writer would give it, and an index of that name."""
    file = path / MANIFEST
    body = json.loads(file.read_bytes())
    before = body["generation"]
    change(body)
    if sign:
        content = {k: v for k, v in body.items() if k not in ("generation", "published")}
        body["generation"] = manifest.hashlib.blake2b(manifest._canonical(content), digest_size=16).hexdigest()
        (path / manifest.index_name(before)).rename(path / manifest.index_name(body["generation"]))
    file.write_text(json.dumps(body))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cache(tmp_path_factory.mktemp("template") / "set", 4)


@pytest.fixture
def path(dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(dataset, tmp_path / "set")


def test_an_honest_edit_opens(path):
    """The helper above is honest itself: what it changes and signs is read."""
    edit(path, lambda body: body["provenance"].update(who="me"))
    assert open_cache(path).provenance == {"who": "me"}


def test_unknown_keys_survive_a_rewrite(path):
    edit(path, lambda body: body.update(future={"a": [1, None, "x"]}, other=3))
    write_cache(path, 1, first=4, append=True)
    body = json.loads((path / MANIFEST).read_bytes())
    assert body["future"] == {"a": [1, None, "x"]} and body["other"] == 3
    assert_holds(open_cache(path), range(5))


def test_keys_keep_their_order_over_a_rewrite(path):
    edit(path, lambda body: body["provenance"].update({"b": 1, "a": 2}))
    write_cache(path, 1, first=4, append=True)
    assert list(open_cache(path).provenance) == ["b", "a"]


@pytest.mark.parametrize("version", [2, 99, 10**30])
def test_a_newer_format_is_refused_with_the_remedy(path, version):
    edit(path, lambda body: body.update(format=version))
    with pytest.raises(CacheError, match=f"format {version}.*update StreamCache"):
        open_cache(path)
    with pytest.raises(CacheError, match="update StreamCache"):
        CacheWriter(path)


def test_an_unknown_feature_is_refused_by_name(path):
    edit(path, lambda body: body.update(requires=["holograms"]))
    with pytest.raises(CacheError, match="holograms.*update StreamCache"):
        open_cache(path)


@pytest.mark.parametrize("version", [0, -1, None, "1", 1.5, True, [], {}], ids=str)
def test_an_invalid_format_version_is_refused(path, version):
    edit(path, lambda body: body.update(format=version))
    with pytest.raises(CacheError, match="format"):
        open_cache(path)


BAD_NAMES = [
    *("../s-00000-" + "0" * 32 + ".safetensors", "/etc/passwd", "..", ".", "", "s-00000.safetensors", "s-1\\..\\x"),
    *(
        "C:\\x",
        "a/b",
        "s-00000-" + "0" * 32 + ".safetensors\n",
        "s-00000-" + "0" * 32 + ".safetensors/..",
        "\x00",
        None,
        7,
    ),
    *("S-00000-" + "0" * 32 + ".safetensors", "s-٠٠٠٠٠-" + "0" * 32 + ".safetensors", [], {}),
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:40])
def test_a_shard_name_that_leads_elsewhere_is_refused(path, name):
    edit(path, lambda body: body["shards"][0].update(file=name))
    with pytest.raises(CacheError, match="shard name|damaged"):
        open_cache(path)
    with pytest.raises(CacheError):
        CacheWriter(path)


def make_link(link: Path, target: Path) -> None:
    try:
        link.symlink_to(target, target_is_directory=target.is_dir())
    except OSError as error:
        pytest.skip(f"no symbolic links here: {error}")


@pytest.mark.parametrize("what", ["shard", "index", "manifest", "shards"])
def test_a_symbolic_link_inside_the_folder_is_refused(path, tmp_path, what):
    inside = {
        "shard": shard_files(path)[0],
        "index": next(path.glob("index-*")),
        "manifest": path / MANIFEST,
        "shards": path / "shards",
    }[what]
    outside = tmp_path / "outside"
    inside.rename(outside)
    make_link(inside, outside)
    with pytest.raises(CacheError, match="symbolic link"):
        open_cache(path)[0].realize()


def test_a_link_to_the_whole_folder_is_fine(path, tmp_path):
    make_link(tmp_path / "link", path)
    assert_holds(open_cache(tmp_path / "link"), range(4))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
@pytest.mark.parametrize("what", ["shard", "index", "manifest"])
def test_a_pipe_in_place_of_a_file_is_refused_without_waiting(path, what):
    file = {"shard": shard_files(path)[0], "index": next(path.glob("index-*")), "manifest": path / MANIFEST}[what]
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CacheError, match="not a file"):
        open_cache(path)[0].realize()


@pytest.mark.parametrize("what", ["manifest", "index"])
def test_a_folder_in_place_of_a_file_is_refused(path, what):
    file = {"index": next(path.glob("index-*")), "manifest": path / MANIFEST}[what]
    file.unlink()
    file.mkdir()
    with pytest.raises(CacheError, match="not a file"):
        open_cache(path)


NOT_MANIFESTS = {
    "empty": b"",
    "zeros": bytes(100),
    "text": b"hello",
    "list": b"[]",
    "number": b"7",
    "null": b"null",
    "object": b"{}",
    "other object": b'{"name": "package"}',
    "core's": b'{"num_samples": 4, "num_shards": 1}',
    "not UTF-8": b'{"format": "\xff\xfe"}',
    "deep": b'{"format": 1, "a": ' + b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "cut short": b'{"format": 1, "generation": "',
    "only a format": b'{"format": 1}',
    "a number of thousands of digits": b'{"format": ' + b"1" * 5000 + b"}",
}


@pytest.mark.parametrize("what", NOT_MANIFESTS)
def test_an_invalid_manifest_is_refused(path, what):
    (path / MANIFEST).write_bytes(NOT_MANIFESTS[what])
    for use in (open_cache, CacheWriter):
        with pytest.raises(CacheError, match=MANIFEST):
            use(path)


def test_an_edit_by_hand_is_noticed(path):
    edit(path, lambda body: body["provenance"].update(who="another user"), sign=False)
    with pytest.raises(CacheError, match="edited after it was written"):
        open_cache(path)


ODD = [
    None,
    7,
    -1,
    1.5,
    1 << 70,
    "text",
    "",
    [],
    [7],
    ["x"],
    [None],
    [[]],
    [{}],
    {},
    {"a": 1},
    {"a": None},
    {"a": {}},
    True,
]


@pytest.mark.parametrize("key", [*(f for f in Manifest.__dataclass_fields__ if f != "extra"), "dropped"])
def test_odd_values_in_the_manifest_are_harmless_or_raise_a_cache_error(dataset, tmp_path, key):
    """A hostile manifest, signed as a writer would: nothing but a CacheError, whatever is done with it."""
    for n, odd in enumerate(ODD):
        path = shutil.copytree(dataset, tmp_path / str(n))
        edit(path, lambda body, odd=odd: body.update({key: odd}))
        try:
            cache = open_cache(path)
            use_everything(cache)
        except CacheError:
            pass
        try:
            with CacheWriter(path, append=True) as w:
                w.add(**sample(9))
            use_everything(open_cache(path))
        except CacheError:
            pass


@pytest.mark.parametrize("part", ["file", "bytes", "hash"])
def test_odd_values_of_a_shard_raise_a_cache_error(dataset, tmp_path, part):
    for n, odd in enumerate(ODD):
        path = shutil.copytree(dataset, tmp_path / str(n))
        edit(path, lambda body, odd=odd: body["shards"][0].update({part: odd}))
        with pytest.raises(CacheError):
            open_cache(path)[0].realize()


@pytest.mark.parametrize("part", ["dtype", "shape", "samples"])
def test_odd_values_of_a_bucket_are_harmless_or_raise_a_cache_error(dataset, tmp_path, part):
    for n, odd in enumerate(ODD):
        path = shutil.copytree(dataset, tmp_path / str(n))
        edit(path, lambda body, odd=odd: body["buckets"][0].update({part: odd}))
        with suppress(CacheError):
            use_everything(open_cache(path))


def use_everything(cache: Any) -> None:
    for i, one in enumerate(cache):
        one.realize()
        cache.read_batch([i]).captions  # noqa: B018
        (cache.source(i), cache.captions(i))
    (cache.buckets(), cache.sets, cache.fields, cache.provenance, repr(cache))
    for field in cache.fields:
        cache.variants(field)
    for name in cache.named:
        cache.entry(cache.named[name])


def test_the_same_content_is_the_same_generation(tmp_path):
    first = write_cache(tmp_path / "set", 3)
    before = read_manifest(first)
    state = (first / MANIFEST).stat()
    write_cache(first, 3)
    assert read_manifest(first).generation == before.generation
    assert (first / MANIFEST).stat().st_ino == state.st_ino, "nothing was written where nothing changed"


@pytest.mark.parametrize(
    "provenance",
    [
        {1: "a", 10: "b", 2: "c"},
        {"t": (1, (2, 3))},
        {"n": float("nan"), "i": float("inf")},
        {"ключ": "\ud800"},
        {"x": {"y": None}},
    ],
    ids=["int keys", "tuples", "nan", "unicode", "nested"],
)
def test_any_json_provenance_is_read_back_unchanged(tmp_path, provenance):
    path = write_cache(tmp_path / "set", 1, provenance=provenance)
    assert repr(open_cache(path).provenance) == repr(json.loads(json.dumps(provenance)))
    write_cache(path, 1, first=1, append=True)
    assert repr(open_cache(path).provenance) == repr(json.loads(json.dumps(provenance)))


@pytest.mark.parametrize(
    "provenance",
    [{"a": object()}, {"a": {1, 2}}, {(1, 2): 3}, {"a": b"x"}],
    ids=["object", "set", "tuple key", "bytes"],
)
def test_any_other_provenance_is_refused_before_anything_is_written(tmp_path, provenance):
    with pytest.raises(CacheError, match="provenance"):
        CacheWriter(tmp_path / "set", provenance=provenance)
    assert not (tmp_path / "set").exists()


def test_facts_of_sets_are_kept_as_json_keeps_them(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        w.add(**sample(0), set="main")
        w.describe_set("main", {"prior": False, 5: (1, 2)})
        with pytest.raises(CacheError, match="main.*JSON"):
            w.describe_set("main", {"x": object()})
    assert open_cache(tmp_path / "set").sets == {"main": {"prior": False, "5": [1, 2]}}
