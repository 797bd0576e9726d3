"""Settings: each is declared once; invalid values are refused with place, found and expected."""

import json
import re
from pathlib import Path

import pytest

from streamcache.errors import TrainError
from streamcache.lora_train.changes import differences
from streamcache.lora_train.config import TRAIN_SETTINGS, TrainConfig
from streamcache.setting import parse_setting


def test_every_setting_has_a_help_text_and_a_valid_default() -> None:
    TrainConfig()
    assert all(setting.limits.about and setting.limits.group for setting in TRAIN_SETTINGS.values())


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(TrainError, match="t_min = 0.8: not below t_max = 0.3"):
        TrainConfig(t_min=0.8, t_max=0.3)
    with pytest.raises(TrainError, match='set "main": is in both'):
        TrainConfig(set_samples={"main": 5}, set_weights={"main": 2.0})


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
