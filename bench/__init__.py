"""Benchmarks of speed and memory, each ratio measured side by side in one run: `python dev.py bench`."""
