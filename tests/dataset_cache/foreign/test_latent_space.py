"""Scaled latents become what ComfyUI's own formats call unscaled; shapes that do not fit are refused."""

import pytest
import torch

from streamcache.dataset_cache import CacheError
from streamcache.dataset_cache.foreign import latent_space as spaces
from streamcache.dataset_cache.foreign.latent_space import LatentSpace, loss_weights

SPACES = [value for value in vars(spaces).values() if isinstance(value, LatentSpace)]


def scaled(space: LatentSpace, raw: torch.Tensor) -> torch.Tensor:
    """As a model sees a latent."""
    rows = (1, -1, *[1] * (raw.ndim - 2))
    return (raw - torch.tensor(space.mean).view(rows)) * space.scale / torch.tensor(space.std).view(rows)


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_f9_scaling_is_undone(space: LatentSpace):
    shape = (space.channels, 3, 4, 5) if space.frames else (space.channels, 4, 5)
    raw = torch.randn(1, *shape)
    assert torch.allclose(space.latent(scaled(space, raw)[0], True), raw, atol=1e-5)
    assert torch.equal(space.latent(raw[0].half(), False), raw.half())
    if space.mean != (0.0,) or space.scale != 1:
        assert space.latent(scaled(space, raw)[0].bfloat16(), True).dtype == torch.float32


def test_f9_images_of_video_models_have_an_axis_of_frames_and_those_of_others_have_none():
    assert spaces.WAN21.latent(torch.zeros(16, 4, 5), True).shape == (1, 16, 1, 4, 5)
    assert spaces.FLUX.latent(torch.zeros(16, 1, 4, 5), True).shape == (1, 16, 4, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(4, 4, 5),
        torch.zeros(16, 2, 4, 5),
        torch.zeros(16, 5),
        torch.zeros(16, 0, 4),
        torch.ones(16, 4, 5).int(),
    ],
)
def test_f9_a_latent_of_another_model_is_refused(wrong: torch.Tensor):
    with pytest.raises(CacheError, match="expected \\[16, height, width\\] of Flux"):
        spaces.FLUX.latent(wrong, True)


def test_masks_are_averaged_to_the_size_of_the_latent():
    mask = torch.zeros(8, 8)
    mask[:4] = 1
    assert loss_weights(mask, torch.zeros(1, 4, 2, 1)).tolist() == [[[1.0], [0.0]]]
    with pytest.raises(CacheError, match="mask"):
        loss_weights(torch.zeros(3, 8, 8), torch.zeros(1, 4, 2, 1))
