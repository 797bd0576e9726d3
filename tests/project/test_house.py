"""The rooms of the code: how large they may be, in which order they import each other, and that they have doors.

A room is a folder. Its door is its `__init__`, which lists in `__all__` what other rooms may use. `ROOMS` gives the
order: a room imports only rooms named before it. Modules at the root are the ground: every room may import them, and
they need nothing but Python. docs/architecture.md is the map.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import streamcache

ROOT = Path(streamcache.__file__).parent
ROOMS = (
    "dataset_cache.format",
    "dataset_cache.index",
    "dataset_cache.remote",
    "dataset_cache.ahead",
    "dataset_cache.read",
    "dataset_cache.write",
    "dataset_cache.sources",
    "dataset_cache.intake",
    "dataset_cache.curate",
    "dataset_cache.upkeep",
    "dataset_cache.foreign",
    "dataset_cache.exchange",
    "dataset_cache.travel",
    "dataset_cache.encode",
    "dataset_cache",
    "lora_train.compute",
    "lora_train.ranks",
    "lora_train.adapters",
    "lora_train.data",
    "lora_train.objective",
    "lora_train.optimizers",
    "lora_train.run",
    "lora_train.grid",
    "lora_train.forecast",
    "lora_train.lora_tools",
    "lora_train.queue",
    "lora_train.recipes",
    "lora_train",
    "reference",
    "nodes.host.app",
    "nodes.host.encoders",
    "nodes.host.model",
    "nodes.host.tiny",
    "nodes.host",
    "nodes.library",
    "nodes.outside",
    "nodes.folders",
    "nodes.remotes",
    "nodes.server",
    "nodes.training",
    "nodes.grid",
    "nodes",
    "cli.jobs",
    "cli.remote",
    "cli",
)
# Other layers enter these through the layer's own door only. `nodes` has none: it needs the host, its rooms do not all.
FACADES = ("dataset_cache", "lora_train", "reference")
GROUND = ("errors", "quantity", "setting")
MOST_FILES = 15
DOCUMENTS = " ".join(
    file.read_text(encoding="utf-8") for file in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
)


class Import(NamedTuple):
    """`file:line` of room `room` imports `name` from `module`, which is a door if it is a folder."""

    file: Path
    line: int
    room: str
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT).as_posix()}:{self.line} imports {self.name} from {self.module}"


def files() -> list[Path]:
    return [file for room in ROOMS for file in sorted((ROOT / room.replace(".", "/")).glob("*.py"))]


MODULES = {file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for file in files()}


def room_of(module: str) -> str:
    return module if module in ROOMS else module.rpartition(".")[0]


def imports() -> Iterator[Import]:
    """Every import of the pack's own modules, also those inside functions and for type checkers only."""
    for file in files():
        room = file.relative_to(ROOT).parent.as_posix().replace("/", ".")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            above = room.split(".")[: len(room.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                # A door may export a function of the same name as the file that it comes from.
                whole = (inner in ROOMS or inner in MODULES) and alias.name not in exported(base)
                yield Import(file, node.lineno, room, inner if whole else base, alias.name)


def exported(room: str) -> tuple[str, ...]:
    """What a room's door lists in `__all__`."""
    door = ROOT / room.replace(".", "/") / "__init__.py"
    if not door.exists():
        return ()
    for node in ast.parse(door.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return tuple(ast.literal_eval(node.value))
    return ()


def is_ground(room: str, module: str) -> bool:
    """Whether a module stands in a folder above the room, as `dataset_cache/processes.py`: all rooms below use it."""
    return room.startswith(room_of(module) + ".") and module not in ROOMS


def test_a_room_imports_only_rooms_before_it():
    order = {room: number for number, room in enumerate(ROOMS)}
    backwards = [
        str(one)
        for one in imports()
        if room_of(one.module) in order and order[room_of(one.module)] > order[one.room]
        if not is_ground(one.room, one.module)
    ]
    assert not backwards, "these imports point to a later room (see ROOMS)"


def test_rooms_are_entered_through_their_doors():
    def past_a_door(one: Import) -> bool:
        layer, own = one.module.split(".")[0], one.room.split(".")[0]
        if layer == own:
            return room_of(one.module) != one.room and one.module not in ROOMS and not is_ground(one.room, one.module)
        return one.module != layer if layer in FACADES else one.module in MODULES

    assert [str(one) for one in imports() if past_a_door(one)] == []


def test_the_ground_needs_nothing_but_python():
    """The command line imports it before it knows whether torch is installed."""
    assert {file.stem for file in ROOT.glob("*.py")} == {*GROUND, "__init__", "__main__", "dev"}
    for module in GROUND:
        for node in ast.walk(ast.parse((ROOT / f"{module}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert all(alias.name.split(".")[0] in sys.stdlib_module_names for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                known = GROUND if node.level else sys.stdlib_module_names
                assert (node.module or "").split(".")[0] in known, f"{module}.py:{node.lineno}"


def test_files_do_not_import_each_other_in_a_circle():
    graph = defaultdict(set)
    for one in imports():
        if one.module in MODULES and one.file.name != "__init__.py":
            graph[".".join(one.file.relative_to(ROOT).with_suffix("").parts)].add(one.module)
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for target in graph[module]:
                walk(target, (*trail, module))
            done.add(module)

    for module in list(graph):
        walk(module, ())


@pytest.mark.parametrize("room", ROOMS)
def test_a_door_lists_what_it_exports_in_order(room: str):
    door = ROOT / room.replace(".", "/") / "__init__.py"
    tree = ast.parse(door.read_text(encoding="utf-8"))
    imported = {alias.asname or alias.name for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    names = exported(room)
    assert set(names) == imported | defined
    assert list(names) == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(imports())


@cache
def other_texts() -> tuple[str, ...]:
    """Tests, benchmarks and documents."""
    found = [file for top in ("tests", "bench", "pretrain", "docs") for file in (ROOT / top).rglob("*.*")]
    named = [file for file in found if file.suffix in (".py", ".md")]
    return tuple(file.read_text(encoding="utf-8") for file in [*named, ROOT / "README.md", ROOT / "dev.py"])


def used_outside(room: str) -> set[str]:
    """The names that other rooms, tests, benchmarks and documents take from a room's door."""
    taken = {one.name for one in all_imports() if one.module == room and one.room != room}
    door = re.compile(rf"from (?:streamcache|\.+)\.?{re.escape(room)} import (?:\(([^)]*)\)|(.+))")
    for text in other_texts():
        for found in door.finditer(text):
            taken |= set(re.findall(r"\w+", found[1] or found[2].split("#")[0]))
    return taken


@pytest.mark.parametrize("room", ROOMS)
def test_a_door_exports_only_what_is_used_outside(room: str):
    documented = DOCUMENTS if room in FACADES else ""
    unused = set(exported(room)) - used_outside(room) - set(re.findall(r"\w+", documented))
    assert not unused, "remove them from the door"


def test_every_folder_of_the_pack_is_a_known_room():
    layers = {room.split(".")[0] for room in ROOMS}
    folders = {file.parent for layer in layers for file in (ROOT / layer).rglob("*.py")}
    assert {folder.relative_to(ROOT).as_posix().replace("/", ".") for folder in folders} == set(ROOMS)


def test_no_room_is_crowded():
    counts = {room: len(list((ROOT / room.replace(".", "/")).glob("[!_]*.py"))) for room in ROOMS}
    assert {room: count for room, count in counts.items() if count > MOST_FILES} == {}


def test_there_is_one_logger():
    """ComfyUI may import the pack under another name; a filter on "streamcache" shows everything."""
    loggers = {
        found for file in files() for found in re.findall(r"getLogger\((.*?)\)", file.read_text(encoding="utf-8"))
    }
    assert loggers == {'"streamcache"'}
