"""The run folder: states, metrics, plots."""
