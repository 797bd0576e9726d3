"""The content of the golden caches. Values come from plain arithmetic, so that no library version changes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import CacheWriter, Codec, SampleFacts
from streamcache.dataset_cache.write import checked, growth

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
    *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
)
SETS = {"main": {"prior": False, "weight": 1.0}, "class ünï": {"prior": True, "weight": 0.25, "prompt": "a dog"}}
PROVENANCE = {"vae": "golden", "settings": {"resolution": [512, 768], "crop": None, "ratio": 0.5}}
NAMED = "empty caption"


class Rope:
    """A type that only its owner can rebuild."""

    def __init__(self, strands: list) -> None:
        self.strands = strands


CODEC = Codec("golden rope", Rope, lambda rope: {"strands": rope.strands}, lambda parts: Rope(parts["strands"]))


def ramp(dtype: torch.dtype, *shape: int, start: int = 0) -> torch.Tensor:
    """Bytes that count up, seen as this type: every value of every type is stored as it is, nan included."""
    count = int(np.prod(shape)) * dtype.itemsize
    data = (torch.arange(start, start + count) * 37 % 251).to(torch.uint8)
    if dtype == torch.bool:
        return (data % 2).bool().reshape(shape)
    return data.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def everything() -> dict[Any, Any]:
    """A structure with every kind of node and leaf."""
    shared = ramp(torch.float16, 3, start=5)
    return {
        "types": {str(dtype): ramp(dtype, 2, 3) for dtype in DTYPES},
        "scalar": torch.tensor(2.5),
        "empty": [torch.empty(0), torch.empty(2, 0, 3, dtype=torch.int8)],
        "shared": (shared, [shared]),
        7: "an integer key",
        "numbers": [0, -1, 1 << 62, -(1 << 90), 1 << 200, 0.1, float("inf"), -0.0, True, False, None],
        "nan": float("nan"),
        "texts": ["", "plain", "ünï 猫 🐈", "\ud800 alone", "line\nbreak"],
        "bytes": b"\x00\xff",
        "numpy": [np.float32(1.5), np.int8(-3), np.bool_(True), np.uint64(1 << 63), np.complex128(1 + 2j)],
        "nested": {"list": [[], [[]]], "tuple": ((), (1,)), "dict": {}},
        "codec": Rope([ramp(torch.int16, 4), "x"]),
    }


def latent(i: int) -> dict[str, Any]:
    shape = [(1, 4, 8, 8), (1, 4, 8, 16), (1, 16, 3, 4, 4)][i % 3]
    return {"samples": ramp(torch.bfloat16 if i % 3 == 2 else torch.float16, *shape, start=i), "number": i}


def caption(text: str) -> list:
    start = len(text)
    return [[ramp(torch.float16, 1, 7, 16, start=start), {"pooled_output": ramp(torch.float32, 1, 8, start=start)}]]


def trimmed_caption(i: int) -> list:
    """Rows of a template and of words, then zeros whose signs differ, then the last of these again and again; bits of a
    type without signs; and a tensor of one value."""
    dtype = (torch.float32, torch.float16, torch.bfloat16)[i % 3]
    text = torch.zeros(1, 80, 64, dtype=dtype)
    text[:, : 30 + i] = torch.cat([ramp(dtype, 1, 30, 64), ramp(dtype, 1, 1 + i, 64, start=i)], 1)[:, : 30 + i]
    text[:, 34 + i : 40, 1::3], text[:, 40:, i::4] = -0.0, -0.0
    other = ramp(torch.float8_e4m3fn, 1, 90, 100, start=i)
    other[:, 5:] = other[:, 5:6].clone()
    return [[text, {"other": other, "again": [text], "ones": torch.ones(1200, dtype=torch.int32)}]]


def write_trimmed(path: Path) -> None:
    """Captions that are stored without their padding, each with a latent."""
    with CacheWriter(path) as writer:
        for i in range(9):
            writer.add({"samples": ramp(torch.float16, 1, 4, 8, 8, start=i)}, trimmed_caption(i), f"caption {i}")


def facts(i: int) -> SampleFacts:
    """Everything stored about sample `i` except its entries."""
    texts = [f"caption {i}", "everybody's"] if i % 2 else "everybody's"
    return SampleFacts(
        captions=texts if i != 4 else (),
        source=f"ordner ünï/{i}.png",
        original_size=(640 + i, 480),
        crop=(i, 2, 512, 384),
        repeats=i + 1,
        weight=0.5 + i / 4,
        set=list(SETS)[i // 3],
    )


def fields(i: int) -> dict[str, list[tuple[str, Any]]]:
    """Key and structure of every variant of every field of sample `i`."""
    texts = facts(i).captions
    texts = (texts,) if isinstance(texts, str) else texts
    found = {
        "latent": [(f"latent {i}", latent(i))],
        "conditioning": [(f"caption: {text}", caption(text)) for text in texts],
        "thumbnail": [(f"thumbnail {i}", ramp(torch.uint8, 6, 6, 3, start=i))],
        "mask": [(f"mask {i}", ramp(torch.float32, 8, 8, start=i))] if i % 2 else [],
        "other things": [("everything", everything())] if i == 0 else [],
    }
    return {name: variants for name, variants in found.items() if variants}


def write_golden(path: Path) -> None:
    """Published three times: some samples, more of them, and a last time without an entry that stays as unused."""
    for count in (3, 5):
        with CacheWriter(path, PROVENANCE, append=True) as writer:
            for name, about in SETS.items():
                writer.describe_set(name, about)
            writer.put("unused", latent(9), "latent")
            writer.put("nothing", caption(""), "conditioning")
            writer.name(NAMED, "nothing")
            for i in range(0 if count == 3 else 3, count):
                _write_sample(writer, i)


def write_golden_in_parts(path: Path) -> None:
    """The same, but each index continues the last one, and the third sample takes the place of another."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (checked, growth):
            patch.setattr(module, "SMALL_INDEX", 0)
        patch.setattr(growth, "_file_size", lambda arrays, fields: 0)  # the new file takes in no other
        for kept, new in ((0, [0, 1, 4]), (2, [2]), (3, [3, 4])):
            with CacheWriter(path, PROVENANCE) as writer:
                writer.adopt_sets()
                if kept:
                    writer.keep(0, kept)
                for name, about in SETS.items():
                    writer.describe_set(name, about)
                writer.put("unused", latent(9), "latent")
                writer.put("nothing", caption(""), "conditioning")
                writer.name(NAMED, "nothing")
                for i in new:
                    _write_sample(writer, i)


def _write_sample(writer: CacheWriter, i: int) -> None:
    variants = fields(i)
    for name, entries in variants.items():
        for key, structure in entries:
            writer.put(key, structure, name)
    writer.sample({name: [key for key, _ in entries] for name, entries in variants.items()}, facts(i))
