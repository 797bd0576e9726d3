"""What a card's memory asks for: computed from the memory that a base needs, not listed for every card."""

from __future__ import annotations

import re

from ...errors import TrainError
from .table import Advice, Table

CARDS = ("8GB", "12GB", "16GB", "24GB", "32GB", "48GB", "80GB")
GIB = 2**30
FREE = 0.1  # of the card: for the driver, other programs, and a higher rank than that of the forecast


def card_for(total: int) -> str:
    """The card size of a device with so many bytes. Devices report a little less than their name says."""
    fitting = [card for card in CARDS if _gigabytes(card) * 0.93 * GIB <= total]
    return fitting[-1] if fitting else CARDS[0]


def is_card(name: str) -> bool:
    return re.fullmatch(r"[1-9]\d{0,3}GB", name) is not None


def card_advice(table: Table, card: str) -> dict[str, Advice]:
    """The first way to save memory with which a training on the base fits the card."""
    if not is_card(card):
        raise TrainError(f'card = "{card}": expected its memory, such as {", ".join(CARDS)}')
    room = _gigabytes(card) * GIB * (1 - FREE) / 1e9
    needed = table.memory
    if not needed or needed["plain"] <= room:
        return {}
    with_blocks = f"{table.title} needs {needed['plain']:g} GB without it, and {needed['checkpointing']:g} GB with it"
    found = {"checkpointing": Advice(True, with_blocks, card)}
    if needed["checkpointing"] > room:
        words = f"{needed['checkpointing']:g} GB do not fit; with all weights in RAM it needs {needed['offload']:g} GB"
        found["offload"] = Advice(True, words, card)
    return found


def _gigabytes(card: str) -> int:
    return int(card.removesuffix("GB"))
