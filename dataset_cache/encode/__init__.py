"""Encoding: from sources to a published cache."""
