"""Loss and accuracy: over seconds, which is what a training costs, and over steps and epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from laptime.views import palette
from laptime.views.figures.figure import Choice, Figure, Trace, axis, label, packed
from laptime.views.figures.steps import line, of
from laptime.views.step_bins import Digest, Rows

_SCALES = {"at_s": "seconds", "step": "step", "epoch": "epoch"}
_TINTS = {"train": palette.colour("forward"), "validation": palette.colour("backward")}
_TITLES = {"loss": "loss", "top1": "top-1", "topn": "top-n"}


def loss(learning: Rows) -> Figure | None:
    """The loss of neighbouring steps, and of each epoch's validation."""
    if np.isnan(learning["loss"].astype(float)).all() and not learning["lost"].any():
        return None
    traces, scales = _traces({"": learning}, ("loss",))
    lost = int(learning["lost"].sum())
    gone = (
        f" {lost} steps have a loss that is no number (NaN or infinite); they are left out, and marked below."
        if lost
        else ""
    )
    for scale in _SCALES if lost else ():
        mine = {name: column[learning["lost"] > 0] for name, column in learning.items()}
        scales[scale].append(len(traces))
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "loss is no number",
                "x": packed(mine[scale]),
                "y": packed(np.zeros(len(mine[scale]))),
                "marker": {"color": palette.colour("unexplained"), "symbol": "x", "size": 8},
                "hovertemplate": "%{x:.4g}<extra>loss is no number</extra>",
            }
        )
    return _figure("loss", "Loss", traces, scales, _numbered(learning) + gone, axis("loss"))


def accuracy(learning: Rows) -> Figure | None:
    """Top-1 and top-n accuracy."""
    kept = [name for name in ("top1", "topn") if not np.isnan(learning[name].astype(float)).all()]
    if not kept:
        return None
    traces, scales = _traces({"": learning}, kept)
    yaxis = axis("accuracy", range=[0, 1.02], tickformat=".0%")
    return _figure("accuracy", "Accuracy", traces, scales, _numbered(learning), yaxis)


def losses(runs: Mapping[str, Digest]) -> Figure | None:
    """The losses of several runs in one picture."""
    rows = {
        name: digest.learning
        for name, digest in runs.items()
        if not np.isnan(digest.learning["loss"].astype(float)).all()
    }
    if not rows:
        return None
    traces, scales = _traces(rows, ("loss",))
    return _figure("loss", "Loss", traces, scales, _numbered(*rows.values()), axis("loss"))


def _numbered(*runs: Rows) -> str:
    both = any(len(np.unique(rows["stage"].astype(str))) > 1 for rows in runs)
    return " Steps are numbered through training and validation." if both else ""


def _traces(runs: Mapping[str, Rows], metrics: Sequence[str]) -> tuple[list[Trace], dict[str, list[int]]]:
    """A curve for each run, stage, metric and scale; which of them belong to which scale."""
    traces: list[Trace] = []
    scales: dict[str, list[int]] = {scale: [] for scale in _SCALES}
    for place, (run, rows) in enumerate(runs.items()):
        for stage in ("train", "validation"):
            mine = of(rows, stage=stage)
            for metric in metrics:
                values = mine[metric].astype(float)
                if not len(values) or np.isnan(values).all():
                    continue
                name = " ".join(
                    filter(None, (label(run), stage, _TITLES[metric] if len(metrics) > 1 else ""))
                )
                tint = palette.nth_colour(place) if run else _TINTS[stage]
                dashed = stage == "validation" if run else metric == "topn"
                for scale in _SCALES:
                    scales[scale].append(len(traces))
                    traces.append(
                        {
                            "type": "scatter",
                            "mode": "lines+markers" if stage == "validation" or len(values) < 3 else "lines",
                            "name": name,
                            **line(mine, values, scale),
                            "line": {"color": tint, "width": 1.6, "dash": "dot" if dashed else "solid"},
                            "hovertemplate": "%{y:.4g}",
                        }
                    )
    return traces, scales


def _figure(
    name: str,
    title: str,
    traces: list[Trace],
    scales: dict[str, list[int]],
    more: str,
    yaxis: dict[str, object],
) -> Figure:
    choices = [
        Choice(
            name=f"over {word}s" if word != "seconds" else "over seconds",
            shows=scales[scale],
            layout={"xaxis": axis(word)},
        )
        for scale, word in _SCALES.items()
    ]
    return Figure(
        name=name,
        title=f"{title} over time",
        caption="Training: mean of neighbouring steps. Validation: mean of an epoch. Seconds count from the "
        "start of the recording, validation and waiting included." + more,
        traces=traces,
        layout={"yaxis": yaxis, "hovermode": "x unified"},
        choices=choices,
        asks="scale",
    )
