"""TOML, YAML and XML as one kind of tree: tables, lists and values."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from laptime.errors import ConfigError
from laptime.files.parse import parse_toml, parse_yaml
from laptime.files.read import KIB, read_bytes
from laptime.files.text import first_line, one_line
from laptime.training.config.xml import from_xml

Tree = dict[Any, Any]
_MOST_BYTES = 256 * KIB  # the YAML parser takes 10 s for a MiB


def read_tree(path: Path) -> Tree:
    """The file as a tree of tables; the suffix tells its format."""
    data, where = _bytes(path), one_line(path)
    read = _FORMATS.get(path.suffix.lower())
    if read is None:
        raise ConfigError(
            f"{where}: {one_line(path.suffix) or 'no suffix'} is no known format; name it {_suffixes()}"
        )
    try:
        tree = read(data)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: byte {error.start} is no UTF-8; save the file as UTF-8") from None
    except Exception as error:  # parsers raise what they like at what is no text of theirs
        raise ConfigError(
            f"{where}: {_name(path)} cannot be read: {first_line(error)[:200]}; correct it there"
        ) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{where}: it holds a {type(tree).__name__}; write keys and values, such as train: …"
        )
    return tree


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path, most=_MOST_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"{one_line(path)} does not exist; {_neighbour(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{one_line(path)} is a folder; name a {_suffixes()} file in it") from None
    except (OSError, ValueError) as error:
        why = first_line(error)
        raise ConfigError(f"{one_line(path)[:200]} cannot be read ({why}); name another file") from None


def _neighbour(path: Path) -> str:
    folder = path.parent
    here = [one.name for one in folder.iterdir() if one.suffix.lower() in _FORMATS] if folder.is_dir() else []
    exact = [name for name in here if Path(name).stem == path.name]
    near = exact or difflib.get_close_matches(path.name, here, n=1)
    return f"did you mean {one_line(folder / near[0])}?" if near else f"name a {_suffixes()} file"


def _suffixes() -> str:
    *most, last = (suffix for suffix in _FORMATS)
    return f"{', '.join(most)} or {last}"


def _name(path: Path) -> str:
    return "YAML" if path.suffix.lower() in (".yaml", ".yml") else path.suffix[1:].upper()


_FORMATS: dict[str, Callable[[bytes], Any]] = {
    ".toml": parse_toml,
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
    ".xml": from_xml,
}
