"""A setting: text becomes a value of its type, and wrong values are refused with their place."""

import math

import pytest

from streamcache.errors import SettingError, TrainError
from streamcache.lora_train.config import TRAIN_SETTINGS
from streamcache.lora_train.config_file import load_config
from streamcache.setting import parse_setting


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning_rate", 0.0, "above 0"),
        ("learning_rate", math.nan, "finite number above 0"),
        ("learning_rate", math.inf, "finite number"),
        ("learning_rate", "fast", "a number"),
        ("rank", 0, "at least 1"),
        ("rank", 1.5, "a whole number"),
        ("seed", 2**63, "at most 9,223,372,036,854,775,807"),
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


def test_command_line_text_is_parsed_by_the_type_of_the_setting() -> None:
    assert parse_setting(TRAIN_SETTINGS["rank"], "8") == 8
    assert parse_setting(TRAIN_SETTINGS["dora"], "yes") is True
    assert parse_setting(TRAIN_SETTINGS["set_weights"], "main=0.5, extra=2") == {"main": 0.5, "extra": 2.0}
    assert parse_setting(TRAIN_SETTINGS["sample_captions"], "a cat|a dog") == ("a cat", "a dog")
    with pytest.raises(SettingError, match='rank = "big": expected a whole number'):
        parse_setting(TRAIN_SETTINGS["rank"], "big")
