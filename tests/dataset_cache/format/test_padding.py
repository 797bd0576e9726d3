"""Trimmed tensors come back bit for bit, whatever they contain; only rows that are equal in every bit are left out."""

import json
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from streamcache.dataset_cache import CacheError, LazyTensor
from streamcache.dataset_cache.format.padding import Trimmer
from streamcache.dataset_cache.format.skeleton import Layout, Split, split
from streamcache.dataset_cache.format.trimming import trim, untrim

from ...support.padding import KINDS, WORDS, ZEROS, caption, padded, signed_zeros
from ...support.samples import EVERY_DTYPE, bits, raw, rejoin, same

SIGNED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WIDE = (1, 64, 1024)

tails = st.builds(
    padded,
    st.sampled_from(EVERY_DTYPE),
    st.tuples(st.integers(1, 2), st.integers(1, 90), st.sampled_from([1, 7, 8, 65, 300])),
    st.sampled_from(KINDS),
    st.integers(0, 1 << 20),
    st.integers(0, 20),
    st.sampled_from([-3, -2, -1]),
)
others = st.one_of(st.none(), st.integers(), st.builds(bits, st.sampled_from([(), (0,), (1, 12), (3, 0, 2)])))
structures = st.recursive(
    st.one_of(tails, others),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)


def trimmed(structure: Any, trimmer: Trimmer | None = None) -> Split:
    return trim(split(structure, "text"), trimmer or Trimmer())


def stored_shapes(parts: Split) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in parts.tensors]


def nbytes(parts: Split) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in parts.tensors)


