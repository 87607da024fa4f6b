"""A simulated run on disk: its rows add up, and everything that reads a measured run reads it."""

import json
from functools import cache

import numpy as np
import pytest

import laptime
from laptime import hardware
from laptime.model import Account, How
from laptime.model.plan import Plan
from laptime.runs import load, write_trace
from laptime.runs.exchanges import read_exchanges
from laptime.simulate.run_directory import COMPUTING, kept_ranks, write_run
from laptime.simulate.training import TrainingRun, simulate

PLANS = (
    "data",
    "sharded",
    "feature=4",
    "model,stages=4",
    "hybrid,stages=2,feature=2",
    "asynchronous",
    "mixed,groups=4",
    "local",
)


@cache
def workload():
    return laptime.workload("zener4", batch=64)


def simulation(text="data", workers=16, **run):
    plan = Plan.of(text, workers=workers)
    return simulate(
        workload(),
        hardware.cluster("dgx-h100"),
        plan,
        batch=64,
        run=TrainingRun(steps=12, jitter=0.05, **run),
    )


def written(tmp_path, text="data", **options):
    made = simulation(text)
    return made, write_run(made, tmp_path / "run", workload=workload(), **options)


@pytest.mark.parametrize("text", PLANS)
def test_accounts_of_every_step_add_up_to_its_wall_time(tmp_path, text):
    made, run = written(tmp_path, text)
    assert len(run.steps) == 12 * 16  # a step cannot be built that does not add up
    assert run.simulated
    assert run.status == "finished"
    if made.exchanges is None:
        walls = np.array([step.wall_s for step in run.steps]).reshape(16, 12)
        assert walls == pytest.approx(np.tile(made.step_times_s, (16, 1)))


@pytest.mark.parametrize("text", ["asynchronous", "mixed,groups=4"])
def test_workers_of_servers_end_with_their_last_parameters_and_know_their_staleness(tmp_path, text):
    made, run = written(tmp_path, text)
    last = max(step.start_s + step.wall_s for step in run.steps)
    assert last == pytest.approx(made.exchanges.seconds)
    ages = [step.staleness for step in run.steps]
    assert np.mean(ages) == pytest.approx(made.exchanges.mean_staleness)


def test_the_slowest_rank_computes_longer_and_the_others_wait_for_it(tmp_path):
    made, run = written(tmp_path)
    rows = {(step.rank, step.step): step for step in run.steps}
    for number, slowest in enumerate(made.slowest.tolist()):
        steps = [rows[rank, number] for rank in range(16)]
        computed = [sum(getattr(step, account.column) for account in COMPUTING) for step in steps]
        assert int(np.argmax(computed)) == slowest
        assert int(np.argmin([step.communication_s for step in steps])) == slowest


