"""Operations on a whole index."""

from dataclasses import fields
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.index import (
    ARRAY_TYPES,
    SAMPLE,
    IndexArrays,
    open_index,
    sort_order,
)
from streamcache.dataset_cache.index.blobs import blob_table
from streamcache.dataset_cache.index.index_arrays import pack_variants, prune, unpack_variants

from ...support.datasets import write_set


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=30))
@settings(max_examples=60, deadline=None)
def test_the_order_of_keys_is_that_of_their_bytes(keys):
    array = np.frombuffer(b"".join(keys), "V16")
    assert [array[n].tobytes() for n in sort_order(array)] == sorted(keys)


@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), max_size=12))
@settings(max_examples=60, deadline=None)
def test_variants_survive_being_packed(counts):
    table = np.array(counts, "<u4").reshape(-1, 3)
    flat = np.arange(int(table.sum()), dtype="<u4")
    samples = np.zeros(len(table), SAMPLE)
    samples["variants"], variants = pack_variants(table, flat)
    empty = {field.name: np.empty(0, ARRAY_TYPES[field.name]) for field in fields(IndexArrays)}
    found_counts, found = unpack_variants(IndexArrays(**{**empty, "samples": samples, "variants": variants}), 3)
    assert found_counts.tolist() == table.tolist() and found.tolist() == flat.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_pruning_keeps_the_chosen_samples_and_entries(tmp_path: Path, seed: int):
    path = tmp_path / "set"
    draw = np.random.default_rng(seed)
    write_set(path, draw.permutation(8).tolist())
    manifest = read_manifest(path)
    arrays = open_index(path, manifest).arrays
    samples = draw.random(len(arrays.samples)) < 0.6
    counts, flat = unpack_variants(arrays, len(manifest.fields))
    entries = np.ones(len(arrays.entries), bool)
    entries[draw.integers(0, len(entries), 4)] = False
    pruned = prune(arrays, len(manifest.fields), samples, entries)
    assert len(pruned.samples) == samples.sum() and len(pruned.entries) == entries.sum()
    assert [k.tobytes() for k in pruned.entries["key"]] == [k.tobytes() for k in arrays.entries["key"][entries]]
    new_counts, new_flat = unpack_variants(pruned, len(manifest.fields))
    of_sample = np.repeat(samples, counts.sum(1).astype(int))
    kept = flat[of_sample & entries[flat]]
    assert [pruned.entries["key"][n].tobytes() for n in new_flat] == [arrays.entries["key"][n].tobytes() for n in kept]
    assert new_counts.sum() == len(kept)
    hashes = {h.tobytes() for h in blob_table(pruned).hashes}
    assert hashes == {h.tobytes() for h in arrays.refs["hash"][entries[blob_table(arrays).entry_of_ref]]}
