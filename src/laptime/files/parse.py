"""JSON, TOML, YAML and XML from text that others wrote: limited in depth and items before and after parsing.

Everything that is not as it should be raises ValueError, whatever the parser would have raised.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

DEEPEST = 64  # levels; what is written here has at most ten
MOST_ITEMS = 4_000_000  # in one document: about 400 MB of Python values
WHOLE = 2**63  # whole numbers below it fit every table

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
    value = float(text)
    return value if abs(value) != float("inf") else None


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
        root: Element = fromstring(data, forbid_dtd=True)
    except DefusedXmlException:
        raise ValueError(
            "it has a <!DOCTYPE …>, which can define entities, and they are not taken; leave it out and "
            "write the values themselves"
        ) from None
    except (ParseError, LookupError) as error:
        raise ValueError(str(error)) from None
    _check([root], list)
    return root


# -- limits ----------------------------------------------------------------------------------------

_TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"


def _within_limits(parse: Callable[[], Any]) -> Any:
    try:
        tree = parse()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check([tree], _inner)
    return tree


def _inner(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []


def _check(level: list[Any], inner: Callable[[Any], list[Any]]) -> None:
    """Raise where a tree is too deep, too large, or holds a whole number that no table takes."""
    for _ in range(DEEPEST):
        if not level:
            return
        for value in level:
            if isinstance(value, int) and not -WHOLE <= value < WHOLE:
                raise ValueError(f"it holds a number of {value.bit_length()} bits")
        level = [item for value in level for item in inner(value)]
    if level:
        raise ValueError(_TOO_DEEP)


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
