"""Train an adapter on a denoiser from a cached dataset."""
