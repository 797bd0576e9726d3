"""Reading: open a cache, look at samples, read batches."""
