"""Several runs side by side: step times, breakdowns and layers; and layers measured and predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from laptime.files.text import one_line
from laptime.model import ACCOUNTS, Stage
from laptime.model.comparison import Comparison, block_medians
from laptime.model.prediction import PredictedTime
from laptime.model.statistics import CONFIDENCE
from laptime.runs.select import Samples
from laptime.views import palette
from laptime.views.comparison.several import SeveralRuns
from laptime.views.comparison.sides import LayerComparison, ProfilingCost, largest_layers
from laptime.views.figures.figure import (
    NAMES_AXIS,
    Choice,
    Figure,
    Trace,
    apart,
    axis,
    bars,
    baseline,
    box,
    interval_dots,
    label,
    largest_of,
    layout,
    milliseconds,
    packed,
    scatter,
    step_axis,
)
from laptime.views.figures.steps import frame
from laptime.views.format import step_of
from laptime.views.run_view import RunView
from laptime.views.step_bins import Digest, of

_FROM_ZERO = axis("ms", rangemode="tozero")
_MOST_BARS = 20
_MOST_ROWS = 40
_MOST_SIDES = 6  # runs with bars beside each other; more are told by the ratios alone
_HIGHEST = 20.0  # a ratio beyond it is drawn at the frame
_FURTHEST = 200.0  # % that an error is drawn at where it is larger

# -- steps -----------------------------------------------------------------------------------------


def _shown(view: SeveralRuns) -> list[tuple[int, str, Samples]]:
    """Runs that have steps: their place, which gives their colour, their name and their seconds by step."""
    names = apart([run.name for run in view.runs])
    walls = [run.wall_s(view.stage) for run in view.runs]
    return [(place, names[place], wall) for place, wall in enumerate(walls) if wall.size]


def step_intervals(view: SeveralRuns, noun: str) -> Figure | None:
    """A dot for each run with the interval of its median; a line through the first, which is the baseline."""
    shown = _shown(view)
    if not shown:
        return None
    shares = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    # Drawn in blocks, since neighbouring steps are alike.
    drawn = [block_medians(wall, np.random.default_rng(0)) for _, _, wall in shown]
    ends = [
        (np.median(wall), *np.quantile(resampled, shares))
        for (_, _, wall), resampled in zip(shown, drawn, strict=True)
    ]
    trace = interval_dots(
        [name for _, name, _ in shown],
        ends,
        milliseconds,
        marker={"color": [palette.nth_colour(place) for place, _, _ in shown], "size": 11},
        customdata=[[label(view.runs[place].name), wall.size] for place, _, wall in shown],
        hovertemplate="%{customdata[0]}: %{x} ms, %{customdata[1]:,} steps<extra></extra>",
    )
    first = shown[0][0] == 0
    line = baseline(float(ends[0][0]) * 1e3, palette.nth_colour(0), dash="dot")
    return Figure(
        name="step-intervals",
        title=f"A {step_of(noun)} of each run",
        caption="Median with its 95 % interval over steps"
        + ("; the dotted line is the baseline." if first else ".")
        + " Runs of the same code differ by more than such an interval.",
        traces=[trace],
        layout=layout(_FROM_ZERO, NAMES_AXIS, showlegend=False, shapes=[line] if first else []),
        height=130 + 30 * max(2, len(shown)),
    )


def spreads(view: SeveralRuns) -> Figure:
    """A box for each run: the middle half of its steps, and whiskers from the 5th to the 95th percentile."""
    traces = [box(name, name, wall, palette.nth_colour(place)) for place, name, wall in _shown(view)]
    return Figure(
        name="spreads",
        title="Spread of step times",
        caption="The box is the middle half of a run's steps with their median, the whiskers reach from the "
        "5th to the 95th percentile. The first step and traced steps are left out.",
        traces=traces,
        layout=layout(_FROM_ZERO, NAMES_AXIS, showlegend=False),
        height=130 + 34 * max(2, len(traces)),
    )


def breakdowns(view: SeveralRuns) -> Figure:
    """The accounts of each run's step, stacked: in milliseconds, or in shares of the step."""
    names = apart([run.name for run in view.runs])
    accounts = [run.account_s(view.stage) for run in view.runs]
    means = {name: mine for name, mine in zip(names, accounts, strict=True) if mine}
    traces: list[Trace] = []
    wholes = np.array([sum(mine.values()) or 1.0 for mine in means.values()])
    for account in ACCOUNTS:
        seconds = np.array([mine.get(account, 0.0) for mine in means.values()])
        if not seconds.any():
            continue
        for unit, values in (("ms", seconds * 1e3), ("%", seconds / wholes * 100)):
            rounded = [float(f"{value:.4g}") for value in values]
            hover = "%{y}: %{x:.4g} " + unit
            traces.append(bars(account.value, list(means), rounded, palette.colour(account.value), hover))
    ms, shares = range(0, len(traces), 2), range(1, len(traces), 2)
    return Figure(
        name="books",
        title="Step breakdowns side by side",
        caption="Mean milliseconds of every account in a step; they add up to the wall time.",
        traces=traces,
        layout={"barmode": "stack", "yaxis": NAMES_AXIS, "legend": {"traceorder": "normal"}},
        height=150 + 34 * max(2, len(means)),
        choices=[
            Choice(name="milliseconds", shows=ms, layout={"xaxis": axis("ms")}),
            Choice(name="shares of the step", shows=shares, layout={"xaxis": axis("% of the step")}),
        ],
        asks="in",
    )


