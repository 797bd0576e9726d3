"""Configurations from named values: old names still load; unknown and refused ones are named."""

import re

import pytest

from streamcache.errors import TrainError
from streamcache.lora_train.config import TRAIN_SETTINGS, TrainConfig
from streamcache.lora_train.config_file import RENAMED_SETTINGS, load_config, read_toml

EXAMPLES = {int: 3, float: 0.5, bool: True, str: "x", tuple: ["a", "b"], dict: {"main": 2.0}}


def example(name: str) -> object:
    limits = TRAIN_SETTINGS[name].limits
    return limits.choices[-1] if limits.choices else EXAMPLES[TRAIN_SETTINGS[name].type]


def test_b6_every_renamed_setting_loads_under_its_old_name_from_a_dict_and_is_logged() -> None:
    for old, new in RENAMED_SETTINGS.items():
        said: list[str] = []
        config = load_config({old: example(new)}, "old workflow", said.append)
        assert config.to_dict()[new] == example(new)
        assert said == [f"old workflow: {old} is now {new}"]


def test_b6_an_old_config_file_loads(tmp_path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('lr = 0.002\nnetwork_dim = 8\nlr_scheduler = "cosine"\n[set_samples]\nmain = 20\n')
    config = load_config(read_toml(path), "run.toml")
    assert (config.learning_rate, config.rank, config.lr_schedule, config.set_samples) == (
        0.002,
        8,
        "cosine",
        {"main": 20},
    )


def test_b6_no_old_name_hides_a_setting_of_today() -> None:
    assert not set(RENAMED_SETTINGS) & set(TRAIN_SETTINGS)
    assert set(RENAMED_SETTINGS.values()) <= set(TRAIN_SETTINGS)


def test_old_and_new_name_together_are_refused() -> None:
    with pytest.raises(TrainError, match="lr and learning_rate are the same setting"):
        load_config({"learning_rate": 1e-3, "lr": 1e-4})


def test_an_unknown_setting_is_named_with_the_closest_match() -> None:
    with pytest.raises(
        TrainError, match=re.escape('run.toml: unknown setting "learning_rat"; did you mean "learning_rate"?')
    ):
        load_config({"learning_rat": 1e-3}, "run.toml")


def test_a16_training_the_text_encoder_is_refused_with_the_reason() -> None:
    with pytest.raises(TrainError, match="train_text_encoder is refused: the dataset contains encoded text"):
        load_config({"train_text_encoder": True})


def test_a_missing_or_broken_file_is_named(tmp_path) -> None:
    with pytest.raises(TrainError, match="nowhere.toml: cannot be read"):
        read_toml(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("rank = ")
    with pytest.raises(TrainError, match="bad.toml: not valid TOML"):
        read_toml(tmp_path / "bad.toml")


def test_a_configuration_survives_its_own_dictionary() -> None:
    config = TrainConfig(rank=4, sample_captions=("a", "b"), set_weights={"x": 2.0}, learning_rate=1e-3)
    assert load_config(config.to_dict()) == config


# Names that released versions accepted. This list only grows: files and workflows of users contain them.
RELEASED = {
    "lr": "learning_rate",
    "network_dim": "rank",
    "network_alpha": "alpha",
    "algorithm": "adapter",
    "train_batch_size": "batch_size",
    "grad_accumulation_steps": "accumulate",
    "gradient_accumulation_steps": "accumulate",
    "max_train_steps": "steps",
    "max_train_epochs": "epochs",
    "max_grad_norm": "clip_norm",
    "lr_scheduler": "lr_schedule",
    "lr_warmup_steps": "warmup_steps",
    "loss_function": "loss",
    "loss_type": "loss",
    "training_dtype": "precision",
    "mixed_precision": "precision",
    "lora_dtype": "adapter_dtype",
    "gradient_checkpointing": "checkpointing",
    "caption_dropout_rate": "caption_dropout",
    "prior_loss_weight": "prior_weight",
    "existing_lora": "start_from",
    "dataloader_prefetch": "prefetch",
}


def test_b6_no_old_name_is_ever_removed() -> None:
    assert RELEASED.items() <= RENAMED_SETTINGS.items()
