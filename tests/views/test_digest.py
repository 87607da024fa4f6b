import math

import numpy as np
import pytest
from tests.runs.samples import a_layer_time, a_step, start
from tests.views import page_runs

from laptime.model import Stage
from laptime.runs import load, schema
from laptime.views.step_bins import BINS, digest, histogram, of

MANY = 10_000
SLOW = 7_777


def walls():
    """Ten thousand step times that rise slowly and waver, with one that is ten times too long."""
    steps = np.arange(MANY)
    found = 0.010 + 1e-6 * steps + 1e-4 * np.sin(steps)
    found[SLOW] *= 10
    return found


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "run"
    writer = start(path)
    at = np.concatenate([[0.0], walls().cumsum()])
    books = {"backward_s": 0.0, "update_s": 0.0, "host_s": 0.0, "unexplained_s": 0.0}
    rows = [
        a_step(n, start_s=at[n], wall_s=wall, forward_s=wall, loss=1.0 + n, **books)
        for n, wall in enumerate(walls().tolist())
    ]
    writer.append("steps", schema.steps.table(rows))
    times = [a_layer_time(n, "conv", seconds=0.5 if n == SLOW else 0.004) for n in range(MANY)]
    writer.append("layers", schema.layers.table(times))
    writer.close("finished", {})
    return digest(load(path))


@pytest.fixture
def made(tmp_path):
    """The digest of a run with these rows."""

    def make(steps, layers=()):
        writer = start(tmp_path / "run")
        writer.append("steps", schema.steps.table(steps))
        if layers:
            writer.append("layers", schema.layers.table(list(layers)))
        writer.close("finished", {})
        return digest(load(tmp_path / "run"))

    return make


def test_ten_thousand_steps_become_three_hundred_bins_with_their_true_quartiles(long_run):
    rows = long_run.steps[Stage.TRAIN]
    assert len(rows["step"]) == BINS
    assert rows["count"].sum() == MANY
    bins = np.arange(MANY) * BINS // MANY
    for place in (0, 17, bins[SLOW], BINS - 1):
        mine = walls()[bins == place]
        assert rows["median_s"][place] == pytest.approx(np.median(mine))
        assert rows["q1_s"][place] == pytest.approx(np.quantile(mine, 0.25))
        assert rows["q3_s"][place] == pytest.approx(np.quantile(mine, 0.75))
        assert rows["mean_s"][place] == pytest.approx(mine.mean())
        assert rows["max_s"][place] == mine.max()
        assert rows["step"][place] == np.median(np.flatnonzero(bins == place))


def test_one_slow_step_among_ten_thousand_is_kept_by_itself(long_run):
    (step,), (wall,) = long_run.slow_steps["step"], long_run.slow_steps["wall_s"]
    assert (step, wall) == (SLOW, pytest.approx(walls()[SLOW]))
    assert long_run.slow_steps["usual_s"][0] == pytest.approx(0.0178, rel=0.02)


def test_one_slow_layer_time_among_ten_thousand_is_kept_by_itself(long_run):
    assert list(long_run.slow_layers["step"]) == [SLOW]
    assert list(long_run.slow_layers["seconds"]) == [0.5]
    assert set(long_run.layers["seconds"]) == {0.004}  # no median is moved by it


def test_the_loss_is_the_mean_of_each_bin_and_its_seconds_end_where_the_run_ends(long_run):
    rows = long_run.learning[Stage.TRAIN]
    bins = np.arange(MANY) * BINS // MANY
    assert rows["loss"][5] == pytest.approx(1.0 + np.flatnonzero(bins == 5).mean())
    assert rows["at_s"][-1] == pytest.approx(walls().sum())


def test_the_histogram_holds_every_counted_step_once_and_the_slowest_in_its_last_bar(long_run):
    low, _, counts = histogram(long_run.wall_s)
    assert counts.sum() == MANY - 1  # the first warms up
    assert counts[79] > 0
    assert low == walls()[1:].min()


