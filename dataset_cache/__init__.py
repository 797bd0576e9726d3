"""Encoded datasets on disk: write them as a stream, open them in milliseconds, read only what is used."""
