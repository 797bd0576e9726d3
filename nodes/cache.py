"""The nodes Streamable Cache Save and Streamable Cache Load, and what nodes that name a cache have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ..dataset_cache import IF_EXISTS, CacheError, is_published
from . import sockets
from .host.app import NodeProgress, cache_roots, caches_changed, caller_of
from .library import (
    Choices,
    DatasetHandle,
    DatasetPlan,
    Given,
    Saved,
    handle_of,
    list_names,
    path_to_open,
    path_to_save,
    place_to_open,
    problem_of,
    published_generation,
    published_manifest,
    record_result,
    result_fingerprint,
    save,
    saved_names,
    summarize,
)
from .remotes import NO_ROOT, REMOTE_ROOTS, push_saved, push_target, root_names

SAVING = ("StreamCacheCacheSave", "StreamCacheMerge")  # nodes that save under their input `name`
ALL_CACHES = Choices(lambda: list_names(cache_roots()))
# Those of runs are seldom wanted. A remote cache that was pulled has the name of the copy.
_LOADED_CACHES = Choices(lambda: sorted({*saved_names(cache_roots()), *REMOTE_ROOTS.names()}))
_LOAD_TOOLTIP = "A cache in output/streamcache, in a folder registered as streamcache, or at a registered remote root."


class StreamCacheCacheSave(io.ComfyNode):
    """Saves a dataset, encoding what is new in it, and passes it on."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheCacheSave",
            display_name="Streamable Cache Save",
            category=sockets.CATEGORY,
            description="Saves a dataset as a cache that streams from disk. Only new or changed samples are encoded; a "
            "stopped save continues where it was.",
            search_aliases=["save training dataset", "save latents", "save dataset", "convert dataset"],
            is_input_list=True,
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            inputs=_save_inputs(),
            outputs=[sockets.Dataset.Output("dataset", display_name="dataset", tooltip="The saved dataset.")],
        )

    @classmethod
    def validate_inputs(cls, name: str) -> bool | str:
        # ComfyUI refuses what is not in the list of `push_to`; as a parameter here it would be blamed for bad names.
        return save_name_problem(sockets.first(name))

    @classmethod
    def fingerprint_inputs(cls, name: list[str], **others: Any) -> Any:
        return save_fingerprint(name[0], cls.hidden.unique_id)

    @classmethod
    def execute(
        cls,
        name: list[str],
        dataset: Sequence[DatasetHandle | DatasetPlan] = (),
        latents: Sequence[dict] = (),
        conditioning: Sequence[list] = (),
        captions: Sequence[str] = (),
        if_exists: Sequence[str] = ("update",),
        push_to: Sequence[str] = (NO_ROOT,),
    ) -> io.NodeOutput:
        path = checked_save_path(name[0], if_exists[0], cls.hidden)
        target = push_target(push_to[0], name[0])  # before the work that it would come after
        given = Given(dataset[0] if dataset else None, latents, conditioning, captions)
        watch = NodeProgress()
        saved = save(given, name[0], path, watch)
        if target is not None:
            saved = push_saved(saved, name[0], path, target, watch)
        return save_output(saved, watch, cls.hidden.unique_id)


