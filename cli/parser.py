"""The parser of all commands: flags made from settings, and wrong usage as one line with the reason."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ..errors import CacheError, TrainError
from ..setting import COLOR, COLORS, DECIMALS, NUMBERS, OPTIONS, Setting, closest_name

USAGE = 2
CACHE_OR_ADDRESS = "Folder of the cache, its address, such as s3://bucket/my_set, or root/my_set of a registered root"
_TITLES = {"images": "image", "captions": "caption", "masks": "mask", "samples": "sample image"}
_VALUE_NAMES = {
    int: "N",
    float: "X",
    str: "TEXT",
    bool: "true|false",
    tuple: "TEXT|TEXT…",
    NUMBERS: "N",
    DECIMALS: "X,…",
    OPTIONS: "NAME=VALUE,…",
}
_TABLES = {
    "group_rates": "PATTERN=RATE,…",
    "group_ranks": "PATTERN=N,…",
    "group_alphas": "PATTERN=X,…",
    "set_samples": "SET=N,…",
    "set_weights": "SET=X,…",
}


class UsageError(CacheError):
    """A flag, a setting or a configuration file is wrong; nothing was done. Exit code 2."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Flags and files are read inside of it: every error is wrong usage."""
    try:
        yield
    except (CacheError, TrainError) as error:
        raise UsageError(str(error)) from None


def report_usage(program: str, reason: str) -> None:
    print(f'{program}: {reason}\nSee "{program} --help".', file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """Suggests the closest flag or command, and reports errors without the list of all flags.

    The flags of a command are added when they are needed: by parsing, or by `complete`.
    """

    def __init__(self, *args: Any, add_flags: Callable[["Parser"], None] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, add_help=False, **kwargs)
        self._positionals.title = "arguments"
        self.add_argument("-h", "--help", action="help", help="Show this help and exit")
        self.verbatim: set[str] = set()  # flags whose value may begin with a dash
        self._add_flags = add_flags

    def complete(self) -> "Parser":
        add_flags, self._add_flags = self._add_flags, None
        if add_flags:
            add_flags(self)
        return self

    def given(self, args: argparse.Namespace, without: Callable[[str], bool]) -> list[str]:
        """The flags that these arguments were parsed from, for another process, without those whose name is left out.

        A flag that was given its default is left out too.
        """
        found: list[str] = []
        for action in self.complete()._actions:
            value = getattr(args, action.dest, None)
            if not action.option_strings or without(action.dest) or value is None or value == action.default:
                continue
            flag = action.option_strings[-1]
            many = value if isinstance(value, list) else [value]
            found += [flag] if action.nargs == 0 else [f"{flag}={one}" for one in many]
        return found

    def error(self, message: str) -> NoReturn:
        report_usage(self.prog, message)
        sys.exit(USAGE)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]  argparse overloads it by namespace
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        self.complete()
        given = self._join_values(list(sys.argv[1:] if args is None else args))
        commands = next((a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)), None)
        if commands is None:
            self._refuse_unknown_flags(given)
        elif (command := next((a for a in given if not a.startswith("-")), None)) and command not in commands:
            self.error(f'unknown command "{command}"{closest_name(command, commands)}')
        return super().parse_known_args(given, namespace)

    def _join_values(self, given: list[str]) -> list[str]:
        """`--comfyui-args --cpu` as `--comfyui-args=--cpu`: argparse takes the value for a flag."""
        joined: list[str] = []
        for text in given:
            if joined and joined[-1] in self.verbatim and text not in self._option_string_actions:
                joined[-1] += f"={text}"
            else:
                joined.append(text)
        return joined

    def _refuse_unknown_flags(self, given: Sequence[str]) -> None:
        """Before argparse, which would first complain about the flag that a misspelled one was meant to be."""
        known = self._option_string_actions
        shown = [flag for flag, action in known.items() if action.help != argparse.SUPPRESS]
        for text in given:
            flag = text.partition("=")[0]
            if text == "--":
                return
            if not text.startswith("--") or " " in flag or flag in known:
                continue
            if not (self.allow_abbrev and any(name.startswith(flag) for name in known)):
                self.error(f"unknown flag {flag}{closest_name(flag, shown)}")


def flag_of(setting_name: str) -> str:
    return "--" + setting_name.replace("_", "-")


def group_title(group: str) -> str:
    return f"{_TITLES.get(group, group)} settings"


def value_name(setting: Setting) -> str:
    """What the help shows for the value of a setting's flag."""
    choices = setting.limits.choices or (tuple(COLORS) if setting.type == COLOR else ())
    return f"{{{','.join(choices)}}}" if choices else _TABLES.get(setting.name) or _VALUE_NAMES[setting.type]


def setting_help(setting: Setting) -> str:
    shown = shown_default(setting)
    return (setting.limits.about + (f" [{shown}]" if shown else "")).replace("%", "%%")


def shown_default(setting: Setting) -> str:
    """The default as one would type it; empty if there is none, or if it is off."""
    default = setting.default
    if default in (None, "", (), {}) or default is False:
        return ""
    if setting.type == COLOR:
        return next(name for name, color in COLORS.items() if color == default)
    if setting.type in (NUMBERS, DECIMALS):
        return " ".join(f"{number:g}" for number in default)
    return f"{default:g}" if setting.type is float else "on" if default is True else str(default)
