"""The reference model, its encoders, and the denoiser protocol on it."""

from types import SimpleNamespace

import numpy
import pytest
import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.errors import TrainError
from streamcache.lora_train.adapters import AdapterSettings, build_network
from streamcache.lora_train.denoiser import Denoiser
from streamcache.lora_train.memory import checkpointed
from streamcache.lora_train.objective import ObjectiveSettings, draw_noise, evaluate
from streamcache.reference import images
from streamcache.reference.denoiser import ReferenceDenoiser
from streamcache.reference.encoders import (
    CHANNELS,
    TEXT_WIDTH,
    ReferenceImageEncoder,
    ReferenceTextEncoder,
    encode_caption,
    encode_image,
    latent_scale,
)

from .awake import awake

PREDICTIONS = pytest.mark.parametrize("prediction", ["flow", "eps", "v"])


def tensor(picture) -> torch.Tensor:
    return torch.from_numpy(numpy.asarray(picture.image, dtype=numpy.float32) / 255)


def batch(captions, height=4, width=4):
    latents = torch.randn(len(captions), CHANNELS, height, width, generator=torch.Generator().manual_seed(3))
    return SimpleNamespace(latents=latents, conditionings=[encode_caption(caption) for caption in captions])


@PREDICTIONS
def test_the_denoiser_follows_the_protocol(prediction):
    assert isinstance(ReferenceDenoiser(awake(prediction)), Denoiser)


@PREDICTIONS
def test_defect_1_each_row_is_predicted_as_if_alone_with_its_own_caption(prediction):
    denoiser = ReferenceDenoiser(awake(prediction))
    rows = batch(["a red circle", "a much longer caption with more words than eight of them", ""])
    t = torch.tensor([0.2, 0.5, 0.9])
    prepared = denoiser.prepare(rows)
    together = denoiser.predict(prepared.latents, t, prepared.conditioning)
    for i in range(3):
        one = SimpleNamespace(latents=rows.latents[i : i + 1], conditionings=[rows.conditionings[i]])
        alone = denoiser.prepare(one)
        torch.testing.assert_close(
            denoiser.predict(alone.latents, t[i : i + 1], alone.conditioning), together[i : i + 1], rtol=1e-4, atol=1e-4
        )


def test_defect_1_a_batch_is_one_model_call():
    denoiser, calls = ReferenceDenoiser(awake()), []
    denoiser.model.register_forward_hook(lambda module, given, out: calls.append(len(out)))
    prepared = denoiser.prepare(batch(["one", "two", "three"]))
    noise = draw_noise(prepared.latents, ObjectiveSettings(), torch.Generator().manual_seed(0))
    evaluate(denoiser, prepared, noise, torch.rand(3), ObjectiveSettings())
    assert calls == [3]


@pytest.mark.parametrize("height, width", [(4, 4), (3, 7), (7, 3)])
def test_defect_2_latents_of_every_bucket_are_scaled(height, width):
    denoiser, rows = ReferenceDenoiser(awake()), batch(["x", "y"], height, width)
    torch.testing.assert_close(denoiser.prepare(rows).latents * latent_scale(), rows.latents)


