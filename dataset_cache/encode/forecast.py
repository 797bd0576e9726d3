"""Forecast: what encoding a plan would do, worked out without encoding anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..sources import THUMBNAIL
from .explain import Entry, explain
from .recipe import Keys, Planned
from .report import PlanReport
from .target import Target

if TYPE_CHECKING:
    from .plan import Plan

_THUMBNAIL_BYTES = 5_000  # of one of 128 × 128 pixels, about


def forecast(plan: Plan, to: str | Path | None) -> PlanReport:
    target = Target(to)
    if plan.settings.trust:
        target.check_trust(plan.recipe)
    with target.open_state() as state:
        layout = plan.lay_out(state, hash_new=not target.is_empty)
        report = PlanReport()
        report.count(layout.samples)
        report.excluded, report.notes = layout.excluded, layout.notes
        forecaster = _Forecaster(plan, target, report)
        forecaster.look(layout.samples)
        report.made = explain(forecaster.missing, plan.recipe, state, target.dropped)
    report.bytes_expected = _bytes_expected(plan, target, report, layout.samples)
    return report


class _Forecaster:
    def __init__(self, plan: Plan, target: Target, report: PlanReport) -> None:
        self.recipe, self.target, self.report = plan.recipe, target, report
        self.missing: list[Entry] = []
        self.seen: set[bytes] = set()

    def look(self, samples: list[Planned]) -> None:
        for sample in samples:
            self._look_at(sample, self.recipe.text_keys(sample))
            if sample.content:
                self._look_at(sample, self.recipe.picture_keys(sample, sample.placement()))
            else:
                self._count_unread(sample)

    def _look_at(self, sample: Planned, keys: Keys) -> None:
        for field, variants in keys.items():
            for key in variants:
                if key in self.seen or self.target.has(key):
                    self.report.reused[field] = self.report.reused.get(field, 0) + 1
                else:
                    self.missing.append((sample, field, key))
                self.seen.add(key)

    def _count_unread(self, sample: Planned) -> None:
        self.report.unread += 1
        for field, count in self.recipe.variants(sample).items():
            if field != "conditioning":
                self.missing += [(sample, field, None)] * count


def _bytes_expected(plan: Plan, target: Target, report: PlanReport, samples: list[Planned]) -> int | None:
    """Known where the encoders say what they make, or where the cache holds some of it already."""
    encoded = report.encoded
    total = encoded.get(THUMBNAIL, 0) * _THUMBNAIL_BYTES
    if encoded.get("latent") or encoded.get("mask"):
        pixel = _latent_pixel_bytes(plan.image_encoder, target)
        if pixel is None or not samples:
            return None
        area = sum(s.target[0] * s.target[1] for s in samples) / len(samples) / plan.recipe.downscale**2
        total += round(area * (pixel * encoded.get("latent", 0) + 2 * encoded.get("mask", 0)))
    if encoded.get("conditioning"):
        text = getattr(plan.text_encoder, "bytes_per_caption", None)
        if text is None:
            return None
        total += text * encoded["conditioning"]
    return total


def _latent_pixel_bytes(encoder: Any, target: Target) -> int | None:
    channels, dtype = getattr(encoder, "channels", None), getattr(encoder, "dtype", torch.float32)
    if channels is None:
        bucket = next(iter(target.cache.buckets()), None) if target.cache is not None else None
        if bucket is None:
            return None
        channels, dtype = bucket.shape[0], bucket.dtype
    return channels * dtype.itemsize
