"""What comes from outside: requests, the names in them, and values from files that anyone may have written."""

from .patterns import GRID_FILE, SAMPLE_FILE, TRASH_ID
from .untrusted import (
    ALLOWED_HOSTS,
    Refused,
    allowed_hosts,
    as_count,
    as_dict,
    as_list,
    as_time,
    cross_site,
    cut,
    cut_text,
    foreign_host,
)

__all__ = [
    "ALLOWED_HOSTS",
    "GRID_FILE",
    "SAMPLE_FILE",
    "TRASH_ID",
    "Refused",
    "allowed_hosts",
    "as_count",
    "as_dict",
    "as_list",
    "as_time",
    "cross_site",
    "cut",
    "cut_text",
    "foreign_host",
]
