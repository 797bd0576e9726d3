"""OFT: trained rotations of a layer's output channels, block by block."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...errors import TrainError
from .factors import AdapterSettings
from .layer import Layer


class Oft(nn.Module):
    """W' = R · W with R = (I + Q)(I - Q)⁻¹ in blocks, Q = B - Bᵀ; B starts at zero, so that R is the identity.

    Lengths of a block's outputs and angles between them do not change. `alpha` above 0 bounds the norm of Q. The rank
    is the largest size of a block. Files of LyCORIS may also have a trained factor for each output, `rescale`.
    """

    kind: ClassVar[str] = "oft"
    label: ClassVar[str] = "OFT"
    parts: ClassVar[tuple[str, ...]] = ("oft_blocks", "rescale")
    network_module: ClassVar[str] = "lycoris.kohya"
    applies_to_output: ClassVar[bool] = True
    limits_rank: ClassVar[bool] = True

    def __init__(self, layer: Layer, blocks: Tensor, alpha: float, rescale: Tensor | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.alpha = float(alpha)
        self.blocks = nn.Parameter(blocks)  # [blocks, size, size]
        self.rescale = None if rescale is None else nn.Parameter(rescale)  # [outputs]

    @classmethod
    def create(cls, layer: Layer, rank: int, settings: AdapterSettings, generator: torch.Generator) -> Oft:
        """Nothing is random. A block stays within one group of a convolution, whose rows read the same inputs."""
        size = _block_size(layer, rank)
        return cls(layer, torch.zeros(layer.outputs // size, size, size), settings.alpha or 0.0)

    @classmethod
    def from_parts(cls, layer: Layer, parts: dict[str, Tensor], alpha: float | None, where: str) -> Oft:
        blocks, rescale = parts["oft_blocks"].float(), parts.get("rescale")
        if blocks.ndim == 4:
            raise TrainError(f"{where}: a BOFT file (oft_blocks {tuple(blocks.shape)}); BOFT cannot be trained")
        if blocks.ndim != 3 or blocks.shape[0] * blocks.shape[1] != layer.outputs or blocks.shape[1] != blocks.shape[2]:
            raise TrainError(
                f"{where}: found OFT blocks {tuple(blocks.shape)}, expected (blocks, size, size) with "
                f"blocks × size = {layer.outputs}: a LoRA for another model"
            )
        if rescale is not None and rescale.numel() != layer.outputs:
            raise TrainError(f"{where}: found rescale {tuple(rescale.shape)}, expected {layer.outputs} values")
        rescale = None if rescale is None else rescale.float().flatten().clone()
        return cls(layer, blocks.clone(), alpha or 0.0, rescale)

    @classmethod
    def missing_parts(cls, parts: Collection[str]) -> tuple[str, ...]:
        return () if "oft_blocks" in parts else ("oft_blocks",)

    def has_rank(self, rank: int) -> bool:
        return self.rank in (rank, _block_size(self.layer, rank))

    def shows_rank(self, rank: int) -> bool:
        return _block_size(self.layer, rank) == rank

    @property
    def rank(self) -> int:
        return self.blocks.shape[1]

    def forward(self, out: Tensor) -> Tensor:
        """The rotated output, given the layer's output without its bias."""
        channels = out.ndim - 1 if self.layer.dims == 0 else out.ndim - 1 - self.layer.dims
        turned = self.rotation().to(out.dtype)
        rows = out.movedim(channels, -1).unflatten(-1, self.blocks.shape[:2])
        out = torch.einsum("knm,...kn->...km", turned, rows).flatten(-2)
        if self.rescale is not None:
            out = out * self.rescale.to(out.dtype)
        return out.movedim(-1, channels)

    def rotation(self) -> Tensor:
        """R [blocks, size, size] in float32: in half precision it would not stay a rotation."""
        with torch.autocast(self.blocks.device.type, enabled=False):
            blocks = self.blocks.float()
            q = blocks - blocks.transpose(1, 2)
            if self.alpha > 0:
                q = q * (self.alpha / (q.norm() + 1e-8)).clamp(max=1)
            one = torch.eye(self.rank, device=q.device)
            return torch.linalg.solve(one - q, one + q, left=False)

    def weight(self) -> Tensor:
        raise NotImplementedError("OFT rotates the weight and adds nothing to it")

    def to_parts(self) -> dict[str, Tensor]:
        if self.rescale is None:
            return {"oft_blocks": self.blocks}
        return {"oft_blocks": self.blocks, "rescale": self.rescale.reshape(-1, 1, *[1] * self.layer.dims)}


def _block_size(layer: Layer, rank: int) -> int:
    within = layer.outputs // layer.groups
    return next(size for size in range(min(rank, within), 0, -1) if within % size == 0)
