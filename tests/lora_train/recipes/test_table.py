"""Files of recipes: every unknown or impossible content is refused with file, key and remedy."""

from pathlib import Path

import pytest

from streamcache.lora_train import TRAIN_SETTINGS, TrainError
from streamcache.lora_train.recipes import read_recipe_file
from streamcache.nodes.host import HOST_SETTINGS


def shared(folder: Path, text: str) -> Path:
    file = folder / "my.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[settings]\nrnk = 4", 'my.toml: settings.rnk: unknown setting; did you mean "rank"?'),
        ("[settings]\nrank = 0", "my.toml: settings.rank: rank = 0: expected a whole number of at least 1; correct it"),
        ("[settings]\nlr = 1e-4\nlearning_rate = 1e-4", "learning_rate is set twice; keep one of them"),
        ("[settings]\nrank = {value = 4, why = 3}", "my.toml: settings.rank.why = 3: expected a text"),
        ("[settings]\nstart_from = '/etc/passwd'", "settings.start_from: a recipe names no run, files or words of the"),
        (
            "[settings]\ntrigger_words = 'ohwx'",
            "settings.trigger_words: a recipe names no run, files or words of the images",
        ),
        ("[settings]\nsample_captions = ['a cat']", "settings.sample_captions: a recipe names no run, files or words"),
        ("[settings]\nadapter = 'oft'\ndora = true", "recipe my.toml: dora = True: not possible with adapter"),
        ("rank = 4", 'my.toml: unknown key "rank"'),
        ("settings = 4", "my.toml: settings = 4: expected a table"),
        ("recipe = 'sdlx'", 'my.toml: recipe: recipe "sdlx": unknown base'),
        ("[for.sdxl.rank]\nvalue = 4", '"for" is only for recipes of the pack'),
        ("[settings", "not valid TOML"),
    ],
)
def test_i6_an_unknown_or_impossible_setting_is_refused_with_file_key_and_remedy(tmp_path, text, words) -> None:
    with pytest.raises(TrainError) as caught:
        read_recipe_file(shared(tmp_path, text))
    assert words in str(caught.value)


def test_a_huge_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="a recipe has at most 65,536"):
        read_recipe_file(shared(tmp_path, "#" * 70_000))
    with pytest.raises(TrainError, match="cannot be read"):
        read_recipe_file(tmp_path / "missing.toml")


def test_settings_of_comfyui_are_checked_by_callers_that_know_them(tmp_path: Path) -> None:
    file = shared(tmp_path, "[host]\noffload = true\noffload_shar = 0.5\n")
    assert read_recipe_file(file).values() == {}
    with pytest.raises(TrainError, match=r'my.toml: host.offload_shar: unknown setting; did you mean "offload_share"'):
        read_recipe_file(file, {**TRAIN_SETTINGS, **HOST_SETTINGS})
