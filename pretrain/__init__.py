"""Makes the weights of the tiny models that come with the pack: `python dev.py pretrain`."""
