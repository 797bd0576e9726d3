"""Edits of captions, as functions of text, and what they would change. Each line of a caption is edited on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import CacheError
from ..sources import normal_form
from .caption_file import plain_text
from .find_replace import replace_pattern
from .source_folder import FolderView

_MOST_CHARACTERS = 16 << 20  # of one caption, as of its file


@dataclass(frozen=True)
class CaptionEdit:
    """Texts before → texts after. `whole`: it replaces a caption whatever it was, so that it need not be readable."""

    title: str
    change: Callable[[Sequence[str]], list[str]]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class CaptionChange:
    """A caption to write. It is written only if the caption file still has the stamp."""

    name: str
    before: str
    after: str
    stamp: str


@dataclass(frozen=True)
class EditPreview:
    """What an edit would change, the images whose captions it cannot change, with reasons, and captions to keep."""

    changes: list[CaptionChange] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)


def preview_edit(view: FolderView, names: Iterable[str], edit: CaptionEdit) -> EditPreview:
    """What the edit would change. Nothing is written."""
    found, images = EditPreview(), []
    for name in dict.fromkeys(names):
        try:
            image = view.find(name)
        except CacheError as error:
            found.refused[name] = str(error)
            continue
        caption = image.caption
        reason = caption.locked or ("" if edit.whole else caption.problem)
        if reason:
            found.refused[image.name] = reason
        else:
            images.append(image)
    texts = [image.caption.text for image in images]
    for image, after in zip(images, edit.change(texts)):
        caption = image.caption
        # An unreadable caption has the text "", and an empty one is a change of it.
        if after != caption.text or caption.problem:
            found.changes.append(CaptionChange(image.name, caption.text, after, caption.stamp))
    return found


def preview_captions(view: FolderView, texts: Mapping[str, str], overwrite: bool = False) -> EditPreview:
    """What setting these captions, by names of images, would change. Existing ones are kept, unless `overwrite`."""
    whole = EditPreview()
    for name, text in texts.items():
        found = preview_edit(view, [name], set_text(text))
        whole.refused.update(found.refused)
        if found.changes and not overwrite and (found.changes[0].stamp or found.changes[0].before):
            whole.kept.append(found.changes[0].name)
        else:
            whole.changes.extend(found.changes)
    return whole


def replace_text(find: str, by: str, regex: bool = False) -> CaptionEdit:
    """Replace a text, or all matches of a regular expression (Python's `re`), in each line."""
    _refuse_empty("the text to find", find)
    _refuse_lines("the replacement", by)
    title = f"Replace {find!r} by {by!r}"
    if not regex:
        return CaptionEdit(title, _by_line(lambda line: _replaced(line, find, by)))
    return CaptionEdit(title, lambda texts: _by_lines(texts, lambda lines: replace_pattern(lines, find, by)))


def add_prefix(prefix: str) -> CaptionEdit:
    _refuse_lines("the prefix", _refuse_empty("the prefix", prefix))
    return CaptionEdit(f"Add the prefix {prefix!r}", _by_line(lambda line: prefix + line, fill=True))


def add_suffix(suffix: str) -> CaptionEdit:
    _refuse_lines("the suffix", _refuse_empty("the suffix", suffix))
    return CaptionEdit(f"Add the suffix {suffix!r}", _by_line(lambda line: line + suffix, fill=True))


def append_tag(tag: str) -> CaptionEdit:
    """Append a tag after a comma, unless the line has it already."""
    tag = _refuse_lines("the tag", _refuse_empty("the tag", tag.strip()))

    def append(line: str) -> str:
        if tag_form(tag) in map(tag_form, tags_of(line)):
            return line
        line = line.rstrip().rstrip(",").rstrip()
        return f"{line}, {tag}" if line else tag

    return CaptionEdit(f"Append the tag {tag!r}", _by_line(append, fill=True))


def remove_tag(tag: str) -> CaptionEdit:
    """Remove a tag between commas, in any case. Other tags keep their form."""
    wanted = tag_form(_refuse_lines("the tag", _refuse_empty("the tag", tag.strip())))

    def remove(line: str) -> str:
        parts = line.split(",")
        kept = [part for part in parts if tag_form(part) != wanted]
        if len(kept) == len(parts):
            return line
        return ",".join(kept).strip()

    return CaptionEdit(f"Remove the tag {tag.strip()!r}", _by_line(remove))


def set_text(text: str) -> CaptionEdit:
    """Replace the whole caption. Several lines are variants."""
    return CaptionEdit("Set the caption", lambda texts: [plain_text(text)] * len(texts), whole=True)


def in_turn(edits: Sequence[CaptionEdit]) -> CaptionEdit:
    """Several edits as one."""

    def change(texts: Sequence[str]) -> list[str]:
        for edit in edits:
            texts = edit.change(texts)
        return list(texts)

    return CaptionEdit("; ".join(edit.title for edit in edits), change)


def tags_of(line: str) -> list[str]:
    """The tags of a caption line: what is between its commas."""
    return [tag.strip() for tag in line.split(",") if tag.strip()]


def tag_form(tag: str) -> str:
    """Equal for tags that are the same to a user."""
    return normal_form(tag.strip()).casefold()


def _by_line(change: Callable[[str], str], fill: bool = False) -> Callable[[Sequence[str]], list[str]]:
    return lambda texts: _by_lines(texts, lambda lines: [change(line) for line in lines], fill)


def _by_lines(texts: Sequence[str], change: Callable[[list[str]], list[str]], fill: bool = False) -> list[str]:
    """Change all lines of all texts at once. Blank lines stay as they are; `fill`: a text without lines has one."""
    rows = [text.split("\n") for text in texts]
    edited = [[at for at, line in enumerate(lines) if line.strip()] or ([0] if fill else []) for lines in rows]
    changed = iter(change([lines[at] for lines, places in zip(rows, edited) for at in places]))
    for lines, places in zip(rows, edited):
        emptied = set()
        for at in places:
            before, lines[at] = lines[at], next(changed)
            if before.strip() and not lines[at].strip():
                emptied.add(at)
        # A variant that became empty is removed.
        lines[:] = [line for at, line in enumerate(lines) if at not in emptied] or [""]
    return ["\n".join(lines) for lines in rows]


def _replaced(line: str, find: str, by: str) -> str:
    if len(line) + line.count(find) * len(by) > _MOST_CHARACTERS:
        raise CacheError(f"the result would have more than {_MOST_CHARACTERS:,} characters")
    return line.replace(find, by)


def _refuse_empty(what: str, text: str) -> str:
    if not text:
        raise CacheError(f"{what} is empty")
    return text


def _refuse_lines(what: str, text: str) -> str:
    if "\n" in text or "\r" in text:
        raise CacheError(f"{what} has several lines; each line of a caption is a variant")
    return text
