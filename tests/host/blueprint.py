"""A blueprint: a workflow folded into one node, which ComfyUI offers in its node list."""

import uuid
from typing import Any

from .workflow import WIDTH, Node, Out, Workflow

_OUTER = 1  # the id of the folded node
_INPUTS, _OUTPUTS = -10, -20  # the ids that the front end uses for the ends of a subgraph
_SPACE = uuid.UUID("6f1d2c1e-51c4-4a53-9d0c-7d6a3f0b2a11")


def fold(
    workflow: Workflow,
    name: str,
    description: str,
    inputs: list[tuple[str, Node, str]],
    outputs: list[tuple[str, Out]],
) -> dict[str, Any]:
    """`inputs` are (name outside, node, its input), sockets or widgets; `outputs` (name outside, output)."""
    canvas = workflow.canvas()
    nodes = {node["id"]: node for node in canvas["nodes"]}
    links = [
        {"id": i, "origin_id": a, "origin_slot": b, "target_id": c, "target_slot": d, "type": kind}
        for i, a, b, c, d, kind in canvas["links"]
    ]
    kinds = {(node.id, at): kind for node in workflow.nodes for at, kind, _ in node._specs()}
    values = {node.id: dict(node.widgets()) for node in workflow.nodes}
    ends: list[dict[str, Any]] = []
    for slot, (label, node, at) in enumerate(inputs):
        kind = kinds[node.id, at]
        kind = "COMBO" if isinstance(kind, list) else kind
        found = _input_slot(nodes[node.id], at, kind, at in values[node.id])
        link = len(links) + 1
        nodes[node.id]["inputs"][found]["link"] = link
        links.append(_link(link, _INPUTS, slot, node.id, found, kind))
        ends.append({"id": _id(name, "in", label), "name": label, "type": kind, "linkIds": [link]})
    exits: list[dict[str, Any]] = []
    for slot, (label, out) in enumerate(outputs):
        socket = nodes[out.node]["outputs"][out.number]
        link = len(links) + 1
        socket["links"] = [*(socket["links"] or []), link]
        links.append(_link(link, out.node, out.number, _OUTPUTS, slot, socket["type"]))
        exits.append({"id": _id(name, "out", label), "name": label, "type": socket["type"], "linkIds": [link]})
    widgets = [(label, values[node.id][at]) for label, node, at in inputs if at in values[node.id]]
    number = _id(name, "graph")
    right = max(node["pos"][0] for node in canvas["nodes"]) + WIDTH
    outer = {
        "id": _OUTER,
        "type": number,
        "pos": [0, 0],
        "size": [WIDTH, 40 + 24 * (len(inputs) + len(outputs))],
        "flags": {},
        "order": 0,
        "mode": 0,
        "inputs": [
            {"name": e["name"], "type": e["type"], "link": None, **_as_widget(e["name"], widgets)} for e in ends
        ],
        "outputs": [{"name": e["name"], "type": e["type"], "links": None} for e in exits],
        "title": name,
        # By the nodes inside: with the older ["-1", name], front ends since 1.49 lose the values of saved workflows.
        "properties": {"proxyWidgets": [[str(node.id), at] for _, node, at in inputs if at in values[node.id]]},
        "widgets_values": [value for _, value in widgets],
    }
    state = {"lastGroupId": 0, "lastNodeId": len(nodes), "lastLinkId": len(links), "lastRerouteId": 0}
    inside = {
        "id": number,
        "version": 1,
        "state": state,
        "revision": 0,
        "config": {},
        "name": name,
        "inputNode": {"id": _INPUTS, "bounding": [-260, 0, 140, 40 + 20 * len(ends)]},
        "outputNode": {"id": _OUTPUTS, "bounding": [right + 120, 0, 120, 40 + 20 * len(exits)]},
        "inputs": ends,
        "outputs": exits,
        "widgets": [],
        "nodes": list(nodes.values()),
        "groups": [],
        "links": links,
        "extra": {},
        "category": "StreamCache",
        "description": description,
    }
    whole = {"revision": 0, "last_node_id": _OUTER, "last_link_id": 0, "nodes": [outer], "links": [], "version": 0.4}
    return {**whole, "definitions": {"subgraphs": [inside]}, "extra": {}}


def _input_slot(node: dict[str, Any], name: str, kind: str, widget: bool) -> int:
    """Where a link to this input ends; a widget becomes a socket for it."""
    for slot, found in enumerate(node["inputs"]):
        if found["name"] == name:
            return slot
    assert widget, f"{node['type']} has no input {name}"
    node["inputs"].append({"name": name, "type": kind, "widget": {"name": name}, "link": None})
    return len(node["inputs"]) - 1


def _as_widget(name: str, widgets: list[tuple[str, Any]]) -> dict[str, Any]:
    return {"widget": {"name": name}} if name in dict(widgets) else {}


def _link(number: int, origin: int, origin_slot: int, target: int, target_slot: int, kind: str) -> dict[str, Any]:
    return {
        "id": number,
        "origin_id": origin,
        "origin_slot": origin_slot,
        "target_id": target,
        "target_slot": target_slot,
        "type": kind,
    }


def _id(*parts: str) -> str:
    """The same id every time."""
    return str(uuid.uuid5(_SPACE, "/".join(parts)))
