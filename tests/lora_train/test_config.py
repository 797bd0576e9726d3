"""Settings: one name everywhere; old names still load; invalid values are refused with place, found and expected."""

import json
import re
from pathlib import Path

import pytest

from streamcache.errors import TrainError
from streamcache.lora_train.config import (
    RENAMED_SETTINGS,
    TRAIN_SETTINGS,
    TrainConfig,
    differences,
    load_config,
    read_toml,
)
from streamcache.setting import parse_setting

EXAMPLES = {int: 3, float: 0.5, bool: True, str: "x", tuple: ["a", "b"], dict: {"main": 2.0}}


def example(name: str) -> object:
    limits = TRAIN_SETTINGS[name].limits
    return limits.choices[-1] if limits.choices else EXAMPLES[TRAIN_SETTINGS[name].type]


def test_every_setting_has_a_help_text_and_a_valid_default() -> None:
    TrainConfig()
    assert all(setting.limits.about and setting.limits.group for setting in TRAIN_SETTINGS.values())


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


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(TrainError, match="t_min = 0.8: not below t_max = 0.3"):
        TrainConfig(t_min=0.8, t_max=0.3)
    with pytest.raises(TrainError, match='set "main": is in both'):
        TrainConfig(set_samples={"main": 5}, set_weights={"main": 2.0})


def test_a16_training_the_text_encoder_is_refused_with_the_reason() -> None:
    with pytest.raises(TrainError, match="train_text_encoder is refused: the dataset contains encoded text"):
        load_config({"train_text_encoder": True})


def test_a_missing_or_broken_file_is_named(tmp_path) -> None:
    with pytest.raises(TrainError, match="nowhere.toml: cannot be read"):
        read_toml(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("rank = ")
    with pytest.raises(TrainError, match="bad.toml: not valid TOML"):
        read_toml(tmp_path / "bad.toml")


def test_a_starting_file_in_a_moved_folder_is_not_a_difference() -> None:
    old = TrainConfig(start_from="/old/loras/a.safetensors").to_dict()
    assert not differences(old, TrainConfig(start_from="D:\\new\\a.safetensors"))
    assert differences(old, TrainConfig(start_from="/old/loras/b.safetensors"))


def test_differences_name_both_values_and_skip_settings_that_may_change() -> None:
    old = TrainConfig().to_dict()
    new = TrainConfig(learning_rate=2e-4, keep_states=7, steps=5000, prefetch=0)
    assert differences(old, new) == ["learning_rate: was 0.0001, is 0.0002"]
    cosine = TrainConfig(lr_schedule="cosine").to_dict()
    assert differences(cosine, TrainConfig(lr_schedule="cosine", steps=5000)) == ["steps: was 1000, is 5000"]


def test_each_part_of_the_trainer_gets_its_own_settings() -> None:
    config = TrainConfig(rank=4, alpha=0, loss="huber", beta1=0.5, lr_schedule="linear", group_rates={"a.*": 1e-5})
    assert config.adapters().rank == 4 and config.adapters().alpha is None
    assert config.adapters().group_rates == {"a.*": 1e-5}
    assert config.objective().loss == "huber" and config.rates().beta1 == 0.5
    assert config.curve(10).factor(5) == 0.5


def test_a_configuration_survives_its_own_dictionary() -> None:
    config = TrainConfig(rank=4, sample_captions=("a", "b"), set_weights={"x": 2.0}, learning_rate=1e-3)
    assert load_config(config.to_dict()) == config


def test_the_documentation_has_every_setting_with_its_default_and_meaning() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    settings = [line for line in text.splitlines() if line.startswith("| `") and not line.startswith("| `--")]
    rows = {line.split("`")[1]: line for line in settings}
    assert list(rows) == list(TRAIN_SETTINGS)
    for name, setting in TRAIN_SETTINGS.items():
        assert setting.limits.about in rows[name]
        shown = rows[name].split("|")[2].strip()
        assert not shown or parse_setting(setting, shown) == setting.default


@pytest.mark.parametrize("page", ["StreamCacheTrain", "StreamCacheTrainOptions"])
def test_help_pages_explain_settings_in_the_words_of_their_tooltips(page: str) -> None:
    root = Path(__file__).resolve().parents[2]
    texts = json.loads((root / "locales" / "en" / "nodeDefs.json").read_text(encoding="utf-8"))[page]["inputs"]
    rows = re.findall(
        r"^\| `(\w+)` \| (.*) \|$", (root / "web" / "docs" / f"{page}.md").read_text("utf-8"), re.MULTILINE
    )
    explained = {name: text for name, text in rows if name in TRAIN_SETTINGS and name not in ("name", "mode")}
    assert len(explained) > 50
    for name, text in explained.items():
        assert text == TRAIN_SETTINGS[name].limits.about
        assert texts[name]["tooltip"] == f"{text}."


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
