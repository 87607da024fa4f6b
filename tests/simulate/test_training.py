"""Whole trainings: accounts that add up, memory by plan, stragglers, failures, money."""

from dataclasses import replace

import numpy as np
import pytest

import laptime
from laptime import hardware
from laptime.errors import PlanError
from laptime.model.plan import Plan
from laptime.simulate.training import TrainingRun, simulate

GIB = 2.0**30


@pytest.fixture(scope="module")
def gpt2():
    return laptime.workload("gpt2", batch=8, precision="bf16")


@pytest.fixture(scope="module")
def cluster():
    return hardware.cluster("aws-p5", nodes=8)


def played(workload, cluster, text, workers, *, batch=8, **run):
    plan = Plan.of(text, workers=workers)
    return simulate(workload, cluster, plan, batch=batch, run=TrainingRun(**{"steps": 20, **run}))


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("data", 16),
        ("sharded", 16),
        ("local", 16),
        ("asynchronous", 8),
        ("mixed,groups=2", 8),
        ("hybrid,stages=4,feature=2", 16),
        ("feature", 8),
    ],
)
def test_accounts_add_up_to_the_mean_step(gpt2, cluster, text, workers):
    made = played(gpt2, cluster, text, workers)
    assert sum(made.shares().values()) == pytest.approx(made.step_s)


def test_one_worker_takes_what_is_predicted(gpt2, cluster):
    predicted = laptime.predict(gpt2, device=cluster.device)
    assert played(gpt2, cluster, "data", 1).step_s == pytest.approx(predicted.step_s, rel=1e-6)


def test_split_features_and_shards_need_less_memory(gpt2, cluster):
    whole = played(gpt2, cluster, "data", 8).memory
    split = played(gpt2, cluster, "feature,sequence", 8).memory
    sharded = played(gpt2, cluster, "sharded", 8).memory
    assert split.activations < 0.5 * whole.activations
    assert sharded.state == pytest.approx(whole.state / 8)
    assert sharded.activations == pytest.approx(whole.activations)
    again = played(gpt2, cluster, "data,recompute", 8).memory
    assert again.activations < 0.5 * whole.activations


def test_memory_of_one_worker_is_near_the_predicted_peak(gpt2, cluster):
    made = played(gpt2, cluster, "data", 1).memory
    predicted = laptime.predict(gpt2, device=cluster.device).peak_memory_bytes
    assert made.tensors == pytest.approx(predicted, rel=0.35)


def test_a_slow_node_slows_everybody_down(gpt2, cluster):
    equal = played(gpt2, cluster, "data", 64)
    slow = replace(cluster, slow_share=1.0, slowdown=2.0)
    assert played(gpt2, slow, "data", 64).step_s > 1.8 * equal.step_s


def test_the_slowest_rank_is_named_in_each_step(gpt2, cluster):
    made = played(gpt2, cluster, "data", 16, jitter=0.05)
    assert len(np.unique(made.slowest)) > 3
    assert made.waiting_s > 0


def test_failures_cost_restarts_and_lost_work(gpt2, cluster):
    frail = replace(cluster, node_hours_between_failures=20.0)
    made = played(gpt2, frail, "data", 64, samples=30_000_000, epochs=10)
    sound = played(gpt2, cluster, "data", 64, samples=30_000_000, epochs=10)
    assert made.faults.failures >= 3
    assert made.faults.restart_s == pytest.approx(600 * made.faults.failures)
    assert made.training_s > sound.training_s
    assert made.dollars / sound.dollars == pytest.approx(made.training_s / sound.training_s)


def test_data_that_comes_too_late_is_waited_for(gpt2, cluster):
    made = played(gpt2, cluster, "data", 8)
    late = played(gpt2, cluster, "data", 8, data_s=3 * made.step_s)
    assert late.step_s == pytest.approx(3 * made.step_s)
    assert late.bottleneck.startswith("waiting for data")


@pytest.mark.parametrize(
    ("text", "workers", "batch", "said"),
    [
        ("model,stages=4,micro_batches=16", 4, 8, "cannot be 16 micro-batches"),
        ("model,stages=4,micro_batches=3", 4, 8, "give batch=9"),
        ("model,stages=64,micro_batches=8", 64, 8, "give at most stages="),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(gpt2, cluster, text, workers, batch, said):
    with pytest.raises(PlanError, match=said):
        played(gpt2, cluster, text, workers, batch=batch)
