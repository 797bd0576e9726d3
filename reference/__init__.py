"""The reference model: a small text-to-image model in plain torch, to try and to test everything on a CPU."""
