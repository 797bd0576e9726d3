"""The library: datasets as nodes hand them around."""

from .bucket_names import bucket_names, count_by_name, peek_bucket_names
from .freshness import forget_result, leave_result, result_fingerprint
from .handles import DatasetHandle, handle_of, lazy_field, published_generation
from .listing import Listing
from .open_caches import Kept
from .opened import close_idle
from .paths import (
    contained,
    is_published,
    list_caches,
    list_folders,
    list_names,
    parse_name,
    path_of_folder,
    path_to_create,
    path_to_open,
    path_to_save,
    problem_of,
)
from .plans import DatasetPlan, is_plan
from .saving import Given, Saved, describe, gather_parts, save, summarize

__all__ = [
    "DatasetHandle",
    "DatasetPlan",
    "Given",
    "Kept",
    "Listing",
    "Saved",
    "bucket_names",
    "close_idle",
    "contained",
    "count_by_name",
    "describe",
    "forget_result",
    "gather_parts",
    "handle_of",
    "is_plan",
    "is_published",
    "lazy_field",
    "leave_result",
    "list_caches",
    "list_folders",
    "list_names",
    "parse_name",
    "path_of_folder",
    "path_to_create",
    "path_to_open",
    "path_to_save",
    "peek_bucket_names",
    "problem_of",
    "published_generation",
    "result_fingerprint",
    "save",
    "summarize",
]
