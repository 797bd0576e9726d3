"""The host's model as a denoiser."""
