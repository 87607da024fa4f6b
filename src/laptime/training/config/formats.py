"""TOML, YAML and XML as one kind of tree: tables, lists and values."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from laptime.errors import ConfigError
from laptime.files.text import first_line, one_line
from laptime.training.config.xml import from_xml

Tree = dict[Any, Any]


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
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply; a configuration needs three levels") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: byte {error.start} is no UTF-8; save the file as UTF-8") from None
    except Exception as error:  # parsers raise what they like at what is no text of theirs
        raise ConfigError(
            f"{path}: {_name(path)} cannot be read: {_reason(error)}; correct it there"
        ) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path}: it holds a {type(tree).__name__}; write keys and values, such as train: …"
        )
    return tree


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{one_line(path)} does not exist; {_neighbour(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{one_line(path)} is a folder; name a {_suffixes()} file in it") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else first_line(error)
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


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        where = f"line {error.problem_mark.line + 1}"
        return f"{' '.join((error.problem or 'it is not YAML').split())} ({where})"
    return first_line(error)[:200]


def _from_toml(data: bytes) -> Tree:
    return tomllib.loads(data.decode("utf-8-sig"))


class _Yaml(yaml.SafeLoader):
    """YAML without what a configuration can do without: keys given twice, and aliases, which can explode."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, f"the alias *{event.anchor} is not taken; write its value out", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"{key.value} is given twice; leave one out"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _from_yaml(data: bytes) -> Any:
    return yaml.load(data.decode("utf-8-sig"), Loader=_Yaml)


_FORMATS: dict[str, Callable[[bytes], Any]] = {
    ".toml": _from_toml,
    ".yaml": _from_yaml,
    ".yml": _from_yaml,
    ".xml": from_xml,
}