class StreamCacheCacheLoad(io.ComfyNode):
    """Opens a cache. Only its manifest and the buckets of its index are read."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheCacheLoad",
            display_name="Streamable Cache Load",
            category=sockets.CATEGORY,
            description="Opens a saved dataset by name, in milliseconds whatever its size. Use Select Samples to get "
            "lists of latents and conditionings.",
            search_aliases=["load training dataset", "load latents", "load dataset", "open cache"],
            has_intermediate_output=True,  # so that ComfyUI shows the summary also for a cached result
            inputs=[cache_name_input(_LOAD_TOOLTIP, _LOADED_CACHES)],
            outputs=[
                sockets.Dataset.Output("dataset", display_name="dataset", tooltip="The dataset as it is now."),
                io.Int.Output("samples", display_name="samples", tooltip="Number of samples."),
            ],
        )

    @classmethod
    def validate_inputs(cls, name: str) -> bool | str:
        return problem_of(name, lambda text: place_to_open(text, cache_roots()))

    @classmethod
    def fingerprint_inputs(cls, name: str) -> Any:
        """Changes when the cache is saved again."""
        try:
            return published_generation(place_to_open(name, cache_roots()), name)
        except CacheError as error:
            return str(error)

    @classmethod
    def execute(cls, name: str) -> io.NodeOutput:
        path = place_to_open(name, cache_roots())
        manifest = published_manifest(path, name)
        shown = {"streamcache": [summarize(name, path, manifest)]}
        return io.NodeOutput(handle_of(name, path, manifest), manifest.counts["samples"], ui=shown)


NODES = [StreamCacheCacheSave, StreamCacheCacheLoad]


def cache_name_input(tooltip: str, choices: Choices = ALL_CACHES) -> io.Input:
    """A list of caches. Names that it does not contain are checked by `cache_name_problem`.

    Not a remote list: when its choices arrive, the front end sets the widget to the first one, and a saved workflow
    would silently load another dataset.
    """
    return io.Combo.Input("name", options=choices.names(), tooltip=tooltip)


def cache_name_problem(name: str | None) -> bool | str:
    """Why no cache of this name can be opened, as ComfyUI's validation expects it."""
    return problem_of(name, lambda text: path_to_open(text, cache_roots()))


def save_name_problem(name: str | None) -> bool | str:
    """Why no cache can be saved under this name, as ComfyUI's validation expects it."""
    return problem_of(name, lambda text: path_to_save(text, cache_roots()))


def save_fingerprint(name: str, node_id: Any) -> Any:
    """Stays the same while the cache is as this node left it."""
    try:
        return result_fingerprint(path_to_save(name, cache_roots()), caller_of(node_id))
    except CacheError as error:
        return str(error)


def checked_save_path(name: str, if_exists: str, hidden: Any) -> Path:
    """Where to save. If two nodes of a workflow saved under one name, the result would be a matter of chance."""
    for number, node in (hidden.prompt or {}).items():
        if number != hidden.unique_id and node.get("class_type") in SAVING and _same(node["inputs"].get("name"), name):
            raise CacheError(f"node {number} of this workflow also saves to {name}; choose a different name for one")
    path = path_to_save(name, cache_roots())
    if if_exists == "refuse" and is_published(path):
        raise CacheError(f"the cache {name} already exists; choose another name, or set if_exists to update")
    return path


def save_output(saved: Saved, watch: NodeProgress, node_id: Any) -> io.NodeOutput:
    """The output of a node that saved a cache."""
    record_result(saved.handle.path, caller_of(node_id), saved.handle.generation)
    caches_changed()
    watch.show("\n".join(saved.lines))
    return io.NodeOutput(saved.handle, ui={"text": ["\n".join(saved.lines)], "streamcache": [saved.facts]})


def _same(other: Any, name: str) -> bool:
    return isinstance(other, str) and other.strip().replace("\\", "/") == name.strip().replace("\\", "/")


def _save_inputs() -> list[io.Input]:
    return [
        io.String.Input("name", default="my_dataset", tooltip="Name of the cache, a folder in output/streamcache."),
        sockets.Dataset.Input("dataset", optional=True, tooltip="A plan from Encode Dataset, or a dataset to copy."),
        io.Latent.Input("latents", optional=True, tooltip="Latents from other nodes, instead of a dataset."),
        io.Conditioning.Input("conditioning", optional=True, tooltip="The conditioning of each of these latents."),
        io.String.Input(
            "captions",
            optional=True,
            force_input=True,
            tooltip="The texts of these conditionings, for display and search.",
        ),
        io.Combo.Input(
            "if_exists",
            options=list(IF_EXISTS),
            default="update",
            **sockets.ADVANCED,
            tooltip="If the cache exists: update it to this dataset and reuse what is stored, or refuse. A copy "
            "replaces only a copy, lists only lists.",
        ),
        io.Combo.Input(
            "push_to",
            options=[NO_ROOT, *root_names()],
            default=NO_ROOT,
            **sockets.ADVANCED,
            tooltip="Also bring the saved cache to this remote root, under its name. remotes.toml registers roots.",
        ),
    ]
