"""Cuts a network into stages that follow each other, so that the longest takes as little time as possible.

The forward pass is traced by torch.fx, which calls the network's own modules: names, modes and hooks stay as
they are. A cut is possible where a single tensor leads from what was computed to what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from torch import fx, nn

from laptime.errors import ConfigError
from laptime.files.text import first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The stages of a network: the nodes of its trace that each one computes."""

    traced: fx.GraphModule
    ends: tuple[int, ...]  # of each stage, the place after its last node

    def stage(self, index: int) -> fx.GraphModule:
        """A stage as a network of its own, with the modules and names of the whole one."""
        nodes = list(self.traced.graph.nodes)
        begin = self.ends[index - 1] if index else 0
        graph = fx.Graph()
        copied: dict[fx.Node, fx.Node] = {}
        if index:
            copied[nodes[begin - 1]] = graph.placeholder("activations")
        for node in nodes[begin : self.ends[index]]:
            copied[node] = graph.node_copy(node, lambda argument: copied[argument])
        if index + 1 < len(self.ends):
            # Only contiguous tensors can be sent; an LSTM's output is none.
            graph.output(graph.call_method("contiguous", (copied[nodes[self.ends[index] - 1]],)))
        return fx.GraphModule(self.traced, graph)


def trace(network: nn.Module, name: str) -> fx.GraphModule:
    """The network as a graph that is the same in training and in validation."""
    mode = network.training
    try:
        graphs = []
        for training in (False, True):
            network.train(training)
            graphs.append(fx.symbolic_trace(network))
    except Exception as error:  # whatever a forward pass does with values that are not there
        raise ConfigError(
            f"{name} cannot be cut into stages: what it computes depends on its data ({first_line(error)}); "
            "use parallel.strategy = 'data' or 'sharded'"
        ) from error
    finally:
        network.train(mode)
    if graphs[0].code != graphs[1].code:
        raise ConfigError(
            f"{name} cannot be cut into stages: its forward pass in training is another than in validation; "
            "use parallel.strategy = 'data' or 'sharded'"
        )
    return graphs[1]


def cut_network(network: nn.Module, stages: int, costs: Mapping[str, float], name: str) -> Cut:
    """Cut a network so that the longest stage takes as little as possible; `costs` are seconds by layer."""
    traced = trace(network, name)
    nodes = list(traced.graph.nodes)
    places = [place for place in _cut_places(nodes) if place < len(nodes) - 1]
    seconds = _node_costs(nodes, costs)
    # Stages without a layer would only pass on what they get.
    pieces = _pieces(seconds, places)
    if stages > len(pieces):
        raise ConfigError(
            f"{name} can be cut into at most {len(pieces)} stages, and {stages} are asked for; lower "
            "parallel.stages, or --workers"
        )
    ends = balanced([sum(seconds[begin:end]) for begin, end in pieces], stages)
    return Cut(traced=traced, ends=tuple(pieces[end - 1][1] for end in ends))


def balanced(seconds: Sequence[float], parts: int) -> list[int]:
    """Where to end each of so many parts of a sequence, none empty, so that the largest sum is smallest."""
    count = len(seconds)
    sums = list(accumulate(seconds, initial=0.0))
    best: list[list[tuple[float, int]]] = [[(sums[end], 0) for end in range(count + 1)]]
    for part in range(1, parts):
        row = [(float("inf"), 0)] * (count + 1)
        for end in range(part + 1, count + 1):
            row[end] = min(
                (max(best[-1][begin][0], sums[end] - sums[begin]), begin) for begin in range(part, end)
            )
        best.append(row)
    ends = [count]
    for row in reversed(best[1:]):
        ends.append(row[ends[-1]][1])
    return ends[::-1]


def _cut_places(nodes: Sequence[fx.Node]) -> list[int]:
    """After how many nodes a single value, that of the last of them, leads on."""
    last_use: dict[fx.Node, int] = {}
    for place, node in enumerate(nodes):
        for used in node.all_input_nodes:
            last_use[used] = place
    places = []
    for place, node in enumerate(nodes):
        alive = [each for each in nodes[: place + 1] if last_use.get(each, -1) > place]
        if alive == [node] and node.op not in ("placeholder", "get_attr"):
            places.append(place + 1)
    return places


def _node_costs(nodes: Sequence[fx.Node], costs: Mapping[str, float]) -> list[float]:
    """Seconds of each node: those of a layer stand at the module that the layer is named after."""
    return [costs.get(str(node.target), 0.0) if node.op == "call_module" else 0.0 for node in nodes]


def _pieces(seconds: Sequence[float], places: Sequence[int]) -> list[tuple[int, int]]:
    """The smallest parts that a network can be cut into: each begins with a layer, as layers are timed.

    So activations stay with the layer before them, and none works in place on what another rank sent.
    """
    before = list(accumulate(seconds, initial=0.0))
    last = {before[place]: place for place in places}  # of places with no layer between them, the last
    ends = [place for cost, place in last.items() if 0 < cost < before[-1]]
    return list(pairwise([0, *ends, len(seconds)]))
