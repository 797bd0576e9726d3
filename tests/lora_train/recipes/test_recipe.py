"""Recipes: what they set and why, and which settings win over them."""

from pathlib import Path

import pytest

from streamcache.lora_train import TRAIN_SETTINGS, TrainConfig, TrainError
from streamcache.lora_train.recipes import BASES, CARDS, PURPOSES, read_recipe, read_recipe_file
from streamcache.nodes.host import HOST_SETTINGS

KNOWN = {**TRAIN_SETTINGS, **HOST_SETTINGS}


def shared(folder: Path, text: str) -> Path:
    file = folder / "my.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("purpose", PURPOSES)
def test_i6_every_recipe_is_a_possible_training_with_a_reason_for_each_setting(base: str, purpose: str) -> None:
    for card in ("", *(f"/{card}" for card in CARDS)):
        recipe = read_recipe(f"{base}/{purpose}{card}", KNOWN)
        TrainConfig(**{name: value for name, value in recipe.values().items() if name in TRAIN_SETTINGS})
        assert all(advice.why for advice in recipe.advice.values()), recipe.name
        assert {"learning_rate", "rank", "steps"} <= recipe.advice.keys()


def test_i6_a_recipe_shows_what_it_sets_and_why_and_own_settings_win() -> None:
    recipe = read_recipe("sdxl/character/8GB")
    own = {"lr": 5e-5, "rank": 8}  # an old name too
    values = recipe.values(own)
    assert "learning_rate" not in values and "rank" not in values and values["checkpointing"] is True
    lines = recipe.explain(own)
    assert "learning_rate = 5e-05: your own setting; the recipe has 0.0001" in lines
    assert "checkpointing = true: SDXL needs 12.5 GB without it, and 6.3 GB with it" in lines
    assert len(lines) == 3 + len(recipe.advice)


def test_a_shared_file_changes_a_recipe_of_the_pack(tmp_path: Path) -> None:
    file = shared(tmp_path, 'recipe = "sdxl/style"\n[settings]\nnetwork_dim = {value = 4, why = "tiny"}\nalpha = 2\n')
    recipe = read_recipe_file(file)
    assert recipe.values()["rank"] == 4 and recipe.values()["alpha"] == 2.0
    assert recipe.values()["steps"] == read_recipe("sdxl/style").values()["steps"]
    assert "rank = 4: tiny" in recipe.explain() and "alpha = 2" in recipe.explain()


def test_i6_settings_are_left_out_of_a_recipe_by_name() -> None:
    recipe = read_recipe("sdxl/style", KNOWN)
    left = recipe.without(["caption_dropout", "network_dim", "seed"], KNOWN)  # an old name too
    assert recipe.values().keys() - left.values().keys() == {"caption_dropout", "rank"}
    assert left.note({}) == "Recipe sdxl/style without rank, caption_dropout"
    assert recipe.without([], KNOWN) == recipe
    with pytest.raises(TrainError, match='without: unknown setting "caption_dropuot"; did you mean "caption_dropout"'):
        recipe.without(["caption_dropuot"], KNOWN)
