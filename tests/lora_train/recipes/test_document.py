"""docs/recipes.md shows the recipes as they are; `python tests/lora_train/recipes/test_document.py` writes it."""

import re
from pathlib import Path

from streamcache.lora_train import TRAIN_SETTINGS
from streamcache.lora_train.recipes import BASES, CARDS, PURPOSES, describe_bases, describe_purposes, read_recipe
from streamcache.lora_train.recipes.names import _read
from streamcache.lora_train.recipes.recipe import show
from streamcache.nodes.host import HOST_SETTINGS

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "recipes.md"
KNOWN = {**TRAIN_SETTINGS, **HOST_SETTINGS}
PLACE = re.compile(r"(?<=<!-- table -->\n).*(?=<!-- end -->)", re.S)


def tables() -> str:
    lines = ["## Bases", ""]
    for base, about in describe_bases().items():
        lines += [f"**`{base}`** {about}", "", *rows(_read("base", base, KNOWN).settings), ""]
    lines += ["## Purposes", ""]
    for purpose, about in describe_purposes().items():
        table = _read("purpose", purpose, KNOWN)
        others = [f"for `{base}`: {', '.join(f'`{n} = {show(a.value)}`' for n, a in found.items())}"
                  for base, found in table.by_base.items()]  # fmt: skip
        lines += [f"**`{purpose}`** {about}", "", *rows(table.settings), "", *(f"{text}\n" for text in others)]
    lines += ["## Cards", "", f"| base | {' | '.join(CARDS)} |", f"|---|{'---|' * len(CARDS)}"]
    for base in BASES:
        found = [read_recipe(f"{base}/{PURPOSES[0]}/{card}", KNOWN).advice for card in CARDS]
        cells = [", ".join(f"`{name}`" for name in ("checkpointing", "offload") if name in each) for each in found]
        lines.append(f"| `{base}` | {' | '.join(cell or '–' for cell in cells)} |")
    return "\n".join([*lines, ""])


def rows(settings) -> list[str]:
    found = [f"| `{name}` | {show(advice.value)} | {advice.why} |" for name, advice in settings.items()]
    return ["| setting | value | why |", "|---|---|---|", *found]


def test_i6_the_document_shows_every_recipe_as_it_is() -> None:
    found = PLACE.search(DOCUMENT.read_text(encoding="utf-8"))
    assert found and found[0] == tables(), f"run `python {Path(__file__).name}` in its folder"


if __name__ == "__main__":
    DOCUMENT.write_text(PLACE.sub(lambda _: tables(), DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
