"""A figure as plain data: what Plotly draws, its title and what it says. It has no colours of a page.

Traces, axes and layouts are as Plotly takes them.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from laptime.files.text import one_line
from laptime.views import palette
from laptime.views.format import distinct
from laptime.views.step_bins import Column, Digest, Rows

Trace = dict[str, Any]
NAMES_AXIS = {"autorange": "reversed", "automargin": True, "type": "category"}
_LONGEST = 34  # letters of a name on an axis; its whole length is in the hover text


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One line of a figure's selector: the traces that are drawn when it is chosen, and changes of layout."""

    name: str
    shows: Sequence[int]
    layout: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Something to look at. `name` is unique in a page; `caption` says what is shown and how it is known.

    One without traces is not shown.
    """

    name: str
    title: str
    caption: str
    traces: Sequence[Trace]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 340
    choices: Sequence[Choice] = ()
    asks: str = ""  # what the selector is of: "layer"

    def __bool__(self) -> bool:
        return bool(self.traces)

    def document(self) -> dict[str, Any]:
        """The figure as JSON for the page's script."""
        traces, layout = self.traces, {**self.layout, "height": self.height}
        if self.choices:
            first = self.choices[0]
            layout |= first.layout
            traces = [{**trace, "visible": place in first.shows} for place, trace in enumerate(traces)]
        choices = [
            {"name": choice.name, "shows": list(choice.shows), "layout": dict(choice.layout)}
            for choice in self.choices
        ]
        return {"data": traces, "layout": layout, "choices": choices, "asks": self.asks}


def packed(values: Any, dtype: str = "f4") -> dict[str, str]:
    """Numbers as Plotly's typed arrays: a third of what they take as decimal text."""
    array = np.ascontiguousarray(np.asarray(values, dtype=dtype))
    return {"dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode()}


def milliseconds(values: Any) -> list[float | None]:
    """Seconds as milliseconds of four digits; None where unknown."""
    return [None if value is None or np.isnan(value) else float(f"{value * 1e3:.4g}") for value in values]


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
    return distinct([short(name) for name in names])


def largest_of(shown: int, every: int) -> str:
    """What a caption says where only the largest are drawn."""
    return f" The {shown} largest of {every}." if every > shown else ""


# -- traces ----------------------------------------------------------------------------------------


def scatter(name: str, hover: str, mode: str = "lines", /, **more: Any) -> Trace:
    """A line or dots: `x`, `y`, `line`, `marker` are Plotly's."""
    return {"type": "scatter", "mode": mode, "name": name, "hovertemplate": hover, **more}


def bars(name: str, names: Sequence[str], values: Any, colour: str, hover: str, **more: Any) -> Trace:
    """A horizontal bar for each of `names`; the trace's own name stands beside the hover text."""
    hover += f"<extra>{name}</extra>"
    ends = {"y": names, "x": values, "marker": {"color": colour}, "hovertemplate": hover}
    return {"type": "bar", "orientation": "h", "name": name, **ends, **more}


def box(name: str, where: str, seconds: Column, colour: str) -> Trace:
    """A horizontal box in milliseconds: the middle half, whiskers from the 5th to the 95th percentile."""
    shares = {"lowerfence": 0.05, "q1": 0.25, "median": 0.5, "q3": 0.75, "upperfence": 0.95}
    shape: Trace = {key: [float(np.quantile(seconds, share)) * 1e3] for key, share in shares.items()}
    shape |= {"name": name, "y": [where], "marker": {"color": colour}}
    return {"type": "box", "orientation": "h", **shape}


def interval_dots(names: Sequence[str], ends: Any, write: Any, **more: Any) -> Trace:
    """A dot for each name, at the first of its `ends`, with its interval between the other two.

    `write` makes the numbers of a figure from arrays.
    """
    values, low, high = np.asarray(ends).T
    reach = {"array": write(np.maximum(high - values, 0)), "arrayminus": write(np.maximum(values - low, 0))}
    errors = {"type": "data", "symmetric": False, "thickness": 1.4, **reach}
    dots = {"type": "scatter", "mode": "markers", "y": names, "x": write(values), "error_x": errors}
    return {**dots, **more}


def line(rows: Rows, values: Column, scale: str = "step") -> Trace:
    """A line's `x` and `y`, broken where steps of the other stage lie between two points."""
    gaps = np.flatnonzero(rows["after_gap"])
    return {
        "x": packed(np.insert(rows[scale].astype(float), gaps, rows[scale][gaps])),
        "y": packed(np.insert(np.asarray(values, dtype=float), gaps, np.nan)),
    }


# -- axes ------------------------------------------------------------------------------------------


def layout(xaxis: Mapping[str, Any], yaxis: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The axes of a figure, and what else Plotly is to know of it."""
    return {"xaxis": xaxis, "yaxis": yaxis, **more}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title."""
    return {"title": {"text": title}, **more}


def step_axis(digest: Digest) -> dict[str, Any]:
    """Steps in the order they were taken: those of a validation have numbers too."""
    both = all(len(rows["step"]) for rows in digest.steps.values())
    return axis("step, validation counted too" if both else "step")


def usual_top(seconds: Column) -> float:
    """The upper end of an axis in ms, without warm-up and single slow steps: a double click shows all."""
    values = np.asarray(seconds) * 1e3
    return float(min(values.max(), 2.5 * np.quantile(values, 0.9)))


def vertical(at: float, until: float | None = None, **more: Any) -> dict[str, Any]:
    """A line, or the area between two places, over the whole height of a figure."""
    kind = "line" if until is None else "rect"
    ends = {"x0": at, "x1": at if until is None else until, "y0": 0, "y1": 1}
    return {"type": kind, "yref": "paper", **ends, **more}


def baseline(at: float, colour: str | None = None, **more: Any) -> dict[str, Any]:
    """A line behind the dots that they are compared with."""
    return vertical(at, layer="below", line={"color": colour or palette.colour("host"), "width": 1.5, **more})
