"""Core's shards and those of #14599 convert to a cache; anything else is refused and never run."""

import contextlib
import json
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.foreign.comfy_dataset import open_foreign
from streamcache.dataset_cache.foreign.convert import convert

FORMATS = ("core", "skeleton")


def write_core(folder: Path, latents: list, conditioning: list, shard_size: int = 2) -> Path:
    """What ComfyUI 0.33's Save Training Dataset writes."""
    folder.mkdir(exist_ok=True)
    for number, start in enumerate(range(0, len(latents), shard_size)):
        part = slice(start, start + shard_size)
        with (folder / f"shard_{number:04d}.pkl").open("wb") as file:
            torch.save({"latents": latents[part], "conditioning": conditioning[part]}, file)
    write_metadata(folder, latents, shard_size)
    return folder


def write_skeleton(folder: Path, latents: list, conditioning: list, shard_size: int = 2) -> Path:
    """What #14599's Save Training Dataset writes."""
    folder.mkdir(exist_ok=True)
    for number, start in enumerate(range(0, len(latents), shard_size)):
        tensors: dict[str, torch.Tensor] = {}
        pairs = []
        for i in range(min(shard_size, len(latents) - start)):
            latent = take_tensors(latents[start + i], tensors, f"s{i}_lat")
            pairs.append((latent, take_tensors(conditioning[start + i], tensors, f"s{i}_cond")))
        save_file(tensors, folder / f"shard_{number:04d}.safetensors")
        with (folder / f"shard_{number:04d}.skeleton.pkl").open("wb") as file:
            pickle.dump(pairs, file, protocol=pickle.HIGHEST_PROTOCOL)
    write_metadata(folder, latents, shard_size, format_version=2)
    return folder


