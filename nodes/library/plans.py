"""Plans: a dataset that is not encoded yet, as it travels between nodes. Nothing is encoded until a consumer asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...dataset_cache import Encoder, ImageEncoder, Plan, Settings, Source


@dataclass(frozen=True, eq=False)
class DatasetPlan:
    """What to encode and how. Each use looks at the sources anew."""

    sources: tuple[Source, ...]
    image_encoder: ImageEncoder | None
    text_encoder: Encoder | None
    settings: Settings

    def plan(self) -> Plan:
        from ...dataset_cache import make_plan  # when it is used: the host's start stays short

        return make_plan(
            list(self.sources),
            image_encoder=self.image_encoder,
            text_encoder=self.text_encoder,
            settings=self.settings,
        )


def is_plan(dataset: Any) -> bool:
    return isinstance(dataset, DatasetPlan)
