"""The reference VAE and text encoder."""

import numpy
import pytest
import torch

from streamcache.errors import TrainError
from streamcache.reference import images
from streamcache.reference.encoders import (
    CHANNELS,
    TEXT_WIDTH,
    ReferenceImageEncoder,
    ReferenceTextEncoder,
    decode_latents,
    encode_caption,
    encode_image,
)


def tensor(picture) -> torch.Tensor:
    return torch.from_numpy(numpy.asarray(picture.image, dtype=numpy.float32) / 255)


def test_the_vae_restores_images_closely():
    for picture in images.shapes(8, seed=1):
        image = tensor(picture)
        restored = decode_latents(encode_image(image))[0]
        assert restored.shape == image.shape and (restored - image).square().mean().sqrt() < 0.06


def test_latents_are_an_eighth_of_the_image_and_survive_a_round_trip():
    latent = torch.randn(1, CHANNELS, 3, 5) * 0.05
    assert encode_image(torch.rand(24, 40, 3)).shape == (1, CHANNELS, 3, 5)
    torch.testing.assert_close(encode_image(decode_latents(latent)[0]), latent, rtol=0, atol=1e-5)


def test_d7_encoding_is_the_mode_twice_the_same_bits():
    image = torch.rand(16, 24, 3)
    assert torch.equal(encode_image(image), encode_image(image))


def test_an_image_size_that_is_not_a_multiple_of_8_is_refused():
    with pytest.raises(TrainError, match=r"\(20, 16, 3\).*multiples of 8"):
        encode_image(torch.rand(20, 16, 3))


def test_a_words_vector_depends_only_on_the_word_and_the_one_before():
    (first, _), (second, _) = encode_caption("a red circle on blue")[0], encode_caption("one red circle on red")[0]
    assert torch.equal(first[0, 3], second[0, 3])  # "circle", after "red"
    assert not torch.equal(second[0, 2], second[0, 5])  # "red" after "one", and after "on"


def test_long_captions_get_more_tokens_and_the_empty_caption_has_some():
    assert encode_caption("")[0][0].shape == (1, 8, TEXT_WIDTH) and encode_caption("")[0][0].abs().max() > 0
    assert encode_caption("word " * 20)[0][0].shape == (1, 24, TEXT_WIDTH)


def test_encoder_identities_name_version_and_settings():
    assert "v1" in ReferenceImageEncoder().identity and "order 5" in ReferenceImageEncoder().identity
    assert "v1" in ReferenceTextEncoder().identity and ReferenceImageEncoder().downscale == 8
