import base64
import dataclasses
from dataclasses import replace
from functools import cached_property

import numpy as np
import plotly.graph_objects as go
import pytest
from tests.views import page_runs

from laptime.model import Memory, Operation, Phase, Workload
from laptime.render.html.run_page import run_page
from laptime.runs import load
from laptime.views import palette
from laptime.views.figures import layers, learning, steps
from laptime.views.figures.figure import Figure
from laptime.views.figures.layers import treemap
from laptime.views.figures.one_step import memory, timeline
from laptime.views.figures.roofline import Ceiling, _apart, roofline
from laptime.views.figures.steps import books, profiling
from laptime.views.run_view import run_view
from laptime.views.step_bins import digest, typical_step

NAMES = [name for name, _, _ in page_runs.NESTED]
ROUGHLY = pytest.approx


class Given:
    """A run as the figures take it."""

    def __init__(self, path):
        self.run = load(path)

    @cached_property
    def part(self):
        return run_view(self.run).main

    @cached_property
    def digest(self):
        return digest(self.run)

    @cached_property
    def one(self):
        return typical_step(self.run)

    @cached_property
    def figures(self):
        return [figure for section in run_page(self.run).sections for figure in section.figures]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return Given(page_runs.everything(tmp_path_factory.mktemp("figures") / "run"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return Given(page_runs.hostile(tmp_path_factory.mktemp("figures")))


def numbers(value):
    """An array of a trace, packed or not."""
    if isinstance(value, dict):
        return np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
    return np.array(value)


def trace(figure, name, nth=0):
    return [one for one in figure.traces if one.get("name") == name][nth]


def valid(figure):
    document = figure.document()
    go.Figure(document["data"], document["layout"])  # raises where a property is unknown or wrong
    for choice in document["choices"]:
        go.Figure(layout=choice["layout"])
        assert set(choice["shows"]) <= set(range(len(document["data"])))


@pytest.mark.parametrize(
    "make",
    [page_runs.everything, page_runs.hostile, page_runs.lost_losses, page_runs.of_a_log],
    ids=lambda make: make.__name__,
)
def test_plotly_knows_every_property_of_every_figure(tmp_path, make):
    for figure in Given(make(tmp_path / "run")).figures:
        valid(figure)


def test_plotly_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="Invalid property"):
        valid(Figure(name="x", title="", caption="", traces=[{"type": "bar", "colour": "red"}]))


def test_the_bars_of_a_layer_are_the_medians_of_its_phases_the_largest_layer_first(given):
    figure = layers.layers_together(given.part.layers, "layer")
    assert trace(figure, "forward")["y"] == ["blocks.0.mlp", "blocks.0", "blocks.1", "stem", "head"]
    assert trace(figure, "forward")["x"] == ROUGHLY([1.8, 1.2, 0.9, 0.6, 0.3])
    assert trace(figure, "backward")["x"] == ROUGHLY([3.0, 2.0, 1.5, 1.0, 0.5])
    assert trace(figure, "update")["x"] == ROUGHLY([1.2, 0.8, 0.6, 0.4, 0.2])


def test_forward_against_backward_is_in_the_order_of_the_network(given):
    figure = layers.forward_against_backward(given.part.layers, "layer")
    assert trace(figure, "forward")["x"] == NAMES
    assert trace(figure, "backward")["y"] == ROUGHLY([1.0, 2.0, 3.0, 1.5, 0.5])


def test_the_books_add_up_to_the_mean_step(given):
    figure = books(run_view(given.run))
    total = sum(np.array(one["x"]) for one in figure.traces)
    # The mean leaves out the first step, and the traced one: 38 of 40 ms, one of them 400 ms long.
    assert total == ROUGHLY([20.0, (37 * 40 + 400) / 38])


def test_the_step_time_of_each_rank_is_its_median_and_the_slow_step_is_marked(given):
    figure = steps.step_time(given.digest)
    for rank in (0, 1):
        line = numbers(trace(figure, f"cuda:{rank} rank {rank}")["y"])
        assert len(line) == page_runs.STEPS
        assert line[5] == ROUGHLY(40)
    slow = trace(figure, "slow step")
    assert set(numbers(slow["x"])) == {20}
    assert slow["customdata"] == [400, 400]
    assert slow["marker"]["symbol"] == ["triangle-up"] * 2  # beyond the frame


def test_the_accounts_over_the_training_are_those_of_the_books(given):
    figure = steps.accounts_over_steps(given.digest)
    assert {one["name"]: float(numbers(one["y"])[0]) for one in figure.traces} == {
        "data_wait": ROUGHLY(8),
        "forward": ROUGHLY(10),
        "backward": ROUGHLY(16),
        "update": ROUGHLY(4),
        "idle": 0.0,
        "host": ROUGHLY(2),
    }


def test_what_is_in_no_layer_is_the_wait_and_the_host(given):
    total, error = steps.closure(given.digest)
    assert numbers(trace(error, "not in compute accounts")["y"])[0] == ROUGHLY(25)
    assert "communication" in error.caption
    assert numbers(trace(error, "in no account (unexplained)")["y"])[0] == 0
    assert numbers(trace(total, "total (wall time)")["y"])[0] == ROUGHLY(40)
    assert numbers(trace(total, "compute accounts")["y"])[0] == ROUGHLY(30)


def test_the_histogram_has_a_bar_where_the_steps_are(given):
    figure = steps.spread(given.digest, given.part.wall_s)
    (bars,) = figure.traces
    assert numbers(bars["y"])[0] == 2 * 37  # of 40, the first, a traced and a slow one are not in it
    assert numbers(bars["y"]).sum() == 2 * 38
    assert numbers(bars["x"])[0] == ROUGHLY(40, rel=0.1)


def test_a_phase_over_the_iterations_shows_only_its_own_lines(given):
    figure = layers.over_iterations(given.digest, page_runs.by_time(given.part.layers), "layer")
    assert [one.name for one in figure.choices] == [
        f"cuda:{rank} rank {rank}, {phase}"
        for rank in (0, 1)
        for phase in ("all phases", "forward", "backward", "update")
    ]
    for choice, expected in zip(figure.choices, (6.0, 1.8, 3.0, 1.2) * 2, strict=True):
        shown = [figure.traces[place] for place in choice.shows]
        assert [one["name"] for one in shown] == page_runs.by_time(given.part.layers)
        assert numbers(shown[0]["y"]) == ROUGHLY(expected)


def test_a_layer_of_the_selector_shows_its_three_phases_on_each_rank(given):
    figure = layers.one_layer(given.digest, page_runs.by_time(given.part.layers), "layer")
    (head,) = [one for one in figure.choices if one.name == "head"]
    shown = [figure.traces[place] for place in head.shows]
    assert [float(numbers(one["y"])[0]) for one in shown] == ROUGHLY([0.3, 0.5, 0.2] * 2)
    assert {one["line"]["color"] for one in shown} == {
        palette.colour(phase) for phase in ("forward", "backward", "update")
    }


def test_the_loss_of_training_is_each_step_and_that_of_validation_an_epoch(given):
    figure = learning.loss(given.digest.learning)
    assert [one.name for one in figure.choices] == ["over seconds", "over steps", "over epochs"]
    assert numbers(trace(figure, "train", nth=1)["x"]) == ROUGHLY(np.arange(page_runs.STEPS))
    assert numbers(trace(figure, "train", nth=1)["y"])[:3] == ROUGHLY([1, 1 / 2, 1 / 3])
    assert numbers(trace(figure, "validation")["y"]) == ROUGHLY([0.5])
    assert numbers(trace(figure, "train")["x"])[-1] == ROUGHLY(40 * 0.04 + 0.36)


def test_losses_that_are_no_number_are_marked_where_they_were(tmp_path):
    figure = learning.loss(Given(page_runs.lost_losses(tmp_path / "run")).digest.learning)
    assert "31 steps have a loss that is no number" in figure.caption
    assert list(numbers(trace(figure, "loss is no number", nth=1)["x"])) == list(range(9, 40))


def test_the_timeline_has_every_layer_where_it_ran_and_the_kernels_inside(given):
    figure = timeline(given.one)
    assert [one["name"] for one in figure.traces] == [
        *("layers forward", "layers backward", "layers update", "not in a layer", "kernels")
    ]
    forward = trace(figure, "layers forward")
    assert forward["base"] == ROUGHLY([1.0, 1.6, 2.8, 4.6, 5.5])
    assert forward["x"] == ROUGHLY([0.6, 1.2, 1.8, 0.9, 0.3])
    assert trace(figure, "kernels")["x"][:2] == ROUGHLY([0.3, 0.6])


def test_between_the_layers_the_timeline_has_gaps_that_name_the_other_accounts(given):
    figure = timeline(given.one)
    gaps = trace(figure, "not in a layer")
    assert (gaps["base"], gaps["x"]) == (ROUGHLY([0.0, 17.0]), ROUGHLY([1.0, 23.0]))
    assert gaps["customdata"][0][1] == "of the whole step, data_wait 8.00 ms, host 1.00 ms"
    assert "Outside the layers: data_wait 8.00 ms, host 1.00 ms;" in figure.caption


def test_a_line_that_leaves_its_frame_is_said_to(given, tmp_path):
    assert "The line leaves the frame in 2 places, up to 400 ms" in steps.step_time(given.digest).caption
    short = Given(page_runs.write(tmp_path / "run", steps=12))
    assert "leaves the frame" not in steps.step_time(short.digest).caption


def test_step_numbers_are_said_to_count_validation_where_there_is_one(given, tmp_path):
    alone = Given(page_runs.write(tmp_path / "run", steps=12, validation=0))
    for one, title in ((given, "step, validation counted too"), (alone, "step")):
        assert steps.step_time(one.digest).layout["xaxis"]["title"]["text"] == title
        assert ("through training and" in learning.loss(one.digest.learning).caption) is (one is given)


def test_few_measured_steps_are_dots_and_many_a_line(given, tmp_path, monkeypatch):
    order = page_runs.by_time(given.part.layers)
    figure = layers.over_iterations(given.digest, order, "layer", "Of 31 steps.")
    assert {one["mode"] for one in figure.traces} == {"lines+markers"}
    assert figure.caption.endswith(
        "Dots are the steps that were measured; nothing is known between them. Of 31 steps."
    )
    monkeypatch.setattr(layers, "_FEW", 10)
    figure = layers.over_iterations(given.digest, order, "layer")
    assert {one["mode"] for one in figure.traces} == {"lines"}
    assert "Dots" not in figure.caption


def test_layers_that_are_left_out_of_forward_against_backward_are_counted(given, monkeypatch):
    assert "largest of" not in layers.forward_against_backward(given.part.layers, "layer").caption
    monkeypatch.setattr(layers, "_MOST_BARS", 3)
    assert "The 3 largest of 5." in layers.forward_against_backward(given.part.layers, "layer").caption


def test_the_longest_points_of_a_roofline_bear_their_names_and_a_bend_is_only_told_of_a_roof(given):
    figure = roofline(given.part.layers, _workload(flops=600_000, read=2000, written=1000), None)
    assert trace(figure, "forward")["text"] == ["head"]
    assert "bend" not in figure.caption
    points = [(1.0, 1.0, "long", 3.0), (1.1, 1.1, "close to it", 2.0), (100.0, 1.0, "far", 1.0)]
    assert [one[2] for one in _apart(points)] == ["long", "far"]


def test_of_many_bars_the_longest_bear_their_names(given, monkeypatch):
    monkeypatch.setattr("laptime.views.figures.one_step._MOST_NAMES", 2)
    texts = [text for one in timeline(given.one).traces for text in one["text"]]
    assert sorted(filter(None, texts)) == ["blocks.0", "blocks.0.mlp"]


def test_memory_is_what_the_traced_step_measured(given):
    (measured,) = memory(given.one, None).traces
    assert set(numbers(measured["y"])) == {page_runs.TRACED + 1.0}
    assert not memory(dataclasses.replace(given.one, layers=[]), None)


def test_a_module_is_as_large_as_its_layers_and_a_layer_inside_a_layer_counts_once(given):
    (drawn,) = treemap(given.part.timed_layers, {name: path for name, path, _ in page_runs.NESTED}).traces
    sizes = dict(zip(drawn["labels"], drawn["values"], strict=True))
    assert sizes == ROUGHLY(
        {
            "step": 0,
            "blocks": 0,
            "0": 0,
            "attention": 4,
            "mlp": 6,
            "1.attention": 3,
            "stem.conv": 2,
            "head": 1,
        }
    )
    (drawn,) = treemap(given.part.timed_layers, {"blocks.0": "outer", "blocks.0.mlp": "outer.inner"}).traces
    sizes = dict(zip(drawn["labels"], drawn["values"], strict=True))
    assert (sizes["outer"], sizes["inner"]) == ROUGHLY((4, 6))
    assert sum(sizes.values()) == ROUGHLY(16)


def test_steps_with_layer_marks_stand_beside_those_without(given):
    without, marked = profiling(given.digest).traces
    assert without["median"] + marked["median"] == ROUGHLY([40, 40])
    assert marked["marker"]["color"] == palette.colour("instrument")


def test_a_roofline_has_a_point_for_each_pass_that_computes(given):
    work = _workload(flops=600_000, read=2000, written=1000)
    ceiling = Ceiling(device="a device", flops={"float32": 1e12}, bandwidth=1e9, source="a sheet")
    figure = roofline(given.part.layers, work, ceiling)
    point = trace(figure, "forward")
    assert numbers(point["x"]) == ROUGHLY([200.0])
    assert numbers(point["y"]) == ROUGHLY([600_000 / 0.0003])
    roof = trace(figure, "at most, float32")
    assert roof["y"] == ROUGHLY([min(1e12, x * 1e9) for x in roof["x"]])
    assert "a sheet" in figure.caption
    assert "No roof" in roofline(given.part.layers, work, None).caption
    assert not roofline(given.part.layers, _workload(flops=0), None)
    valid(figure)


def test_estimated_memory_is_drawn_where_its_layer_ran(given):
    measured, estimated = memory(given.one, _workload(alive=5 * 2**20)).traces
    assert (numbers(estimated["x"]), numbers(estimated["y"])) == ROUGHLY((5.5, 5.0))
    assert len(numbers(measured["x"])) == 3 * len(NAMES)


def _workload(**of_its_operation):
    """A step with one matrix product, in the forward pass of the last layer."""
    operation = {"name": "mm", "kind": "matmul", "phase": Phase.FORWARD, "layer": "head", "dtype": "float32"}
    held = ("parameters", "gradients", "buffers", "state", "inputs", "activations", "peak")
    return Workload(
        network="a network",
        batch=1,
        precision="fp32",
        mode="training",
        parameters=10,
        tensors=1,
        sample_bytes=4,
        layers=("head",),
        operations=(Operation(**operation, **of_its_operation),),
        memory=Memory(**dict.fromkeys(held, 0)),
    )


def test_a_word_has_one_colour_in_every_figure(given):
    for figure in given.figures:
        for one in figure.traces:
            word = str(one.get("name", "")).split(", ")[-1].removeprefix("layers ")
            tint = one.get("marker", {}).get("color") or one.get("line", {}).get("color")
            if word in palette.ACCOUNTS and isinstance(tint, str):
                assert tint == palette.colour(word), (figure.name, word)


def test_there_is_no_figure_without_rows(tmp_path):
    empty = Given(page_runs.no_steps(tmp_path / "run"))
    assert empty.figures == []
    assert empty.one is None
    for draw in (steps.step_time, steps.accounts_over_steps, profiling):
        assert not draw(empty.digest)
    assert steps.closure(empty.digest) == []
    assert not learning.loss(empty.digest.learning)
    assert not learning.accuracy(empty.digest.learning)
    assert layers.over_iterations(empty.digest, [], "layer") is None
    assert layers.one_layer(empty.digest, [], "layer") is None
    assert not layers.layers_together([], "layer")
    assert not treemap([], {})
    assert not books(run_view(empty.run))


def test_a_line_of_one_step_would_be_invisible_so_there_is_none(tmp_path):
    single = Given(page_runs.one_step(tmp_path / "run"))
    assert not steps.accounts_over_steps(single.digest)
    assert [one["mode"] for one in steps.step_time(single.digest).traces][-1] == "markers"


def test_no_name_reaches_plotly_as_markup_or_as_a_template(hostile):
    for figure in hostile.figures:
        for text in _texts(figure.traces):
            known = ("%{", "<br>", "<extra>")
            if not any(mark in text for mark in known) or "onerror" in text:
                assert "<" not in text, (figure.name, text)
        for one in figure.traces:
            assert "%{" not in str(one.get("name")) + str(one.get("meta"))


def _texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def test_two_long_names_with_the_same_end_stay_two_bars(given):
    long = [replace(given.part.layers[0], layer=f"{n}" + "x" * 60) for n in range(2)]
    names = layers.layers_together(long, "layer").traces[0]["y"]
    assert len(set(names)) == 2
