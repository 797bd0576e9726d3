"""Encoding: from sources to a published cache."""

from .encode import encode, is_encoded
from .encoders import Encoder, Failure, ImageEncoder, Phase, Surroundings, is_out_of_memory
from .identity import digest_of, file_identity, files_identity, object_identity
from .on_demand import OnDemand
from .pipeline import WriteBehind
from .plan import EMPTY_CAPTION, Plan, make_plan, missing_parts
from .recipe import Recipe
from .report import EncodeProgress, EncodeReport, Report, cut_captions, trimmed_text
from .settings import (
    ENCODE_SETTINGS,
    PLAN_SETTINGS,
    SOURCE_SETTINGS,
    Settings,
    load_settings,
    load_source,
    load_transform,
)

__all__ = [
    "EMPTY_CAPTION",
    "ENCODE_SETTINGS",
    "PLAN_SETTINGS",
    "SOURCE_SETTINGS",
    "EncodeProgress",
    "EncodeReport",
    "Encoder",
    "Failure",
    "ImageEncoder",
    "OnDemand",
    "Phase",
    "Plan",
    "Recipe",
    "Report",
    "Settings",
    "Surroundings",
    "WriteBehind",
    "cut_captions",
    "digest_of",
    "encode",
    "file_identity",
    "files_identity",
    "is_encoded",
    "is_out_of_memory",
    "load_settings",
    "load_source",
    "load_transform",
    "make_plan",
    "missing_parts",
    "object_identity",
    "trimmed_text",
]
