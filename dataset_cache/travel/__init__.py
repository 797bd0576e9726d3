"""Travel: bring a generation to another place and back, with only what is missing there."""

from .journey import KEEP, Travel, TravelReport, pull, push, relation_of, sync
from .landing import unfinished_in
from .sides import AHEAD, APART, BEHIND, SAME

__all__ = [
    "AHEAD",
    "APART",
    "BEHIND",
    "KEEP",
    "SAME",
    "Travel",
    "TravelReport",
    "pull",
    "push",
    "relation_of",
    "sync",
    "unfinished_in",
]
