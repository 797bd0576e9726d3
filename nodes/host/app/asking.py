"""Asking: which node of which workflow wants something made."""

from collections.abc import Iterator
from typing import Any

from server import PromptServer

from ....dataset_cache import digest_of


def asker(node_id: Any) -> str:
    """A name for a node with all that feeds it, in the workflow that runs now. The host tells a node neither before it
    runs; without a server it is the node alone."""
    node_id, server = str(node_id), getattr(PromptServer, "instance", None)
    queue = getattr(server, "prompt_queue", None)
    running = queue.get_current_queue_volatile()[0] if queue is not None else []
    prompt = next((item[2] for item in running if node_id in item[2]), {})
    above = {number: prompt[number] for number in _above(node_id, prompt)}
    fed = {number: [node["class_type"], node["inputs"]] for number, node in above.items()}
    return f"{node_id} {digest_of(fed)}"


def _above(node_id: str, prompt: dict[str, Any]) -> set[str]:
    """The node and all nodes that it gets something from, directly or not."""
    found, waiting = set(), [node_id]
    while waiting:
        number = waiting.pop()
        if number in prompt and number not in found:
            found.add(number)
            waiting += _links(prompt[number].get("inputs", {}))
    return found


def _links(inputs: dict[str, Any]) -> Iterator[str]:
    for value in inputs.values():
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
            yield value[0]
