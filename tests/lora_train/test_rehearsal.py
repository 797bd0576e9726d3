"""The rehearsal of a training: a model or settings that do not fit are found before anything is encoded."""

import sys
from contextlib import contextmanager

import pytest
import safetensors.torch
import torch

from streamcache.dataset_cache import (
    FolderSource,
    ListSource,
    Settings,
    Transform,
    encode,
    is_encoded,
    make_plan,
    open_cache,
)
from streamcache.lora_train import TrainConfig, TrainError, check_training, open_run, rehearse, train
from streamcache.reference import ReferenceDenoiser, ReferenceImageEncoder, ReferenceTextEncoder, decode_images
from streamcache.reference.model import ReferenceModel

from ..support.encoders import CountingImages, CountingTexts
from ..support.fixtures import settle

SMALL = Settings(Transform((64,), step=8), thumbnail=0)


@pytest.fixture
def denoiser():
    return ReferenceDenoiser(ReferenceModel())


def plan(images=None, texts=None, count=3, **options):
    source = ListSource([torch.zeros(64, 64, 3)] * count, ["one"], **options)
    images, texts = images or ReferenceImageEncoder(), texts or ReferenceTextEncoder()
    return make_plan(source, image_encoder=images, text_encoder=texts, settings=SMALL)


def test_what_fits_passes_without_encoding_the_dataset(denoiser):
    made = plan()
    rehearse(denoiser, made, TrainConfig(steps=1))
    assert made.counts.listed == made.counts.decoded == 0


def test_the_encoders_have_finished_before_the_model_is_loaded(monkeypatch):
    """As ComfyUI does it: nodes run in inference mode, and the model's session leaves it."""
    events: list[tuple[str, bool]] = []

    def trace(owner, name: str, event: str) -> None:
        real = getattr(owner, name)

        def traced(*args):
            events.append((event, torch.is_inference_mode_enabled()))
            return real(*args)

        monkeypatch.setattr(owner, name, traced)

    class Host(ReferenceDenoiser):
        @contextmanager
        def session(self):
            with torch.inference_mode(False), super().session():
                events.append(("model loaded", False))
                yield

    images, texts, host = ReferenceImageEncoder(), ReferenceTextEncoder(), Host(ReferenceModel())
    trace(images, "encode", "image encoded")
    trace(texts, "encode", "caption encoded")
    trace(host, "prepare_for", "model tried")
    with torch.inference_mode():
        rehearse(host, plan(images, texts), TrainConfig(steps=1))
    assert events == [
        ("image encoded", True),
        ("caption encoded", True),
        ("model loaded", False),
        ("model tried", False),
    ]


def test_a_latent_of_another_model_is_found(denoiser):
    images = CountingImages()
    images.make = lambda item: {"samples": torch.zeros(1, 7, item.shape[0] // 8, item.shape[1] // 8)}
    with pytest.raises(TrainError, match="7"):
        rehearse(denoiser, plan(images), TrainConfig(steps=1))
    assert images.batches == [1]  # a blank image, to learn the form of latents


def test_a_caption_of_another_model_is_found(denoiser):
    texts = CountingTexts()
    with pytest.raises(TrainError):
        rehearse(denoiser, plan(texts=texts), TrainConfig(steps=1))
    assert texts.items == [""]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"targets": "no_such_layer"}, "no_such_layer"),
        ({"set_weights": {"unknown": 1.0}}, "unknown"),
        ({"masked_loss": True}, "no masks"),
        ({"rank": 100_000}, "rank"),
        ({"optimizer": "Prodigy", "group_rates": {"*to_out*": 0.5}}, "estimates one learning rate for all modules"),
        ({"optimizer": "AdamWScheduleFree", "beta1": 0.0}, "needs beta1 above 0"),
        ({"optimizer": "AdamW8bit"}, "needs bitsandbytes, which is not installed"),
        ({"tensorboard": True}, "needs tensorboardX"),
        ({"sample_every": 1, "sample_captions": ("one", "two")}, '"two" is not a caption of the dataset'),
        ({"validation_share": 0.9}, "would hold out all 1 samples"),
        ({"start_from": "missing.safetensors"}, "missing.safetensors"),
    ],
)
def test_settings_that_do_not_fit_are_found(denoiser, settings, words, monkeypatch):
    for package in ("bitsandbytes.optim", "tensorboardX"):
        monkeypatch.setitem(sys.modules, package, None)  # not installed
    images = CountingImages()
    with pytest.raises(TrainError, match=words):
        rehearse(denoiser, plan(images, count=1), TrainConfig(steps=1, **settings), decode=decode_images)
    assert images.count <= 1


def test_sample_images_without_a_vae_are_found(denoiser):
    with pytest.raises(TrainError, match="sample images need a VAE"):
        rehearse(denoiser, plan(), TrainConfig(steps=1, sample_every=1))


