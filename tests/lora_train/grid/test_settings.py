"""The settings of a grid."""

import pytest

from streamcache.errors import SettingError, TrainError
from streamcache.lora_train.grid import GRID_SETTINGS, GridSettings
from streamcache.setting import parse_setting


def test_i2_strengths_and_seeds_are_lists_that_people_type():
    settings = GridSettings(
        strengths=parse_setting(GRID_SETTINGS["strengths"], "0.6, 1;1.2"),
        seeds=parse_setting(GRID_SETTINGS["seeds"], "1 2,3"),
    )
    assert settings.strengths == (0.6, 1.0, 1.2) and settings.seeds == (1, 2, 3)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"strengths": ()}, "strengths: the list is empty"),
        ({"strengths": (1000.0,)}, "strengths = 1000"),
        ({"strengths": (float("nan"),)}, "a finite number"),
        ({"seeds": (-1,)}, "seeds = -1"),
        ({"width": 8}, "width = 8"),
        ({"steps": 0}, "steps = 0"),
    ],
)
def test_i2_a_setting_out_of_range_is_refused(values: dict, words: str):
    with pytest.raises((SettingError, TrainError), match=words):
        GridSettings(**values)


def test_i2_a_list_that_is_none_is_refused():
    with pytest.raises(SettingError, match='strengths = "strong": expected a list of numbers'):
        parse_setting(GRID_SETTINGS["strengths"], "strong")
