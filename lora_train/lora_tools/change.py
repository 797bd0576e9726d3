"""The change that an adapter makes to one weight: a matrix [outputs, inputs × kernel], in the form of the file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...errors import TrainError
from ...quantity import byte_count

Shape = tuple[int, ...]  # of the weight: outputs, inputs, kernel; (outputs, inputs × kernel) if the file does not say

_MOST_VALUES = 2**29  # of a matrix: 2 GB; a small file may describe a huge one


class Change(Protocol):
    """A change of one weight, float32 on the CPU."""

    @property
    def shape(self) -> Shape: ...

    def matrix(self) -> Tensor: ...

    def norm(self) -> float:
        """The Frobenius norm, without the matrix where the form allows it."""
        ...

    def spectrum(self) -> Spectrum:
        """The singular values, from the factors where they are smaller than the matrix."""
        ...

    def factors(self) -> Product:
        """The same change as a product, exactly."""
        ...


@dataclass(frozen=True)
class Product:
    """up [outputs, rank] · down [rank, inputs × kernel]."""

    up: Tensor
    down: Tensor
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.down)

    @property
    def is_thin(self) -> bool:
        """Whether the factors are smaller than the matrix."""
        return self.rank < min(len(self.up), self.down.shape[1])

    def matrix(self) -> Tensor:
        _check_size(len(self.up), self.down.shape[1])
        return self.up @ self.down

    def norm(self) -> float:
        if not self.is_thin:
            return float(self.matrix().double().norm())
        up, down = self.up.double(), self.down.double()
        return math.sqrt(max(float(((up.T @ up) * (down @ down.T)).sum()), 0.0))

    def spectrum(self) -> Spectrum:
        if not self.is_thin:
            return Whole(self.matrix(), self.shape).spectrum()
        # In float64, since it costs little here: where two values are close, a cut between them magnifies errors.
        left, up = torch.linalg.qr(self.up.double())
        right, down = torch.linalg.qr(self.down.double().T)
        u, values, v = torch.linalg.svd(up @ down.T)
        return Spectrum((left @ u).float(), values.float(), (v @ right.T).float(), self.shape)

    def factors(self) -> Product:
        return self


@dataclass(frozen=True)
class Whole:
    """The matrix itself."""

    values: Tensor
    shape: Shape

    def matrix(self) -> Tensor:
        return self.values

    def norm(self) -> float:
        return float(self.values.double().norm())

    def spectrum(self) -> Spectrum:
        left, values, right = torch.linalg.svd(self.values, full_matrices=False)
        return Spectrum(left, values, right, self.shape)

    def factors(self) -> Product:
        return self.spectrum().cut(min(self.values.shape))


@dataclass(frozen=True)
class Kronecker:
    """small ⊗ large: its singular values are the products of both sides' singular values."""

    small: Tensor
    large: Tensor
    shape: Shape

    def matrix(self) -> Tensor:
        return torch.kron(self.small, self.large)

    def norm(self) -> float:
        return float(self.small.double().norm() * self.large.double().norm())

    def spectrum(self) -> Spectrum:
        (a, some, b), (c, others, d) = (torch.linalg.svd(m, full_matrices=False) for m in (self.small, self.large))
        values, order = torch.kron(some, others).sort(descending=True)
        return Spectrum(torch.kron(a, c)[:, order], values, torch.kron(b, d)[order], self.shape)

    def factors(self) -> Product:
        spectrum = self.spectrum()
        return spectrum.cut(len(spectrum.values))


@dataclass(frozen=True)
class Spectrum:
    """left · values · right with orthonormal columns and rows, the largest values first."""

    left: Tensor
    values: Tensor
    right: Tensor
    shape: Shape

    def cut(self, rank: int) -> Product:
        """The product of this rank that is nearest to the change. Both factors are equally large, for fp16."""
        root = self.values[:rank].sqrt()
        return Product(self.left[:, :rank] * root, root[:, None] * self.right[:rank], self.shape)

    def kept(self, rank: int) -> float:
        """The share of the squared norm that `cut(rank)` keeps."""
        squares = self.values.double().square()
        total = float(squares.sum())
        return float(squares[:rank].sum()) / total if total else 1.0


def change_of(parts: Mapping[str, Tensor], where: str) -> Change | None:
    """The change of the weight that a layer's parts make; None if they change only its bias or a norm.

    The caller has refused kinds whose change depends on the base model's weights.
    """
    found: list[Change] = []
    try:
        found += [make(parts) for first, make in _MAKERS.items() if first in parts]
        if not found and any(name.startswith("lokr_") for name in parts):
            found.append(_lokr(parts))
        if "diff" in parts and parts["diff"].ndim > 1:
            diff = parts["diff"].float()
            found.append(Whole(diff.flatten(1), tuple(diff.shape)))
        sums = add_up([(1.0, change) for change in found]) if len(found) > 1 else found[0] if found else None
        if sums is not None and (min(sums.shape) < 1 or math.prod(sums.shape[1:]) != _columns(sums)):
            raise ValueError("sizes do not match")
    except (RuntimeError, ValueError, IndexError, KeyError, ZeroDivisionError) as error:
        if isinstance(error, TrainError):
            raise TrainError(f"{where}: {error}") from None
        shapes = ", ".join(f"{name} {tuple(part.shape)}" for name, part in parts.items())
        raise TrainError(f"{where}: found {shapes}, which do not fit each other; the file is damaged") from None
    return sums


