"""The options of `streamcache encode`: every setting has one name, as a flag and in a TOML file.

A file has the plan's settings at its top, [transform], and one [[source]] a set, each with [source.captions],
[source.masks] and [source.transform] if it needs its own.
"""

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..dataset_cache import (
    BUCKET_STEPS,
    CAPTION_FALLBACKS,
    CAPTION_LINES,
    CROPS,
    MASK_MODES,
    CacheError,
    Captions,
    FolderSource,
    Masks,
    Settings,
    Transform,
)

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list"}
_OPTIONAL = {"str | None": "", "int | None": 0, "float | None": 0.0}
PARTS = {"captions": Captions, "masks": Masks, "transform": Transform}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="*", metavar="SRC", help="folders of pictures")
    parser.add_argument("--config", metavar="FILE", help="settings and further sources from a TOML file")
    _add_transform(parser.add_argument_group("pictures"))
    _add_captions(parser.add_argument_group("captions"))
    _add_sets(parser.add_argument_group("sets"))
    _add_run(parser.add_argument_group("the run"))


def read_options(args: argparse.Namespace) -> tuple[list[FolderSource], Settings]:
    """The sources and settings that flags and file together ask for."""
    text = read_toml(args.config) if args.config else {}
    given = {name: value for name, value in vars(args).items() if value is not None}
    transform = _make(
        Transform, _table(text.pop("transform", {}), "transform") | _only(Transform, given), "[transform]"
    )
    listed = text.pop("source", [])
    if not isinstance(listed, list):
        raise CacheError(f"{args.config}: source is {listed!r}, expected tables [[source]]")
    settings = _make(Settings, {**text, **_only(Settings, given), "transform": transform}, args.config or "settings")
    sources = [_make_source({"path": path, **_common(given)}, "SRC") for path in args.sources]
    base = Path(args.config).parent if args.config else Path()
    sources += [_make_source(_resolve(entry, base), f"[[source]] {n}") for n, entry in enumerate(listed, 1)]
    if args.class_source:
        prior = {"set": "class", "prior": True, "prompt": args.class_prompt, "weight": args.class_weight}
        sources.append(_make_source({"path": args.class_source, **prior}, "--class-source"))
    return sources, settings


def read_toml(path: str) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise CacheError(f"{path}: reading TOML on Python 3.10 needs tomli; pip install tomli") from None
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CacheError(f"{path}: cannot be read: {error}") from error


def _add_transform(group: Any) -> None:
    text = "sides of squares with the area of a bucket; every one gives each picture a sample [1024]"
    group.add_argument("--resolution", dest="resolutions", nargs="+", type=int, metavar="SIDE", help=text)
    group.add_argument("--step", type=int, choices=BUCKET_STEPS, help="sides of buckets are multiples of it [64]")
    group.add_argument("--min-aspect", type=float, metavar="A", help="width / height of the tallest bucket [0.5]")
    group.add_argument("--max-aspect", type=float, metavar="A", help="width / height of the widest bucket [2]")
    group.add_argument(
        "--no-upscale", dest="upscale", action="store_false", default=None, help="small pictures get small buckets"
    )
    group.add_argument("--crop", choices=CROPS, help="which part fills the bucket; none: stretched to it [centre]")
    group.add_argument("--flip", action="store_true", default=None, help="a mirrored variant of every picture")
    group.add_argument("--seed", type=int, help="of random crops and of tag shuffles")
    text = "for masked loss: name-masklabel.png files, a folder, the alpha channel, or the first that is there [none]"
    group.add_argument("--masks", dest="mode", choices=MASK_MODES, help=text)
    group.add_argument("--mask-folder", dest="folder", metavar="NAME", help="the name of folders of masks [masks]")


