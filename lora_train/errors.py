"""The error that every refusal of the trainer raises."""


class TrainError(ValueError):
    """A setting, dataset or model that cannot be trained as asked; the message says what to change."""