def take_tensors(value: Any, tensors: dict[str, torch.Tensor], prefix: str) -> Any:
    if isinstance(value, torch.Tensor):
        key = f"{prefix}_{len(tensors)}"
        tensors[key] = value.clone()
        return {"__tref__": key}
    if isinstance(value, dict):
        return {key: take_tensors(item, tensors, prefix) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(take_tensors(item, tensors, prefix) for item in value)
    return value


def write_metadata(folder: Path, latents: list, shard_size: int, **more: int) -> None:
    counts = {"num_samples": len(latents), "num_shards": -(-len(latents) // shard_size), "shard_size": shard_size}
    (folder / "metadata.json").write_text(json.dumps({**counts, **more}, indent=2))


WRITE = {"core": write_core, "skeleton": write_skeleton}
FIRST_SHARD = {"core": "shard_0000.pkl", "skeleton": "shard_0000.safetensors"}
FIRST_PICKLE = {"core": "shard_0000.pkl", "skeleton": "shard_0000.skeleton.pkl"}


def make_dataset(count: int = 5) -> tuple[list, list]:
    """SDXL-like entries of two shapes, in several types, with plain values beside the tensors."""
    generator = torch.Generator().manual_seed(count)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    latents, conditioning = [], []
    for i in range(count):
        latents.append({"samples": draw(1, 4, 8, 8 + 8 * (i % 2)), "downscale_ratio_spacial": 8})
        options = {
            "pooled_output": draw(1, 12, dtype=torch.bfloat16),
            "width": 64 * i,
            "strength": 0.5,
            "area": (1, 2, 3, 4),
            "tag": f"n°{i}",
            "off": None,
            "on": True,
            "nested": {"scale": [draw(3, dtype=torch.float16)]},
            "fp8": draw(1, 4).to(torch.float8_e4m3fn),
        }
        entries = [[draw(1, 7, 6), options]] + ([[draw(1, 7, 6), {}]] if i == 3 else [])
        conditioning.append(entries)
    return latents, conditioning


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        same = isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return same and a.contiguous().view(torch.uint8).equal(b.contiguous().view(torch.uint8))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def read_all(path: Path) -> list[tuple[Any, Any]]:
    real = [sample.realize() for sample in open_cache(path)]
    return [(sample.latent, sample.conditioning) for sample in real]


@pytest.mark.parametrize("form", FORMATS)
def test_c11_both_formats_convert_to_what_was_saved(tmp_path: Path, form: str) -> None:
    latents, conditioning = make_dataset()
    source = WRITE[form](tmp_path / "old", latents, conditioning)
    calls: list[tuple[int, int | None]] = []

    report = convert(source, tmp_path / "new", progress=lambda *call: calls.append(call))

    assert equal(read_all(tmp_path / "new"), list(zip(latents, conditioning, strict=True)))
    assert (report.shards, report.items, report.samples, report.notes) == (3, 5, 5, ())
    assert calls == [(i, 5) for i in range(1, 6)]
    cache = open_cache(tmp_path / "new")
    assert cache.source(4) == FIRST_SHARD[form].replace("0000", "0002") + "#0"
    assert cache.provenance["converted"]["folder"] == "old"


@pytest.mark.parametrize("form", FORMATS)
def test_a_bucketed_batch_becomes_samples_with_their_own_conditioning(tmp_path: Path, form: str) -> None:
    samples, masks, text = torch.randn(3, 4, 8, 8), torch.rand(3, 1, 8, 8), torch.randn(3, 7, 6)
    latent = {"samples": samples, "noise_mask": masks, "batch_index": [4, 5, 6], "downscale_ratio_spacial": 8}
    entries = [[text[i : i + 1].clone(), {"pooled_output": torch.full((1, 2), float(i))}] for i in range(3)]
    source = WRITE[form](tmp_path / "old", [latent], [entries])

    report = convert(source, tmp_path / "new")

    row = {"downscale_ratio_spacial": 8}
    expected = [
        (
            {"samples": samples[i : i + 1], "noise_mask": masks[i : i + 1], "batch_index": [4 + i], **row},
            [entries[i]],
        )
        for i in range(3)
    ]
    assert equal(read_all(tmp_path / "new"), expected)
    assert (report.items, report.samples) == (1, 3)
    assert open_cache(tmp_path / "new").source(2) == FIRST_SHARD[form] + "#0.2"


def test_one_entry_of_several_rows_is_split_and_of_one_row_is_shared(tmp_path: Path) -> None:
    text, pooled, shared = torch.randn(2, 7, 6), torch.randn(2, 3), torch.randn(1, 7, 6)
    latents = [{"samples": torch.randn(2, 4, 1, 8, 8)}, {"samples": torch.randn(2, 4, 1, 8, 8)}]
    source = write_core(tmp_path / "old", latents, [[[text, {"pooled_output": pooled, "n": 2}]], [[shared, {}]]])
    convert(source, tmp_path / "new")
    found = [conditioning for _, conditioning in read_all(tmp_path / "new")]
    rows = [[[text[i : i + 1], {"pooled_output": pooled[i : i + 1], "n": 2}]] for i in range(2)]
    assert equal(found, [*rows, [[shared, {}]], [[shared, {}]]])


@pytest.mark.parametrize(("entries", "rows"), [(2, 1), (1, 2)])
def test_ambiguous_conditionings_are_refused(tmp_path: Path, entries: int, rows: int) -> None:
    latent = {"samples": torch.randn(3, 4, 8, 8)}
    source = write_core(tmp_path / "old", [latent], [[[torch.randn(rows, 7, 6), {}]] * entries])
    with pytest.raises(CacheError, match=r"shard_0000\.pkl#0: 3 latents with"):
        convert(source, tmp_path / "new")


class Evil:
    """Pickles to a call that creates a file when it is loaded without care."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"echo ran > '{self.target}'",)


@pytest.mark.parametrize("form", FORMATS)
def test_c11_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path, form: str) -> None:
    latents, conditioning = make_dataset(2)
    source = WRITE[form](tmp_path / "old", latents, conditioning)
    target = tmp_path / "ran"
    evil = [(latents[0], Evil(target))] if form == "skeleton" else {"latents": [Evil(target)], "conditioning": [[]]}
    file = source / FIRST_PICKLE[form]
    if form == "core":
        torch.save(evil, file)
    else:
        file.write_bytes(pickle.dumps([({}, Evil(target))]))

    with pytest.raises(CacheError, match=rf"{file.name}.*refused"):
        convert(source, tmp_path / "new")
    assert not target.exists()

    # The same file does run where nothing is refused, so the test above shows something.
    if form == "skeleton":
        pickle.loads(file.read_bytes())
    else:
        torch.load(file, weights_only=False)
    assert target.exists()


def test_a_plain_malicious_pickle_in_place_of_a_torch_file_is_refused(tmp_path: Path) -> None:
    source = write_core(tmp_path / "old", *make_dataset(2))
    (source / "shard_0000.pkl").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(CacheError, match=r"shard_0000\.pkl: not a torch\.save file"):
        convert(source, tmp_path / "new")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cos\nsystem\n.",  # GLOBAL
        b"\x8c\x02os\x8c\x06system\x93.",  # STACK_GLOBAL
        b"(S'true'\nios\nsystem\n.",  # INST
        b"\x82\x01.",  # EXT1
        b"Pname\n.",  # PERSID
        b"}(K\x01K\x02ub.",  # BUILD on a dict
        b"]K\x01\x85R.",  # REDUCE of a list
        b"}]\x81.",  # NEWOBJ of a dict
        b"r\xff\xff\xff\x7f.",  # LONG_BINPUT into an empty stack, with a huge number
        b"",
    ],
)
def test_everything_but_plain_data_is_refused(tmp_path: Path, opcodes: bytes) -> None:
    source = write_skeleton(tmp_path / "old", *make_dataset(2))
    (source / "shard_0000.skeleton.pkl").write_bytes(b"\x80\x05" + opcodes)
    with pytest.raises(CacheError, match=r"shard_0000\.skeleton\.pkl"):
        convert(source, tmp_path / "new")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("endless", ["folded", "circular"])
def test_an_endless_structure_is_refused(tmp_path: Path, form: str, endless: str) -> None:
    bomb: list = []
    if endless == "circular":
        bomb.append(bomb)
    else:
        for _ in range(60):
            bomb = [bomb, bomb]
    source = WRITE[form](tmp_path / "old", *make_dataset(2))
    if form == "core":
        torch.save({"latents": [bomb], "conditioning": [[]]}, source / "shard_0000.pkl")
    else:
        (source / "shard_0000.skeleton.pkl").write_bytes(pickle.dumps([(bomb, [])]))
    with pytest.raises(CacheError, match=r"sample 0: more than 5,000,000 values or 64 levels"):
        convert(source, tmp_path / "new")


@pytest.mark.parametrize("form", FORMATS)
def test_shards_left_by_a_longer_save_are_skipped_and_named(tmp_path: Path, form: str) -> None:
    WRITE[form](tmp_path / "old", *make_dataset(6))
    latents, conditioning = make_dataset(2)
    source = WRITE[form](tmp_path / "old", latents, conditioning)
    report = convert(source, tmp_path / "new")
    assert equal(read_all(tmp_path / "new"), list(zip(latents, conditioning, strict=True)))
    assert len(report.notes) == 2
    assert FIRST_SHARD[form].replace("0000", "0002") in report.notes[1]


def test_metadata_decides_between_two_formats_in_one_folder(tmp_path: Path) -> None:
    write_core(tmp_path / "old", *make_dataset(4))
    latents, conditioning = make_dataset(3)
    source = write_skeleton(tmp_path / "old", latents, conditioning)
    assert convert(source, tmp_path / "new").kind == "ComfyUI #14599"
    assert equal(read_all(tmp_path / "new"), list(zip(latents, conditioning, strict=True)))
    (source / "metadata.json").unlink()
    with pytest.raises(CacheError, match="both formats"):
        convert(source, tmp_path / "other")


def test_a_dataset_without_metadata_converts_with_a_note(tmp_path: Path) -> None:
    source = write_core(tmp_path / "old", *make_dataset(3))
    (source / "metadata.json").unlink()
    report = convert(source, tmp_path / "new")
    assert report.samples == 3
    assert "all shards" in report.notes[0]


def test_shards_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    latents, conditioning = make_dataset(3)
    source = write_core(tmp_path / "old", latents, conditioning, shard_size=1)
    (source / "metadata.json").write_text(json.dumps({"num_samples": 10_001, "num_shards": 10_001}))
    (source / "shard_0002.pkl").rename(source / "shard_10000.pkl")
    for i in range(2, 10_000):
        os.link(source / "shard_0001.pkl", source / f"shard_{i:04d}.pkl")

    assert [shard.name for shard in open_foreign(source).shards][-2:] == ["shard_9999.pkl", "shard_10000.pkl"]


def damage(source: Path, how: str, form: str) -> None:
    shard = source / FIRST_SHARD[form]
    if how == "truncated":
        shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    elif how == "empty":
        shard.write_bytes(b"")
    elif how == "missing":
        shard.unlink()
    elif how == "metadata":
        (source / "metadata.json").write_text("{")
    elif how == "count":
        write_metadata(source, [None] * 4, 2, **({"format_version": 2} if form == "skeleton" else {}))
    elif how == "newer":
        write_metadata(source, [None] * 3, 2, format_version=3)
    elif how == "cleared":
        for file in source.glob("shard_*"):
            file.unlink()
    else:
        raise AssertionError(how)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", r"{shard}: cannot be read"),
        ("empty", r"{shard}: (not a torch.save file|cannot be read)"),
        ("missing", r"old: shard 0 of 2 is missing; copy"),
        ("metadata", r"metadata\.json: cannot be read .*remove it"),
        ("count", r"metadata\.json: states 4 samples, the shards contain 3; save"),
        ("newer", r"metadata\.json: format_version 3"),
        ("cleared", r"old: no shard_0000\.pkl .*choose a folder"),
    ],
)
def test_broken_folders_are_refused_with_file_and_remedy(tmp_path: Path, form: str, how: str, message: str) -> None:
    source = WRITE[form](tmp_path / "old", *make_dataset(3))
    damage(source, how, form)
    with pytest.raises(CacheError, match=message.format(shard=FIRST_SHARD[form].replace(".", r"\."))):
        convert(source, tmp_path / "new")
    with pytest.raises(CacheError):
        open_cache(tmp_path / "new")


def test_a_missing_skeleton_and_a_missing_tensor_are_named(tmp_path: Path) -> None:
    source = write_skeleton(tmp_path / "old", *make_dataset(2))
    tensors = load_file(source / "shard_0000.safetensors")
    gone = next(iter(tensors))
    del tensors[gone]
    save_file(tensors, source / "shard_0000.safetensors")
    with pytest.raises(CacheError, match=rf"tensor '{gone}' is missing from the shard"):
        convert(source, tmp_path / "new")
    (source / "shard_0000.skeleton.pkl").unlink()
    with pytest.raises(CacheError, match=r"shard_0000\.skeleton\.pkl: cannot be opened"):
        convert(source, tmp_path / "new")


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        (["a", "list"], "expected a dict with two lists"),
        ({"latents": [1], "conditioning": []}, "expected a dict with two lists"),
        ({"latents": [torch.zeros(1)], "conditioning": [[]]}, "not a dict with a tensor 'samples'"),
        ({"latents": [{"samples": torch.zeros(0, 4, 8, 8)}], "conditioning": [[]]}, "the latent has shape"),
        ({"latents": [{"samples": torch.zeros(1, 4, 8, 8)}], "conditioning": [[]]}, "not a list of"),
        ({"latents": [{"samples": torch.zeros(1, 4, 8, 8)}], "conditioning": [[[1, {}]]]}, "entry 0"),
    ],
)
def test_a_torch_file_with_other_content_is_refused(tmp_path: Path, shard: Any, message: str) -> None:
    source = write_core(tmp_path / "old", *make_dataset(2))
    torch.save(shard, source / "shard_0000.pkl")
    with pytest.raises(CacheError, match=message):
        convert(source, tmp_path / "new")


def test_other_folders_and_missing_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"")
    for name in ("pictures", "nowhere"):
        with pytest.raises(CacheError, match=f"{name}: .*Save Training Dataset"):
            convert(tmp_path / name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_source_and_destination_must_differ(tmp_path: Path) -> None:
    source = write_core(tmp_path / "old", *make_dataset(2))
    with pytest.raises(CacheError, match="the same folder"):
        convert(source, tmp_path / "old" / ".." / "old")


def test_converting_again_replaces_the_samples(tmp_path: Path) -> None:
    convert(write_core(tmp_path / "a", *make_dataset(5)), tmp_path / "new")
    latents, conditioning = make_dataset(2)
    convert(write_skeleton(tmp_path / "b", latents, conditioning), tmp_path / "new")
    assert equal(read_all(tmp_path / "new"), list(zip(latents, conditioning, strict=True)))


def test_a_cache_that_was_not_converted_is_never_replaced(tmp_path: Path) -> None:
    source = write_core(tmp_path / "a", *make_dataset(2))
    with CacheWriter(tmp_path / "encoded") as writer:
        writer.add({"samples": torch.zeros(1, 4, 8, 8)})
    with pytest.raises(CacheError, match="encoded: exists and is not a converted dataset; choose another name"):
        convert(source, tmp_path / "encoded")
    assert len(open_cache(tmp_path / "encoded")) == 1


def test_a_failed_conversion_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    latents, conditioning = make_dataset(2)
    convert(write_core(tmp_path / "a", latents, conditioning), tmp_path / "new")
    broken = write_core(tmp_path / "b", *make_dataset(4))
    (broken / "shard_0001.pkl").write_bytes(b"")
    with pytest.raises(CacheError):
        convert(broken, tmp_path / "new")
    assert equal(read_all(tmp_path / "new"), list(zip(latents, conditioning, strict=True)))


@pytest.mark.parametrize("form", FORMATS)
def test_flipped_bytes_give_an_error_or_a_cache_and_nothing_else(tmp_path: Path, form: str) -> None:
    source = WRITE[form](tmp_path / "old", *make_dataset(2))
    file = source / FIRST_PICKLE[form]
    whole = file.read_bytes()
    generator = random.Random(7)
    # Of a torch file, the part that is interpreted: the pickle inside and the archive's own records.
    places = range(len(whole)) if form == "skeleton" else archive_places(file)
    for round_number in range(150):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.choice(places)] = generator.randrange(256)
        file.write_bytes(damaged)
        with contextlib.suppress(CacheError):
            convert(source, tmp_path / f"new{round_number % 3}")


def archive_places(file: Path) -> list[int]:
    with zipfile.ZipFile(file) as archive:
        (info,) = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
        directory = archive.start_dir
    end = file.stat().st_size
    return [*range(info.header_offset, info.header_offset + 60 + info.file_size), *range(directory, end)]


def one_conditioning() -> list:
    return [[torch.zeros(1, 2, 4), {}]]


def test_a_tensor_that_repeats_few_stored_bytes_very_often_is_refused(tmp_path: Path) -> None:
    huge = torch.zeros(1).expand(1, 4, 40_000, 40_000)
    source = write_core(tmp_path / "source", [{"samples": huge}], [one_conditioning()])
    assert sum(file.stat().st_size for file in source.iterdir()) < 10_000
    with pytest.raises(CacheError, match="repeats stored bytes"):
        convert(source, tmp_path / "cache")


def test_many_tensors_that_repeat_stored_bytes_are_refused_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamcache.dataset_cache.foreign.comfy_shard.MAX_REPEATED_BYTES", 900_000)
    latents = [{"samples": torch.zeros(1).expand(1, 4, 128, 128 + i)} for i in range(8)]
    source = write_core(tmp_path / "source", latents, [one_conditioning()] * 8, shard_size=8)
    with pytest.raises(CacheError, match="sample 3: a tensor of shape .* repeats stored bytes"):
        convert(source, tmp_path / "cache")


@pytest.mark.parametrize("apart", [True, False])
def test_overlapping_views_of_one_storage_count_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    monkeypatch.setattr("streamcache.dataset_cache.foreign.comfy_shard.MAX_REPEATED_BYTES", 1 << 20)
    stored = torch.arange(70_000.0)
    views = [stored[shift : shift + 65_536].view(1, 4, 128, 128) for shift in range(12)]
    # In one sample, or in several.
    latents = [{"samples": v} for v in views] if apart else [{"samples": views[0], "more": views[1:]}]
    source = write_core(tmp_path / "source", latents, [one_conditioning()] * len(latents), shard_size=12)
    with pytest.raises(CacheError, match=f"sample {5 if apart else 0}: a tensor of shape .* repeats stored bytes"):
        convert(source, tmp_path / "cache")


def test_views_that_share_no_bytes_and_views_that_are_equal_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamcache.dataset_cache.foreign.comfy_shard.MAX_REPEATED_BYTES", 0)
    rows = torch.rand(8, 4, 16, 16)
    conditioning = [[torch.rand(1, 77, 64), {}]]
    source = write_core(tmp_path / "a", [{"samples": row[None]} for row in rows], [conditioning] * 8, shard_size=8)
    assert convert(source, tmp_path / "cache").samples == 8


def test_an_expanded_tensor_of_usual_size_is_converted(tmp_path: Path) -> None:
    source = write_core(tmp_path / "source", [{"samples": torch.ones(1).expand(1, 4, 8, 8)}], [one_conditioning()])
    convert(source, tmp_path / "cache")
    assert torch.equal(open_cache(tmp_path / "cache")[0].realize().latent["samples"], torch.ones(1, 4, 8, 8))


def test_a_tensor_that_a_skeleton_names_often_is_read_once(tmp_path: Path) -> None:
    latent = {"samples": torch.zeros(1, 4, 8, 8), "more": [torch.rand(256, 256)]}
    source = write_skeleton(tmp_path / "source", [latent], [one_conditioning()])
    path = next(source.glob("*.skeleton.pkl"))
    ((first, second),) = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps([({**first, "more": first["more"] * 100_000}, second)]))  # 26 GB if each were read
    (item,) = open_foreign(source).items()
    assert len(item.latent["more"]) == 100_000 and len({id(tensor) for tensor in item.latent["more"]}) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("name", ["metadata.json", "shard_0000.skeleton.pkl"])
def test_a_pipe_in_the_folder_does_not_block(tmp_path: Path, name: str) -> None:
    source = write_skeleton(tmp_path / "source", *make_dataset(2))
    (source / name).unlink()
    os.mkfifo(source / name)
    with pytest.raises(CacheError, match=f"{name}: is not a file"):
        convert(source, tmp_path / "cache")
