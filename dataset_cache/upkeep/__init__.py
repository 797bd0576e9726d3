"""Upkeep: verify, repair, clean, copy, merge, convert, describe."""
