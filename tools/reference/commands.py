"""Every command with its options and defaults, from the Typer app itself."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any

import typer.main

from laptime.cli import app
from tools.reference.markdown import prose, table

_HEAD = """\
## Commands

Every command takes `--json` (one JSON document on standard output, all else on standard error) and `--help`,
and ends with 0, with 1 (it failed; one line says why and what to do) or with 2 (wrong usage).
With `--json` a command that fails leaves standard output empty: look at the status before you read a
document. Only `run`, whose status is the script's, and `doctor`, which ends with 1 where nothing can be
recorded, answer all the same.
`laptime --version` prints the version.
"""
_WORDS = {int: "number", float: "number", str: "text", Path: "path"}


def section() -> str:
    """One table for each command."""
    return "\n".join([_HEAD, *_commands(typer.main.get_command(app), "laptime")])


def _commands(group: Any, name: str) -> Iterator[str]:
    for verb, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {verb}")
        else:
            yield _command(command, f"{name} {verb}")


def _command(command: Any, name: str) -> str:
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    shown = [one for one in command.params if not one.hidden]
    arguments = [one for one in shown if not one.opts[0].startswith("-")]
    usage = " ".join([name, *(_argument(one) for one in arguments), "[OPTIONS]"])
    if not command.context_settings.get("allow_interspersed_args", True):
        usage = " ".join([name, "[OPTIONS]", *(_argument(one) for one in arguments)])
    rows = [_row(one, hints) for one in shown if one.name != "as_json"]
    head = ("option", "takes", "default", "meaning")
    return "\n".join([f"### `{name}`\n", prose(command.help or ""), f"`{usage}`\n", table(head, rows)])


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _row(option: Any, hints: Mapping[str, Any]) -> tuple[str, str, str, str]:
    is_option = option.opts[0].startswith("-")
    names = [*option.opts, *option.secondary_opts] if is_option else [_argument(option)]
    if is_option and option.metavar:
        names[-1] += f" {option.metavar}"
    takes = "" if is_option and option.is_flag else _takes(option, hints[option.name])
    if is_option and option.multiple:
        takes += "; repeatable"
    return ", ".join(f"`{one}`" for one in names), takes, _default(option), option.help or ""


def _takes(option: Any, hint: Any) -> str:
    kinds = [one for one in typing.get_args(hint) if one is not NoneType] or [hint]
    if typing.get_origin(hint) is typing.Literal:
        return _choices(kinds)
    kind = kinds[0] if len(kinds) == 1 else str
    several = option.nargs == -1
    if typing.get_origin(kind) is list:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is typing.Literal:
        return _choices(typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choices([one.value for one in kind])
    return _WORDS[kind] + ("s" if several else "") + _limits(option)


def _choices(values: typing.Iterable[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _limits(option: Any) -> str:
    low, high = getattr(option, "min", None), getattr(option, "max", None)
    if low is None:
        return "" if high is None else f", {high:g} at most"
    return f", {low:g} to {high:g}" if high is not None else f", {low:g} at least"


def _default(option: Any) -> str:
    if option.required:
        return "(required)"
    value = option.default
    if callable(value) or value in (None, False, "", [], ()):
        return "–"
    return "on" if value is True else f"`{getattr(value, 'value', value)}`"
