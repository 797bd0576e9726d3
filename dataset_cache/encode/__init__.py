"""Encoding: from sources to a published cache."""

from .encode import encode
from .encoders import Encoder, ImageEncoder, Surroundings
from .identity import digest_of, file_identity, files_identity, object_identity
from .on_demand import OnDemand
from .plan import Plan, make_plan
from .report import EncodeReport, Progress, Report
from .settings import Settings

__all__ = [
    "EncodeReport",
    "Encoder",
    "ImageEncoder",
    "OnDemand",
    "Plan",
    "Progress",
    "Report",
    "Settings",
    "Surroundings",
    "digest_of",
    "encode",
    "file_identity",
    "files_identity",
    "make_plan",
    "object_identity",
]
