"""Parquet files: one row per sample, tensors as bytes with their type and shape, row groups by size.

A field is a column with a list of variants; each has its tensors as `{name, dtype, shape, data}`. The column
`streamcache` has the JSON from which the sample can be made again. Nothing is compressed or dictionary-encoded: latents
do not compress, and so a file cannot unpack to more than its size.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ...errors import CacheError
from ..foreign import refuse_link
from ..format import NAMES, count_bytes, dtype_named, tensor_bytes
from ..read import Dataset
from .about import About
from .record import Entry, Restored, describe, entries_of, restore

RECORD = "streamcache"
GROUP_BYTES = 64 << 20  # of a row group, before it is written
_FACTS = ("index", "source", "caption", "captions", "original_size", "crop", "repeats", "weight", "set", RECORD)
_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED"}
_ROWS = 8  # that are read at once


def write_parquet(
    dataset: Dataset, folder: Path, file_bytes: int, progress: Callable[[int, int], None], name: str = "part"
) -> list[str]:
    """Write all samples. Returns the names of the files."""
    pa, pq = import_pyarrow()
    schema = _schema(pa, dataset.fields)
    files: list[str] = []
    writer: Any = None
    rows: list[dict[str, Any]] = []
    waiting = written = 0
    try:
        for number in range(len(dataset)):
            row, size = _row(dataset, number)
            rows.append(row)
            waiting += size
            last = number + 1 == len(dataset)
            if waiting >= GROUP_BYTES or last:
                if writer is None or written >= file_bytes:
                    if writer is not None:
                        writer.close()
                    files.append(f"{name}-{len(files):05d}.parquet")
                    path, written = str(folder / files[-1]), 0
                    writer = pq.ParquetWriter(path, schema, compression="none", use_dictionary=False)
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                written += waiting
                rows, waiting = [], 0
            progress(number + 1, len(dataset))
    finally:
        if writer is not None:
            writer.close()
    return files


def read_parquet(folder: Path, about: About) -> Iterator[Restored]:
    """The samples of all files, in order."""
    pa, pq = import_pyarrow()
    for name in about.files:
        place = str(folder / name)
        refuse_link(folder / name)
        try:
            with pq.ParquetFile(place, buffer_size=1 << 20, pre_buffer=False) as file:
                _check(file, place)
                for batch in file.iter_batches(_ROWS):
                    for row in batch.to_pylist():
                        yield _restored(row, place)
        except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
            raise CacheError(f"{place}: cannot be read as parquet: {str(error)[:300]}") from error


def column_of(field: str) -> str:
    """The column of a field; a field whose name is that of a fact gets another one."""
    return f"field {field}" if field in _FACTS else field


def import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise CacheError('parquet files need the package pyarrow: pip install "streamcache[export]"') from error
    return pyarrow, pyarrow.parquet


def _schema(pa: Any, fields: tuple[str, ...]) -> Any:
    tensor = pa.struct(
        [("name", pa.string()), ("dtype", pa.string()), ("shape", pa.list_(pa.int64())), ("data", pa.large_binary())]
    )
    facts = [
        ("index", pa.int64()),
        ("source", pa.string()),
        ("caption", pa.string()),
        ("captions", pa.list_(pa.string())),
        ("original_size", pa.list_(pa.int32())),
        ("crop", pa.list_(pa.int32())),
        ("repeats", pa.int64()),
        ("weight", pa.float32()),
        ("set", pa.string()),
    ]
    variants = pa.list_(pa.list_(tensor))
    return pa.schema([*facts, *[(column_of(field), variants) for field in fields], (RECORD, pa.string())])


def _row(dataset: Dataset, number: int) -> tuple[dict[str, Any], int]:
    """The row of a sample, and its size in bytes."""
    entries = entries_of(dataset, number)
    record = describe(dataset, number, entries)
    facts = {name: record[name] for name in _FACTS if name in record}
    texts = {name: _valid(record[name]) for name in ("source", "set")}
    captions = [_valid(text) for text in record["captions"]]
    row = {**facts, **texts, "captions": captions, "caption": captions[0] if captions else ""}
    for field, variants in entries.items():
        row[column_of(field)] = [_tensors(entry) for entry in variants]
    row[RECORD] = json.dumps(record)
    size = sum(tensor.nbytes for variants in entries.values() for e in variants for tensor in e.parts.tensors)
    return row, size + len(row[RECORD])


def _tensors(entry: Entry) -> list[dict[str, Any]]:
    return [
        {"name": name, "dtype": NAMES[t.dtype], "shape": list(t.shape), "data": tensor_bytes(t).tobytes()}
        for name, t in entry.tensors().items()
    ]


def _valid(text: str) -> str:
    """As UTF-8, which half a surrogate pair is not; the JSON has the text as it is."""
    return text.encode("utf-8", "replace").decode()


def _check(file: Any, place: str) -> None:
    if RECORD not in file.schema_arrow.names:
        raise CacheError(f"{place}: has no column {RECORD!r}; only files that streamcache exported can be imported")
    metadata = file.metadata
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            found = metadata.row_group(group).column(column)
            if found.compression != "UNCOMPRESSED" or set(found.encodings) - _ENCODINGS:
                raise CacheError(f"{place}: refused: is packed in another way than by streamcache; export it again")


def _restored(row: Mapping[str, Any], place: str) -> Restored:
    try:
        record = json.loads(row[RECORD])
    except (TypeError, ValueError, RecursionError) as error:
        raise CacheError(f"{place}: a row has no readable JSON: {error!r}") from error

    def tensors(field: str, variant: int) -> Mapping[str, torch.Tensor]:
        return {part["name"]: _tensor(part) for part in row[column_of(field)][variant]}

    try:
        return restore(record, tensors)
    except (CacheError, LookupError, TypeError, ValueError) as error:
        raise CacheError(f"{place}: sample {row.get('index')!r}: {error}") from error


def _tensor(part: Mapping[str, Any]) -> torch.Tensor:
    dtype, shape, data = part["dtype"], tuple(part["shape"]), part["data"]
    if any(axis < 0 for axis in shape) or count_bytes(dtype, shape) != len(data):
        raise CacheError(f"{part['name']}: {len(data):,} bytes, which is not {dtype} of {shape}")
    tensor = torch.empty(shape, dtype=dtype_named(dtype))
    if data:
        tensor.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return tensor
