"""`streamcache recipe` and `streamcache train --recipe`."""

import json

import pytest

from streamcache.cli.main import build_parser, main
from streamcache.cli.train import collect_config, describe_model
from streamcache.lora_train.recipes import read_recipe

BASIC = ["train", "--reference", "--dataset", "set", "--out", "my_lora.safetensors", "--model", "base.safetensors"]


def config_of(*flags: str):
    return collect_config(build_parser().parse_args([*BASIC, *flags]))


def test_i6_the_list_has_all_parts_and_show_has_each_reason(capsys) -> None:
    assert main(["recipe", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("sdxl", "wan", "character", "concept", "12GB"))
    assert main(["recipe", "show", "sdxl/character/8GB"]) == 0
    assert capsys.readouterr().out.splitlines() == read_recipe_with_host("sdxl/character/8GB").explain()
    assert main(["recipe", "show", "sdxl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["learning_rate"]["value"] == 1e-4


def read_recipe_with_host(name: str):
    from streamcache.cli.recipe import KNOWN

    return read_recipe(name, KNOWN)


def test_i6_flags_and_the_file_win_over_the_recipe(tmp_path) -> None:
    (tmp_path / "run.toml").write_text("network_dim = 4\n")
    config = config_of("--recipe", "sdxl/character/8GB", "--config", str(tmp_path / "run.toml"), "--lr", "5e-5")
    assert (config.rank, config.learning_rate, config.steps) == (4, 5e-5, 1500)
    assert config.checkpointing and config.weighting == "min_snr"


def test_i6_a_recipe_of_ones_own_is_a_file(tmp_path) -> None:
    (tmp_path / "my.toml").write_text('recipe = "sd15/style"\n[settings]\nrank = 7\n')
    config = config_of("--recipe", str(tmp_path / "my.toml"))
    assert (config.rank, config.steps) == (7, 3000)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["recipe", "show"], "recipe show: expected the name of a recipe"),
        (["recipe", "list", "sdxl"], "recipe list: expected no name"),
        (["recipe", "show", "sdlx"], 'unknown base "sdlx"; did you mean "sdxl"?'),
        ([*BASIC, "--recipe", "sdxl/foo"], 'unknown part "foo"'),
        ([*BASIC, "--recipe", "none.toml"], "none.toml: cannot be read"),
    ],
)
def test_a_wrong_recipe_is_wrong_usage(arguments, words, capsys) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_i6_a_training_says_what_its_recipe_sets_and_which_flags_win(small: list[str], capsys) -> None:
    assert main([*small, "--recipe", "sd15/character", "--steps", "2"]) == 0
    said = capsys.readouterr().err
    assert "rank = 2: your own setting; the recipe has 16" in said
    assert 'lr_schedule = "cosine": the rate falls to 0' in said


def test_a_run_of_the_command_line_names_its_model_and_its_recipe(small: list[str], tmp_path) -> None:
    assert main([*small, "--recipe", "sd15/character", "--steps", "2"]) == 0
    described = json.loads((tmp_path / "out/runs/my_lora/run.json").read_text())
    assert described["model"] == str(tmp_path / "base.safetensors") and described["host"] == {}
    assert described["notes"].startswith("Recipe sd15/character; your own settings win: ")
    assert "rank = 2" in described["notes"] and "steps = 2" in described["notes"]


def test_settings_of_comfyui_are_those_of_the_flags_then_those_of_the_recipe() -> None:
    flags = ["--comfyui", ".", "--guidance", "2.5", "--recipe", "sdxl/style"]
    found = describe_model(build_parser().parse_args(["train", *BASIC[2:], *flags]))
    host = {"offload": False, "guidance": 2.5, "sample_cfg": 6.0, "offload_share": 0.0}
    assert found == {"model": "base.safetensors", "host": host}
