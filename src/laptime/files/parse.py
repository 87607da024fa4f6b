"""JSON, TOML, YAML and XML from text that others wrote, limited in depth and items, and as typed values.

Everything that is not as it should be raises ValueError, whatever the parser would have raised.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from laptime.files.text import one_line

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

DEEPEST = 64  # levels; what is written here has at most ten
MOST_ITEMS = 4_000_000  # in one document: about 400 MB of Python values
WHOLE = 2**63  # whole numbers below it fit every table
LARGEST = 1e100  # no time, count or price; sums and products of these stay finite

T = TypeVar("T")
Read = Callable[[Any], Any]

_DIGITS = 19
_WORD = r"""(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[^\s"'.=,#\[\]{}]++)"""
# tomllib keeps every prefix of a dotted key: 40,000 dots take 6 GB.
_DOTTED = re.compile(rf"(?<![^\s=,\[\]{{}}]){_WORD}(?:[ \t]*+\.[ \t]*+{_WORD}){{{DEEPEST}}}")
_BRACKETS = re.compile(r"[\[{]|([\]}])")


def parse_json(data: bytes | str) -> Any:
    """A document. NaN, 1e999 and whole numbers from 2^63 on are null: no value of ours is one of them."""
    text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    if text.count(",") + text.count("[") + text.count("{") > MOST_ITEMS:
        raise ValueError(f"it holds more than {MOST_ITEMS:,} items")
    return _within_limits(lambda: decoder().decode(text))


@cache
def decoder() -> json.JSONDecoder:
    """What `parse_json` reads with, for those that read a long document piece by piece."""
    return json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=lambda _: None)


def _whole(text: str) -> int | None:
    return value if len(text) <= _DIGITS + 1 and abs(value := int(text)) < WHOLE else None


def _finite(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


def parse_toml(data: bytes | str) -> dict[str, Any]:
    """The tables of a TOML file."""
    text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    if _DOTTED.search(text):
        raise ValueError(_TOO_DEEP)
    tables: dict[str, Any] = _within_limits(lambda: tomllib.loads(text))
    return tables


def parse_yaml(data: bytes) -> Any:
    """A YAML document, without aliases, which can explode, and without keys given twice."""
    import yaml

    text = data.decode("utf-8-sig")
    depth = 0
    for bracket in _BRACKETS.finditer(text):  # the scanner's time grows with the square of its depth
        depth = max(0, depth - 1) if bracket[1] else depth + 1
        if depth > 10 * DEEPEST:  # ten times, since brackets in words count too
            raise ValueError(_TOO_DEEP)
    try:
        return _within_limits(lambda: yaml.load(text, Loader=_yaml_loader()))
    except yaml.MarkedYAMLError as error:
        where = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise ValueError(" ".join((error.problem or "it is not YAML").split()) + where) from None
    except Exception as error:  # the loader raises many types on invalid YAML
        raise ValueError(str(error) or "it is not YAML") from None


def parse_xml(data: bytes) -> Element:
    """The outermost element. Document types are refused, and with them entities."""
    from xml.etree.ElementTree import ParseError

    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    try:
        root: Element = _within_limits(lambda: fromstring(data, forbid_dtd=True))
    except DefusedXmlException:
        raise ValueError(
            "it has a <!DOCTYPE …>, which can define entities, and they are not taken; leave it out and "
            "write the values themselves"
        ) from None
    except (ParseError, LookupError) as error:
        raise ValueError(str(error)) from None
    return root


# -- limits ----------------------------------------------------------------------------------------

_TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"


def _within_limits(parse: Callable[[], Any]) -> Any:
    """What `parse` gives, unless it is too deep or holds a whole number that no table takes."""
    try:
        tree = parse()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [tree]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, int) and not -WHOLE <= value < WHOLE:
                raise ValueError(f"it holds a number of {value.bit_length()} bits")
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list) or hasattr(value, "iterfind"):  # which XML elements have
                inner += value
        level = inner
    if level:
        raise ValueError(_TOO_DEEP)
    return tree


