"""The node Clean Cache: lists what a cache contains beyond its samples, and removes it on request."""

from typing import Any

from comfy_api.latest import io

from ..dataset_cache import CATEGORIES, CacheError, CleanPlan, byte_count, clean, preview_clean
from . import sockets
from .cache import cache_name_input, cache_name_problem
from .host.app import NodeProgress, cache_roots, caches_changed
from .library import forget_result, path_to_open
from .server import close_unused


class StreamCacheClean(io.ComfyNode):
    """A preview, unless `apply` is on."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StreamCacheClean",
            display_name="Clean Cache",
            category=sockets.CATEGORY,
            description="Lists what a cache contains beyond its samples. Nothing is removed unless apply is on.",
            search_aliases=["delete cache", "free disk space", "prune dataset", "remove unused latents"],
            is_output_node=True,
            not_idempotent=True,
            inputs=[
                cache_name_input("The cache to clean."),
                io.Boolean.Input("apply", default=False, tooltip="Remove the selected data. If off, only list it."),
                *(_choice(name, default=name != "unused") for name in ("debris", "superseded", "unused")),
                _choice("missing", optional=True),
            ],
            outputs=[io.String.Output("report", display_name="report", tooltip="What was found or removed.")],
        )

    @classmethod
    def validate_inputs(cls, name: str) -> bool | str:
        return cache_name_problem(name)

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> float:
        """Never the same: the folder is inspected each time."""
        return float("nan")

    @classmethod
    def execute(cls, name: str, apply: bool, **chosen: bool) -> io.NodeOutput:
        path = path_to_open(name, cache_roots())
        wanted = [category for category in CATEGORIES if chosen.get(category)]
        if not wanted:
            choices = ", ".join(category.several for category in CATEGORIES.values())
            raise CacheError(f"nothing is selected; turn on one of: {choices}")
        close_unused(path)
        plan = preview_clean(path, wanted)
        if apply:
            plan = clean(plan)
            forget_result(path)
            caches_changed()
        text = "\n".join(report_lines(plan, name, apply))
        NodeProgress().show(text)
        return io.NodeOutput(text, ui={"text": [text]})


NODES = [StreamCacheClean]


def _choice(name: str, default: bool = False, optional: bool = False) -> io.Boolean.Input:
    # Inputs show the words of the category; their ids stay as saved workflows have them.
    shown = CATEGORIES[name]
    return io.Boolean.Input(
        name, display_name=shown.several, default=default, optional=optional, tooltip=f"{shown.text}."
    )


def report_lines(plan: CleanPlan, name: str, applied: bool) -> list[str]:
    verb = "Removed" if applied else "Would remove"
    lines = [f"{verb} {byte_count(plan.bytes)} from {name}"]
    for removal in plan.removals:
        lines.append(f"{CATEGORIES[removal.category].count(removal.count)}, {byte_count(removal.bytes)}")
        lines += [f"kept: {removal.kept}"] if removal.kept else []
        lines += [f"in use by {', '.join(removal.held_by)}"] if removal.held_by else []
    return lines
