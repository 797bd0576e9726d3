"""A workflow written as code, in both of ComfyUI's forms: for the canvas, and for its HTTP interface."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}
WIDTH, GAP, TITLE = 340, 70, 34
SOCKET, WIDGET, EDGE = 20, 24, 14  # heights, as the classic canvas draws them
TALLER = 1.35  # Nodes 2.0 draws the same node taller by this factor
GROWS = {"StreamCacheCacheSave": 170, "StreamCacheCacheLoad": 170}  # what these show below their widgets after a run
_CONTROLLED = ("seed", "noise_seed")  # the front end gives these a second widget


@dataclass(frozen=True)
class Out:
    """An output of a node, to be linked."""

    node: int
    number: int


@dataclass(frozen=True)
class ModelFile:
    """A file that a loader needs. The front end offers to download it to this folder of ComfyUI's models."""

    directory: str
    url: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass
class Node:
    """A node under construction."""

    id: int
    kind: str
    title: str
    place: tuple[int, int]
    inputs: dict[str, Any]
    info: dict[str, Any]
    room: int = 0  # below its widgets, for images
    files: tuple["ModelFile", ...] = ()

    def __call__(self, number: int = 0) -> Out:
        return Out(self.id, number)

    def sockets(self) -> list[tuple[str, str]]:
        return [(name, kind) for name, kind, _ in self._specs() if not _is_widget(kind, self._options(name))]

    def widgets(self) -> list[tuple[str, Any]]:
        """Names and values in the order in which the front end saves them."""
        found: list[tuple[str, Any]] = []
        for name, kind, options in self._specs():
            if _is_widget(kind, options):
                found.append((name, self.inputs.get(name, _default(kind, options))))
                if name in _CONTROLLED and kind == "INT":
                    found.append((f"{name} control", "fixed"))
        return found

    def height(self) -> int:
        advanced = {name for name, _, options in self._specs() if options.get("advanced") and _is_ours(self.kind)}
        shown = len([name for name, _ in self.widgets() if name not in advanced])
        return SOCKET * max(len(self.sockets()), len(self.info["output"])) + WIDGET * shown + EDGE + self.room

    def _specs(self) -> list[tuple[str, Any, dict]]:
        groups = [self.info["input"].get(group, {}) for group in ("required", "optional")]
        return [(name, spec[0], spec[1] if len(spec) > 1 else {}) for group in groups for name, spec in group.items()]

    def _options(self, name: str) -> dict:
        return next(options for found, _, options in self._specs() if found == name)


@dataclass
class Workflow:
    """Nodes, links and notes. `info` is the server's /object_info."""

    info: dict[str, Any]
    nodes: list[Node] = field(default_factory=list)
    notes: list[tuple[str, tuple[int, int], int]] = field(default_factory=list)
    _free: dict[int, int] = field(default_factory=dict)  # column → position of its next node

    def add(
        self,
        kind: str,
        column: int,
        title: str = "",
        room: int = 0,
        files: Sequence[ModelFile] = (),
        **inputs: Any,
    ) -> Node:
        """A node below the others of its column."""
        title = title or self.info[kind]["display_name"]
        node = Node(len(self.nodes) + 1, kind, title, (0, 0), inputs, self.info[kind], room, tuple(files))
        unknown = set(inputs) - {name for name, _, _ in node._specs()}
        assert not unknown, f"{kind} has no input {unknown}"
        node.place = self._place(column, round(TALLER * node.height()) + max(GROWS.get(kind, 0) - room, 0))
        self.nodes.append(node)
        return node

    def note(self, text: str, column: int, height: int) -> None:
        self.notes.append((text, self._place(column, height), height))

    def _place(self, column: int, height: int) -> tuple[int, int]:
        y = self._free.get(column, 0)
        self._free[column] = y + height + TITLE + 26
        return column * (WIDTH + GAP), y

    def prompt(self) -> dict[str, Any]:
        """For POST /prompt."""
        found = {}
        for node in self.nodes:
            values = {name: value for name, value in node.widgets() if not name.endswith(" control")}
            links = {n: [str(v.node), v.number] for n, v in node.inputs.items() if isinstance(v, Out)}
            inputs = {**values, **links}
            found[str(node.id)] = {"inputs": inputs, "class_type": node.kind, "_meta": {"title": node.title}}
        return found

    def canvas(self) -> dict[str, Any]:
        """For the front end."""
        links = [
            [number, value.node, value.number, node.id, slot, kind]
            for number, (node, slot, kind, value) in enumerate(self._links(), 1)
        ]
        last = len(self.nodes) + len(self.notes)
        return {
            "last_node_id": last,
            "last_link_id": len(links),
            "nodes": [self._draw(node, links) for node in self.nodes]
            + [_draw_note(len(self.nodes) + n, *note) for n, note in enumerate(self.notes, 1)],
            "links": links,
            "groups": [],
            "config": {},
            "extra": {},
            "version": 0.4,
        }

    def _links(self) -> list[tuple[Node, int, str, Out]]:
        return [
            (node, slot, kind, node.inputs[name])
            for node in self.nodes
            for slot, (name, kind) in enumerate(node.sockets())
            if isinstance(node.inputs.get(name), Out)
        ]

    def _draw(self, node: Node, links: list[list]) -> dict[str, Any]:
        into = {(link[3], link[4]): link[0] for link in links}
        outputs = [
            {
                "name": name,
                "type": kind,
                "links": [link[0] for link in links if (link[1], link[2]) == (node.id, number)] or None,
                **({"shape": 6} if many else {}),
            }
            for number, (name, kind, many) in enumerate(
                zip(node.info["output_name"], node.info["output"], node.info["output_is_list"], strict=True)
            )
        ]
        inputs = [
            {"name": name, "type": kind, "link": into.get((node.id, slot))}
            for slot, (name, kind) in enumerate(node.sockets())
        ]
        return {
            "id": node.id,
            "type": node.kind,
            "pos": list(node.place),
            "size": [WIDTH, node.height()],
            "flags": {},
            "order": node.id - 1,
            "mode": 0,
            "inputs": inputs,
            "outputs": outputs,
            **({"title": node.title} if node.title != node.info["display_name"] else {}),
            "properties": {"Node name for S&R": node.kind, **_offered(node.files)},
            "widgets_values": [value for _, value in node.widgets()],
        }


def _offered(files: Sequence[ModelFile]) -> dict[str, Any]:
    entries = [{"name": file.name, "url": file.url, "directory": file.directory} for file in files]
    return {"models": entries} if entries else {}


def _is_widget(kind: Any, options: dict) -> bool:
    return (isinstance(kind, list) or kind in WIDGETS) and not options.get("forceInput")


def _default(kind: Any, options: dict) -> Any:
    if "default" in options:
        return options["default"]
    choices = kind if isinstance(kind, list) else options.get("options")
    if choices:
        return choices[0]
    # A list without choices: the host has no such files.
    return {"INT": 0, "FLOAT": 0.0, "BOOLEAN": False}.get("" if isinstance(kind, list) else kind, "")


def _is_ours(kind: str) -> bool:
    return kind.startswith("StreamCache")  # the pack hides advanced widgets of its own nodes


def _draw_note(number: int, text: str, place: tuple[int, int], height: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "MarkdownNote",
        "pos": list(place),
        "size": [WIDTH, height],
        "flags": {},
        "order": number - 1,
        "mode": 0,
        "inputs": [],
        "outputs": [],
        "properties": {},
        "widgets_values": [text],
    }
