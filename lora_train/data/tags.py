"""How often the captions of a dataset have each tag, in the form that kohya's scripts store in a LoRA file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...dataset_cache import Samples

TAG_WORDS = 5  # a longer part between two commas is a piece of a sentence, not a tag
MOST = 1000  # of the tags of each set, the most frequent


@dataclass(frozen=True)
class TagCounts:
    """Set → tag → number of its samples with that tag; and the number of captions. Prior samples are left out."""

    tags: dict[str, dict[str, int]] = field(default_factory=dict)
    captions: int = 0


def count_tags(samples: Samples) -> TagCounts:
    """Count the tags of all captions. A caption that is a sentence counts as one tag, if several samples have it."""
    names = [name for name, facts in samples.sets.items() if not facts.get("prior")]
    counters: dict[str, tuple[Counter[str], Counter[str]]] = {name: (Counter(), Counter()) for name in names}
    captions, order = 0, list(samples.sets)
    for index, place in enumerate(samples.column("set").tolist()):
        if order[place] not in counters:
            continue
        found = [caption.strip() for caption in samples.captions(index) if caption.strip()]
        captions += len(found)
        tags, sentences = counters[order[place]]
        split = {caption: split_tags(caption) for caption in found}
        tags.update({tag for parts in split.values() for tag in parts})
        sentences.update({caption for caption, parts in split.items() if not parts})
    return TagCounts({name: both for name in names if (both := _most(*counters[name]))}, captions)


def split_tags(caption: str) -> list[str]:
    """The tags of a caption; none if it is a sentence."""
    parts = [part.strip() for part in caption.split(",") if part.strip()]
    is_sentence = caption.rstrip().endswith((".", "!", "?")) or any(len(part.split()) > TAG_WORDS for part in parts)
    return [] if is_sentence else parts


def _most(tags: Counter[str], sentences: Counter[str]) -> dict[str, int]:
    both = tags + Counter({caption: count for caption, count in sentences.items() if count > 1})
    return dict(sorted(both.items(), key=lambda item: (-item[1], item[0]))[:MOST])
