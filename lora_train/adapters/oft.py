"""OFT: trained rotations of a layer's output channels, block by block."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import TrainError
from .factors import AdapterSettings
from .layer import Layer


class Oft(nn.Module):
    """W' = R · W with R = (I + Q)(I - Q)⁻¹ in blocks, Q = B - Bᵀ; B starts at zero, so that R is the identity.

    Lengths of a block's outputs and angles between them do not change. `alpha` above 0 bounds the norm of Q. The rank
    is the largest size of a block.
    """

    kind: ClassVar[str] = "oft"
    parts: ClassVar[tuple[str, ...]] = ("oft_blocks",)
    network_module: ClassVar[str] = "lycoris.kohya"
    applies_to_output: ClassVar[bool] = True
    limits_rank: ClassVar[bool] = True

    def __init__(self, layer: Layer, blocks: Tensor, alpha: float) -> None:
        super().__init__()
        self.layer = layer
        self.alpha = float(alpha)
        self.blocks = nn.Parameter(blocks)  # [blocks, size, size]

    @classmethod
    def create(cls, layer: Layer, rank: int, settings: AdapterSettings, generator: torch.Generator) -> Oft:
        """Nothing is random. A block stays within one group of a convolution, whose rows read the same inputs."""
        within = layer.outputs // layer.groups
        size = next(size for size in range(min(rank, within), 0, -1) if within % size == 0)
        return cls(layer, torch.zeros(layer.outputs // size, size, size), settings.alpha or 0.0)

    @classmethod
    def from_parts(cls, layer: Layer, parts: dict[str, Tensor], alpha: float | None, where: str) -> Oft:
        blocks = parts["oft_blocks"].float()
        if blocks.ndim != 3 or blocks.shape[0] * blocks.shape[1] != layer.outputs or blocks.shape[1] != blocks.shape[2]:
            raise TrainError(
                f"{where}: found OFT blocks {tuple(blocks.shape)}, expected (blocks, size, size) with "
                f"blocks × size = {layer.outputs}: a LoRA for another model"
            )
        return cls(layer, blocks.clone(), alpha or 0.0)

    @property
    def rank(self) -> int:
        return self.blocks.shape[1]

    def forward(self, out: Tensor) -> Tensor:
        """The rotated output, given the layer's output without its bias."""
        channels = out.ndim - 1 if self.layer.dims == 0 else out.ndim - 1 - self.layer.dims
        turned = self.rotation().to(out.dtype)
        rows = out.movedim(channels, -1).unflatten(-1, self.blocks.shape[:2])
        return torch.einsum("knm,...kn->...km", turned, rows).flatten(-2).movedim(-1, channels)

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
        return {"oft_blocks": self.blocks}
