"""Settings: one name everywhere; old names still load; invalid values are refused with place, found and expected."""

import json
import math
import re
from pathlib import Path

import pytest

from streamcache.dataset_cache import SettingError
from streamcache.dataset_cache.setting import parse_setting
from streamcache.lora_train.config import (
    RENAMED_SETTINGS,
    TRAIN_SETTINGS,
    TrainConfig,
    differences,
    load_config,
    read_toml,
)
from streamcache.lora_train.errors import TrainError

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


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning_rate", 0.0, "above 0"),
        ("learning_rate", math.nan, "finite number above 0"),
        ("learning_rate", math.inf, "finite number"),
        ("learning_rate", "fast", "a number"),
        ("rank", 0, "at least 1"),
        ("rank", 1.5, "a whole number"),
        ("batch_size", True, "a whole number"),
        ("steps", 0, "at least 1"),
        ("caption_dropout", 1.1, "at most 1"),
        ("optimizer", "adamw", 'did you mean "AdamW"'),
        ("loss", "mes", 'did you mean "mse"'),
        ("dora", 1, "true or false"),
        ("sample_captions", "a cat", "a list of texts"),
        ("set_samples", {"main": 0}, "set_samples.main = 0.0: expected a finite number of at least 1"),
    ],
)
def test_a_wrong_value_is_refused_with_place_found_and_expected(name: str, value: object, expected: str) -> None:
    with pytest.raises(TrainError) as error:
        load_config({name: value}, "run.toml")
    assert str(error.value).startswith(f"run.toml: {name}")
    assert expected in str(error.value)


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


def test_command_line_text_is_parsed_by_the_type_of_the_setting() -> None:
    assert parse_setting(TRAIN_SETTINGS["rank"], "8") == 8
    assert parse_setting(TRAIN_SETTINGS["dora"], "yes") is True
    assert parse_setting(TRAIN_SETTINGS["set_weights"], "main=0.5, extra=2") == {"main": 0.5, "extra": 2.0}
    assert parse_setting(TRAIN_SETTINGS["sample_captions"], "a cat|a dog") == ("a cat", "a dog")
    with pytest.raises(SettingError, match='rank = "big": expected a whole number'):
        parse_setting(TRAIN_SETTINGS["rank"], "big")


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
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
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
