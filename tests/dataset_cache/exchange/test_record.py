"""Records: names of tensors, and descriptions that do not fit their tensors."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
import torch

from streamcache.dataset_cache import CacheError
from streamcache.dataset_cache.exchange.record import Entry, read_facts, rebuild, tensor_names
from streamcache.dataset_cache.format import split

from ...support.samples import conditioning, latent, same


def entry(value: Any, field: str = "latent") -> Entry:
    parts = split(value, field)
    return Entry(field, bytes(range(16)), parts, tensor_names(parts.layout))


def test_tensors_are_named_by_their_path():
    assert entry(latent(0)).names == ("samples",)
    assert entry(conditioning(0)).names == ("0.0", "0.1.pooled_output")
    assert entry(torch.zeros(1)).names == ("tensor",)
    zero = torch.zeros
    assert entry({"a": {"b": zero(1)}, "a.b": zero(1), "__metadata__": zero(1), "\n": zero(1)}).names == (
        *("a.b", "~1", "~2", "~3"),
    )
    twice = zero(1)
    assert entry([twice, twice]).names == ("0",)


def test_an_entry_is_rebuilt_from_its_description():
    given = entry(conditioning(3), "conditioning")
    back = rebuild("conditioning", given.facts(), given.tensors())
    assert (back.key, back.names, back.parts.layout, back.parts.leaves) == (
        *(given.key, given.names, given.parts.layout, given.parts.leaves),
    )
    assert same(back.parts.tensors, given.parts.tensors)


WRONG: list[tuple[Callable[[dict], object], str]] = [
    (lambda facts: facts.update(key="00"), "does not describe|not those"),
    (lambda facts: facts.update(key="zz" * 16), "is damaged"),
    (lambda facts: facts.update(leaves=base64.b64encode(b"x").decode()), "not those that its layout describes"),
    (lambda facts: facts.update(leaves="?"), "is damaged"),
    (lambda facts: facts.update(leaves=base64.b64encode(b"\xff" * 9).decode()), "not those"),
    (lambda facts: facts["layout"].update(root=["tensor", 7]), "names tensor 7"),
    (lambda facts: facts["layout"].update(root=["code", "x"]), "unknown kind"),
    (lambda facts: facts["layout"].update(tensors=[["F32", [1, 9]]]), "not those that its layout describes"),
    (lambda facts: facts["layout"].update(tensors=[["F32", [1 << 40, 1 << 40]]]), "shape"),
    (lambda facts: facts.update(hashes=["00" * 16]), "bytes do not match"),
    (lambda facts: facts.update(hashes=[]), "not those"),
    (lambda facts: facts.update(tensors=["other"]), "is damaged"),
    (lambda facts: facts.pop("layout"), "is damaged"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_f9_a_description_that_does_not_fit_is_refused(change: Callable[[dict], object], message: str):
    given = entry({"samples": torch.zeros(1, 4), "text": "x"})
    facts = given.facts()
    change(facts)
    with pytest.raises(CacheError, match=message):
        rebuild("latent", facts, given.tensors())


def test_f9_a_batch_is_no_latent_of_a_sample():
    given = entry({"samples": torch.zeros(2, 4)})
    with pytest.raises(CacheError, match="expected a single sample"):
        rebuild("latent", given.facts(), given.tensors())
    with pytest.raises(CacheError, match="incomplete"):
        read_facts({"captions": []})
