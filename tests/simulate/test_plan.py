"""Plans: written as text, checked as a whole."""

import pytest

from laptime.errors import PlanError
from laptime.model.plan import Plan, with_workers


@pytest.mark.parametrize(
    ("text", "workers", "degrees"),
    [
        ("data", 8, (8, 1, 1)),
        ("model", 4, (1, 4, 1)),
        ("feature", 8, (1, 1, 8)),
        ("model,stages=4", 16, (4, 4, 1)),
        ("hybrid,stages=4,feature=2", 64, (8, 4, 2)),
        ("sharded", 32, (32, 1, 1)),
        ("stages=2", 4, (2, 2, 1)),
    ],
)
def test_workers_that_no_degree_takes_are_replicas(text, workers, degrees):
    plan = Plan.of(text, workers=workers)
    assert (plan.data, plan.stages, plan.feature) == degrees
    assert plan.workers == workers


def test_a_plan_is_read_as_it_is_described():
    plan = Plan.of("hybrid,stages=4,feature=2,schedule=interleaved,chunks=2,recompute", workers=64)
    assert Plan.of(plan.describe()) == plan


def test_sharded_shares_one_copy_of_the_parameters():
    assert Plan.of("sharded", workers=16).shards == 16
    assert Plan.of("sharded,shards=8", workers=16).shards == 8
    assert Plan.of("sharded,data=8", workers=8).shards == 8
    assert Plan.of("model,stages=4,data=2", workers=8).micro_batches == 8
    assert with_workers(Plan.of("sharded", workers=16), 32).shards == 32


@pytest.mark.parametrize(
    ("text", "workers", "said"),
    [
        ("modle", 4, "did you mean 'model'"),
        ("data=3", 4, "3 workers, and 4 are given"),
        ("model,stages=3", 4, "4 workers cannot be divided by 3"),
        ("data=0", None, "data is 0"),
        ("data=-2", None, "data is -2"),
        ("data=x", None, "give a whole number"),
        ("model,schedule=2f2b", 4, "no schedule"),
        ("model,stages=4,chunks=2", 4, "schedule=interleaved"),
        ("model,stages=4,schedule=interleaved,chunks=2,micro_batches=6", 4, "micro_batches=8"),
        ("asynchronous,stages=2", 4, "replicates the whole network"),
        ("mixed,groups=3", 4, "groups=3 does not divide data=4"),
        ("feature,sequence", 1, "feature of at least 2"),
        ("sharded,shards=3", 4, "shards=3 does not divide"),
        ("", 4, "the plan is empty"),
    ],
)
def test_nonsense_is_refused_in_one_line(text, workers, said):
    with pytest.raises(PlanError, match=said) as refused:
        Plan.of(text, workers=workers)
    assert "\n" not in str(refused.value)
