"""The network as nested rectangles: a module is as large as the time spent in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laptime.runs import LayerSummary
from laptime.views import format, palette
from laptime.views.figures.figure import Figure, label, short


def treemap(layers: Sequence[LayerSummary], paths: Mapping[str, str]) -> Figure | None:
    """Layers inside the modules that hold them; `paths` are the modules' paths by layer name."""
    seconds: dict[tuple[str, ...], float] = {}
    own: dict[tuple[str, ...], float] = {}  # of the layer itself: one may stand inside another
    back: dict[tuple[str, ...], float] = {}
    for layer in layers:
        name = paths.get(layer.layer) or layer.layer
        path = tuple(name.split(".")) if layer.is_module else (layer.layer,)
        own[path] = own.get(path, 0.0) + layer.total_s
        for end in range(len(path) + 1):
            seconds[path[:end]] = seconds.get(path[:end], 0.0) + layer.total_s
            back[path[:end]] = back.get(path[:end], 0.0) + layer.backward_s
    if len(seconds) < 2:
        return None
    nodes = _joined(seconds, own)
    ids = {node: str(place) for place, node in enumerate(nodes)}
    whole = seconds[()]
    return Figure(
        name="treemap",
        title="Time by module",
        caption="The area is the mean time of a module's layers in a step; a click opens a module. The "
        "colour is the share of it that is backward.",
        traces=[
            {
                "type": "treemap",
                "branchvalues": "remainder",
                "ids": list(ids.values()),
                "labels": [short(".".join(node[len(nodes[node]) :])) if node else "step" for node in nodes],
                "parents": [ids[nodes[node]] if node else "" for node in nodes],
                "values": [own.get(node, 0.0) * 1e3 for node in nodes],
                "text": [f"{format.milliseconds(seconds[node])} ms" for node in nodes],
                "customdata": [
                    [
                        label(".".join(node) or "step"),
                        seconds[node] * 1e3,
                        seconds[node] / whole * 100,
                        back[node] / seconds[node] * 100,
                    ]
                    for node in nodes
                ],
                "hovertemplate": "%{customdata[0]}: %{customdata[1]:,.4~r} ms, %{customdata[2]:.1f} % of the "
                "compute, %{customdata[3]:.0f} % of it backward<extra></extra>",
                "textinfo": "label+text",
                "marker": {
                    "colors": [back[node] / seconds[node] for node in nodes],
                    "colorscale": [
                        [0, palette.colour("forward")],
                        [0.5, "#8f8f8f"],
                        [1, palette.colour("backward")],
                    ],
                    "cmin": 0.2,  # few layers are beyond these: all shades for those that there are
                    "cmax": 0.8,
                    "showscale": True,
                    "colorbar": {
                        "title": {"text": "backward"},
                        "tickvals": [0.2, 0.5, 0.8],
                        "ticktext": ["≤ 20 %", "half", "≥ 80 %"],
                        "thickness": 12,
                    },
                    "line": {"width": 1, "color": "#ffffff88"},
                },
                "tiling": {"pad": 2},
                "pathbar": {"visible": True},
            }
        ],
        layout={"margin": {"l": 4, "r": 4, "t": 4, "b": 4}},
        height=420,
    )


def _joined(
    seconds: Mapping[tuple[str, ...], float], own: Mapping[tuple[str, ...], float]
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The parent of each node; a module with a single child and no time of its own is replaced by it."""
    children: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for node in seconds:
        if node:
            children.setdefault(node[:-1], []).append(node)
    parents: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}

    def add(node: tuple[str, ...], parent: tuple[str, ...]) -> None:
        while len(children.get(node, ())) == 1 and node not in own:
            node = children[node][0]
        parents[node] = parent
        for child in children.get(node, ()):
            add(child, node)

    for child in children[()]:
        add(child, ())
    return parents
