"""Captions from other programs: which images of some sources are captioned, in which order, and their texts written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...errors import CacheError
from ...quantity import plural
from ..sources import FolderSource, few_names, normal_form
from .caption_edits import preview_captions
from .source_folder import FolderImage, FolderView, SourceFolder
from .writing import apply_changes


@dataclass
class Captioned:
    """Names of images whose captions were written or kept, and those that were not written, with reasons."""

    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """The report as text."""
        yield f"Wrote {plural(len(self.written), 'caption')}"
        if self.kept:
            yield f"Kept {plural(len(self.kept), 'existing caption')}"
        if self.refused:
            yield f"Not written: {plural(len(self.refused), 'caption')}"
            yield from (f"{name}: {reason}" for name, reason in list(self.refused.items())[:20])


def images_to_caption(view: FolderView, without_caption: bool = False) -> dict[str, FolderImage]:
    """The images that a dataset would have, by their names in it, in its order; or only those without a caption."""
    used = (image for image in view.images if not image.excluded and image.width)
    return {f"{view.root.name}/{i.name}": i for i in used if not (without_caption and (i.lines or i.caption.stamp))}


def write_captions(
    sources: Sequence[FolderSource],
    texts: Sequence[str],
    names: Sequence[str] | None = None,
    *,
    overwrite: bool = False,
    variants: bool = False,
) -> Captioned:
    """Write one text per image. Without names, they belong to all images of the sources in order.

    Existing captions are kept, unless `overwrite`. Several lines are joined to one, unless they are `variants`.
    """
    views = [SourceFolder(source.path, source.recursive, source.masks).read() for source in sources]
    places = {normal_form(label): (v, i.name) for v in views for label, i in images_to_caption(v).items()}
    if names is None and len(texts) != len(places):
        found, images = plural(len(texts), "text"), plural(len(places), "image")
        raise CacheError(f"{found} for {images}: connect one text per image, or the names that they belong to")
    chosen = [normal_form(name) for name in names] if names is not None else list(places)
    _check_names(chosen, len(texts), set(places))
    done = Captioned()
    wanted: dict[int, dict[str, str]] = {}
    for label, text in zip(chosen, texts):
        view, name = places[label]
        lines = [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
        if lines:
            wanted.setdefault(id(view), {})[name] = ("\n" if variants else " ").join(lines)
        else:
            done.refused[label] = "its text is empty"
    for view in views:
        _write(view, wanted.get(id(view), {}), overwrite, done)
    return done


def _check_names(names: Sequence[str], texts: int, known: set[str]) -> None:
    if len(names) != texts:
        raise CacheError(f"{plural(texts, 'text')} for {plural(len(names), 'name')}: connect one text per name")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CacheError(f"no image of the source has the name {few_names(unknown)}; are both nodes set to one folder?")
    if len(set(names)) != len(names):
        twice = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
        raise CacheError(f"several texts for {few_names(twice)}; connect one text per image")


def _write(view: FolderView, texts: dict[str, str], overwrite: bool, done: Captioned) -> None:
    if not texts:
        return
    found = preview_captions(view, texts, overwrite)
    result = apply_changes(view, found.changes, f"Write {plural(len(found.changes), 'caption')}")
    label = view.root.name
    done.written += [f"{label}/{name}" for name in result.changed]
    done.kept += [f"{label}/{name}" for name in found.kept]
    done.refused |= {f"{label}/{name}": reason for name, reason in {**found.refused, **result.refused}.items()}
    done.refused |= {f"{label}/{conflict.name}": "it changed meanwhile" for conflict in result.conflicts}