def test_a_short_run_has_a_bin_for_every_step(made):
    found = made([a_step(n) for n in range(2 * BINS)])
    assert list(found.steps[Stage.TRAIN]["step"]) == list(range(2 * BINS))


def test_steps_far_apart_are_binned_by_their_number(made):
    """Layer marks come on a random share of the steps; a log may tell of every thousandth."""
    found = made([a_step(n * 1000) for n in range(50)])
    assert list(found.steps[Stage.TRAIN]["step"]) == [n * 1000 for n in range(50)]


def test_ranks_and_stages_have_bins_of_their_own(tmp_path):
    found = digest(load(page_runs.everything(tmp_path / "run")))
    for stage in Stage:
        assert set(found.steps[stage]["rank"]) == {0, 1}
        assert set(found.steps[stage]["device"]) == {"cuda:0", "cuda:1"}
    assert len(of(found.steps[Stage.TRAIN], rank=1)["step"]) == page_runs.STEPS
    assert set(found.layers["rank"]) == {0, 1}


def test_layers_are_of_training_without_its_traced_steps(tmp_path):
    found = digest(load(page_runs.everything(tmp_path / "run")))
    assert found.stage is Stage.TRAIN
    assert page_runs.TRACED not in found.layers["step"]
    assert found.layers["step"].max() < page_runs.STEPS


def test_of_a_run_that_only_validates_the_layers_are_those_of_validation(tmp_path):
    found = digest(load(page_runs.validation_only(tmp_path / "run")))
    assert found.stage is Stage.VALIDATION
    assert len(found.layers["step"]) == 3 * len(page_runs.NESTED)  # of four steps, the first warms up
    assert len(found.wall_s) == 3


def test_steps_with_layer_marks_and_without_are_counted_apart_and_the_first_in_neither(tmp_path):
    found = digest(load(page_runs.write(tmp_path / "run")))
    counts = {marked: len(seconds) for marked, seconds in found.marked.items()}
    assert counts == {False: 8, True: 40 - 8 - 2}  # less the first, and the traced one


def test_losses_that_are_no_number_are_counted_and_left_out_of_the_means(tmp_path):
    found = digest(load(page_runs.lost_losses(tmp_path / "run")))
    rows = found.learning[Stage.TRAIN]
    assert rows["not_finite"].sum() == 31  # an infinite one, then NaN from the tenth step on
    assert rows["loss"][3] == pytest.approx(1 / 4)
    assert math.isnan(rows["loss"][9])
    assert not np.isinf(rows["loss"]).any()


def test_the_loss_of_a_pipeline_is_that_of_its_last_stage(made):
    steps = [a_step(n, loss=None, rank=0) for n in range(3)] + [a_step(n, rank=1) for n in range(3)]
    assert made(steps).learning[Stage.TRAIN]["loss"] == pytest.approx([1, 1 / 2, 1 / 3])


def test_attempts_follow_each_other_in_seconds(made):
    steps = [a_step(n, start_s=0.1 * n) for n in range(3)]
    steps += [a_step(n, start_s=0.1 * (n - 3), attempt=1) for n in range(3, 6)]
    assert made(steps).learning[Stage.TRAIN]["at_s"] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


def test_many_layers_get_fewer_bins_so_that_a_page_stays_small(made, monkeypatch):
    monkeypatch.setattr("laptime.views.step_bins.MOST_POINTS", 600)
    layers = [f"layer {n}" for n in range(20)]
    times = [a_layer_time(n, name) for n in range(100) for name in layers]
    found = made([a_step(n) for n in range(100)], times)
    assert len(found.layers["step"]) == 600
    assert set(found.layers["layer"]) == set(layers)


def test_a_run_without_steps_has_a_digest_without_rows(tmp_path):
    found = digest(load(page_runs.no_steps(tmp_path / "run")))
    by_stage = (*found.steps.values(), *found.learning.values())
    tables = (*by_stage, found.slow_steps, found.layers, found.slow_layers, found.marked)
    assert [len(next(iter(one.values()))) for one in tables] == [0] * 8
