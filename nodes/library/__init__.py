"""Datasets as nodes pass them on: names and paths, handles and plans, open caches, saving, freshness."""

from .freshness import forget_result, record_result, result_fingerprint
from .handles import DatasetHandle, DatasetPlan, handle_of, lazy_field, published_generation
from .open_caches import OpenPool, close_idle
from .paths import (
    Choices,
    contained,
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
from .saving import Given, Saved, describe, gather_parts, save, summarize

__all__ = [
    "Choices",
    "DatasetHandle",
    "DatasetPlan",
    "Given",
    "OpenPool",
    "Saved",
    "close_idle",
    "contained",
    "describe",
    "forget_result",
    "gather_parts",
    "handle_of",
    "lazy_field",
    "list_caches",
    "list_folders",
    "list_names",
    "parse_name",
    "path_of_folder",
    "path_to_create",
    "path_to_open",
    "path_to_save",
    "problem_of",
    "published_generation",
    "record_result",
    "result_fingerprint",
    "save",
    "summarize",
]
