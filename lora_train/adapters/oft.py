"""OFT: a weight's output channels are turned, block by block, by rotations that are learnt."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import TrainError
from .layer import Layer


class Oft(nn.Module):
    """W' = R · W with R = (I + Q)(I - Q)⁻¹ in blocks, Q = B - Bᵀ; B starts at zero, so that R is the identity.

    Lengths and angles between a block's outputs stay as they are. `alpha` above 0 bounds the length of Q. The rank is
    the largest size of a block.
    """

    kind = "oft"
    parts = ("oft_blocks",)

    def __init__(self, layer: Layer, blocks: Tensor, alpha: float) -> None:
        super().__init__()
        self.layer = layer
        self.alpha = float(alpha)
        self.blocks = nn.Parameter(blocks)  # [blocks, size, size]

    @classmethod
    def create(cls, layer: Layer, rank: int, alpha: float, generator: torch.Generator) -> Oft:
        """Nothing is drawn. A block stays within a group of a grouped convolution, whose rows read the same inputs."""
        within = layer.outputs // layer.groups
        size = next(size for size in range(min(rank, within), 0, -1) if within % size == 0)
        return cls(layer, torch.zeros(layer.outputs // size, size, size), alpha)

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

    def turn(self, out: Tensor) -> Tensor:
        """The layer's output, without its bias, turned."""
        channels = out.ndim - 1 if self.layer.dims == 0 else out.ndim - 1 - self.layer.dims
        turned = self.rotation().to(out.dtype)
        rows = out.movedim(channels, -1).unflatten(-1, self.blocks.shape[:2])
        return torch.einsum("knm,...kn->...km", turned, rows).flatten(-2).movedim(-1, channels)

    def rotation(self) -> Tensor:
        """R [blocks, size, size] in float32: half precision would not keep it a rotation."""
        with torch.autocast(self.blocks.device.type, enabled=False):
            blocks = self.blocks.float()
            q = blocks - blocks.transpose(1, 2)
            if self.alpha > 0:
                q = q * (self.alpha / (q.norm() + 1e-8)).clamp(max=1)
            one = torch.eye(self.rank, device=q.device)
            return torch.linalg.solve(one - q, one + q, left=False)

    def to_parts(self) -> dict[str, Tensor]:
        return {"oft_blocks": self.blocks}
