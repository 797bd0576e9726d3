"""The commands on source folders: `streamcache caption` edits captions, `streamcache curate` excludes and repeats."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from ..dataset_cache import curate, few_names
from ..errors import CacheError
from ..quantity import byte_count, plural
from .output import show, table
from .parser import Parser, UsageError

PROBLEMS_FOUND = 3
_LISTED = 20
_TEXT = 70


def add_caption_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_caption)
    _add_folder(parser)
    parser.add_argument("--find", metavar="TEXT", help="Text to replace in each caption line")
    parser.add_argument("--replace", metavar="TEXT", help="With --find: what to put in its place; empty removes it")
    parser.add_argument("--regex", action="store_true", help="Take --find as a regular expression of Python")
    parser.add_argument("--prefix", metavar="TEXT", help="Text to put before each caption line")
    parser.add_argument("--suffix", metavar="TEXT", help="Text to put after each caption line")
    parser.add_argument("--append-tag", metavar="TAG", help="Tag to append after a comma, if it is not there")
    parser.add_argument("--remove-tag", metavar="TAG", help="Tag to remove, in any case")
    text = "Captions to write: JSON lines or CSV with file_name and text. Existing captions are kept"
    parser.add_argument("--from", dest="list", metavar="FILE", help=text)
    parser.add_argument("--overwrite", action="store_true", help="With --from: replace existing captions too")
    _add_only(parser)
    parser.add_argument("--dry-run", action="store_true", help="Show what would change, and write nothing")
    _add_undo(parser)


def add_curate_flags(parser: Parser) -> None:
    parser.set_defaults(run=run_curate)
    _add_folder(parser)
    text = "Exclude the images with these names from the dataset; * matches anything. No file is deleted"
    parser.add_argument("--exclude", nargs="+", metavar="PATTERN", default=[], help=text)
    parser.add_argument("--include", nargs="+", metavar="PATTERN", default=[], help="Include such images again")
    parser.add_argument("--repeats", type=int, metavar="N", help="Repeat each image N times per epoch")
    _add_only(parser)
    parser.add_argument("--list", action="store_true", help="List the images, as without other flags")
    parser.add_argument("--duplicates", action="store_true", help="List groups of images that look alike")
    _add_undo(parser)


def run_caption(args: argparse.Namespace) -> int:
    folder = curate.SourceFolder(args.folder)
    edits = _edits(args)
    if args.undo:
        _refuse_with_undo(edits or args.list or args.only)
        return _undo(args, folder)
    if not edits and not args.list:
        raise UsageError("choose an edit, such as --find, --prefix or --append-tag, or --from")
    if edits and args.list:
        raise UsageError("choose an edit, such as --find, or --from, not both")
    view = folder.read()
    names = _matching(view, args.only)
    if args.list:
        found, notes = _from_list(args, view, set(names))
        title = f"Captions from {args.list}"
    else:
        edit = curate.in_turn(edits)
        found, notes, title = curate.preview_edit(view, names, edit), [], edit.title
    done = curate.EditResult(title) if args.dry_run else curate.apply_changes(view, found.changes, title)
    refused, changed = {**found.refused, **done.refused}, set(done.changed)
    changes = [change for change in found.changes if args.dry_run or change.name in changed]
    facts = {
        "dry_run": args.dry_run,
        "changed": [asdict(change) for change in changes],
        "conflicts": [asdict(conflict) for conflict in done.conflicts],
        "refused": refused,
        "kept": found.kept,
    }
    show(args, facts, [*_describe(args, changes, done, refused, found), *notes])
    return PROBLEMS_FOUND if refused or done.conflicts else 0


def run_curate(args: argparse.Namespace) -> int:
    folder = curate.SourceFolder(args.folder)
    if args.undo:
        chosen = args.exclude or args.include or args.only or args.list or args.duplicates
        _refuse_with_undo(chosen or args.repeats is not None)
        return _undo(args, folder)
    if args.only and args.repeats is None and not (args.list or args.duplicates):
        raise UsageError("--only chooses images for --repeats, --list or --duplicates; name one of them")
    view = folder.read()
    steps: list[tuple[list[str], dict[str, Any]]] = []
    if args.exclude:
        steps.append((_matching(view, args.exclude), {"excluded": True}))
    if args.include:
        steps.append((_matching(view, args.include), {"excluded": False}))
    if args.repeats is not None:
        steps.append((_matching(view, args.only), {"repeats": args.repeats}))
    done = [curate.choose_images(view, names, **choice) for names, choice in steps]
    facts: dict[str, Any] = {"changed": [{"title": each.title, "images": each.changed} for each in done]}
    lines = [f"{each.title} ({len(each.changed):,} changed)" for each in done]
    refused = {name: reason for each in done for name, reason in each.refused.items()}
    facts["refused"] = refused
    lines += [f"Not changed: {name}: {reason}" for name, reason in list(refused.items())[:_LISTED]]
    if args.list or not (steps or args.duplicates):
        wanted = set(_matching(view, args.only))
        listed = [image for image in folder.read().images if image.name in wanted]
        facts["images"] = [_image_facts(image) for image in listed]
        lines += _describe_images(listed)
    if args.duplicates:
        names = set(_matching(view, args.only))
        hashes = {name: value for name, value in curate.folder_hashes(view).items() if name in names}
        groups = curate.look_alikes(hashes)
        facts["duplicates"] = groups
        lines += _describe_groups(groups)
    show(args, facts, lines)
    return PROBLEMS_FOUND if refused else 0


def _add_folder(parser: Parser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="Folder of images, with subfolders")


def _add_only(parser: Parser) -> None:
    text = "Only images with these names, below the folder; * matches anything"
    parser.add_argument("--only", nargs="+", metavar="PATTERN", default=[], help=text)


def _add_undo(parser: Parser) -> None:
    parser.add_argument("--undo", action="store_true", help="Take back the last edit that a command made here")


def _edits(args: argparse.Namespace) -> list[curate.CaptionEdit]:
    if (args.find is None) != (args.replace is None):
        raise UsageError("--find and --replace belong together; --replace '' removes the text")
    if args.regex and args.find is None:
        raise UsageError("--regex needs --find and --replace")
    if args.overwrite and not args.list:
        raise UsageError("--overwrite needs --from")
    edits = [] if args.find is None else [curate.replace_text(args.find, args.replace, args.regex)]
    makers = {
        "remove_tag": curate.remove_tag,
        "append_tag": curate.append_tag,
        "prefix": curate.add_prefix,
        "suffix": curate.add_suffix,
    }
    return edits + [make(getattr(args, name)) for name, make in makers.items() if getattr(args, name) is not None]


def _matching(view: curate.FolderView, patterns: Sequence[str]) -> list[str]:
    """Names of images. A pattern fits a path below the folder, or a file name; one that fits none is a mistake."""
    names = [image.name for image in view.images]
    if not patterns:
        return names
    found: set[str] = set()
    for pattern in patterns:
        fitting = {n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n.rpartition("/")[2], pattern)}
        if not fitting:
            raise CacheError(f"{pattern}: no image in {view.root} has such a name")
        found |= fitting
    return [name for name in names if name in found]


def _from_list(
    args: argparse.Namespace, view: curate.FolderView, names: set[str]
) -> tuple[curate.EditPreview, list[str]]:
    captions, unknown = curate.match_names(view, curate.read_caption_list(args.list))
    chosen = {name: text for name, text in captions.items() if name in names}
    notes = [f"{args.list} has captions that fit no image, or several: {few_names(unknown)}"] if unknown else []
    return curate.preview_captions(view, chosen, args.overwrite), notes


def _refuse_with_undo(others: object) -> None:
    if others:
        raise UsageError("--undo takes back the last edit, and goes with no other edit")


def _undo(args: argparse.Namespace, folder: curate.SourceFolder) -> int:
    title = curate.last_edit(folder.root)
    if title and getattr(args, "dry_run", False):
        show(args, {"dry_run": True, "undone": title}, [f"Would be undone: {title}"])
        return 0
    done = curate.undo_edit(folder.root)
    if done is None:
        show(args, {"undone": None}, [f"{args.folder}: nothing to undo"])
        return 0
    facts = {**asdict(done), "undone": done.title}
    lines = [f"Undone: {done.title} ({plural(len(done.changed), 'image')})"]
    show(args, facts, [*lines, *_problems(done, done.refused)])
    return PROBLEMS_FOUND if done.conflicts or done.refused else 0


def _describe(
    args: argparse.Namespace,
    changes: Sequence[curate.CaptionChange],
    done: curate.EditResult,
    refused: dict[str, str],
    found: curate.EditPreview,
) -> Iterator[str]:
    for change in changes[:_LISTED]:
        yield f"{change.name}: {_short(change.before)} → {_short(change.after)}"
    if len(changes) > _LISTED:
        yield f"… and {len(changes) - _LISTED:,} more"
    yield from _problems(done, refused)
    if found.kept:
        yield f"Kept: {plural(len(found.kept), 'existing caption')} (--overwrite replaces them)"
    if args.dry_run:
        yield f"Would change {plural(len(changes), 'caption')}; nothing was written"
    else:
        yield f"Changed {plural(len(changes), 'caption')}"
        if changes:
            yield f'To take it back: streamcache caption "{args.folder}" --undo'


def _problems(done: curate.EditResult, refused: dict[str, str]) -> Iterator[str]:
    for conflict in done.conflicts[:_LISTED]:
        yield f"Not changed: {conflict.name}: it changed meanwhile, and is now {_short(conflict.found)}"
    for name, reason in list(refused.items())[:_LISTED]:
        yield f"Not changed: {name}: {reason}"
    hidden = max(0, len(done.conflicts) - _LISTED) + max(0, len(refused) - _LISTED)
    if hidden:
        yield f"… and {hidden:,} more were not changed"


def _image_facts(image: curate.FolderImage) -> dict[str, Any]:
    facts = {"name": image.name, "width": image.width, "height": image.height, "bytes": image.bytes}
    facts |= {"captions": list(image.lines), "excluded": image.excluded, "repeats": image.repeats}
    return {**facts, "mask": image.mask or ("alpha" if image.alpha else ""), "problem": image.problem}


def _describe_images(images: Sequence[curate.FolderImage]) -> Iterable[str]:
    excluded = sum(image.excluded for image in images)
    problems = sum(bool(image.problem) for image in images)
    yield f"{plural(len(images), 'image')}, {excluded:,} excluded, {problems:,} that cannot be used"
    yield from table([[image.name, *_columns(image)] for image in images])


def _columns(image: curate.FolderImage) -> list[str]:
    state = "excluded" if image.excluded else f"{image.repeats}×" if image.repeats > 1 else ""
    text = image.problem or " | ".join(image.lines)
    return [f"{image.width}×{image.height}", byte_count(image.bytes), state, _short(text) if text else ""]


def _describe_groups(groups: Sequence[Sequence[str]]) -> Iterable[str]:
    yield f"{plural(len(groups), 'group')} of images that look alike" if groups else "No images look alike"
    yield from (f"  {', '.join(group)}" for group in groups)


def _short(text: str) -> str:
    line = text.replace("\n", " | ")
    return repr(line if len(line) <= _TEXT else line[: _TEXT - 1] + "…")
