"""Wrong usage: two lines, exit code 2, and the closest name. Help texts in one style."""

import argparse
import re
from pathlib import Path

import pytest

from streamcache.cli.main import build_parser, main
from streamcache.lora_train import TRAIN_SETTINGS

PARSERS = build_parser()._subparsers._group_actions[0].choices


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """The error of a command line that is refused as wrong usage."""
    try:
        code = main(arguments)
    except SystemExit as left:
        code = left.code
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 2
    return error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["encod", "x"], 'streamcache: unknown command "encod"; did you mean "encode"?'),
        (["encode", "x", "--too", "y"], 'encode: unknown flag --too; did you mean "--to"?'),
        (["encode", "x", "--to", "y", "--resolutoin=512"], 'unknown flag --resolutoin; did you mean "--resolution"?'),
        (["encode", "x"], "the following arguments are required: --to"),
        (["encode", "x", "--to", "y", "--step", "7"], "argument --step: invalid choice: 7"),
        (["info", "x", "--contact-sheeet", "y"], 'unknown flag --contact-sheeet; did you mean "--contact-sheet"?'),
        (["clean", "x", "--apply"], "--apply: choose what to remove: --leftover, --older, --unused"),
        (["run", "workflow.json", "--set", "nonsense"], "--set nonsense: expected NODE.INPUT=VALUE"),
    ],
)
def test_wrong_usage_is_a_reason_and_where_to_read_on(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("workflow.json").write_text('{"1": {"class_type": "A", "inputs": {}}}')
    error = refused(capsys, *arguments)
    assert words in error
    assert re.search(r'^See "streamcache( [a-z]+)? --help"\.$', error.splitlines()[1])


def test_options_of_comfyui_may_follow_their_flag_with_or_without_an_equals_sign(capsys):
    basic = ["encode", "x", "--to", "y"]
    for given in (["--comfyui-args=--cpu"], ["--comfyui-args", "--cpu"], ["--comfyui-args", "--cpu --lowvram"]):
        args = build_parser().parse_args([*basic, *given, "--json"])
        assert args.comfyui_args.startswith("--cpu") and args.json
    assert "--comfyui-args: expected one argument" in refused(capsys, *basic, "--comfyui-args", "--json")
    assert "No closing quotation" in refused(capsys, *basic, "--vae", "v", "--comfyui", host(), "--comfyui-args", '"a')


def host() -> str:
    """A folder that looks like ComfyUI."""
    import tempfile

    folder = Path(tempfile.mkdtemp())
    (folder / "comfy").mkdir()
    (folder / "main.py").touch()
    return str(folder)


@pytest.mark.parametrize("command", PARSERS)
def test_every_help_text_starts_with_a_capital_and_every_value_has_a_name(command: str):
    for action in PARSERS[command].complete()._actions:
        if action.help == argparse.SUPPRESS:
            continue
        assert action.help and (action.help[0].isupper() or action.help.startswith("ComfyUI"))
        assert action.metavar != "…" and not action.help.endswith(".")


def test_the_help_of_tables_shows_their_form():
    text = PARSERS["train"].complete().format_help()
    tables = [name for name, setting in TRAIN_SETTINGS.items() if setting.type is dict]
    assert tables == ["group_ranks", "group_alphas", "group_rates", "set_samples", "set_weights"]
    for name in tables:
        assert re.search(rf"--{name.replace('_', '-')} [A-Z]+=[A-Z]+,…", text)