def test_prompts_replace_the_captions_of_sample_images(denoiser):
    config = TrainConfig(steps=1, sample_every=1, sample_captions=("two",))
    rehearse(denoiser, plan(), config, decode=decode_images, prompts=["of the user"])


def test_everything_at_once_passes(denoiser):
    settings = {"sample_every": 1, "sample_captions": ("one",), "ema_decay": 0.9, "caption_dropout": 0.5}
    rehearse(denoiser, plan(), TrainConfig(steps=1, tensorboard=True, **settings), decode=decode_images)


@pytest.mark.parametrize(
    ("changes", "words"), [({"rank": 4}, "rank: was 2, is 4"), ({"learning_rate": 1.0}, "accept_changes = true")]
)
def test_a_run_that_cannot_resume_with_these_settings_is_found(tmp_path, denoiser, changes, words):
    encode(plan(), tmp_path / "cache")
    settings = {"steps": 1, "rank": 2}
    with open_run(tmp_path / "runs", "cat") as run, open_cache(tmp_path / "cache") as cache:
        train(denoiser, cache, TrainConfig(**settings), run)
    with open_run(tmp_path / "runs", "cat", "resume") as run:
        rehearse(denoiser, plan(), TrainConfig(**settings), run)
        with pytest.raises(TrainError, match=words):
            rehearse(denoiser, plan(), TrainConfig(**{**settings, **changes}), run)


def test_a_plan_without_an_encoder_is_refused(denoiser):
    made = make_plan(ListSource([torch.zeros(64, 64, 3)], ["x"]), image_encoder=CountingImages(), settings=SMALL)
    with pytest.raises(TrainError, match=r"without a text encoder \(CLIP\)"):
        rehearse(denoiser, made, TrainConfig(steps=1))


def test_a_cache_is_known_to_have_the_samples_of_a_plan(tmp_path, picture, images, texts):
    for n in range(3):
        picture(f"set/{n}.png", size=(64, 64), seed=n)
    settle()

    def of_folder():
        return make_plan(FolderSource(tmp_path / "set"), image_encoder=images, text_encoder=texts, settings=SMALL)

    assert not is_encoded(of_folder(), tmp_path / "cache")
    encode(of_folder(), tmp_path / "cache")
    assert is_encoded(of_folder(), tmp_path / "cache") and not is_encoded(of_folder(), tmp_path / "other")
    picture("set/0.png", size=(64, 64), seed=9)
    assert not is_encoded(of_folder(), tmp_path / "cache")


def test_j4_j5_settings_for_distilled_bases_that_do_not_fit_are_found_before_anything_is_encoded(denoiser, tmp_path):
    file = tmp_path / "other.safetensors"
    tensors = {f"diffusion_model.other.lora_{part}.weight": torch.zeros(2, 2) for part in ("up", "down")}
    safetensors.torch.save_file(tensors, file)
    made = plan()
    for settings, message in (
        ({"training_adapter": str(file)}, "training_adapter: .*a LoRA for another model"),
        ({"optimizer_args": {"bettas": 1}}, 'has no argument "bettas"; did you mean "betas"'),
        ({"preservation_weight": 1.0, "preservation_caption": "two"}, 'preservation_caption = "two": is neither'),
        ({"group_ranks": {"nowhere": 2}}, 'group_ranks: "nowhere" matches none'),
    ):
        with pytest.raises(TrainError, match=message):
            rehearse(denoiser, made, TrainConfig(steps=1, **settings))
    rehearse(denoiser, made, TrainConfig(steps=1, preservation_weight=1.0, preservation_caption="one"))
    assert made.counts.decoded == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 10**12, "export_every": 1}, "export_every = 1: 1,000,000,000,000 LoRA files of .* has .* free"),
        ({"epochs": 10**12, "export_epochs": 2}, "export_epochs = 2: 500,000,000,000 LoRA files of .* has .* free"),
        ({"steps": 10**12, "export_every": 1, "keep_exports": 10**11}, "100,000,000,002 LoRA files"),
    ],
)
def test_i1_files_that_would_fill_the_disk_are_found_before_anything_is_encoded(denoiser, tmp_path, settings, words):
    made, out = plan(), tmp_path / "loras" / "cat.safetensors"
    with pytest.raises(TrainError, match=words):
        rehearse(denoiser, made, TrainConfig(**settings), out=out)
    rehearse(denoiser, made, TrainConfig(**{**settings, "keep_exports": 2}), out=out)
    assert made.counts.decoded == 0 and not out.parent.exists()
    encode(plan(), tmp_path / "cache")
    with open_run(tmp_path / "runs", "cat") as run, open_cache(tmp_path / "cache") as cache:
        with pytest.raises(TrainError, match=words):
            check_training(denoiser, cache, TrainConfig(**settings), run, out=out)
        check_training(denoiser, cache, TrainConfig(**{**settings, "keep_exports": 2}), run)
