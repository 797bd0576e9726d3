"""The command line, run inside the test's own process."""

import json

import pytest

from streamcache.cli.main import main


def run(*arguments: object) -> int:
    """Run `streamcache ARGUMENTS`; returns the exit code."""
    return main([str(argument) for argument in arguments])


def run_json(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, dict]:
    """The exit code and what the command prints with --json."""
    capsys.readouterr()
    code = run(*arguments, "--json")
    return code, json.loads(capsys.readouterr().out)
