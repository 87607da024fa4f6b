"""How a value is written as text: on the command line, in XML, in YAML, and in what `--explain` prints."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from laptime.errors import ConfigError
from laptime.training.config import fields
from laptime.training.config.problems import hint, nearest, plain

_BOOLEANS = {
    word: value
    for value, words in ((True, ("true", "yes", "on", "1")), (False, ("false", "no", "off", "0")))
    for word in words
}


def read_setting(text: str, option: str = "--set") -> tuple[str, Any]:
    """The full key and the value of `key=value`."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"{option} {plain(text)} is not key=value, such as train.batch=64")
    full = full_key(key.strip(), option)
    return full, text_of(full, value.strip())


def full_key(key: str, option: str = "--set") -> str:
    """The key with its section. A bare one stands for the only field so named; `.name` is the run's own."""
    if key in fields.sections() or "." in key:
        return key.removeprefix(".") if key == ".name" else key
    same = [name for name in fields.names() if name.rpartition(".")[2] == key]
    if len(same) > 1:
        *others, last = (name if "." in name else f".{name}" for name in same)
        raise ConfigError(f"{option} {key} could be {', '.join(others)} or {last}; write one of them in full")
    if same:
        return same[0]
    bare = {name.rpartition(".")[2]: name for name in fields.names()}
    near = nearest(key, [*bare, *fields.sections()])
    advice = hint(bare.get(near, near) if near else None, "laptime train CONFIG --explain lists all keys")
    raise ConfigError(f"{option} {plain(key)}: there is no such key; {advice}")


def text_of(key: str, text: str) -> Any:
    """Text under a key, as far as it can be told without a value's type: an option, a list, or text.

    In a list with a comma nothing else parts: not the blank in `cats and dogs, plain`, nor the x in `1,x`.
    """
    if key == fields.OPTIONS or key.startswith(f"{fields.OPTIONS}."):
        return literal(text)
    if "," not in text or text.startswith("[") or not fields.takes_several(key):
        return text
    return [part.strip() for part in text.split(",") if part.strip()]


def literal(text: str) -> Any:
    """Text as TOML reads it, `true` and `64` and `[1, 2]`; else the text."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):
        return text


def fit(value: Any, takes: fields.Takes) -> Any:
    """The value in the field's type. What does not fit is left as it is, for the schema to refuse.

    Text that reads as a number becomes one: XML and the command line have nothing but text, and YAML takes
    `1e-3` for text.
    """
    if takes.optional and (value is None or (isinstance(value, str) and value.lower() in ("none", "null"))):
        return None
    if takes.type is dict:
        return value
    if takes.several:
        items = _split(value, takes.type) if isinstance(value, str) else value
        each = replace(takes, several=False, optional=False)
        return tuple(fit(item, each) for item in items) if isinstance(items, list | tuple) else value
    if isinstance(value, str):
        return _from_text(value, takes.type)
    if takes.type is int and isinstance(value, float) and value.is_integer():
        return int(value)
    # A folder called 2019, a depth of 2: TOML and YAML make numbers of them.
    if takes.type is str and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        return str(value)
    return value


def _from_text(text: str, kind: Any) -> Any:
    if kind is bool:
        return _BOOLEANS.get(text.strip().lower(), text)
    if kind is Path:
        return Path(text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            number = literal(text)  # 1e3 is a whole number, too
            return int(number) if isinstance(number, float) and number.is_integer() else text
    return text


def _split(text: str, kind: Any) -> list[str]:
    """`3x224x224`, `a, b`, `a b` and `["a", "b"]` are lists."""
    text = text.strip()
    if text.startswith("["):
        items = literal(text)
        return list(map(str, items)) if isinstance(items, list) else [text]
    return (text.replace("x", " ") if kind is int else text).replace(",", " ").split()


def written(value: Any) -> str:
    """A value as a configuration file has it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {written(inner)}' for key, inner in value.items())}}}"
    return f"{value:g}" if isinstance(value, float) else str(value)