def _add_captions(group: Any) -> None:
    group.add_argument("--trigger", metavar="WORD", help="replaces [trigger], else stands first")
    group.add_argument("--prefix", metavar="TEXT", help="stands before every caption")
    group.add_argument("--suffix", metavar="TEXT", help="stands after every caption")
    group.add_argument("--shuffles", type=int, metavar="N", help="seeded orders of each caption's tags, as variants")
    group.add_argument("--keep-tags", type=int, metavar="N", help="first tags that are not shuffled")
    group.add_argument("--lines", choices=CAPTION_LINES, help="what several lines of a caption file are [variants]")
    group.add_argument("--fallback", choices=CAPTION_FALLBACKS, help="the caption of pictures that have none [empty]")


def _add_sets(group: Any) -> None:
    group.add_argument("--set", metavar="NAME", help="the name that training knows these pictures by [main]")
    group.add_argument(
        "--repeats", type=int, metavar="N", help="how often an epoch sees each; times N of N_folders [1]"
    )
    group.add_argument("--weight", type=float, metavar="W", help="how much each sample counts in the loss [1]")
    group.add_argument("--prompt", metavar="TEXT", help="one caption for all pictures")
    group.add_argument(
        "--not-recursive", dest="recursive", action="store_false", default=None, help="without folders below"
    )
    group.add_argument("--class-source", metavar="SRC", help="pictures of the class, for prior preservation")
    group.add_argument("--class-prompt", metavar="TEXT", default="", help="one caption for all pictures of the class")
    group.add_argument("--class-weight", metavar="W", type=float, default=1.0, help="how much each of them counts [1]")


def _add_run(group: Any) -> None:
    group.add_argument("--batch-size", type=int, metavar="N", help="pictures in an encoder call [4]")
    group.add_argument("--text-batch-size", type=int, metavar="N", help="captions in an encoder call [32]")
    group.add_argument("--threads", type=int, metavar="N", help="that decode pictures; 0: as the machine has [0]")
    group.add_argument("--thumbnail", type=int, metavar="SIDE", help="longer side; 0 keeps no thumbnails [128]")
    group.add_argument("--trust", action="store_true", default=None, help="serve known files without looking at them")
    group.add_argument("--check", action="store_true", default=None, help="find damaged entries, encode them again")


def _common(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that describe every SRC."""
    parts = {name: _only(kind, given) for name, kind in PARTS.items() if name != "transform"}
    return {**_only(FolderSource, given), **{name: values for name, values in parts.items() if values}}


def _make_source(entry: dict[str, Any], place: str) -> FolderSource:
    made = {n: _make(PARTS[n], v, f"{place} {n}") if n in PARTS else v for n, v in _table(entry, place).items()}
    if not isinstance(made.get("path"), str):
        raise CacheError(f"{place}: lacks path, the folder of its pictures")
    return _make(FolderSource, made, place)


def _resolve(entry: dict[str, Any], base: Path) -> dict[str, Any]:
    """Paths in a file are relative to the file."""
    named = isinstance(entry, dict) and isinstance(entry.get("path"), str)
    return {**entry, "path": str(base / entry["path"])} if named else entry


def _only(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in dataclasses.fields(kind)} - {"path", "transform", "captions", "masks"}
    return {name: value for name, value in given.items() if name in names}


def _table(values: Any, place: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise CacheError(f"{place}: found {values!r}, expected a table")
    return values


def _check(name: str, value: Any, default: Any) -> None:
    """A file may hold anything; a setting takes what its default is, and whole numbers where fractions are."""
    if isinstance(default, tuple) and isinstance(value, tuple):
        for part in value:
            _check(name, part, default[0])
    elif default is not None and type(default) in _KINDS:
        kinds = (int, float) if type(default) is float else (type(default),)
        if type(value) not in kinds:
            raise CacheError(f"{name} = {value!r}: expected {_KINDS[type(default)]}")


def _make(kind: type, values: Any, place: str) -> Any:
    values = _table(values, place)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise CacheError(f"{place}: {unknown[0]} is no setting here; there are {', '.join(fields)}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    for name, value in values.items():
        optional = _OPTIONAL.get(str(fields[name].type))  # its default is None, which tells nothing
        _check(f"{place}: {name}", value, fields[name].default if optional is None else optional)
    try:
        return kind(**values)
    except TypeError as error:
        raise CacheError(f"{place}: a value has the wrong type: {error}") from None
