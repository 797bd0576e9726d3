"""Upkeep: verify, repair, clean, copy, merge, describe."""

from .clean import (
    CATEGORIES,
    DEBRIS,
    MISSING,
    SUPERSEDED,
    UNUSED,
    CleanPlan,
    Removal,
    clean,
    compact,
    missing_folders,
    preview_clean,
)
from .contact_sheet import contact_sheet, draw_sheet, evenly_spaced, thumbnail_of
from .contents import INCOMING, TRAVEL, TRAVEL_LOCK, folder_contents
from .copy import CopyReport, duplicate, export, free_name, require_new
from .fit import FROM_LISTS, recorded_text_encoders, refuse_other_origin
from .gather import Part, gather
from .info import (
    Overview,
    Usage,
    bucket_chart,
    bucket_labels,
    overview,
    overview_of,
    peek_bucket_counts,
    samples_by_bucket,
    samples_by_size,
    size_label,
    usage,
    usage_of,
)
from .lettering import drawable, font_for
from .merge import IF_EXISTS, merge
from .repair import RepairReport, repair
from .verify import Problem, shown_kind, verify

__all__ = [
    "CATEGORIES",
    "DEBRIS",
    "FROM_LISTS",
    "IF_EXISTS",
    "INCOMING",
    "MISSING",
    "SUPERSEDED",
    "TRAVEL",
    "TRAVEL_LOCK",
    "UNUSED",
    "CleanPlan",
    "CopyReport",
    "Overview",
    "Part",
    "Problem",
    "Removal",
    "RepairReport",
    "Usage",
    "bucket_chart",
    "bucket_labels",
    "clean",
    "compact",
    "contact_sheet",
    "draw_sheet",
    "drawable",
    "duplicate",
    "evenly_spaced",
    "export",
    "folder_contents",
    "font_for",
    "free_name",
    "gather",
    "merge",
    "missing_folders",
    "overview",
    "overview_of",
    "peek_bucket_counts",
    "preview_clean",
    "recorded_text_encoders",
    "refuse_other_origin",
    "repair",
    "require_new",
    "samples_by_bucket",
    "samples_by_size",
    "shown_kind",
    "size_label",
    "thumbnail_of",
    "usage",
    "usage_of",
    "verify",
]
