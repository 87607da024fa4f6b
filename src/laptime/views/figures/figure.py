"""A figure as plain data: what Plotly draws, its title and what it says. It has no colours of a page."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from laptime.files.text import one_line

Trace = dict[str, Any]
_LONGEST = 34  # letters of a name on an axis; its whole length is in the hover text


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One line of a figure's selector: the traces that are drawn when it is chosen, and changes of layout."""

    name: str
    shows: Sequence[int]
    layout: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Something to look at. `name` is unique in a page; `caption` says what is shown and how it is known."""

    name: str
    title: str
    caption: str
    traces: Sequence[Trace]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 340
    choices: Sequence[Choice] = ()
    asks: str = ""  # what the selector is of: "layer"

    def document(self) -> dict[str, Any]:
        """The figure as JSON for the page's script."""
        shown = set(self.choices[0].shows) if self.choices else set(range(len(self.traces)))
        first = dict(self.choices[0].layout) if self.choices else {}
        return {
            "data": [
                {**trace, "visible": place in shown} if self.choices else trace
                for place, trace in enumerate(self.traces)
            ],
            "layout": {**self.layout, **first, "height": self.height},
            "choices": [
                {"name": choice.name, "shows": list(choice.shows), "layout": dict(choice.layout)}
                for choice in self.choices
            ],
            "asks": self.asks,
        }


def packed(values: Any, dtype: str = "f4") -> dict[str, str]:
    """Numbers as Plotly's typed arrays: a third of what they take as decimal text."""
    array = np.ascontiguousarray(np.asarray(values, dtype=dtype))
    return {"dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode()}


def label(name: str) -> str:
    """A name as Plotly shows it letter by letter: what looks like markup or a template stays text."""
    return _letters(one_line(name))


def short(name: str, longest: int = _LONGEST) -> str:
    """A name shortened for an axis. The end is kept: it is more specific than the beginning."""
    text = one_line(name)
    return _letters(text if len(text) <= longest else "…" + text[1 - longest :])


def _letters(text: str) -> str:
    """Plotly reads a few tags, entities, and %{…} in the name of a trace."""
    return html.escape(text, quote=False).replace("%{", "%&#123;")


def apart(names: Sequence[str]) -> list[str]:
    """Shortened names for an axis or a legend; equal ones are numbered."""
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        text = short(name)
        seen[text] = seen.get(text, 0) + 1
        labels.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return labels


def milliseconds(values: Any) -> list[float | None]:
    """Seconds as milliseconds of four digits; None where unknown."""
    return [None if value is None or np.isnan(value) else float(f"{value * 1e3:.4g}") for value in values]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title."""
    return {"title": {"text": title}, **more}


def interval_dots(names: Sequence[str], values: Any, low: Any, high: Any, write: Any, **more: Any) -> Trace:
    """A dot for each name with its interval; `write` makes the numbers of a figure from arrays."""
    reach = {"array": write(np.maximum(high - values, 0)), "arrayminus": write(np.maximum(values - low, 0))}
    bars = {"type": "data", "symmetric": False, "thickness": 1.4, **reach}
    dots = {"type": "scatter", "mode": "markers", "y": names, "x": write(values), "error_x": bars}
    return {**dots, **more}
