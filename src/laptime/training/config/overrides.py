"""Settings: `train.batch=64` or just `batch=64`, from the command line or a sweep."""

from __future__ import annotations

from typing import Any

from laptime.errors import ConfigError
from laptime.training.config import fields
from laptime.training.config.problems import nearest, plain


def read_setting(text: str, option: str = "--set") -> tuple[str, Any]:
    """The full key and the value of `key=value`. The schema makes a number of the text where it wants one."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"{option} {plain(text)} is not key=value, such as train.batch=64")
    full = full_key(key.strip(), option)
    free = full == fields.OPTIONS or full.startswith(f"{fields.OPTIONS}.")
    return full, fields.literal(value.strip()) if free else listed(full, value.strip())


def listed(key: str, text: str) -> str | list[str]:
    """The parts of a text between its commas, under a key that takes a list.

    Where there is a comma nothing else parts: not the blank in `cats and dogs, plain`, nor the x in `1,x`.
    """
    if "," not in text or text.startswith("[") or not fields.takes_several(key):
        return text
    return [part.strip() for part in text.split(",") if part.strip()]


def full_key(key: str, option: str = "--set") -> str:
    """The key with its section. A bare one stands for the only field so named; `.name` is the run's own."""
    if key in fields.sections() or "." in key:
        return key.removeprefix(".") if key == ".name" else key
    found = [one for one in fields.names() if one.rpartition(".")[2] == key]
    if len(found) > 1:
        full = [f".{one}" if "." not in one else one for one in found]
        raise ConfigError(
            f"{option} {key} could be {', '.join(full[:-1])} or {full[-1]}; write one of them in full"
        )
    if found:
        return found[0]
    bare = {one.rpartition(".")[2]: one for one in fields.names()}
    near = nearest(key, [*bare, *fields.sections()])
    hint = (
        f"did you mean {bare.get(near, near)}?" if near else "laptime train CONFIG --explain lists all keys"
    )
    raise ConfigError(f"{option} {plain(key)}: there is no such key; {hint}")
