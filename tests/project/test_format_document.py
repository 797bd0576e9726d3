"""The reader that stands in docs/format.md reads what the writer writes."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import CacheWriter, SampleFacts, open_cache
from streamcache.dataset_cache.write import checked, growth

from ..support.joined import KINDS as KINDS_OF_CACHES
from ..support.joined import write_joined
from ..support.padding import KINDS, padded
from ..support.samples import bits

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "format.md"


def documented_code() -> str:
    return re.search(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.S | re.M)[1]


@pytest.fixture
def plain_reader(tmp_path):
    path = tmp_path / "plain_reader.py"
    path.write_text(documented_code(), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("plain_reader", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dataset(tmp_path):
    generator = torch.Generator().manual_seed(0)
    with CacheWriter(tmp_path / "set", provenance={"by": "a test"}) as w:
        for i in range(7):
            extra = {"size": (512 + i, 1 << 80), "nan": float("nan"), "name": f"n{i} ü", "raw": b"\0\1", 3: None}
            extra |= {"flag": bool(i % 2), "np": np.float32(i / 3)}
            w.add(
                latent={"samples": torch.randn(1, 4, 8, 8 + 8 * (i % 2), generator=generator).half()},
                conditioning=[[torch.randn(1, 3, 5, generator=generator).bfloat16(), extra]],
                control=torch.tensor(i, dtype=torch.int64),
                caption=["ein", "zwei"][: 1 + i % 2],
                source=f"{i}.png",
            )
        w.put("a", {"samples": torch.zeros(1, 4, 8, 8)}, field="latent")
        w.put("b", {"samples": torch.ones(1, 4, 8, 8)}, field="latent")
        w.sample({"latent": ["a", "b"]}, SampleFacts(source="flipped.png"))
    return tmp_path / "set"


def test_f10_documented_reader_restores_trimmed_text(plain_reader, tmp_path):
    def texts(i):
        types = torch.float32, torch.bfloat16, torch.float16, torch.int32
        rows = torch.cat([bits((1, 30, 64), torch.float32, 9), padded(torch.float32, (1, 50 + i, 64), "both", i)], 1)
        return [[padded(types[i % 4], (1, 90, 100), KINDS[i // 4 % 4], i), {"rows": rows if i % 2 else None}]]

    with CacheWriter(tmp_path / "set") as w:
        for i in range(16):
            w.add(latent={"samples": torch.zeros(1, 4, 8, 8)}, conditioning=texts(i))
    assert open_cache(tmp_path / "set").manifest.requires == ("padding",)
    found = plain_reader.Dataset(tmp_path / "set")
    for i in range(16):
        assert same(found[i]["fields"]["conditioning"][0], plain(texts(i)))


def plain(value):
    """A structure as the documented reader gives it: numpy arrays for tensors, bytes for what numpy has no type for."""
    if isinstance(value, torch.Tensor):
        return value.view(torch.int16).numpy().view("V2") if value.dtype == torch.bfloat16 else value.numpy()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return type(value)(plain(item) for item in value) if isinstance(value, list | tuple) else value


def same(a, b) -> bool:
    if isinstance(a, np.ndarray) and a.dtype.kind == "V":
        return a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def test_documented_reader_is_short_and_needs_only_numpy():
    code = documented_code()
    assert len(code.splitlines()) <= 100
    assert set(re.findall(r"^(?:import|from) (.*)$", code, re.M)) == {
        "json, struct",
        "pathlib import Path",
        "numpy as np",
    }


def test_documented_reader_reads_a_real_cache(plain_reader, dataset):
    theirs, ours = plain_reader.Dataset(dataset), open_cache(dataset)
    assert len(theirs) == len(ours) == 8
    for i in range(8):
        sample, expected = theirs[i], ours[i].realize()
        assert sample["source"] == expected.source
        assert tuple(sample["captions"]) == expected.captions
        first = {name: variants[0] for name, variants in sample["fields"].items() if variants}
        assert same(first, plain(dict(expected.fields)))
    assert same(theirs[7]["fields"]["latent"][1], plain(ours.sample(7, {"latent": 1}).realize().latent))


def test_documented_reader_reads_an_index_of_several_files(plain_reader, dataset):
    with pytest.MonkeyPatch.context() as patch:
        for module in (checked, growth):
            patch.setattr(module, "SMALL_INDEX", 0)
        with CacheWriter(dataset) as w:
            w.adopt_sets()
            w.keep(0, 3)
            w.add(latent={"samples": torch.ones(1, 4, 8, 8).half()}, caption="neu", source="new.png")
            w.keep(5, 3)
    theirs, ours = plain_reader.Dataset(dataset), open_cache(dataset)
    assert ours.manifest.segments and ours.manifest.runs and len(theirs) == len(ours) == 7
    for i in range(7):
        sample, expected = theirs[i], ours[i].realize()
        assert (sample["source"], tuple(sample["captions"])) == (expected.source, expected.captions)
        first = {name: variants[0] for name, variants in sample["fields"].items() if variants}
        assert same(first, plain(dict(expected.fields)))


@pytest.mark.parametrize("kind", KINDS_OF_CACHES)
def test_f10_documented_reader_reads_segments_and_trimmed_text_together(plain_reader, tmp_path, kind):
    path = write_joined(tmp_path / "set", kind)
    theirs, ours = plain_reader.Dataset(path), open_cache(path)
    assert len(theirs) == len(ours)
    for i in range(len(ours)):
        for variant in range(2):
            expected = ours.sample(i, {"conditioning": variant}).realize().conditioning
            assert same(theirs[i]["fields"]["conditioning"][variant], plain(expected))
        assert same(theirs[i]["fields"]["latent"][0], plain(ours[i].realize().latent))


def test_shards_open_with_the_safetensors_library(dataset):
    from safetensors import safe_open

    names = set()
    for shard in (dataset / "shards").iterdir():
        with safe_open(shard, "pt") as file:
            names |= set(file.keys())
    blobs = {name for name in names if not name.startswith("~pad")}
    assert len(blobs) == 7 * 3 + 2 and all(re.fullmatch("[0-9a-f]{32}", name) for name in blobs)


def test_generation_is_the_documented_hash(dataset):
    import hashlib
    import json

    manifest = json.loads((dataset / "dataset.json").read_bytes())
    body = {key: value for key, value in manifest.items() if key not in ("generation", "published")}
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    assert hashlib.blake2b(text, digest_size=16).hexdigest() == manifest["generation"] == open_cache(dataset).generation
