"""Simulations as they are shown: what is lost, what helps, tables that add up."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import laptime
from laptime import hardware
from laptime.model import Account
from laptime.model.plan import Plan
from laptime.render.terminal.simulation import simulation_lines
from laptime.simulate.remedies import Diagnosis, Loss, diagnose, largest_loss, mean_accounts
from laptime.simulate.training import TrainingRun, simulate
from laptime.views.simulation import (
    SimulationView,
    exchanges,
    exchanges_table,
    loss_sentence,
    per_sample,
    plan_text,
    simulations_table,
    slowest_rank,
    span_sums,
    stages_table,
)
from laptime.views.table import text_of

PLANS = ("data", "sharded", "model,stages=2", "asynchronous", "mixed,groups=2", "local", "feature=2")


@cache
def workload():
    return laptime.workload("zener4", batch=64)


def simulation(text="data", *, cluster="dgx-h100", workers=8, batch=64, **run):
    return simulate(
        workload(),
        hardware.cluster(cluster),
        Plan.of(text, workers=workers),
        batch=batch,
        run=TrainingRun(steps=20, **run),
    )


def view_of(*made, **more):
    return SimulationView(simulations=made, one_device=tuple(1000.0 for _ in made), **more)


def shown(view, width=120):
    return "\n".join(line.plain for line in simulation_lines(view, width))


@pytest.mark.parametrize("text", PLANS)
def test_accounts_of_the_mean_step_add_up_for_every_strategy(text):
    made = simulation(text, jitter=0.05, data_s=0.001)
    assert sum(mean_accounts(made).values()) == pytest.approx(made.step_s)


@pytest.mark.parametrize("text", PLANS)
def test_every_plan_is_shown_at_any_width(text):
    view = view_of(simulation(text, samples=1000, epochs=2))
    for width in (60, 80, 200):
        assert max(len(line) for line in shown(view, width).splitlines()) <= width
    assert "simulated" in shown(view).splitlines()[0]


def test_what_does_not_fit_is_the_largest_loss():
    made = replace(simulation(), device_memory_bytes=1.0)
    assert largest_loss(made).kind == "memory"
    assert loss_sentence(made, largest_loss(made)).startswith("It does not fit: a rank needs ")
    assert "does not fit" in shown(view_of(made))


def test_bubbles_exchanges_slow_ranks_and_data_are_told_apart():
    slow = replace(hardware.cluster("dgx-h100"), slow_share=1.0, slowdown=1.5)
    late = simulate(workload(), slow, Plan(data=2), batch=4096)
    assert largest_loss(late).kind == "slow ranks"
    assert largest_loss(simulation("model,stages=4", workers=4, batch=1024)).kind == "bubbles"
    assert largest_loss(simulation(cluster="rack-4090-10g", workers=8)).kind == "communication"
    assert largest_loss(simulation(data_s=1.0)).kind == "data"
    assert largest_loss(simulation(workers=1)).kind == "none"


def test_a_remedy_is_told_only_where_it_was_simulated_to_be_faster():
    made = simulation("model,stages=4", workers=4, batch=1024)
    tried = []

    def again(plan, batch):
        tried.append(plan)
        return simulate(workload(), made.cluster, plan, batch=batch, run=TrainingRun(steps=1))

    found = diagnose(made, again)
    assert 0 < found.tried <= len(tried)  # some cannot be carried out
    assert found.remedies
    for remedy in found.remedies:
        real = again(remedy.plan, remedy.batch)
        assert real.samples_per_s == pytest.approx(remedy.samples_per_s)
        assert remedy.saves == pytest.approx(1 - made.samples_per_s / real.samples_per_s)
        assert remedy.plan.workers == 4
    sentence = loss_sentence(made, found.loss, found)
    assert f"Try {found.remedies[0].change}" in sentence

    worse = diagnose(made, lambda plan, batch: replace(made, step_times_s=made.step_times_s * 9))
    assert not worse.remedies
    assert "none is clearly faster" in loss_sentence(made, worse.loss, worse)


def test_a_plan_that_cannot_be_carried_out_is_no_remedy():
    made = replace(simulation(), device_memory_bytes=1.0)
    found = diagnose(made, lambda plan, batch: made)
    assert found == Diagnosis(
        loss=Loss(kind="memory", seconds=0.0, share=0.0), remedies=(), tried=found.tried
    )
    assert "none fits" in loss_sentence(made, found.loss, found)


def test_the_table_of_stages_has_a_row_for_each_and_samples_them_in_a_terminal():
    made = simulation("model,stages=4")
    table = stages_table(made)
    assert [text_of(row[0]) for row in table.rows] == ["0", "1", "2", "3"]
    assert Account.IDLE.value in table.head
    rank = made.step.ranks[0]
    many = replace(made, step=replace(made.step, ranks=tuple(replace(rank, stage=n) for n in range(40))))
    short = stages_table(many, every=False)
    assert [text_of(row[0]) for row in short.rows][:: len(short.rows) - 1] == ["0", "39"]
    assert short.notes


def test_exchanges_of_gradients_have_the_bytes_of_the_network():
    (row,) = exchanges(simulation())
    assert (row.kind, row.carries, row.ranks) == ("all_reduce", "gradients", 8)
    assert row.bytes == pytest.approx(4 * workload().parameters)
    assert row.wire_bytes == pytest.approx(row.bytes * 2 * 7 / 8)
    assert row.exposed_s <= row.seconds
    assert {each.carries for each in exchanges(simulation("sharded"))} == {"parameters", "gradients"}
    assert not exchanges_table(simulation(workers=1))


def test_spans_of_the_slowest_rank_fill_its_step():
    made = simulation("model,stages=4")
    sums = span_sums(slowest_rank(made))
    assert sum(each.seconds for each in sums) == pytest.approx(made.step.step_s)
    assert any(each.name.startswith("idle (") for each in sums)


def test_the_fastest_that_fits_is_bold_and_the_cheapest_is_named():
    fast = simulation(cluster="aws-p4d", workers=16)
    slow = replace(fast, step_times_s=np.full(20, 1.0))
    unfit = replace(fast, step_times_s=np.full(20, 1e-6), device_memory_bytes=1.0)
    view = view_of(slow, unfit, fast)
    assert view.best() == (2, 2)
    assert list(simulations_table(view).bold) == [2]
    assert per_sample(fast) < per_sample(slow)
    assert "fastest: data" in shown(view)


def test_degrees_that_follow_from_the_workers_are_left_out():
    assert plan_text(Plan.of("sharded", workers=8)) == "sharded"
    assert plan_text(Plan.of("model,stages=4", workers=8)) == "model,stages=4,micro_batches=8"


def test_efficiency_is_against_as_many_single_devices():
    made = simulation()
    assert view_of(made).efficiency(0) == pytest.approx(made.samples_per_s / 8000)


def test_the_document_is_plain_json_and_names_its_parts():
    import json

    from laptime.files.write import plain

    made = simulation("asynchronous", samples=1000, epochs=2)
    found = json.loads(json.dumps(plain(view_of(made, diagnosis=diagnose(made, lambda *_: made)).document())))
    assert found["simulations"][0]["staleness"]["mean"] > 0
    assert found["diagnosis"]["loss"]["kind"]