@cache
def _yaml_loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML without aliases and duplicate keys."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]
                problem = f"the alias *{event.anchor} is not taken; write its value out"
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        problem = f"{key.value} is given twice; leave one out"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    def whole(loader: Any, node: Any) -> Any:
        if len(node.value) > 10 * _DIGITS:  # 1:1:1:… is a number to YAML, in base 60
            raise ValueError(f"it holds a number of {len(node.value)} digits")
        return loader.construct_yaml_int(node)

    Loader.add_constructor("tag:yaml.org,2002:int", whole)
    return Loader


# -- typed values ----------------------------------------------------------------------------------


def build(kind: type[T], document: Any) -> T:
    """The dataclass `kind` from an object; keys that it does not have are passed over.

    An int is a count: whole, not negative, below 2^63. A float is any finite number.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"{kind.__name__} is {_shown(document)}, not an object")
    given: dict[str, Any] = {}
    for name, read, needed in _fields(cast(Any, kind)):
        if name in document:
            try:
                given[name] = read(document[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        elif needed:
            raise ValueError(f"{name} is missing")
    return kind(**given)


@cache
def _fields(kind: type) -> list[tuple[str, Read, bool]]:
    """The name and the reader of each field, and whether it must be given."""
    hints = get_type_hints(kind)
    needed = {
        field.name: field.default is MISSING and field.default_factory is MISSING
        for field in fields(kind)
        if field.init
    }
    return [(name, _reader(hints[name]), must) for name, must in needed.items()]


def _reader(hint: Any) -> Read:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin in (Union, UnionType):
        return _either(inner)
    if origin is Literal:
        return _literal(inner)
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        read = _tuple(tuple(get_type_hints(hint).values()))
        return lambda value: hint(*read(value))
    if origin is tuple:
        return _tuple(inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys, values = map(_reader, inner)
        return lambda value: {keys(key): values(item) for key, item in mapping(value).items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if is_dataclass(hint) and isinstance(hint, type):
        return lambda value: value if isinstance(value, hint) else build(hint, value)
    raise TypeError(f"no reader for {hint}")


def _tuple(inner: tuple[Any, ...]) -> Read:
    readers = [_reader(hint) for hint in inner if hint is not Ellipsis]

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or (Ellipsis not in inner and len(value) != len(readers)):
            raise ValueError(f"{_shown(value)} is no list of the right length")
        each = readers * len(value) if Ellipsis in inner else readers
        return tuple(reader(item) for reader, item in zip(each, value, strict=True))

    return read


def _either(kinds: tuple[Any, ...]) -> Read:
    readers = [_reader(kind) for kind in kinds if kind is not NoneType]

    def read(value: Any) -> Any:
        if value is None and NoneType in kinds:
            return None
        for reader in readers[:-1]:
            with suppress(ValueError):
                return reader(value)
        return readers[-1](value)

    return read


def _literal(known: tuple[Any, ...]) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"{_shown(value)} is none of {', '.join(map(str, known))}")
        return value

    return read


def _instance(kind: Any, otherwise: str) -> Callable[[Any], Any]:
    """A reader of values of one kind; `otherwise` says what another value is."""

    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"{_shown(value)} {otherwise}")
        return value

    return read


mapping: Callable[[Any], Mapping[Any, Any]] = _instance(Mapping, "is no object")
sequence: Callable[[Any], list[Any]] = _instance(list, "is no list")
text: Callable[[Any], str] = _instance(str, "is no text")
_truth = _instance(bool, "is neither true nor false")


def count(value: Any) -> int:
    """A whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < WHOLE:
        raise ValueError(f"{_shown(value)} is no count")
    return value


def number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        raise ValueError(f"{_shown(value)} is no number")
    if math.isnan(value):
        raise ValueError("it is not a number")
    return value


def _shown(value: Any) -> str:
    shown = one_line(repr(value) if isinstance(value, str | float | bool) else type(value).__name__)
    return shown if len(shown) <= 60 else shown[:59] + "…"


_SIMPLE: dict[Any, Read] = {int: count, float: number, str: text, bool: _truth, Any: lambda value: value}
