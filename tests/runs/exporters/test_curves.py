"""Curves over steps: what is kept of a long one, and which attempt and rank they show."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runs.samples import HOSTILE, a_finished_run, a_layer_time, a_step, add_steps, start

from laptime.model import Stage
from laptime.runs import load, schema
from laptime.runs.exporters.curves import ended_s, layer_curves, step_curves, thinned


def curves(series):
    return {(one.stage, one.rank, one.tag): one for one in series}


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=300),
    st.integers(1, 50),
    st.booleans(),
)
def test_a_thinned_curve_is_short_and_in_order_and_keeps_its_extremes(values, most, mean):
    values = np.array(values)
    at, shown = thinned(values, most, mean=mean)
    assert len(at) == len(shown) <= most
    assert (np.diff(at) > 0).all()
    assert at[-1] < len(values)
    if not mean:
        spread = np.abs(values - np.median(values))
        assert shown.max() <= values.max()
        if most > 1 and len(np.unique(values)) == 2 and (spread > 0).sum() == 1:
            assert values[spread.argmax()] in shown  # the one step unlike all others


@pytest.mark.parametrize("mean", [False, True])
def test_a_thinned_curve_has_never_more_points_than_wanted(mean):
    for length in range(1, 121):
        rising = np.arange(float(length))
        for values in (rising, np.zeros(length), rising[::-1]):
            for most in range(1, length + 3):
                at, shown = thinned(values, most, mean=mean)
                assert 1 <= len(at) == len(shown) <= most, (length, most)
                assert (np.diff(at) > 0).all(), (length, most)
                assert 0 <= at[0] <= at[-1] < length, (length, most)


def test_a_curve_that_fits_is_kept_as_it_is():
    for length in range(1, 20):
        values = np.arange(float(length)) ** 2
        for mean in (False, True):
            at, shown = thinned(values, length, mean=mean)
            assert at.tolist() == list(range(length))
            assert shown.tolist() == values.tolist()


def test_the_only_point_of_a_curve_is_its_median():
    at, shown = thinned(np.array([1.0, 900.0, 3.0]), 1)
    assert (at.tolist(), shown.tolist()) == ([0], [3.0])


def test_bins_of_two_keep_both_values():
    _, shown = thinned(np.array([1.0, 1.0, 1.0, 1.0, 0.0]), 4)
    assert 0.0 in shown


def test_one_slow_step_among_many_is_kept_in_its_place():
    values = np.full(100_000, 10.0)
    values[77_777] = 500.0
    at, shown = thinned(values, 1000)
    assert len(at) <= 1000
    assert shown[at == 77_777] == [500.0]
    assert np.median(shown) == 10.0


def test_a_mean_ends_at_the_last_step_and_a_nan_stays():
    values = np.arange(1000.0)
    values[500] = math.nan
    at, shown = thinned(values, 100, mean=True)
    assert at[-1] == 999
    assert shown[-1] == pytest.approx(np.mean(values[990:]))
    assert np.isnan(shown).sum() == 1


def test_nan_losses_stay_and_unknown_ones_are_left_out(tmp_path):
    writer = start(tmp_path / "run")
    losses = [1.0, None, math.nan, math.inf]
    writer.append("steps", schema.steps.table([a_step(n, loss=loss) for n, loss in enumerate(losses)]))
    writer.close("finished", {})
    loss = curves(step_curves(load(tmp_path / "run")))[Stage.TRAIN, 0, "loss"]
    assert loss.steps.tolist() == [0, 2, 3]
    assert loss.values.tolist() == pytest.approx([1.0, math.nan, math.inf], nan_ok=True)


def test_steps_are_milliseconds_at_the_time_of_day_they_began(tmp_path):
    run = load(a_finished_run(tmp_path / "run", ["conv1"]))
    found = curves(step_curves(run))
    wall = found[Stage.TRAIN, 0, "step/ms"]
    assert wall.values == pytest.approx(np.full(8, 100.0))
    assert wall.times_s - run.created.timestamp() == pytest.approx(np.arange(8) * 0.1, abs=1e-6)
    assert found[Stage.TRAIN, 0, "step/samples_per_s"].values[0] == pytest.approx(640)
    assert found[Stage.TRAIN, 0, "account_ms/backward"].values[0] == pytest.approx(50)
    assert (Stage.TRAIN, 0, "account_ms/idle") not in found
    assert found[Stage.VALIDATION, 0, "step/ms"].steps.tolist() == [0]


def test_a_repeated_step_shows_its_last_attempt_after_the_first(tmp_path):
    writer = start(tmp_path / "run")
    rows = [a_step(n, loss=1.0) for n in range(3)]
    rows += [a_step(n, loss=2.0, attempt=1, start_s=(n - 1) * 0.1) for n in (1, 2)]
    writer.append("steps", schema.steps.table(rows))
    layers = [a_layer_time(n, "conv", seconds=0.001) for n in range(3)]
    layers += [a_layer_time(n, "conv", seconds=0.002, attempt=1, start_s=(n - 1) * 0.1) for n in (1, 2)]
    writer.append("layers", schema.layers.table(layers))
    writer.close("finished", {})
    run = load(tmp_path / "run")
    loss = curves(step_curves(run))[Stage.TRAIN, 0, "loss"]
    assert (loss.steps.tolist(), loss.values.tolist()) == ([0, 1, 2], [1.0, 2.0, 2.0])
    assert loss.times_s - run.created.timestamp() == pytest.approx([0, 0.3, 0.4], abs=1e-6)
    (layer,) = layer_curves(run)
    assert layer.values == pytest.approx([1.0, 2.0, 2.0])
    assert layer.times_s == pytest.approx(loss.times_s)


def test_every_rank_has_times_and_only_the_lowest_a_loss(tmp_path):
    for writer in [start(tmp_path / "run", rank=rank) for rank in (0, 1)]:
        add_steps(writer, range(2))
        writer.append("layers", schema.layers.table([a_layer_time(1, "conv", rank=writer.rank)]))
        writer.close("finished", {})
    run = load(tmp_path / "run")
    found = curves(step_curves(run))
    assert [rank for _, rank, tag in found if tag == "step/ms"] == [0, 1]
    assert [rank for _, rank, tag in found if tag == "loss"] == [0]
    assert [one.rank for one in layer_curves(run)] == [0, 1]


def test_layers_keep_their_names_and_share_a_budget_of_points(tmp_path):
    run = load(a_finished_run(tmp_path / "run", HOSTILE, steps=300))
    tags = [one.tag for one in layer_curves(run)]
    assert {f"layer/{name}/{phase}" for name in HOSTILE for phase in ("forward", "update")} <= set(tags)
    assert len(tags) == len(set(tags)) == 3 * (len(HOSTILE) + 2)
    assert max(len(one.steps) for one in layer_curves(run, in_all=1000)) == 100
    assert max(len(one.steps) for one in layer_curves(run)) == 300


def test_a_run_ended_when_it_was_last_heard_of(tmp_path):
    run = load(a_finished_run(tmp_path / "run", ["conv1"]))
    assert abs(ended_s(run) - run.created.timestamp()) < 60
    run.heartbeat.clear()
    assert ended_s(run) - run.created.timestamp() == pytest.approx(0.9, abs=1e-6)