@given(st.lists(structures, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_f10_any_structure_comes_back_bit_for_bit(some):
    trimmer = Trimmer()
    for structure in [*some, *some]:  # the second time, beginnings are known
        parts = trimmed(structure, trimmer)
        assert same(rejoin(parts), structure)
        whole = split(structure)
        assert (parts.whole or parts).layout == whole.layout
        if parts.whole is not None:
            assert nbytes(parts) <= nbytes(whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
def test_f10_every_type_comes_back_bit_for_bit(dtype, kind):
    tensor = padded(dtype, WIDE, kind)
    parts = trimmed({"text": tensor})
    assert same(rejoin(parts), {"text": tensor})
    assert (parts.whole is not None) == (
        kind == "both" or kind == "equal rows" or (kind != "nothing" and has_zeros(dtype))
    )
    assert parts.saved == nbytes(split(tensor)) - nbytes(parts)


def has_zeros(dtype: torch.dtype) -> bool:
    """Whether zeros of this type are left out: without signs they are equal rows."""
    return dtype in SIGNED or not dtype.is_floating_point or dtype.itemsize == 1


def test_f10_equal_rows_are_stored_once_and_zeros_as_their_signs():
    text = padded(torch.float32, (1, 512, 64), "both", words=40)
    parts = trimmed([text])
    assert stored_shapes(parts) == [(1, 40, 64), (1, ZEROS + 1, 8)]
    assert parts.saved == 512 * 64 * 4 - 40 * 64 * 4 - (ZEROS + 1) * 8
    assert stored_shapes(trimmed([padded(torch.float32, (1, 512, 64), "equal rows", words=40)])) == [(1, 41, 64)]
    assert stored_shapes(trimmed([torch.zeros(1, 512, 64)])) == [(1, 0, 64), (1, 1, 8)]
    assert stored_shapes(trimmed([torch.ones(1, 512, 64)])) == [(1, 1, 64)]
    assert stored_shapes(trimmed([torch.full((1, 512, 64), torch.nan)])) == [(1, 1, 64)]


@pytest.mark.parametrize("row", [WORDS, 30, 62, 63])
@pytest.mark.parametrize("kind", ["equal rows", "both"])
@pytest.mark.parametrize("bit", [0, 22, 31])
def test_f10_rows_before_one_that_differs_in_one_bit_are_kept(row, kind, bit):
    text = padded(torch.float32, WIDE, kind)
    view = text.view(torch.int32)
    view[0, row, 700] ^= torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
    parts = trimmed([text])
    assert same(rejoin(parts), [text])
    signs = [tensor for tensor in parts.tensors if tensor.dtype == torch.uint8]
    if kind == "both" and bit == 31:  # still a zero, with another sign
        assert parts.tensors[0].shape[1] == WORDS and signs[0].shape[1] == max(ZEROS + 1, min(row + 2, 64) - WORDS)
    elif row == 63:
        assert parts.whole is None
    else:
        assert parts.tensors[0].shape[1] == max(row + 1, WORDS) + (not signs)


def test_f10_minus_zero_is_not_zero_and_one_nan_is_not_another():
    text = signed_zeros(bits((1, 64, 100), torch.float32))
    parts = trimmed([text])
    assert stored_shapes(parts) == [(1, 0, 100), (1, 64, 13)] and same(rejoin(parts), [text])
    text = torch.full((1, 64, 100), torch.nan).view(torch.int32)
    text[0, -1, -1] += 1
    parts = trimmed([text.view(torch.float32)])
    assert parts.whole is None


@pytest.mark.parametrize("shape", [(), (0,), (1, 0, 4096), (1, 1, 4096), (4096, 0), (8192,), (1, 2, 4096)], ids=str)
def test_f10_odd_shapes_come_back(shape):
    for tensor in (torch.zeros(shape), bits(shape, torch.bfloat16)):
        assert same(rejoin(trimmed([tensor])), [tensor])


def test_f10_what_saves_less_than_a_tenth_or_a_page_is_stored_whole():
    text = bits((1, 64, 1024), torch.float32)
    text[:, -6:] = text[:, -6:-5].clone()
    assert trimmed([text]).whole is None  # 5 of 64 rows
    text[:, -9:] = text[:, -9:-8].clone()
    assert trimmed([text]).whole is not None
    assert trimmed([text, bits((1, 64, 1024), torch.float32, 1)]).whole is None  # 8 of 128 rows
    assert trimmed([torch.zeros(1, 31, 32)]).whole is None and trimmed([torch.zeros(1, 40, 32)]).whole is not None
    assert trimmed([text[:, :20]]).layout == split([text[:, :20]]).layout


def test_f10_a_tensor_that_occurs_twice_stays_one_tensor():
    text = padded(shape=WIDE)
    first, [again] = rejoin(trimmed([text, [text]]))
    assert first is again


def test_f10_lazy_tensors_stay_lazy_and_are_read_once_to_be_trimmed():
    text = padded(shape=WIDE)
    parts, reads = trimmed([text]), []

    def lazily(tensor: torch.Tensor) -> torch.Tensor:
        return LazyTensor(tuple(tensor.shape), tensor.dtype, lambda: reads.append(tensor.shape) or tensor)

    (found,) = Layout(parts.layout).read(tuple(map(lazily, parts.tensors)), memoryview(parts.leaves), 0)
    assert isinstance(found, LazyTensor) and found.shape == text.shape and found.dtype == text.dtype and not reads
    assert same(found, text) and len(reads) == 2
    assert same(found[0, 3:70:2], text[0, 3:70:2])
    reads.clear()
    assert same(rejoin(trimmed([lazily(text)])), [text]) and len(reads) == 1


def test_f10_rows_that_captions_begin_with_are_a_tensor_that_they_share():
    template, trimmer = bits((1, 20, 512), torch.float32, 1), Trimmer()
    texts = [torch.cat([template, bits((1, 20 + n, 512), torch.float32, 2 + n)], 1) for n in range(4)]
    first, *rest = [trimmed([text], trimmer) for text in texts]
    assert first.whole is None
    for n, parts in enumerate(rest, 1):
        assert stored_shapes(parts) == [(1, 20 + n, 512), (1, 20, 512)]
        assert raw(parts.tensors[1]) == raw(template) and same(rejoin(parts), [texts[n]])
        assert parts.saved == (0 if n == 1 else 20 * 512 * 4)  # it is stored for the first that has it apart
    assert raw(rest[0].tensors[1]) == raw(rest[1].tensors[1])


def test_f10_shared_rows_settle_at_what_all_captions_share():
    """Two captions can begin with the same words too."""
    template, trimmer = bits((1, 20, 512), torch.float32, 1), Trimmer()
    word = bits((1, 5, 512), torch.float32, 2)
    for number, (begins, shared) in enumerate([(True, 0), (True, 25), (False, 20), (True, 20)]):
        text = torch.cat([template, *([word] if begins else []), bits((1, 30, 512), torch.float32, 9 + number)], 1)
        parts = trimmed([text], trimmer)
        assert same(rejoin(parts), [text])
        assert sum(tensor.shape[1] for tensor in parts.tensors[1:]) == shared


def test_f10_shared_rows_and_padding_are_left_out_together():
    template, trimmer = bits((1, 20, 512), torch.float32, 1), Trimmer()
    for n in range(3):
        text = torch.cat([template, padded(torch.float32, (1, 44 + n, 512), "both", n)], 1)
        parts = trimmed([text, {"mask": text[0, :, 0]}], trimmer)
        assert same(rejoin(parts), [text, {"mask": text[0, :, 0]}])
    assert stored_shapes(parts) == [(1, WORDS, 512), (66,), (1, 20, 512), (1, ZEROS + 1, 64)]


def test_f10_few_rows_are_not_shared_because_they_are_read_apart():
    template, trimmer = bits((1, 20, 512), torch.float32, 1), Trimmer()
    for n in range(3):
        text = torch.cat([template, bits((1, 81, 512), torch.float32, 2 + n)], 1)
        assert trimmed([text], trimmer).whole is None


def test_f10_other_captions_that_begin_differently_are_stored_whole():
    trimmer = Trimmer()
    for n in range(8):
        text = bits((1, 40, 512), torch.float32, n)
        assert trimmed([text], trimmer).whole is None
    assert trimmed([bits((1, 40, 512), torch.float32, 7)], trimmer).whole is not None


def test_f10_restoring_works_on_tensors_that_are_elsewhere():
    text = padded(torch.bfloat16, WIDE)
    parts = trimmed([text])
    (found,) = Layout(parts.layout).read(tuple(t.to("meta") for t in parts.tensors), memoryview(b""), 0)
    assert found.device.type == "meta" and found.shape == text.shape and found.dtype == text.dtype


SPECS = [["F32", [1, 4, 9]], ["U8", [1, 3, 2]], ["F32", [1, 2, 9]], ["U8", [1, 3, 9]], ["F32", [4]]]


@pytest.mark.parametrize(
    "row",
    [
        [0, 1, 3, None, None],  # shorter than what is stored
        [0, 1, 1 << 30, None, None],  # a terabyte
        [0, 1, 1 << 62, None, None],
        [0, 1, -5, None, None],
        [0, 1, 9.0, None, None],
        [0, True, 9, None, None],
        [0, 3, 9, None, None],
        [0, -1, 9, None, None],
        [5, 1, 9, None, None],
        [-1, 1, 9, None, None],
        ["0", 1, 9, None, None],
        [None, 1, 9, None, None],
        [0, 1, 9, 0, None],
        [0, 1, 9, 4, None],  # first rows of another shape
        [0, 1, 9, 1, None],  # of another type
        [0, 1, 9, None, 3],  # signs of another width
        [0, 1, 9, None, 2],
        [0, 1, 6, None, 1],  # more rows than there were
        [0, 2, 99, None, 1],
        [0, 1, 9, 2, 2],
        [0, 1, 9],
        [0, 1, 9, None, None, None],
        5,
        None,
    ],
    ids=str,
)
def test_f10_a_forged_layout_is_refused(row):
    text = json.dumps({"tensors": SPECS, "padded": [row], "root": ["tensor", 0]})
    with pytest.raises(CacheError, match="stored layout"):
        Layout(text)


@pytest.mark.parametrize("padded", [5, {"a": 1}, "text", [[0, 1, 9, None, None]] * 2], ids=str)
def test_f10_a_forged_table_is_refused(padded):
    with pytest.raises(CacheError, match="stored layout"):
        Layout(json.dumps({"tensors": SPECS, "padded": padded, "root": ["tensor", 0]}))


def test_f10_a_valid_layout_of_all_parts_is_read():
    text = json.dumps({"tensors": SPECS, "padded": [[0, 1, 11, 2, 1]], "root": ["tensor", 0]})
    stored = (
        bits((1, 4, 9), torch.float32),
        torch.full((1, 3, 2), 5, dtype=torch.uint8),
        bits((1, 2, 9), torch.float32, 1),
    )
    found = Layout(text).read((*stored, bits((1, 3, 9), torch.uint8), torch.zeros(4)), memoryview(b""), 0)
    zeros = signed_zeros(torch.tensor([-1.0, 0, -1, 0, 0, 0, 0, 0, -1])).expand(1, 5, 9)
    assert same(found, torch.cat([stored[2], stored[0], zeros], 1))


@pytest.mark.parametrize("number", range(4))
def test_f10_a_split_is_trimmed_and_untrimmed_without_its_value(number: int):
    """As exports have all rows, and imports store them like an encode."""
    value = caption(number)
    whole = split(value)
    trimmed = trim(whole, Trimmer())
    assert trimmed.layout != whole.layout
    found = untrim(trimmed)
    assert (found.layout, found.leaves) == (whole.layout, whole.leaves) and same(found.tensors, whole.tensors)
    again = trim(found, Trimmer())
    assert (again.layout, again.leaves, again.saved) == (trimmed.layout, trimmed.leaves, trimmed.saved)
    assert same(again.tensors, trimmed.tensors) and again.whole is found
    assert untrim(whole) is whole and trim(again, Trimmer()) is again
