"""The processes that train one run together: what they agree on, and how they add their gradients."""

from .gradients import RowGradients, add_gradients
from .group import open_ranks
from .ranks import ALONE, Ranks
from .same import check_same

__all__ = [
    "ALONE",
    "Ranks",
    "RowGradients",
    "add_gradients",
    "check_same",
    "open_ranks",
]
