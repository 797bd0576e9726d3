"""Datasets and caches that other programs wrote, read without running anything that they contain."""

from .convert import convert

__all__ = ["convert"]
