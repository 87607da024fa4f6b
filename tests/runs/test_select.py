"""Which steps count: one rule for accounts, layers, series and figures."""

import numpy as np
import pytest
from tests.runs.samples import a_layer_time, a_network, a_step, add_steps, start

from laptime.errors import RunError
from laptime.model import COMPUTE, Account, Phase, Stage
from laptime.runs import load, schema
from laptime.runs.select import Columns
from laptime.runs.table_reader import StoredTable
from laptime.views.step_bins import digest
from laptime.views.step_series import series

TRACED, DISTURBED = 5, 6


@pytest.fixture
def run(tmp_path):
    """Ten steps; of these the first warms up, one is traced, and the trace slows the next."""
    writer = start(tmp_path / "run")
    writer.network(a_network(["conv"]))
    slow = {TRACED: 10.0, DISTURBED: 3.0}
    steps, layers = [], []
    for number in range(10):
        wall = 0.1 * slow.get(number, 1.0)
        parts = {"forward_s": wall, "backward_s": 0.0, "update_s": 0.0, "host_s": 0.0, "unexplained_s": 0.0}
        idle = {"forward_s": wall / 2, "idle_s": wall / 2} if number == TRACED else {}
        steps.append(a_step(number, wall_s=wall, **parts | idle))
        layers.append(a_layer_time(number, "conv", seconds=wall, **({"idle_s": wall / 2} if idle else {})))
    writer.append("steps", schema.steps.table(steps))
    writer.append("layers", schema.layers.table(layers))
    writer.close("finished", {"kernels": {"steps": [TRACED], "disturbed": [DISTURBED]}})
    return load(tmp_path / "run")


def test_accounts_layers_series_and_figures_take_the_same_steps(run):
    counted = 10 - 1 - 1 - 1
    assert run.accounts().wall.count == counted
    assert run.layers()["conv"].forward.count == counted
    assert series(run, Stage.TRAIN).steps == counted
    assert series(run, Stage.TRAIN).layers["conv", "forward"].size == counted
    assert digest(run).wall_s.size == counted
    assert set(digest(run).layers["step"]) == set(range(10)) - {0, TRACED, DISTURBED}


def test_the_traced_steps_stand_beside_those_that_count(run):
    steps = run.selected()
    assert (len(steps), steps.skipped) == (7, 1)
    assert np.flatnonzero(steps.traced).tolist() == [TRACED]
    assert steps["wall_s"].max() == pytest.approx(0.1)


def test_layer_means_add_up_to_the_compute_accounts_of_the_same_steps(tmp_path):
    """Medians would not: one layer is slow in some steps, the other in the rest."""
    writer = start(tmp_path / "run")
    writer.network(a_network(["a", "b"]))
    for number in range(9):
        a, b = (0.01, 0.05) if number % 3 else (0.09, 0.01)
        parts = {"backward_s": 0.0, "update_s": 0.0, "host_s": 0.0, "unexplained_s": 0.0}
        step = a_step(number, forward_s=a + b, wall_s=a + b, **parts)
        writer.append("steps", schema.steps.table([step]))
        times = [a_layer_time(number, "a", seconds=a), a_layer_time(number, "b", seconds=b)]
        writer.append("layers", schema.layers.table(times))
    writer.close("finished", {})
    run = load(tmp_path / "run")
    layers, accounts = run.layers(), run.accounts()
    compute = sum(accounts[account].seconds.mean for account in COMPUTE)
    assert sum(layer.total_s for layer in layers) == pytest.approx(compute)
    assert layers.compute_s == pytest.approx(compute)
    assert sum(layer.median_s for layer in layers) < 0.9 * compute


def test_the_compute_accounts_beside_layers_are_those_of_the_marked_steps(tmp_path):
    writer = start(tmp_path / "run")
    quick = {"forward_s": 0.01, "wall_s": 0.08, "instrumented": False}
    writer.append("steps", schema.steps.table([a_step(n, **(quick if n % 2 else {})) for n in range(9)]))
    times = [a_layer_time(n, "conv", phase, seconds=0.03) for n in range(0, 9, 2) for phase in Phase]
    writer.append("layers", schema.layers.table(times))
    writer.close("finished", {})
    run = load(tmp_path / "run")
    assert run.layers().steps == 4
    assert run.layers().compute_s == pytest.approx(0.09)
    assert run.selected().compute_s(run.selected().counted) == pytest.approx(0.08)


def test_layer_times_of_a_step_that_is_not_on_disk_do_not_count(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(4))
    writer.append("layers", schema.layers.table([a_layer_time(n, "conv") for n in range(9)]))
    writer.close("finished", {})
    assert load(tmp_path / "run").layers()["conv"].forward.count == 3


def test_steps_numbered_far_apart_find_their_layer_times(tmp_path):
    writer = start(tmp_path / "run")
    numbers = [n * 1_000_003 for n in range(5)]
    writer.append("steps", schema.steps.table([a_step(n) for n in numbers]))
    rows = [a_layer_time(n, "conv", seconds=0.001 * at) for at, n in enumerate(numbers)]
    writer.append("layers", schema.layers.table([*rows, a_layer_time(17, "conv", seconds=9.0)]))
    writer.close("finished", {})
    assert load(tmp_path / "run").layers()["conv"].forward.mean == pytest.approx(0.0025)


def test_a_stage_that_does_not_exist_is_refused_with_those_that_do(run):
    for ask in (run.layers, run.accounts, run.selected):
        with pytest.raises(RunError, match="no stage is called 'val'; a run has train and validation"):
            ask(stage="val")


def test_an_account_is_in_the_accounts_by_its_name_and_a_word_is_not(run):
    accounts = run.accounts()
    assert "forward" in accounts
    assert Account.FORWARD in accounts
    assert "x" not in accounts
    with pytest.raises(KeyError):
        accounts["x"]


def test_each_table_is_read_once_however_much_is_asked(run, monkeypatch):
    reads = []
    walk = StoredTable._walk

    def counted(stored, **words):
        if words["columns"]:
            reads.append(stored.schema.name)
        return walk(stored, **words)

    monkeypatch.setattr(StoredTable, "_walk", counted)
    for stage in Stage:
        run.accounts(stage)
        run.layers(stage, skip=2)
        series(run, stage)
    digest(run)
    assert sorted(reads) == ["layers", "steps"]


def test_a_column_of_one_value_takes_the_memory_of_one(run):
    columns = Columns.read(run.stored("layers"), ("rank", "step", "memory_bytes"))
    assert columns["rank"].strides == columns["memory_bytes"].strides == (0,)
    assert columns["step"].strides == (8,)
    assert not columns.known("memory_bytes").any()


def test_the_median_of_a_layer_is_that_of_whole_steps_not_of_its_phases(tmp_path):
    """Forward is slow in some steps and backward in the others: no step is fast in both."""
    writer = start(tmp_path / "run")
    writer.network(a_network(["a"]))
    for number in range(9):
        forward, backward = (0.01, 0.05) if number % 2 else (0.05, 0.01)
        parts = {"update_s": 0.0, "host_s": 0.0, "unexplained_s": 0.0}
        step = a_step(number, forward_s=forward, backward_s=backward, wall_s=forward + backward, **parts)
        writer.append("steps", schema.steps.table([step]))
        times = [
            a_layer_time(number, "a", Phase.FORWARD, seconds=forward),
            a_layer_time(number, "a", Phase.BACKWARD, seconds=backward),
        ]
        writer.append("layers", schema.layers.table(times))
    writer.close("finished", {})
    assert load(tmp_path / "run").layers()["a"].median_s == pytest.approx(0.06)