def step_times(digests: Mapping[str, Digest], stage: Stage) -> Figure:
    """The step time over the training, a line for each run: the median of neighbouring steps."""
    traces: list[Trace] = []
    highest = [0.0]
    for place, (name, digest) in enumerate(zip(apart([*digests]), digests.values(), strict=True)):
        rows = digest.steps[stage]
        if not len(rows["step"]):
            continue
        rows = of(rows, rank=rows["rank"].min())
        reach = frame(rows).get("range")
        highest.append(reach[1] if reach else float(np.nanmax(rows["median_s"])) * 1.15e3)
        ends = {"x": packed(rows["step"]), "y": packed(rows["median_s"] * 1e3)}
        shape = {"color": palette.nth_colour(place), "width": 1.5}
        mode = "lines" if len(rows["step"]) > 1 else "markers"
        traces.append(scatter(name, "step %{x}: %{y:,.4~r} ms", mode, line=shape, **ends))
    # One run with validation is enough to say so.
    xaxis = max(map(step_axis, digests.values()), key=lambda each: len(each["title"]["text"]))
    return Figure(
        name="step-times",
        title="Step time over the training",
        caption="Median of neighbouring steps, of the lowest rank. A double click shows what reaches out of "
        "the frame, such as first steps.",
        traces=traces,
        layout=layout(xaxis, axis("ms", range=[0, max(highest) or 1.0]), hovermode="closest"),
    )


def profiling_cost(cost: ProfilingCost, names: Sequence[str]) -> Figure:
    """A step with the profiler and one without, and what it adds. `names` are those of A and B."""
    sides = list(names) if cost.profiled == "b" else list(reversed(names))  # without profiling, with it
    added = f"{cost.slowdown * 100:+.1f} %"
    return Figure(
        name="profiling-cost",
        title="With and without profiling",
        caption=f"Median step: {added} with profiling.",
        traces=[
            {
                "type": "bar",
                "orientation": "h",
                "y": ["without profiling", "with profiling"],
                "x": milliseconds([cost.times.a, cost.times.b]),
                "text": ["", added],
                "textposition": "auto",
                "customdata": [label(name) for name in sides],
                "marker": {"color": [palette.colour("host"), palette.colour("instrument")]},
                "hovertemplate": "%{customdata}: %{x} ms<extra></extra>",
            }
        ],
        layout=layout(_FROM_ZERO, NAMES_AXIS, showlegend=False),
        height=210,
    )


# -- layers ----------------------------------------------------------------------------------------


