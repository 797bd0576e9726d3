"""The memory forecast of the reference model against its real peaks, and that it leaves no trace."""

import gc
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensor

from streamcache.dataset_cache import EMPTY_CAPTION, CacheWriter, open_cache
from streamcache.lora_train import TrainConfig, TrainError, Untraceable, forecast_training, open_run, train
from streamcache.reference import ReferenceDenoiser
from streamcache.reference.encoders import encode_caption
from streamcache.reference.model import ModelSize, ReferenceModel

from ...support.small_parts import SmallDenoiser, make_dataset
from .measured import measured_peak

SIZE = ModelSize(width=64, depth=3, heads=4)


@pytest.fixture
def denoiser() -> ReferenceDenoiser:
    return ReferenceDenoiser(ReferenceModel(SIZE))


@pytest.fixture
def dataset(tmp_path):
    """Two buckets: the larger one has fewer samples."""
    with CacheWriter(tmp_path / "set") as writer:
        for number in range(12):
            size = (24, 24) if number < 8 else (24, 40)
            latent = {"samples": torch.randn(1, SIZE.channels, *size)}
            writer.add(latent, encode_caption("a creature"), f"{number}", f"{number}.png")
        writer.put("none", encode_caption(""), "conditioning")
        writer.name(EMPTY_CAPTION, "none")
    return open_cache(tmp_path / "set")


CASES = {
    "all layers": {"rank": 16, "targets": "all"},
    "checkpointing": {"batch_size": 4, "checkpointing": True},
    "bf16": {"batch_size": 2, "precision": "bf16"},
    "accumulated, averaged": {"batch_size": 2, "accumulate": 3, "ema_decay": 0.9, "rank": 16},
    "LoKr by Adafactor": {"adapter": "lokr", "batch_size": 2, "optimizer": "Adafactor"},
    "DoRA with dropout": {"dora": True, "adapter_dropout": 0.1, "batch_size": 2},
    "arguments of the optimizer": {"optimizer_args": {"amsgrad": True}, "rank": 16, "targets": "all"},
    "preservation of a share": {"preservation_weight": 0.5, "preservation_share": 0.1, "batch_size": 2},
    "a guided target": {"guidance_target": 3.0, "guidance_schedule": "sigma", "batch_size": 2},
    "settings of other trainers": {
        "multires_noise": 4,
        "input_perturbation": 0.1,
        "resolution_shift": "flux",
        "lora_plus": 4.0,
        "scale_weight_norms": 0.05,
        "loss": "huber",
        "huber_schedule": "snr",
        "batch_size": 2,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_j2_the_forecast_is_within_a_tenth_of_the_measured_peak(denoiser, dataset, case):
    config = TrainConfig(steps=2, **{"rank": 4, **CASES[case]})
    expected = measured_peak(denoiser, dataset, config)
    forecast = forecast_training(denoiser, dataset, config)
    assert forecast.peak == pytest.approx(expected, rel=0.1), f"{forecast.peak / expected - 1:+.1%}"
    assert forecast.peak == sum(getattr(forecast, part) for part in ("weights", "adapter", "optimizer", "activations"))
    assert forecast.weights == sum(weight.nbytes for weight in denoiser.weights())


def test_j2_a_training_adapter_counts_with_its_weights(denoiser, dataset, tmp_path):
    with open_run(tmp_path / "runs", "adapter") as run:
        made = train(denoiser, dataset, TrainConfig(steps=1, rank=32, targets="all"), run).lora
    plain = TrainConfig(rank=4, batch_size=2)
    config = replace(plain, training_adapter=str(made))
    expected, forecast = measured_peak(denoiser, dataset, config), forecast_training(denoiser, dataset, config)
    assert forecast.peak == pytest.approx(expected, rel=0.1), f"{forecast.peak / expected - 1:+.1%}"
    weights = sum(value.nbytes for name, value in load_file(made).items() if "lora" in name)
    assert forecast.adapter - forecast_training(denoiser, dataset, plain).adapter == weights


def test_the_largest_bucket_counts_not_the_most_frequent(denoiser, dataset):
    forecast = forecast_training(denoiser, dataset, TrainConfig(rank=4, batch_size=3))
    assert forecast.shape == (SIZE.channels, 24, 40) and forecast.rows == 2  # four samples, as evenly as possible


def test_a_forecast_leaves_no_trace(denoiser, dataset):
    before = {name: (id(value), value.clone()) for name, value in denoiser.model.state_dict(keep_vars=True).items()}
    attributes = {name: sorted(vars(module)) for name, module in denoiser.model.named_modules()}
    random = torch.get_rng_state()
    others = {id(value) for value in gc.get_objects() if type(value) is FakeTensor}  # of torch.compile
    forecast_training(denoiser, dataset, TrainConfig(rank=4, adapter_dropout=0.1, checkpointing=True))
    gc.collect()
    assert not [value for value in gc.get_objects() if type(value) is FakeTensor and id(value) not in others]
    after = denoiser.model.state_dict(keep_vars=True)
    assert all(id(after[name]) == place and torch.equal(after[name], value) for name, (place, value) in before.items())
    assert attributes == {name: sorted(vars(module)) for name, module in denoiser.model.named_modules()}
    assert torch.equal(random, torch.get_rng_state())


def test_training_after_a_forecast_is_bit_equal(dataset, tmp_path):
    def weights(name: str, forecast: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        denoiser = ReferenceDenoiser(ReferenceModel(SIZE))
        config = TrainConfig(steps=3, rank=4, name=name)
        if forecast:
            forecast_training(denoiser, dataset, config)
        with open_run(tmp_path / "runs", name) as run:
            return load_file(train(denoiser, dataset, config, run).lora)

    one, other = weights("one", forecast=False), weights("other", forecast=True)
    assert one and all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_that_needs_data_says_so_and_stays_as_it_was(denoiser, dataset, monkeypatch):
    predict = denoiser.predict
    monkeypatch.setattr(denoiser, "predict", lambda x, t, c: predict(x, t, c) * float(x.sum()))
    before = [id(value) for value in denoiser.model.parameters()]
    with pytest.raises(Untraceable, match="not known in advance"):
        forecast_training(denoiser, dataset, TrainConfig(rank=4))
    assert before == [id(value) for value in denoiser.model.parameters()]


def test_a_denoiser_without_a_forecast_says_so(tmp_path):
    with pytest.raises(Untraceable):
        forecast_training(SmallDenoiser(), make_dataset(tmp_path), TrainConfig(rank=2))


def test_wrong_settings_keep_their_own_error(denoiser, dataset):
    with pytest.raises(TrainError, match="masks"):
        forecast_training(denoiser, dataset, TrainConfig(rank=4, masked_loss=True))
    with pytest.raises(TrainError, match="matches no"):
        forecast_training(denoiser, dataset, TrainConfig(rank=4, targets="no such layer"))
