"""Upkeep: verify, repair, clean, copy, merge, convert, describe."""

from .clean import (
    CATEGORIES,
    DEBRIS,
    SUPERSEDED,
    UNUSED,
    CleanPlan,
    CompactReport,
    Removal,
    clean,
    compact,
    preview_clean,
)
from .contact_sheet import contact_sheet
from .convert import ConvertReport, convert
from .copy import CopyReport, duplicate, export
from .gather import Part, gather
from .info import Overview, bucket_chart, overview, overview_of
from .merge import MergeReport, merge
from .repair import RepairReport, repair
from .usage import Usage, usage, usage_of
from .verify import Problem, verify

__all__ = [
    "CATEGORIES",
    "DEBRIS",
    "SUPERSEDED",
    "UNUSED",
    "CleanPlan",
    "CompactReport",
    "ConvertReport",
    "CopyReport",
    "MergeReport",
    "Overview",
    "Part",
    "Problem",
    "Removal",
    "RepairReport",
    "Usage",
    "bucket_chart",
    "clean",
    "compact",
    "contact_sheet",
    "convert",
    "duplicate",
    "export",
    "gather",
    "merge",
    "overview",
    "overview_of",
    "preview_clean",
    "repair",
    "usage",
    "usage_of",
    "verify",
]
