"""Structures survive being taken apart and put together: every type, every bit, in order; anything else is refused."""

import collections
import enum
import json
import math
import random
from functools import reduce
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from streamcache.dataset_cache import CacheError, CacheWriter, LazyTensor, open_cache
from streamcache.dataset_cache.format.skeleton import MAX_DEPTH, Layout, split

from ...support.samples import EVERY_DTYPE, bits, rejoin, same

NUMPY_SCALARS = [
    *(np.bool_(True), np.int8(-5), np.uint8(200), np.int16(-300), np.uint16(60_000), np.int32(-(1 << 31))),
    *(np.uint32((1 << 32) - 1), np.int64(-(1 << 63)), np.uint64((1 << 64) - 1), np.float16(-0.0), np.float32("nan")),
    *(np.float64("-inf"), np.complex64(1 - 2j), np.complex128(3 + 4j)),
]

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
tensors = st.builds(bits, shapes, st.sampled_from(EVERY_DTYPE), st.integers(0, 1 << 30))
texts = st.text(st.characters(), max_size=12)  # with surrogates, which do not stand alone in valid UTF-8
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), texts, st.binary(max_size=12), st.sampled_from(NUMPY_SCALARS)
)
structures = st.recursive(
    st.one_of(leaves, tensors),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(texts, st.integers()), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(structures)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_c1_any_structure_survives_split_and_join(structure):
    assert same(rejoin(split(structure)), structure)


@given(st.lists(structures, min_size=1, max_size=4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_c1_any_structure_survives_the_disk(tmp_path_factory, given_structures):
    path = tmp_path_factory.mktemp("any") / "set"
    with CacheWriter(path) as w:
        for n, structure in enumerate(given_structures):
            w.put(f"key {n}", structure, field="thing")
    cache = open_cache(path, check=True)
    for n, structure in enumerate(given_structures):
        assert same(cache.entry(f"key {n}"), structure)


@given(structures)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_equal_structures_have_equal_layouts_and_leaves(structure):
    first, second = split(structure), split(structure)
    assert (first.layout, first.leaves) == (second.layout, second.leaves)


@pytest.fixture(scope="module")
def every_dtype(tmp_path_factory) -> tuple[dict, Any]:
    """A structure with every type in several forms, as given and as read back."""
    given = {
        f"{dtype} {name}": {"plain": bits((2, 3, 4), dtype, 7), "0-d": bits((), dtype, 8), "empty": bits((2, 0), dtype)}
        for dtype in EVERY_DTYPE
        for name in ("tensors",)
    }
    path = tmp_path_factory.mktemp("dtypes") / "set"
    with CacheWriter(path) as w:
        w.add(everything=given)
    return given, open_cache(path, check=True)[0].fields["everything"]


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
@pytest.mark.parametrize("form", ["plain", "0-d", "empty"])
def test_c1_every_dtype_is_read_back_in_every_form(every_dtype, dtype, form):
    given, found = (structure[f"{dtype} tensors"][form] for structure in every_dtype)
    assert isinstance(found, LazyTensor)
    assert same(found, given)
    assert same(found.realize(), given)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.transpose(0, 1),
        lambda t: t[::2, 1::3],
        lambda t: t[0, :1].expand(5, 8),
        lambda t: t.flip(1)[:, 3:],
        lambda t: t.to(torch.complex64).conj(),
        lambda t: t.to(torch.complex64).conj().imag,
        lambda t: t.requires_grad_(),
        lambda t: t.to(memory_format=torch.channels_last) if t.dim() == 4 else t.t().contiguous().t(),
    ],
    ids=["transposed", "strided", "expanded", "flipped", "conjugated", "negated", "with grad", "other order"],
)
def test_c1_a_view_is_stored_with_the_values_it_shows(tmp_path, view):
    given = view(torch.arange(48.0).reshape(6, 8))
    with CacheWriter(tmp_path / "set") as w:
        w.add(thing=given)
    found = open_cache(tmp_path / "set", check=True)[0].fields["thing"].realize()
    assert torch.equal(found, given.detach().resolve_conj().resolve_neg())
    assert found.is_contiguous()


def test_a_view_stores_only_its_own_bytes(tmp_path):
    big = torch.zeros(1 << 20)
    with CacheWriter(tmp_path / "set") as w:
        w.add(thing=big[:4])
    assert sum(file.stat().st_size for file in (tmp_path / "set").rglob("*")) < 100_000


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.0, 0, 1, -1, 255, -256, True, (1 << 63) - 1, 1 << 63),
        *(-(1 << 63) - 1, 10**400, -(10**400), "", "\ud800 alone", "e\u0301", "\x00\n", b"", b"\x00\xff"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_c1_every_kind_of_leaf_keeps_type_and_bits(value):
    assert same(
        rejoin(split({"value": value, "listed": [value, (value,)]})), {"value": value, "listed": [value, (value,)]}
    )


@pytest.mark.parametrize("value", NUMPY_SCALARS, ids=lambda value: value.dtype.name)
def test_c1_numpy_scalars_keep_their_type(value):
    found = rejoin(split([value]))[0]
    assert type(found) is type(value)
    assert found.tobytes() == value.tobytes()


def test_c1_order_and_type_of_keys_survive():
    given = {"b": 1, 2: "two", "a": None, -1: [], "1": "text", 1: "number", 10**30: "big"}
    found = rejoin(split(given))
    assert list(found) == list(given)
    assert [type(key) for key in found] == [type(key) for key in given]


def test_c1_lists_and_tuples_stay_apart():
    given = [(), [], [()], ([],), [[1, 2], (1, 2)], {"a": (None,)}]
    assert same(rejoin(split(given)), given)


def test_c1_a_tensor_that_occurs_twice_stays_one_tensor(tmp_path):
    shared = bits((3, 3))
    with CacheWriter(tmp_path / "set") as w:
        w.add(thing={"a": shared, "b": [shared, bits((3, 3), seed=1)]})
    found = open_cache(tmp_path / "set")[0].fields["thing"]
    assert found["a"] is found["b"][0]
    real = open_cache(tmp_path / "set")[0].realize().fields["thing"]
    assert real["a"] is real["b"][0] and real["a"] is not real["b"][1]


def test_values_of_one_form_share_a_layout():
    first = split([bits((2, 2)), {"width": 512, "crop": (0, 1.5), "text": "a cat"}])
    second = split([bits((2, 2), seed=9), {"width": 768, "crop": (7, 0.0), "text": "another"}])
    assert first.layout == second.layout
    assert first.leaves != second.leaves


@pytest.mark.parametrize(
    "other", [[1.0], ["1"], [True], (1,), {"0": 1}, {0: 1}, [None], [b"1"], [np.int64(1)]], ids=str
)
def test_values_of_another_form_have_another_layout(other):
    assert split([1]).layout != split(other).layout


class Color(enum.IntEnum):
    RED = 1


class Text(str):
    pass


class Anything:
    pass


REFUSED = {
    "object": (lambda: Anything(), "Anything"),
    "set": (lambda: {1, 2}, "set"),
    "complex": (lambda: 1j, "complex"),
    "array": (lambda: np.zeros(2), "numpy.ndarray"),
    "ordered dict": (lambda: collections.OrderedDict(a=1), "collections.OrderedDict"),
    "named tuple": (lambda: collections.namedtuple("Point", "x")(1), "Point"),
    "enum": (lambda: Color.RED, "Color"),
    "kin of str": (lambda: Text("x"), "Text"),
    "bytearray": (lambda: bytearray(b"x"), "bytearray"),
    "function": (lambda: len, "builtin_function_or_method"),
    "dtype": (lambda: torch.float16, "torch.dtype"),
    "parameter": (lambda: torch.nn.Parameter(torch.zeros(2)), "torch.nn.parameter.Parameter"),
    "numpy text": (lambda: np.str_("x"), "numpy.str_"),
    "numpy time": (lambda: np.datetime64("2020-01-01"), "numpy.datetime64"),
    "long double": (lambda: np.longdouble(1), "numpy.longdouble"),
    "complex128": (lambda: torch.zeros(2, dtype=torch.complex128), "torch.complex128"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "sparse_coo"),
    "meta": (lambda: torch.empty(2, device="meta"), "meta"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "qint8"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), ""),
    "many axes": (lambda: torch.zeros([1] * 100), "100 axes"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_c1_anything_else_is_refused_with_its_path_and_type(tmp_path, what):
    make, type_name = REFUSED[what]
    value = make()
    with CacheWriter(tmp_path / "set") as w:
        with pytest.raises(CacheError) as refusal:
            w.add(latent={"samples": bits((1, 4, 2, 2))}, conditioning=[[bits((1, 2)), {"extra": [0, value]}]])
        assert "conditioning[0][1]['extra'][1]" in str(refusal.value)
        assert type_name in str(refusal.value)
        # Nothing of the sample was written, not even the latent that stood before the refused field.
        assert not list((tmp_path / "set").rglob("journal"))
        w.add(latent={"samples": bits((1, 4, 2, 2))})
    assert len(open_cache(tmp_path / "set")) == 1


@pytest.mark.parametrize(
    "key", [1.0, None, True, (1, 2), b"x", Text("x"), Color.RED, 10**5000], ids=lambda k: str(type(k))
)
def test_c1_other_keys_are_refused_with_their_path(key):
    with pytest.raises(CacheError, match=r"^conditioning\[0\]: .*key"):
        split([{key: 1}], "conditioning")


def test_a_structure_that_contains_itself_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(CacheError, match=f"deeper than {MAX_DEPTH} levels"):
        split(loop)


def test_the_deepest_allowed_structure_is_read_back():
    deep: Any = 1
    for n in range(MAX_DEPTH):
        deep = [deep] if n % 2 else {"inner": deep}
    assert same(rejoin(split(deep)), deep)


class Point:
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


LYING_TENSORS = [
    *([["F16", [-1]]], [["F16", [1.5]]], [["F99", [1]]], [[[], [1]]], [["F16", [True]]], [["F16", "11"]], 7, [7], [[]]),
    *([["F16", [0, 1 << 70]]], [["F16", [0, 1 << 62, 1 << 62]]], [["F16", [1] * 100]], [["F16", [1 << 62]]]),
]
LYING_ROOTS = [
    *([], 7, ["odd"], [[]], ["tensor", 0], ["tensor", -1], ["tensor"], ["tensor", "0"], ["list", 7], ["list"]),
    *(["dict", [["a"]]], ["dict", [[1.5, ["none"]]]], ["dict", [[[], ["none"]]]], ["dict", {"a": 1}]),
    *(["numpy", "<O8"], ["numpy", []], ["numpy"], ["codec"], ["codec", "x", ["odd"]]),
    reduce(lambda inner, _: ["list", [inner]], range(200), ["none"]),
]
LYING_LAYOUTS = [
    *("", "null", "[]", "{}", '{"tensors":[]}', '{"root":["none"]}', "{" * 100_000),
    *(json.dumps({"tensors": tensors, "root": ["none"]}) for tensors in LYING_TENSORS),
    *(json.dumps({"tensors": [], "root": root}) for root in LYING_ROOTS),
]


@pytest.mark.parametrize("text", LYING_LAYOUTS, ids=lambda text: text[:50])
def test_an_inconsistent_layout_raises_a_cache_error(text):
    with pytest.raises(CacheError):
        Layout(text)


def test_mutated_layouts_and_leaves_give_cache_errors_or_values():
    parts = split({"a": [bits((2,)), 1, "text", b"bytes", 10**30, np.float32(1)], 5: (None, True, 2.5)})
    draw = random.Random(5)
    for _ in range(600):
        text = bytearray(parts.layout.encode())
        for _ in range(draw.randint(1, 3)):
            text[draw.randrange(len(text))] = draw.randrange(32, 127)
        try:
            layout = Layout(text.decode())
        except CacheError:
            continue
        assert all(isinstance(spec.nbytes, int) and spec.nbytes >= 0 for spec in layout.specs)


def test_layouts_are_json_of_plain_ascii():
    layout = split({"ключ": "значение", "\ud800": [bits((1,))]}).layout
    assert layout.isascii()
    assert set(json.loads(layout)) == {"tensors", "root"}


def test_f9_leaves_fit_their_layout_only_if_they_are_exactly_one_row():
    parts = split({"n": 1, "text": "äb", "big": 1 << 99, "raw": b"xy", "f": np.float32(1), "on": True, "none": None})
    layout = Layout(parts.layout)
    assert layout.fits(parts.leaves)
    assert not layout.fits(parts.leaves[:-1]) and not layout.fits(parts.leaves + b"x") and not layout.fits(b"")
    damaged = bytearray(parts.leaves)
    damaged[damaged.index("ä".encode())] = 0xFF
    assert not layout.fits(bytes(damaged))
    assert Layout(split([None]).layout).fits(b"") and not Layout(split([None]).layout).fits(b"x")