def add_up(changes: Sequence[tuple[float, Change]]) -> Product | Whole:
    """The weighted sum: a product with the columns of all if that is smaller than the matrix."""
    shape = changes[0][1].shape
    parts = [change for _, change in changes]
    small = all(isinstance(part, Product) for part in parts)
    columns = sum(part.rank for part in parts if isinstance(part, Product))
    if small and columns < min(shape[0], math.prod(shape[1:])):
        return concatenate(changes)
    total = changes[0][0] * parts[0].matrix()
    for weight, part in changes[1:]:
        total += weight * part.matrix()
    return Whole(total, shape)


def concatenate(changes: Sequence[tuple[float, Change]]) -> Product:
    """The weighted sum as a product whose rank is the sum of ranks."""
    products = [(weight, change.factors()) for weight, change in changes]
    up = torch.cat([weight * product.up for weight, product in products], 1)
    return Product(up, torch.cat([product.down for _, product in products]), changes[0][1].shape)


def scale_of(parts: Mapping[str, Tensor]) -> float:
    """alpha / rank of a LoRA; 1 without an alpha."""
    return float(parts["alpha"]) / len(parts["lora_down.weight"]) if "alpha" in parts else 1.0


def _lora(parts: Mapping[str, Tensor]) -> Product:
    up, down = parts["lora_up.weight"].float().flatten(1), parts["lora_down.weight"].float()
    if "lora_mid.weight" in parts:
        down = torch.einsum("mn...,nj->mj...", parts["lora_mid.weight"].float(), down.flatten(1))
    if up.shape[1] != len(down) or not up.numel():
        raise ValueError("the ranks differ")
    return Product(up * scale_of(parts), down.flatten(1), (len(up), *down.shape[1:]))


def _loha(parts: Mapping[str, Tensor]) -> Change:
    (first, second), kernel = (_side(parts, side) for side in "12"), parts.get("hada_t1")
    rank = len(parts["hada_w1_b"])
    scale = float(parts["alpha"]) / rank if "alpha" in parts else 1.0
    outputs, columns = len(first[0]), first[1].shape[1]
    if len(second[0]) != outputs or second[1].shape[1] != columns or not columns:
        raise ValueError("the sides differ")
    shape = (outputs, columns) if kernel is None else (outputs, parts["hada_w1_b"].shape[1], *kernel.shape[2:])
    both = first[0].shape[1] * second[0].shape[1]
    if both >= min(outputs, columns):
        _check_size(outputs, columns)
        return Whole(scale * (first[0] @ first[1]) * (second[0] @ second[1]), shape)
    # Row by row, (a · b) ∘ (c · d) = (a ⊗ c) · (b ⊗ d): the rank is the product of both ranks.
    _check_size(outputs + columns, both)
    up = (first[0][:, :, None] * second[0][:, None]).flatten(1)
    down = (first[1][:, None] * second[1][None]).flatten(0, 1)
    return Product(scale * up, down, shape)


def _side(parts: Mapping[str, Tensor], side: str) -> tuple[Tensor, Tensor]:
    a, b = parts[f"hada_w{side}_a"].float(), parts[f"hada_w{side}_b"].float()
    core = parts.get(f"hada_t{side}")
    if core is None:
        if a.shape[1] != len(b):
            raise ValueError("the ranks differ")
        return a, b
    return a.T, torch.einsum("ij...,jr->ir...", core.float(), b).flatten(1)


def _lokr(parts: Mapping[str, Tensor]) -> Kronecker:
    small, one = _lokr_side(parts, "lokr_w1")
    large, two = _lokr_side(parts, "lokr_w2")
    rank = two or one  # the scale is that of a low-rank side, as in ComfyUI
    scale = float(parts["alpha"]) / rank if rank and "alpha" in parts else 1.0
    shape = (len(small) * len(large), small.shape[1] * large.shape[1], *large.shape[2:])
    large = large.flatten(1)
    _check_size(shape[0], math.prod(shape[1:]))
    return Kronecker(small.flatten(1) * scale, large, shape)


def _lokr_side(parts: Mapping[str, Tensor], name: str) -> tuple[Tensor, int]:
    """The matrix of one side, and its rank if the file has factors of it."""
    if name in parts:
        return parts[name].float(), 0
    a, b = parts[f"{name}_a"].float(), parts[f"{name}_b"].float()
    core = parts.get("lokr_t2") if name == "lokr_w2" else None
    if core is not None:
        _check_size(a.shape[1], b.shape[1] * math.prod(core.shape[2:]))
        return torch.einsum("ij...,jr,ip->pr...", core.float(), b, a), len(b)
    _check_size(len(a), b.shape[1])
    return a @ b, len(b)


def _columns(change: Change) -> int:
    if isinstance(change, Product):
        return change.down.shape[1]
    return change.small.shape[1] * change.large.shape[1] if isinstance(change, Kronecker) else change.matrix().shape[1]


def _check_size(rows: int, columns: int) -> None:
    if rows * columns > _MOST_VALUES:
        raise TrainError(
            f"describes a matrix of {rows:,} × {columns:,}, larger than {byte_count(4 * _MOST_VALUES)}; "
            "no model has such a layer: the file is damaged"
        )


_MAKERS = {"lora_down.weight": _lora, "hada_w1_a": _loha}
