"""XML, in two spellings: ours, nested like the schema, and the words of the thesis, which stand alone."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from laptime.files.parse import parse_xml
from laptime.training.config.fields import OPTIONS, literal, sections, takes_several
from laptime.training.config.overrides import listed

ROOTS = ("laptime", "experiment", "configuration", "config", "parameters")

REPETITIONS = "repetitions"
"""No key of a training but of an experiment: what `--repeat` says."""

THESIS = {
    "data_location": "data.path",
    "dataset_location": "data.path",
    "location_of_data_set": "data.path",
    "remote_data_location": "data.remote",
    "remote_location": "data.remote",
    "remote_location_of_data_set": "data.remote",
    "architecture": "network.name",
    "architecture_type": "network.name",
    "arch": "network.name",
    "model": "network.name",
    "batch_size": "train.batch",
    "classes": "data.classes",
    "classes_to_use": "data.classes",
    "imagenet_classes": "data.classes",
    "imagenet_classes_to_use": "data.classes",
    "epochs": "train.epochs",
    "number_of_epochs": "train.epochs",
    "learning_rate": "optimizer.lr",
    "logging": "record.profile",
    "logging_flag": "record.profile",
    "profiling": "record.profile",
    "topn": "validation.topn",
    "repetitions": REPETITIONS,
    "repetition_number": REPETITIONS,
    "number_of_repetitions": REPETITIONS,
}
"""What the thesis says its file held ("location of data set, remote location of data set, architecture type,
batch size, ImageNet classes to use, logging flag etc."), and our key for each. It does not print the file, so
its words are taken in any usual spelling: `batch_size`, `batchSize`, `batch-size`."""

_THESIS = {word.replace("_", ""): key for word, key in THESIS.items()}


def from_xml(data: bytes) -> dict[str, Any]:
    """The document as a tree of tables and text. Entities and document types are refused."""
    root = parse_xml(data)
    if _plain(root.tag) not in ROOTS:
        raise ValueError(f"its outermost element is <{root.tag[:60]}>; put everything inside <laptime>")
    tree = _table(root, "")
    if isinstance(tree.get("network.name"), str):
        tree["network.name"] = _plain(tree["network.name"])  # VGG-11 is vgg11
    data = tree.get("data", {})
    if (
        {"data.path", "data.remote", "data.classes"} & set(tree)
        and isinstance(data, dict)
        and "kind" not in data
    ):
        tree["data.kind"] = "folder"  # the thesis trained on nothing else
    return tree


def _table(element: Element, path: str) -> dict[str, Any]:
    """Attributes and elements alike are keys."""
    table: dict[str, Any] = {}
    inner: list[tuple[str, Element | str]] = [*element.attrib.items()]
    for name, inside in [*inner, *((one.tag, one) for one in element)]:
        key = _key(name, path)
        if key in table:
            raise ValueError(f"<{name[:60]}> is given twice; leave one out")
        table[key] = _value(inside, f"{path}.{key}".lstrip("."))
    return table


def _key(name: str, path: str) -> str:
    if not path and name not in sections() and _plain(name) in _THESIS:
        return _THESIS[_plain(name)]
    return name.replace("-", "_")


def _value(inside: Element | str, path: str) -> Any:
    """Text, a list of items, or a table."""
    text = (inside if isinstance(inside, str) else inside.text or "").strip()
    if isinstance(inside, str) or not (len(inside) or inside.attrib):
        return literal(text) if path.startswith(f"{OPTIONS}.") else listed(path, text)
    if takes_several(path):
        return [(item.text or "").strip() for item in inside]
    if text:
        raise ValueError(f"<{inside.tag[:60]}> holds both text and elements; keep one of them")
    return _table(inside, path)


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "").replace("-", "").replace(" ", "")
