"""The host's VAE and CLIP as encoders."""
