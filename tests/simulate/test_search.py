"""Searches over plans: what is returned fits, and no plan tried by hand is better."""

from dataclasses import replace

import pytest

import laptime
from laptime import hardware
from laptime.errors import PlanError
from laptime.model.plan import Plan
from laptime.simulate.search import highest_price, latest_s, plans, search
from laptime.simulate.training import TrainingRun, simulate

RUN = TrainingRun(steps=10, samples=1_000_000, epochs=2)


@pytest.fixture(scope="module")
def workload():
    return laptime.workload("feedforward", batch=8)


@pytest.fixture(scope="module")
def gpt2():
    return laptime.workload("gpt2", batch=8)


@pytest.fixture(scope="module")
def clusters():
    return [hardware.cluster("aws-p5", nodes=2), hardware.cluster("aws-p4d", nodes=2)]


@pytest.fixture(scope="module")
def found(workload, clusters):
    return search(workload, clusters, global_batch=256, run=RUN)


def test_everything_that_is_returned_fits(found):
    assert found.plans
    assert all(made.fits for made in found.plans)


def test_no_plan_that_is_tried_by_hand_is_faster(found, workload, clusters):
    for cluster in clusters:
        for text in ("data", "sharded", "data,recompute"):
            plan = Plan.of(text, workers=cluster.devices)
            made = simulate(workload, cluster, plan, batch=256 // plan.data, run=RUN)
            assert latest_s(found.fastest) <= latest_s(made) * (1 + 1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "data,micro_batches=4",
        "hybrid,stages=4,micro_batches=16",
        "hybrid,stages=2,micro_batches=8,schedule=interleaved,chunks=2",
        "hybrid,stages=4,micro_batches=16,schedule=zero_bubble,recompute",
        "hybrid,stages=2,micro_batches=16,schedule=gpipe",
        "hybrid,feature=8,sequence",
    ],
)
def test_no_plan_of_a_transformer_that_is_tried_by_hand_is_faster(gpt2, text):
    cluster = hardware.cluster("aws-p5", nodes=2)
    plan = Plan.of(text, workers=cluster.devices)
    made = simulate(gpt2, cluster, plan, batch=256 // plan.data, run=RUN)
    found = search(gpt2, [cluster], global_batch=256, run=RUN, workers=cluster.devices)
    assert latest_s(found.fastest) <= latest_s(made) * (1 + 1e-9)


def test_no_more_plans_are_considered_than_asked_for_and_those_are_of_all_kinds(gpt2):
    found = search(gpt2, [hardware.cluster("aws-p5", nodes=4)], global_batch=512, run=RUN, most=300)
    assert 150 < found.considered <= 300 < found.there_are
    every = list(plans(32, 8, 512))
    some = every[:: len(every) // 50]
    assert {plan.feature for plan in some} == {plan.feature for plan in every}
    assert {plan.schedule for plan in some} == {plan.schedule for plan in every}


def test_the_frontier_gets_slower_and_cheaper(found):
    times = [latest_s(made) for made in found.frontier]
    prices = [highest_price(made) for made in found.frontier]
    assert times == sorted(times)
    assert prices == sorted(prices, reverse=True)
    assert found.cheapest == found.frontier[-1]


def test_the_cheapest_in_time_ends_before_the_deadline(found):
    deadline_s = latest_s(found.frontier[0]) * 1.01
    chosen = replace(found, deadline_s=deadline_s).cheapest_in_time
    assert chosen is not None
    assert latest_s(chosen) <= deadline_s
    assert replace(found, deadline_s=1e-6).cheapest_in_time is None


def test_plans_multiply_to_the_workers_and_hold_the_batch():
    every = list(plans(64, 8, 512))
    assert len(every) > 300
    assert len(set(every)) == len(every)
    assert all(plan.workers == 64 for plan in every)
    assert all(512 % (plan.data * plan.micro_batches) == 0 for plan in every)


def test_a_batch_that_nothing_divides_is_refused(workload):
    with pytest.raises(PlanError, match="no plan divides 7 samples"):
        search(workload, [hardware.cluster("aws-p5", nodes=128)], global_batch=7, workers=1024)


def test_what_fits_nowhere_is_refused(workload):
    small = [replace(hardware.cluster("rack-4090-10g", nodes=1))]
    large = replace(
        workload, memory=replace(workload.memory, parameters=10**13, gradients=10**13, state=10**13)
    )
    with pytest.raises(PlanError, match="fits the memory"):
        search(large, small, global_batch=64)
