"""Loss and accuracy: over seconds, which is what a training costs, and over steps and epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from laptime.model import Stage
from laptime.views import palette
from laptime.views.comparison.targets import TargetComparison
from laptime.views.figures.figure import Choice, Figure, Trace, axis, label, line, packed, scatter
from laptime.views.step_bins import Digest, Rows

Learning = Mapping[Stage, Rows]

_SCALES = {"at_s": "seconds", "step": "step", "epoch": "epoch"}
_TINTS = {Stage.TRAIN: palette.colour("forward"), Stage.VALIDATION: palette.colour("backward")}
_TITLES = {"loss": "loss", "top1": "top-1", "topn": "top-n"}


def loss(learning: Learning) -> Figure:
    """The loss of neighbouring steps, and of each epoch's validation."""
    lost = sum(int(rows["not_finite"].sum()) for rows in learning.values())
    if not lost:
        return _figure("Loss", {"": learning}, ("loss",), axis("loss"))
    marker = {"color": palette.colour("unexplained"), "symbol": "x", "size": 8}
    told = (
        f" {lost} steps have a loss that is no number (NaN or infinite); they are left out, and marked below."
    )
    crosses = {}
    for scale in _SCALES:
        gone = np.concatenate([rows[scale][rows["not_finite"] > 0] for rows in learning.values()])
        ends = {"x": packed(gone), "y": packed(np.zeros(len(gone)))}
        hover = "%{x:.4g}<extra>loss is no number</extra>"
        crosses[scale] = scatter("loss is no number", hover, "markers", **ends, marker=marker)
    return _figure("Loss", {"": learning}, ("loss",), axis("loss"), crosses, told)


def accuracy(learning: Learning) -> Figure:
    """Top-1 and top-n accuracy."""
    metrics = [name for name in ("top1", "topn") if _known(learning, name)]
    yaxis = axis("accuracy", range=[0, 1.02], tickformat=".0%")
    return _figure("Accuracy", {"": learning}, metrics, yaxis)


def losses(runs: Mapping[str, Digest], target: TargetComparison | None = None) -> Figure:
    """The losses of several runs in one picture, and the loss that all of them are to reach."""
    rows = {name: digest.learning for name, digest in runs.items() if _known(digest.learning, "loss")}
    figure = _figure("Loss", rows, ("loss",), axis("loss"))
    if target is None or target.metric != "loss":
        return figure
    level = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target.value, "y1": target.value}
    shape = {**level, "line": {"color": palette.colour("unexplained"), "dash": "dash", "width": 1}}
    caption = f"{figure.caption} Dashed across: the target, {target.value:g}."
    return replace(figure, caption=caption, layout={**figure.layout, "shapes": [shape]})


def _known(learning: Learning, metric: str) -> bool:
    return not all(np.isnan(rows[metric].astype(float)).all() for rows in learning.values())


def _figure(
    title: str,
    runs: Mapping[str, Learning],
    metrics: Sequence[str],
    yaxis: Mapping[str, Any],
    crosses: Mapping[str, Trace] | None = None,
    more: str = "",
) -> Figure:
    """A curve for each run, stage, metric and scale; a scale is chosen."""
    traces: list[Trace] = []
    shows: dict[str, list[int]] = {scale: [] for scale in _SCALES}

    def add(scale: str, trace: Trace) -> None:
        shows[scale].append(len(traces))
        traces.append(trace)

    for place, (run, learning) in enumerate(runs.items()):
        for stage, mine in learning.items():
            validation = stage is Stage.VALIDATION
            for metric in metrics:
                values = mine[metric].astype(float)
                if np.isnan(values).all():
                    continue
                words = (label(run), stage.value, _TITLES[metric] if len(metrics) > 1 else "")
                dashed = validation if run else metric == "topn"
                tint = palette.nth_colour(place) if run else _TINTS[stage]
                shape = {"color": tint, "width": 1.6, "dash": "dot" if dashed else "solid"}
                mode = "lines+markers" if validation or len(values) < 3 else "lines"
                for scale in _SCALES:
                    ends = line(mine, values, scale)
                    add(scale, scatter(" ".join(filter(None, words)), "%{y:.4g}", mode, line=shape, **ends))
    for scale, trace in (crosses or {}).items():
        add(scale, trace)
    both = any(all(len(rows["step"]) for rows in learning.values()) for learning in runs.values())
    return Figure(
        name=title.lower(),
        title=f"{title} over time",
        caption="Training: mean of neighbouring steps. Validation: mean of an epoch. Seconds count from the "
        "start of the recording, validation and waiting included."
        + (" Steps are numbered through training and validation." if both else "")
        + more,
        traces=traces,
        layout={"yaxis": yaxis, "hovermode": "x unified"},
        choices=[
            Choice(name=f"over {word.rstrip('s')}s", shows=shows[scale], layout={"xaxis": axis(word)})
            for scale, word in _SCALES.items()
        ],
        asks="scale",
    )
