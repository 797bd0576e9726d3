"""What all nodes that save a cache under a name have in common: the name's rules, freshness, and what they show."""

from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ..dataset_cache import CacheError
from .host.app import NodeProgress, cache_roots, caches_changed, caller_of
from .library import Saved, path_to_save, problem_of, record_result, result_fingerprint

SAVING = ("StreamCacheCacheSave", "StreamCacheMerge")


def name_problem(name: str | None) -> bool | str:
    """What is wrong with a name to save under, as the host's validation takes it."""
    return problem_of(name, lambda: path_to_save(name, cache_roots()))


def fingerprint(name: str, node_id: Any) -> Any:
    """Stays the same while the cache is as this node left it."""
    try:
        return result_fingerprint(path_to_save(name, cache_roots()), caller_of(node_id))
    except CacheError as error:
        return str(error)


def checked_path(name: str, hidden: Any) -> Path:
    """Where to save. Two nodes of one workflow must not: what is there in the end would be a matter of chance."""
    for number, node in (hidden.prompt or {}).items():
        if number != hidden.unique_id and node.get("class_type") in SAVING and _same(node["inputs"].get("name"), name):
            raise CacheError(f"node {number} of this workflow saves to {name} too; give the two different names")
    return path_to_save(name, cache_roots())


def answer(saved: Saved, watch: NodeProgress, node_id: Any) -> io.NodeOutput:
    """The output of a node that saved."""
    record_result(saved.handle.path, caller_of(node_id), saved.handle.generation)
    caches_changed()
    watch.show("\n".join(saved.lines))
    return io.NodeOutput(saved.handle, ui={"text": ["\n".join(saved.lines)], "streamcache": [saved.facts]})


def _same(other: Any, name: str) -> bool:
    return isinstance(other, str) and other.strip().replace("\\", "/") == name.strip().replace("\\", "/")