def layers_beside(runs: Sequence[RunView], stage: Stage, unit: str) -> Figure:
    """The largest layers of all runs, a bar for each run; a layer that a run lacks has none."""
    times = [run.layer_s(stage) for run in runs[:_MOST_SIDES]]
    names = _largest(times, _MOST_BARS)
    labels = apart([run.name for run in runs])
    sides = {labels[place]: [mine.get(name) for name in names] for place, mine in enumerate(times)}
    caption = f"Mean milliseconds of a {unit} in a step, all phases together."
    caption += largest_of(len(names), len(set().union(*times)))
    caption += f" The first {_MOST_SIDES} of {len(runs)} runs." if len(runs) > _MOST_SIDES else ""
    colours = [palette.nth_colour(place) for place in range(len(times))]
    return _beside("layers", f"{unit.capitalize()}s side by side", caption, names, sides, colours)


def predicted_layers_beside(layers: Sequence[LayerComparison[PredictedTime]]) -> Figure:
    """Each layer measured and predicted."""
    timed = [row for row in layers if row.total.largest]
    shown = largest_layers(timed, _MOST_ROWS)
    sides = {
        "measured": [row.total.measured for row in shown],
        "predicted": [row.total.predicted for row in shown],
    }
    caption = "Milliseconds of each layer in a step, all phases together, in the order of the network."
    caption += largest_of(len(shown), len(timed))
    colours = [palette.colour("host"), palette.colour("forward")]
    names = [row.layer for row in shown]
    return _beside("measured-predicted", "Layers, measured and predicted", caption, names, sides, colours)


def _beside(
    name: str,
    title: str,
    caption: str,
    layers: Sequence[str],
    sides: Mapping[str, Sequence[float | None]],
    colours: Sequence[str],
) -> Figure:
    """Bars of each layer, one for each of the sides."""
    whole = [label(layer) for layer in layers]
    traces = [
        bars(side, apart(layers), milliseconds(seconds), colour, "%{customdata}: %{x} ms", customdata=whole)
        for (side, seconds), colour in zip(sides.items(), colours, strict=True)
        if layers
    ]
    return Figure(
        name=name,
        title=title,
        caption=caption,
        traces=traces,
        layout=layout(axis("ms"), NAMES_AXIS, barmode="group", bargap=0.25),
        height=140 + max(4, len(layers)) * (14 + 9 * len(traces)),
    )


def layer_ratios(layers: Sequence[LayerComparison[Comparison]], unit: str) -> Figure | None:
    """B over A of each layer with its interval, coloured by verdict; the largest layers, in network order."""
    known = [row for row in layers if row.total.known]
    shown = largest_layers(known, _MOST_ROWS)
    if not shown:
        return None
    labels = apart([row.layer for row in shown])
    every = np.array([(row.total.ratio, row.total.low, row.total.high) for row in shown])
    hover = "%{customdata[0]}: %{customdata[1]} (%{customdata[2]} to %{customdata[3]})"
    traces = []
    for verdict in palette.VERDICTS:
        here = [place for place, row in enumerate(shown) if row.total.verdict == verdict]
        if not here:
            continue
        texts = [[f"{value:.3g}" for value in ends] for ends in every[here]]
        traces.append(
            interval_dots(
                [labels[place] for place in here],
                np.minimum(every[here], _HIGHEST),
                lambda values: values.round(4).tolist(),
                name=verdict,
                marker={"color": palette.colour(verdict), "size": 9},
                customdata=[
                    [label(shown[place].layer), *text] for place, text in zip(here, texts, strict=True)
                ],
                hovertemplate=f"{hover}<extra>{verdict}</extra>",
            )
        )
    ends = np.minimum(every, _HIGHEST)
    low, high = min(1.0, float(np.nanmin(ends))), max(1.0, float(np.nanmax(ends)))
    far = high / max(low, 1e-3) > 4  # a scale on which a half and a double are as far from 1
    edge = max(0.02, (high - low) * 0.06)
    reach = [np.log10(max(low, 1e-3)) - 0.05, np.log10(high) + 0.05] if far else [low - edge, high + edge]
    return Figure(
        name="layer-ratios",
        title=f"{unit.capitalize()}s of B over those of A",
        caption="Ratio of the median times with its 95 % interval: left of 1, B is faster."
        + largest_of(len(shown), len(known)),
        traces=traces,
        layout=layout(
            axis("B / A", range=reach, type="log" if far else "linear"),
            # Traces are by verdict: without its order given, the axis would be sorted by trace.
            NAMES_AXIS | {"categoryorder": "array", "categoryarray": labels},
            shapes=[baseline(1)],
        ),
        height=140 + 24 * max(3, len(shown)),
    )


