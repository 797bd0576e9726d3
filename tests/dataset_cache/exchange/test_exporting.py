"""Exports in other tools' formats: what comes back is the same cache, and nothing else is accepted."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import EXPORT_FORMATS, CacheError, CacheWriter, export_as, import_cache, open_cache
from streamcache.dataset_cache.exchange import parquet

from ...support.mutations import mutate
from ...support.samples import anonymous_bytes, raw, write_cache
from .exports import assert_equal, write_plain_cache, write_rich_cache

FORMS = list(EXPORT_FORMATS)


@pytest.mark.parametrize("form", FORMS)
def test_f9_a_cache_comes_back_as_it_was(tmp_path: Path, form: str):
    source = write_rich_cache(tmp_path / "set")
    calls: list[tuple[int, int]] = []
    report = export_as(source, tmp_path / "out", form, lambda *call: calls.append(call))
    assert (report.samples, report.format, calls) == (6, form, [(i, 6) for i in range(1, 7)])
    assert report.bytes == sum((tmp_path / "out" / f).stat().st_size for f in files_of(tmp_path / "out"))
    back = import_cache(tmp_path / "out", tmp_path / "back")
    assert str(back) == f"Imported 6 samples ({form}) to back"
    assert_equal(source, tmp_path / "back")


@pytest.mark.parametrize("form", FORMS)
def test_f9_files_are_limited_in_size(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet, "GROUP_BYTES", 3000)
    source = write_plain_cache(tmp_path / "set", 9)
    report = export_as(source, tmp_path / "out", form, file_bytes=5000)
    assert report.files == len(files_of(tmp_path / "out")) > 2
    import_cache(tmp_path / "out", tmp_path / "back")
    assert_equal(source, tmp_path / "back")


@pytest.mark.parametrize("form", FORMS)
def test_f9_an_empty_cache_can_be_exported_and_imported(tmp_path: Path, form: str):
    source = write_cache(tmp_path / "set", 0)
    export_as(source, tmp_path / "out", form)
    import_cache(tmp_path / "out", tmp_path / "back")
    assert_equal(source, tmp_path / "back")


@pytest.mark.parametrize("form", FORMS)
def test_f9_an_interrupted_export_is_no_export(tmp_path: Path, form: str):
    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    write_plain_cache(tmp_path / "set")
    with pytest.raises(KeyboardInterrupt):
        export_as(tmp_path / "set", tmp_path / "out", form, stop)
    with pytest.raises(CacheError, match="contains no cache"):
        import_cache(tmp_path / "out", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_f9_nothing_is_overwritten(tmp_path: Path):
    write_plain_cache(tmp_path / "set")
    export_as(tmp_path / "set", tmp_path / "out", "webdataset")
    for place, message in ((tmp_path / "out", "an export already"), (tmp_path / "set", "files already")):
        with pytest.raises(CacheError, match=message):
            export_as(tmp_path / "set", place, "parquet")
    with pytest.raises(CacheError, match="inside the cache"):
        export_as(tmp_path / "set", tmp_path / "set" / "out", "parquet")
    with pytest.raises(CacheError, match="expected one of webdataset, parquet, hf"):
        export_as(tmp_path / "set", tmp_path / "new", "csv")
    with pytest.raises(CacheError, match="already contains a cache"):
        import_cache(tmp_path / "out", tmp_path / "set")


@pytest.mark.parametrize("form", FORMS)
def test_f9_damage_is_found_and_names_its_place(tmp_path: Path, form: str):
    write_plain_cache(tmp_path / "set")
    out = tmp_path / "out"
    export_as(tmp_path / "set", out, form)
    path = out / files_of(out)[0]
    data = bytearray(path.read_bytes())
    latent = open_cache(tmp_path / "set")[0].realize().latent["samples"]
    start = data.index(raw(latent))
    data[start + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CacheError, match="'samples' is damaged"):
        import_cache(out, tmp_path / "back")
    with pytest.raises(CacheError):
        open_cache(tmp_path / "back")


@pytest.mark.parametrize("form", FORMS)
def test_f9_any_damage_is_an_error_or_harmless(tmp_path: Path, form: str):
    write_plain_cache(tmp_path / "set", 3)
    export_as(tmp_path / "set", tmp_path / "out", form)
    for seed in range(40):
        draw = random.Random(seed)
        out = shutil.copytree(tmp_path / "out", tmp_path / f"out-{seed}")
        what = mutate(draw.choice([out / "export.json", *(out / name for name in files_of(out))]), draw)
        back = tmp_path / f"back-{seed}"
        try:
            import_cache(out, back)
        except CacheError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {what}: {error!r}") from error
        assert len(open_cache(back, check=True)) == 3, f"seed {seed}: {what}"


ABOUT_CHANGES: list[tuple[Callable[[dict], object], str]] = [
    (lambda about: about.update(files=["../set/dataset.json"]), "not in this folder"),
    (lambda about: about.update(files=["/etc/passwd"]), "not in this folder"),
    (lambda about: about.update(files=["a\\..\\b"]), "not in this folder"),
    (lambda about: about.update(samples=1 << 60), "states 1,152,921"),
    (lambda about: about.update(samples="7"), "wrong types"),
    (lambda about: about.update(format="pickle"), "format 'pickle'"),
    (lambda about: about.update(streamcache=2), "another version"),
    (lambda about: about.update(files=about["files"] * 2), "states 7 samples"),
    (lambda about: about.update(sets=[]), "cannot be read|wrong types"),
    (lambda about: about.update(sets={"main": 3}), "wrong types"),
    (lambda about: about.update(provenance=[]), "wrong types"),
    (lambda about: about.update(more=1), "cannot be read"),
    (lambda about: about.update(named={"x": {"field": "latent", "tensors": ["a"]}}), "named.safetensors"),
]


@pytest.mark.parametrize(("change", "message"), ABOUT_CHANGES)
def test_f9_a_description_that_lies_is_refused(tmp_path: Path, change: Callable[[dict], object], message: str):
    write_plain_cache(tmp_path / "set")
    out = tmp_path / "out"
    export_as(tmp_path / "set", out, "webdataset")
    about = json.loads((out / "export.json").read_text())
    change(about)
    (out / "export.json").write_text(json.dumps(about))
    with pytest.raises(CacheError, match=message):
        import_cache(out, tmp_path / "back")


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux")
def test_f9_ten_times_as_many_samples_take_no_more_memory(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet, "GROUP_BYTES", 2 << 20)

    def peak(count: int) -> int:
        with CacheWriter(tmp_path / f"set-{count}") as writer:
            for _ in range(count):
                writer.add({"samples": torch.randn(1, 4, 128, 128)})  # 256 KB each
        most, start = 0, anonymous_bytes()

        def watch(*_: object) -> None:
            nonlocal most
            most = max(most, anonymous_bytes() - start)

        export_as(tmp_path / f"set-{count}", tmp_path / f"out-{count}", form, watch, file_bytes=16 << 20)
        import_cache(tmp_path / f"out-{count}", tmp_path / f"back-{count}", progress=watch)
        return most

    peak(11)  # what is allocated once
    assert peak(120) < peak(12) + (12 << 20)  # 31 MB of latents


def files_of(folder: Path) -> list[str]:
    return json.loads((folder / "export.json").read_text())["files"]


def test_an_address_as_destination_is_refused_and_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    source = write_plain_cache(tmp_path / "set", 2)
    export_as(source, "out", "webdataset")
    for place in ("s3://bucket/out", "s3:/bucket/out"):
        for act in (lambda to: export_as(source, to, "webdataset"), lambda to: import_cache("out", to)):
            with pytest.raises(CacheError, match="address"):
                act(place)
        with pytest.raises(CacheError, match="address"):
            import_cache(place, "back")
    assert {each.name for each in tmp_path.iterdir()} == {"set", "out"}
