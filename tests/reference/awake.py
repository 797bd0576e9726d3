"""A small reference model in which every weight matters."""

import torch

from streamcache.reference.model import ModelSize, ReferenceModel


def awake(prediction="flow", **changes) -> ReferenceModel:
    """A small model with noise on all weights, also on those initialized to zero, so that every input matters."""
    model = ReferenceModel(ModelSize(width=32, depth=2, heads=2, prediction=prediction, **changes))
    made = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=made) * 0.05)
    return model
