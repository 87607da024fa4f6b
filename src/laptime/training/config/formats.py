"""TOML, YAML and XML as one kind of tree: tables, lists and values.

XML has two spellings, which may be mixed: elements nested like the schema, and the element names of the XML
format of the thesis (recipes/README.md), which stand at the top.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from laptime.errors import ConfigError
from laptime.files.parse import parse_toml, parse_xml, parse_yaml
from laptime.files.read import KIB, read_bytes
from laptime.files.text import first_line, one_line
from laptime.training.config import fields

Tree = dict[Any, Any]
_MOST_BYTES = 256 * KIB  # the YAML parser takes 10 s for a MiB
_SUFFIXES = ".toml, .yaml, .yml or .xml"


def read_tree(path: Path) -> Tree:
    """The file as a tree of tables; the suffix tells its format."""
    data, where = _bytes(path), one_line(path)
    if path.suffix.lower() not in _FORMATS:
        suffix = one_line(path.suffix) or "no suffix"
        raise ConfigError(f"{where}: {suffix} is no known format; name it {_SUFFIXES}")
    name, read = _FORMATS[path.suffix.lower()]
    try:
        tree = read(data)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: byte {error.start} is no UTF-8; save the file as UTF-8") from None
    except Exception as error:  # parsers raise errors of many classes
        reason = first_line(error)[:200]
        raise ConfigError(f"{where}: {name} cannot be read: {reason}; correct it there") from None
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
        folder = path.parent
        names = [file.name for file in (folder.iterdir() if folder.is_dir() else ())]
        here = [name for name in names if Path(name).suffix.lower() in _FORMATS]
        exact = [name for name in here if Path(name).stem == path.name]
        near = exact or difflib.get_close_matches(path.name, here, n=1)
        advice = f"did you mean {one_line(folder / near[0])}?" if near else f"name a {_SUFFIXES} file"
        raise ConfigError(f"{one_line(path)} does not exist; {advice}") from None
    except IsADirectoryError:
        raise ConfigError(f"{one_line(path)} is a folder; name a {_SUFFIXES} file in it") from None
    except (OSError, ValueError) as error:
        why = first_line(error)
        raise ConfigError(f"{one_line(path)[:200]} cannot be read ({why}); name another file") from None


# -- XML -----------------------------------------------------------------------------------------------------

_ROOTS = ("laptime", "experiment", "configuration", "config", "parameters")

REPETITIONS = "repetitions"
"""Not a key of the schema: how often an experiment is repeated, as `--repeat` says."""

_ELEMENTS = {
    "data.path": ("data_location", "dataset_location", "location_of_data_set"),
    "data.remote": ("remote_data_location", "remote_location", "remote_location_of_data_set"),
    "network.name": ("architecture", "architecture_type", "arch", "model"),
    "train.batch": ("batch_size",),
    "data.classes": ("classes", "classes_to_use", "imagenet_classes", "imagenet_classes_to_use"),
    "train.epochs": ("epochs", "number_of_epochs"),
    "optimizer.lr": ("learning_rate",),
    "record.profile": ("logging", "logging_flag", "profiling"),
    "validation.topn": ("topn",),
    REPETITIONS: ("repetitions", "repetition_number", "number_of_repetitions"),
}
# By our key, the elements of the thesis' format. It lists what its file held ("location of data set, remote
# location of data set, architecture type, batch size, ImageNet classes to use, logging flag etc.") and prints
# none, so its words are taken in any usual spelling: `batch_size`, `batchSize`, `batch-size`.


def _bare(name: str) -> str:
    return name.strip().lower().replace("_", "").replace("-", "").replace(" ", "")


_KEYS = {_bare(element): key for key, elements in _ELEMENTS.items() for element in elements}


def _from_xml(data: bytes) -> Tree:
    """The document as a tree of tables and text. Entities and document types are refused."""
    root = parse_xml(data)
    if _bare(root.tag) not in _ROOTS:
        raise ValueError(f"its outermost element is <{root.tag[:60]}>; put everything inside <laptime>")
    tree = _table(root, "")
    if isinstance(tree.get("network.name"), str):
        tree["network.name"] = _bare(tree["network.name"])  # VGG-11 is vgg11
    section = tree.get("data", {})
    images = {"data.path", "data.remote", "data.classes"} & set(tree)
    if images and isinstance(section, dict) and "kind" not in section:
        tree["data.kind"] = "folder"  # what these elements are for
    return tree


def _table(element: Element, path: str) -> Tree:
    """Attributes and elements alike are keys."""
    table: Tree = {}
    children: list[tuple[str, Element | str]] = [*element.attrib.items()]
    for name, inside in children + [(inner.tag, inner) for inner in element]:
        top = not path and name not in fields.sections()
        key = _KEYS[_bare(name)] if top and _bare(name) in _KEYS else name.replace("-", "_")
        if key in table:
            raise ValueError(f"<{name[:60]}> is given twice; leave one out")
        table[key] = _value(inside, f"{path}.{key}".lstrip("."))
    return table


def _value(inside: Element | str, path: str) -> Any:
    """Text, a list of items, or a table."""
    text = (inside if isinstance(inside, str) else inside.text or "").strip()
    if isinstance(inside, str) or not (len(inside) or inside.attrib):
        return fields.literal(text) if path.startswith(f"{fields.OPTIONS}.") else text
    if fields.takes_several(path):
        return [(item.text or "").strip() for item in inside]
    if text:
        raise ValueError(f"<{inside.tag[:60]}> holds both text and elements; keep one of them")
    return _table(inside, path)


_FORMATS: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    ".toml": ("TOML", parse_toml),
    ".yaml": ("YAML", parse_yaml),
    ".yml": ("YAML", parse_yaml),
    ".xml": ("XML", _from_xml),
}