def test_prepare_does_not_modify_the_batch():
    rows = batch(["one", "two two two two two two two two two"])
    before = [rows.latents.clone(), *(c[0][0].clone() for c in rows.conditionings)]
    ReferenceDenoiser(awake()).prepare(rows)
    after = [rows.latents, *(c[0][0] for c in rows.conditionings)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@PREDICTIONS
def test_a_perfect_prediction_of_the_image_is_the_native_target(prediction):
    model = awake(prediction)
    latents, noise = torch.randn(4, CHANNELS, 4, 4), torch.randn(4, CHANNELS, 4, 4)
    t = torch.tensor([0.1, 0.4, 0.7, 0.99])
    native = model._native(latents, model.schedule.noisy(latents, noise, t), t)
    torch.testing.assert_close(native, model.schedule.target(latents, noise, t), rtol=1e-3, atol=1e-3)


@PREDICTIONS
def test_sampling_with_a_perfect_model_returns_the_image(prediction):
    denoiser = ReferenceDenoiser(awake(prediction))
    wanted = torch.randn(2, CHANNELS, 4, 4)
    denoiser.predict = lambda x, t, conditioning: denoiser.model._native(wanted, x, t)
    found = denoiser.sample(encode_caption("x"), wanted.shape, seed=0, steps=6)
    torch.testing.assert_close(found, wanted * latent_scale(), rtol=1e-3, atol=1e-3)


def test_samples_depend_only_on_their_seed_and_shape():
    denoiser, conditioning = ReferenceDenoiser(awake()), encode_caption("a red circle")
    first, again, other = (denoiser.sample(conditioning, (CHANNELS, 3, 5), seed, 3) for seed in (1, 1, 2))
    assert first.shape == (1, CHANNELS, 3, 5) and torch.equal(first, again) and not torch.equal(first, other)


def test_a_session_freezes_the_model_and_restores_it_after_an_error():
    denoiser = ReferenceDenoiser(awake())
    denoiser.model.image_in.weight.requires_grad_(False)
    denoiser.model.train()
    with pytest.raises(RuntimeError), denoiser.session():
        assert not any(parameter.requires_grad for parameter in denoiser.model.parameters())
        assert not denoiser.model.training
        raise RuntimeError
    assert denoiser.model.training and not denoiser.model.image_in.weight.requires_grad
    assert denoiser.model.image_out.weight.requires_grad


def test_presets_grow_and_every_adapter_is_used():
    denoiser = ReferenceDenoiser(awake())
    groups = denoiser.groups()
    assert list(groups) == ["attention", "attention+mlp", "all"]
    assert set(groups["attention"]) < set(groups["attention+mlp"]) < set(groups["all"])
    network = build_network(denoiser, AdapterSettings(rank=2, targets="all"))
    with network.attached(denoiser.adaptable()):
        prepared = denoiser.prepare(batch(["x"]))
        denoiser.predict(prepared.latents, torch.tensor([0.5]), prepared.conditioning).mean().backward()
    assert all(any(p.grad is not None for p in adapter.parameters()) for _, adapter in network.items())


def test_adapters_train_the_same_with_and_without_checkpointing():
    denoiser, found = ReferenceDenoiser(awake()), []
    prepared = denoiser.prepare(batch(["one", "two"]))
    settings = ObjectiveSettings()
    noise = draw_noise(prepared.latents, settings, torch.Generator().manual_seed(0))
    for blocks in ([], denoiser.blocks()):
        network = build_network(denoiser, AdapterSettings(rank=2, targets="all", dropout=0.3, dora=True))
        network.begin(0)
        with denoiser.session(), network.attached(denoiser.adaptable()), checkpointed(blocks):
            evaluate(denoiser, prepared, noise, torch.tensor([0.3, 0.6]), settings).mean().backward()
        found.append([parameter.grad for parameter in network.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.fixture
def encoded(tmp_path):
    """A cache of four images, encoded with the reference encoders."""
    image_encoder, text_encoder = ReferenceImageEncoder(), ReferenceTextEncoder()
    with CacheWriter(tmp_path / "set") as writer:
        for picture in images.creatures(4):
            with image_encoder.lease(), text_encoder.lease():
                (latent,) = image_encoder.encode([tensor(picture)])
                (conditioning,) = text_encoder.encode([picture.caption])
            writer.add(latent=latent, conditioning=conditioning, caption=picture.caption)
    return open_cache(tmp_path / "set")


def test_a_cached_batch_prepares_like_the_uncached_one(encoded):
    denoiser = ReferenceDenoiser(awake())
    denoiser.prepare_for(encoded)
    index = int(next(iter(encoded.buckets().values()))[0])
    picture = list(images.creatures(4))[index]
    cached = denoiser.prepare(encoded.read_batch([index]))
    fresh = SimpleNamespace(latents=encode_image(tensor(picture)), conditionings=[encode_caption(picture.caption)])
    assert torch.equal(cached.latents, denoiser.prepare(fresh).latents)
    assert torch.equal(cached.conditioning.tokens, denoiser.prepare(fresh).conditioning.tokens)


def test_a16_latents_of_another_model_are_refused_with_both_numbers(encoded):
    with pytest.raises(TrainError, match=f"found latents of {CHANNELS} channels.*expected 16 channels"):
        ReferenceDenoiser(awake(channels=16)).prepare_for(encoded)


def test_captions_of_another_width_are_refused_with_both_numbers(encoded):
    with pytest.raises(TrainError, match=f"found a width of {TEXT_WIDTH}, expected 32"):
        ReferenceDenoiser(awake(text_width=32)).prepare_for(encoded)


def test_a_conditioning_without_pooled_output_is_refused():
    rows = batch(["x"])
    rows.conditionings = [[[torch.zeros(1, 8, TEXT_WIDTH), {}]]]
    with pytest.raises(TrainError, match="expected one with a pooled_output"):
        ReferenceDenoiser(awake()).prepare(rows)
