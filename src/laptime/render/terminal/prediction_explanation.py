"""An explanation as tables: where the time goes, and every constant with the number of its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laptime.estimate.explain import Explanation
from laptime.model.constants import Constant
from laptime.render.terminal.columns import Column, paragraph, wrapped

_KINDS = 12  # that are shown of a step


def explanation_lines(one: Explanation, width: int) -> list[Any]:
    """Where the time goes, then every constant with the number of its source."""
    kinds = one.kinds[:_KINDS]
    made: list[Any] = ["", "Where the device's time goes"]
    made += wrapped(
        [
            Column(title="operations", cells=[f"{kind.kind} ({kind.phase})" for kind in kinds], words=True),
            Column(title="count", cells=[str(kind.count) for kind in kinds]),
            Column(title="ms", cells=[f"{kind.seconds * 1e3:,.3f}" for kind in kinds]),
            Column(title="share", cells=[f"{kind.share:.1%}" for kind in kinds]),
            Column(title="of roofline", cells=[f"{kind.of_bound:.0%}" for kind in kinds]),
        ],
        width,
        give=[0],
    )
    rest = one.kinds[_KINDS:]
    if rest:
        made.append(f"  {len(rest)} more kinds: {sum(kind.share for kind in rest):.1%}")
    sources = {source: f"[{place}]" for place, source in enumerate(_sources(one.constants), 1)}
    made += ["", "Constants"]
    made += wrapped(
        [
            Column(title="constant", cells=[constant.name for constant in one.constants], words=True),
            Column(title="value", cells=[_value(constant.value) for constant in one.constants]),
            Column(title="unit", cells=[constant.unit for constant in one.constants], words=True),
            Column(title="from", cells=[sources[one.source] for one in one.constants], words=True),
        ],
        width,
        give=[2, 1, 0],
    )
    return [*made, "", *(line for source, mark in sources.items() for line in _source(source, mark, width))]


def _source(source: str, mark: str, width: int) -> list[Any]:
    return list(paragraph(source, width, bullet=f"{mark:<5}"))


def _sources(constants: Sequence[Constant]) -> list[str]:
    return list(dict.fromkeys(constant.source for constant in constants))


def _value(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
