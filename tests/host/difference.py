"""The difference between two results, down to the bit."""

from typing import Any

import torch

from streamcache.dataset_cache.format.lazy import realize


def difference(expected: Any, found: Any, place: str = "") -> str | None:
    """Where two structures differ in type, shape or any bit; None if nowhere."""
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(expected, found, place)
    if type(expected) is not type(found):
        return f"{place}: {type(expected).__name__} became {type(found).__name__}"
    if isinstance(expected, dict):
        if list(expected) != list(found):
            return f"{place}: keys {list(expected)} became {list(found)}"
        pairs = [(f"{place}[{key!r}]", expected[key], found[key]) for key in expected]
    elif isinstance(expected, list | tuple):
        if len(expected) != len(found):
            return f"{place}: {len(expected)} items became {len(found)}"
        pairs = [(f"{place}[{i}]", *items) for i, items in enumerate(zip(expected, found, strict=True))]
    else:
        return None if expected == found else f"{place}: {expected!r} became {found!r}"
    return next((text for at, a, b in pairs if (text := difference(a, b, at))), None)


def _tensor_difference(expected: torch.Tensor, found: Any, place: str) -> str | None:
    if not isinstance(found, torch.Tensor):
        return f"{place}: a tensor became {type(found).__name__}"
    found = realize(found)
    if (expected.shape, expected.dtype) != (found.shape, found.dtype):
        return f"{place}: {tuple(expected.shape)} {expected.dtype} became {tuple(found.shape)} {found.dtype}"
    bits = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (expected, found)]
    if torch.equal(*bits):
        return None
    return f"{place}: differs by up to {(expected.double() - found.double()).abs().max().item():g}"
