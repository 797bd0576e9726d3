"""A folder that `datasets.load_dataset` reads, and that can be put on the Hugging Face Hub: parquet files, a card."""

from collections.abc import Callable, Iterator
from pathlib import Path

from ..read import Dataset
from .parquet import column_of, write_parquet

CARD = "README.md"
_DATA = "data"
_TEXTS = ("source", "caption", "set", "streamcache")
_NUMBERS = {"index": "int64", "repeats": "int64", "weight": "float32"}
_LISTS = {"captions": "string", "original_size": "int32", "crop": "int32"}
_ORDER = ("index", "source", "caption", "captions", "original_size", "crop", "repeats", "weight", "set")


def write_hub_folder(
    dataset: Dataset, folder: Path, file_bytes: int, progress: Callable[[int, int], None]
) -> list[str]:
    """Write all samples and the card. Returns the names of the parquet files."""
    (folder / _DATA).mkdir(exist_ok=True)
    files = write_parquet(dataset, folder / _DATA, file_bytes, progress, "train")
    (folder / CARD).write_text(_card(dataset, len(files)), encoding="utf-8")
    return [f"{_DATA}/{name}" for name in files]


def _card(dataset: Dataset, files: int) -> str:
    features = "\n".join(_features(dataset.fields))
    return f"""---
tags:
- streamcache
configs:
- config_name: default
  data_files:
  - split: train
    path: {_DATA}/*.parquet
dataset_info:
  features:
{features}
  splits:
  - name: train
    num_examples: {len(dataset)}
---

# {" ".join(dataset.path.name.split())}

{len(dataset):,} samples, encoded with StreamCache, in {files:,} parquet files. Each row is an image: its captions, its
sizes, and its latent and conditioning as bytes with type and shape.

```python
import numpy, torch
from datasets import load_dataset

row = load_dataset("this folder or repository", split="train", streaming=True).__iter__().__next__()
part = row["latent"][0][0]  # the first variant's first tensor
dtype = {{"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}}[part["dtype"]]
tensor = torch.frombuffer(bytearray(part["data"]), dtype=dtype).reshape(part["shape"])
```

`streamcache import FOLDER --to my_set` makes the same cache of it again, with every tensor, caption and key.
"""


def _features(fields: tuple[str, ...]) -> Iterator[str]:
    for name in _ORDER:
        yield f"  - name: {name}"
        if name in _LISTS:
            yield f"    list: {_LISTS[name]}"
        else:
            yield f"    dtype: {_NUMBERS.get(name, 'string')}"
    for field in fields:
        yield f"  - name: {_quoted(column_of(field))}"
        yield "    list:"
        yield "      list:"
        for part, dtype in (("name", "string"), ("dtype", "string")):
            yield f"      - name: {part}"
            yield f"        dtype: {dtype}"
        yield "      - name: shape"
        yield "        list: int64"
        yield "      - name: data"
        yield "        dtype: large_binary"
    yield "  - name: streamcache"
    yield "    dtype: string"


def _quoted(name: str) -> str:
    """A name as YAML."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
