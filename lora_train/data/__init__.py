"""The training data: order, draws, prefetching."""
