"""Recording overhead: steps with layer marks beside steps without."""

from __future__ import annotations

from laptime.views import palette
from laptime.views.figures.figure import Figure, axis
from laptime.views.step_bins import Digest

_FEWEST = 5  # bare steps; fewer say nothing


def profiling(digest: Digest) -> Figure | None:
    """With against without profiling, inside one run; None where there are not enough steps of both kinds."""
    rows = digest.marked
    if len(rows["marked"]) < 2 or rows["count"].min() < _FEWEST:
        return None
    traces = [
        {
            "type": "box",
            "orientation": "h",
            "name": f"{'with' if marked else 'without'} layer marks",
            "y": [f"{'with' if marked else 'without'} ({rows['count'][place]:,} steps)"],
            "q1": [rows["q1_s"][place] * 1e3],
            "median": [rows["median_s"][place] * 1e3],
            "q3": [rows["q3_s"][place] * 1e3],
            "lowerfence": [rows["low_s"][place] * 1e3],
            "upperfence": [rows["high_s"][place] * 1e3],
            "marker": {"color": palette.colour("instrument" if marked else "host")},
        }
        for place, marked in enumerate(rows["marked"])
    ]
    return Figure(
        name="profiling",
        title="With against without profiling",
        caption="All steps with layer marks and all bare steps of the training, wherever they fell: the box "
        "is the middle half, the whiskers reach from the 5th to the 95th percentile. Where steps change over "
        "the training, the boxes differ by that as well.",
        traces=traces,
        layout={"xaxis": axis("ms"), "yaxis": {"automargin": True}, "showlegend": False},
        height=220,
    )