def test_bubbles_are_the_idle_time_of_each_stage_and_null_elsewhere(tmp_path):
    made, run = written(tmp_path, "model,stages=4")
    for step in run.steps:
        causes = (step.bubble_fill_s, step.bubble_drain_s, step.bubble_imbalance_s)
        assert sum(causes) == pytest.approx(step.idle_s)
        assert step.idle_s == pytest.approx(made.step.ranks[step.rank // 4].accounts().get(Account.IDLE, 0.0))
    _, other = written(tmp_path / "data")
    assert {step.idle_s for step in other.steps} == {None}


def test_layers_are_predicted_and_lie_within_their_steps(tmp_path):
    _, run = written(tmp_path, "model,stages=4")
    rows = run.layer_table.to_pylist()
    assert {row["how"] for row in rows} == {How.PREDICTED}
    assert {row["step"] for row in rows} == {0, 1, 2}
    steps = {(step.rank, step.step): step for step in run.steps}
    for row in rows:
        step = steps[row["rank"], row["step"]]
        assert step.start_s - 1e-12 <= row["start_s"]
        assert row["start_s"] + row["seconds"] <= step.start_s + step.wall_s + 1e-12
    compute = sum(row["seconds"] for row in rows if row["step"] == 1 and row["rank"] == 0)
    first = steps[0, 1]
    accounts = first.forward_s + first.loss_s + first.backward_s + first.update_s
    assert compute == pytest.approx(accounts)


def test_the_network_of_the_run_is_that_of_the_workload(tmp_path):
    _, run = written(tmp_path)
    assert sum(layer.parameters for layer in run.network) == workload().parameters
    assert [layer.name for layer in run.network] == [name for name in workload().layers if name != "(loss)"]
    assert laptime.predict(run.path / "workload.json").step_s > 0


def test_without_a_workload_the_run_still_has_its_layers(tmp_path):
    run = write_run(simulation(), tmp_path / "run")
    assert {layer.name for layer in run.network} == {name for name in workload().layers if name != "(loss)"}


@pytest.mark.parametrize("text", PLANS)
def test_exchanges_are_exposed_for_as_long_as_ranks_wait(tmp_path, text):
    _, run = written(tmp_path, text)
    exchanged = read_exchanges(run)
    assert sorted(exchanged) == list(range(16))
    for rank, each in exchanged.items():
        waited = sum(step.communication_s for step in run.steps if step.rank == rank)
        exposed = sum(kind.exposed_s for kind in each.collectives)
        assert exposed <= waited + 1e-9
        assert all(kind.exposed_s <= kind.seconds + 1e-9 for kind in each.collectives)
        if text in ("asynchronous", "local"):
            assert exposed == pytest.approx(waited)


def test_buckets_carry_every_layer_once(tmp_path):
    _, run = written(tmp_path)
    buckets = read_exchanges(run)[0].buckets
    layers = [layer for bucket in buckets for layer in bucket.layers]
    assert sorted(layers) == sorted(layer.name for layer in run.network)
    assert sum(bucket.bytes for bucket in buckets) == 4 * workload().parameters * 12


@pytest.mark.parametrize("most", [1, 3, 5, 16, 100])
def test_ranks_that_are_kept_are_equally_many_of_each_stage(most):
    made = simulation("model,stages=4")
    kept = kept_ranks(made, most)
    by_stage = [sum(rank // 4 == stage for rank in kept) for stage in range(4)]
    assert by_stage == [min(4, max(1, most // 4))] * 4
    assert {0, 4, 8, 12} <= set(kept)


def test_the_slowest_rank_is_kept():
    made = simulation(seed=3)
    most_waited_for = np.bincount(made.slowest).argmax()
    assert most_waited_for in kept_ranks(made, 4)


def test_ranks_that_are_left_out_are_told(tmp_path):
    made, run = written(tmp_path, ranks=4)
    assert len(run.steps) == 4 * 12
    assert (
        f"4 of 16 ranks are kept, and samples/s are theirs; all together take {made.samples_per_s:,.0f}"
        in (run.summary["notes"][0])
    )


def test_pages_and_texts_say_that_it_is_simulated(tmp_path):
    from laptime.render.html.run_page import run_page
    from laptime.render.terminal.run_text import run_lines
    from laptime.views.findings import recorder
    from laptime.views.run_view import run_view

    _, run = written(tmp_path, "hybrid,stages=2,feature=2")
    assert "simulated, not measured" in "\n".join(line.plain for line in run_lines(run_view(run), 100))
    page = run_page(run)
    assert page.about[0] == "simulated, not measured"
    assert {"ranks", "layers", "step"} <= {section.name for section in page.sections}
    assert not list(recorder(run_view(run)))


def test_a_trace_holds_every_span_and_exchange_of_one_step(tmp_path):
    made, run = written(tmp_path, "model,stages=4")
    kernels = run.kernel_table.to_pylist()
    for rank, played in zip((0, 4, 8, 12), made.step.ranks, strict=True):
        mine = [row for row in kernels if row["rank"] == rank]
        assert len(mine) == len(played.spans) + len(played.transfers)
    trace = json.loads(write_trace(run, tmp_path / "trace.json").read_text())
    assert {"send", "fill", "conv1"} <= {event["name"] for event in trace["traceEvents"]}


def test_the_function_writes_the_run_that_it_is_asked_for(tmp_path):
    made = laptime.simulate("zener4", cluster="dgx-h100", workers=2, batch=8, steps=5, out=tmp_path / "run")
    run = load(tmp_path / "run")
    assert run.config["command"] == "simulate"
    assert run.config["plan"] == made.plan.describe()
    assert run.environment["device"]["name"] == "h100-sxm"
    assert not laptime.load(tmp_path / "run").steps[0].staleness


def test_collectives_of_a_measured_and_a_simulated_run_stand_side_by_side(tmp_path):
    from dataclasses import asdict

    from tests.runs.samples import a_step, start

    from laptime.files.write import write_json
    from laptime.model.exchanges import Collective, RankExchanges
    from laptime.runs import schema
    from laptime.runs.exchanges import exchanges_path
    from laptime.views.comparison import sides, tables

    made = laptime.simulate(laptime.workload("zener4", batch=16), cluster="dgx-h100", workers=2)
    simulated = write_run(made, tmp_path / "simulated")
    writer = start(tmp_path / "measured")
    writer.append("steps", schema.steps.table([a_step(number) for number in range(10)]))
    exchanged = Collective(kind="all_reduce", calls=20, bytes=10_000_000, exposed_s=0.03, seconds=0.05)
    for rank in range(2):
        told = RankExchanges(steps=10, collectives=(exchanged,))
        write_json(exchanges_path(writer.path, rank), asdict(told))
    writer.close("finished", {})
    view = sides.compare([laptime.load(tmp_path / "measured")], [simulated])
    (row,) = view.collectives
    assert (row.kind, row.a.calls, row.a.bytes) == ("all_reduce", 2.0, 1e6)
    assert (row.a.seconds, row.a.exposed_s) == (pytest.approx(0.005), pytest.approx(0.003))
    assert row.b.bytes == pytest.approx(505_000, rel=0.01)
    table = tables.collectives_table(view)
    assert [column.title for column in table.columns][-2:] == ["A exposed ms", "B exposed ms"]
    assert view.document()["collectives"][0]["kind"] == "all_reduce"