def layer_errors(layers: Sequence[LayerComparison[PredictedTime]]) -> Figure | None:
    """How far each layer's prediction is off, in per cent; the larger the dot, the longer it takes."""
    shown = [
        (row.layer, row.total.measured, row.total.error * 100)
        for row in largest_layers([row for row in layers if row.total.largest], _MOST_ROWS)
        if row.total.measured and row.total.error is not None
    ]
    if not shown:
        return None
    names, measured, off = zip(*shown, strict=True)
    marker = {
        "color": [palette.colour("forward" if error < 0 else "backward") for error in off],
        "size": [round(7 + 17 * (seconds / max(measured)) ** 0.5) for seconds in measured],
        "opacity": 0.85,
    }
    return Figure(
        name="layer-errors",
        title="Error of each layer",
        caption="Predicted over measured, less one: left of 0 the layer was predicted too fast. The larger "
        "the dot, the longer the layer takes." + largest_of(len(shown), len(layers)),
        traces=[
            {
                "type": "scatter",
                "mode": "markers",
                "y": apart(names),
                "x": [round(min(error, _FURTHEST), 2) for error in off],
                "marker": marker,
                "customdata": [[label(name), f"{error:+.1f}"] for name, _, error in shown],
                "hovertemplate": "%{customdata[0]}: %{customdata[1]} %<extra></extra>",
            }
        ],
        layout=layout(axis("% off"), NAMES_AXIS, showlegend=False, shapes=[baseline(0)]),
        height=140 + 24 * max(3, len(shown)),
    )


def layer_map(runs: Sequence[RunView], stage: Stage, unit: str) -> Figure | None:
    """Every layer of every run as its ratio to the first run's: blue took less, orange more."""
    times = [run.layer_s(stage) for run in runs]
    names = [name for name in _largest(times[:1], _MOST_ROWS) if any(name in mine for mine in times[1:])]
    if not names:
        return None
    others = [place for place in range(1, len(runs)) if times[place]]
    ratios = [
        [times[place][name] / times[0][name] if name in times[place] else None for place in others]
        for name in names
    ]
    logarithms = [[round(float(np.log2(ratio)), 4) if ratio else None for ratio in row] for row in ratios]
    colours = [[0, palette.colour("forward")], [0.5, "#e8e8e8"], [1, palette.colour("backward")]]
    return Figure(
        name="layer-map",
        title=f"{unit.capitalize()}s against the baseline",
        caption=f"Mean time of each {unit} over its time in {one_line(runs[0].name)}: 2 is twice as long. "
        f"A {unit} that a run lacks is left blank. The {len(names)} largest of the baseline.",
        traces=[
            {
                "type": "heatmap",
                "x": apart([runs[place].name for place in others]),
                "y": apart(names),
                "z": logarithms,
                "text": [["" if ratio is None else f"{ratio:.3g}" for ratio in row] for row in ratios],
                "zmin": -1,
                "zmax": 1,
                "colorscale": colours,
                "colorbar": {"tickvals": [-1, 0, 1], "ticktext": ["half", "same", "double"], "thickness": 12},
                "texttemplate": "%{text}" if len(others) <= 12 else "",
                "textfont": {"color": "#1d2329"},
                "hoverongaps": False,
                "hovertemplate": "%{y}: %{text} times<extra>%{x}</extra>",
                "xgap": 2,
                "ygap": 2,
            }
        ],
        layout=layout({"type": "category", "automargin": True, "tickangle": -30}, NAMES_AXIS),
        height=170 + 24 * max(3, len(names)),
    )


def _largest(times: Sequence[Mapping[str, float]], most: int) -> list[str]:
    """Names by the most that any run spent in them."""
    longest: dict[str, float] = {}
    for mine in times:
        for name, seconds in mine.items():
            longest[name] = max(seconds, longest.get(name, 0.0))
    return sorted(longest, key=lambda name: -longest[name])[:most]
