"""The table of encode settings and its documentation."""

from pathlib import Path
from typing import Any

import pytest

from streamcache.dataset_cache import ENCODE_SETTINGS, CacheError, check_setting, parse_setting
from streamcache.dataset_cache.encode.settings import SOURCE_SETTINGS, load_settings, load_source


def test_the_documentation_has_every_setting_with_its_default_and_meaning():
    text = (Path(__file__).resolve().parents[3] / "docs" / "encoding.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert list(rows) == list(ENCODE_SETTINGS)
    for name, setting in ENCODE_SETTINGS.items():
        assert setting.limits.about in rows[name]
        shown = rows[name].split("|")[2].strip()
        assert not shown or check_setting(setting, parse_setting(setting, shown)) == setting.default


OLD = {old: name for name, setting in ENCODE_SETTINGS.items() for old in setting.old_names}
VALUES: dict[str, Any] = {
    "resolution": [512, 768],
    "caption_lines": "join",
    "caption_fallback": "folder",
    "caption_prefix": "x ",
    "caption_suffix": " y",
    "tag_shuffles": 3,
}


def loaded(name: str, value: Any) -> Any:
    return load_source("set", {name: value}, "here") if name in SOURCES else load_settings({name: value}, "here")


SOURCES = {name for setting in SOURCE_SETTINGS.values() for name in (setting.name, *setting.old_names)}


@pytest.mark.parametrize("old", OLD)
def test_b6_every_renamed_setting_loads_under_its_old_name(old: str):
    new, value = OLD[old], VALUES[OLD[old]]
    assert loaded(old, value) == loaded(new, value) != loaded(new, ENCODE_SETTINGS[new].default)
    assert old not in ENCODE_SETTINGS, "it would hide a setting of today"


def test_b6_old_and_new_name_together_are_refused():
    with pytest.raises(CacheError, match="set twice"):
        load_settings({"resolution": [512], "resolutions": [512]}, "here")
