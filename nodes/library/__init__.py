"""The library: datasets as nodes hand them around."""
