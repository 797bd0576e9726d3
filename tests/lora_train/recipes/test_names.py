"""The recipes of the pack: their names, and that their numbers are those of the memory forecast."""

import json
from pathlib import Path

import pytest

from streamcache.lora_train import TRAIN_SETTINGS, TrainError
from streamcache.lora_train.recipes import (
    BASES,
    PURPOSES,
    Recipe,
    describe_bases,
    describe_purposes,
    read_recipe,
)
from streamcache.lora_train.recipes.names import _read
from streamcache.nodes.host import HOST_SETTINGS

KNOWN = {**TRAIN_SETTINGS, **HOST_SETTINGS}


def test_every_part_says_what_it_is_for() -> None:
    assert describe_bases().keys() == set(BASES) and describe_purposes().keys() == set(PURPOSES)
    assert all({**describe_bases(), **describe_purposes()}.values())
    assert isinstance(read_recipe("sd15"), Recipe)


def test_the_purpose_may_differ_by_base() -> None:
    assert read_recipe("sdxl/character").values()["rank"] == 16
    assert read_recipe("wan/character").values()["rank"] == 32


def test_settings_of_comfyui_are_left_out_for_callers_that_do_not_know_them() -> None:
    assert "sample_cfg" in read_recipe("sdxl", KNOWN).values()
    assert "sample_cfg" not in read_recipe("sdxl").values()
    assert "offload" not in read_recipe("flux1/style/8GB").values()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sdlx", 'recipe "sdlx": unknown base "sdlx"; did you mean "sdxl"?; there are chroma'),
        ("sdxl/charakter", 'unknown part "charakter"; did you mean "character"?; there are character, concept, style'),
        ("sdxl/style/concept", "expected base/purpose/card, such as sdxl/character/12GB"),
        ("", 'unknown base ""; there are chroma'),
        ("../sdxl", 'unknown base ".."'),
    ],
)
def test_an_unknown_name_is_refused_with_the_names_there_are(name: str, words: str) -> None:
    with pytest.raises(TrainError) as caught:
        read_recipe(name)
    assert words in str(caught.value)


def test_the_memory_of_each_base_is_that_of_the_forecast() -> None:
    root = Path(__file__).resolve().parents[3]
    forecast = json.loads((root / "docs" / "memory.json").read_text(encoding="utf-8"))
    names = {
        "sdxl": "SDXL", "flux1": "Flux.1 dev", "flux2_klein": "Flux.2 Klein 9B", "chroma": "Chroma",
        "qwen_image": "Qwen-Image", "z_image": "Z-Image", "wan": "WAN 2.1 / 2.2 14B",
    }  # fmt: skip
    ways = {"plain": "plain", "checkpointing": "checkpointing", "offload": "checkpointing, offload"}
    for base in BASES:
        found = forecast.get(names.get(base), {})
        expected = {key: round(found[way]["peak"] / 1e9, 1) for key, way in ways.items() if found}
        assert _read("base", base, TRAIN_SETTINGS).memory == expected, base
