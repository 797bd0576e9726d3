"""Datasets as nodes pass them on: names and paths, handles and plans, open caches, saving, freshness."""

from .freshness import forget_result, record_result, result_fingerprint
from .handles import DatasetHandle, DatasetPlan, handle_of, lazy_field, published_generation, published_manifest
from .open_caches import OpenPool, close_idle
from .paths import (
    DATASETS,
    Choices,
    contained,
    list_caches,
    list_folders,
    list_names,
    parse_name,
    path_of_folder,
    path_of_new_folder,
    path_to_create,
    path_to_open,
    path_to_save,
    place_to_open,
    problem_of,
    remote_place,
)
from .run_caches import made_for_run, run_of, saved_names
from .sample_images import SampleImages, check_texts, make_sample_images, prompt_names, split_prompts
from .saving import Given, Saved, Watcher, check_given, encoded_before, nothing_given, save, save_parts, summarize
from .trained_files import describe_files, trained_files

__all__ = [
    "DATASETS",
    "Choices",
    "DatasetHandle",
    "DatasetPlan",
    "Given",
    "OpenPool",
    "SampleImages",
    "Saved",
    "Watcher",
    "check_given",
    "check_texts",
    "close_idle",
    "contained",
    "describe_files",
    "encoded_before",
    "forget_result",
    "handle_of",
    "lazy_field",
    "list_caches",
    "list_folders",
    "list_names",
    "made_for_run",
    "make_sample_images",
    "nothing_given",
    "parse_name",
    "path_of_folder",
    "path_of_new_folder",
    "path_to_create",
    "path_to_open",
    "path_to_save",
    "place_to_open",
    "problem_of",
    "prompt_names",
    "published_generation",
    "published_manifest",
    "record_result",
    "remote_place",
    "result_fingerprint",
    "run_of",
    "save",
    "save_parts",
    "saved_names",
    "split_prompts",
    "summarize",
    "trained_files",
]
