"""The format: what lies in a dataset folder and how it is laid out."""
