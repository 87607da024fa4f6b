"""Baselines find what was planted and never look at what they predict; verdicts follow their targets."""

from dataclasses import replace

import pytest
from benchmarks.baselines import Step, linear, roofline, through_two
from benchmarks.evaluation import Case

from benchmarks import baselines, evaluation, mxnet, published
from laptime.hardware import device


@pytest.fixture(scope="module")
def steps():
    kept = mxnet.workloads()
    used = device("v100-sxm2-16gb")
    return [
        Step(label=f"{name}-{batch}", family=name, precision="fp32", seconds=1.0, device=used,
             workload=kept[name, batch, "training", "fp32"])
        for name in ("fcn5", "fcn8", "Alexnet", "Resnet 50") for batch in (16, 32, 2048, 4096)
        if (name, batch, "training", "fp32") in kept
    ]  # fmt: skip


def errors(found):
    return [error for _, error in found]


def test_a_roofline_is_right_where_all_reach_the_same_share_of_it(steps):
    alike = [replace(one, seconds=3 * baselines.bound_s(one)) for one in steps]
    assert errors(roofline(alike)) == pytest.approx([0.0] * len(alike))


def test_a_family_is_predicted_by_the_utilisation_of_the_others(steps):
    found = [
        replace(one, seconds=(6 if one.family == "fcn5" else 3) * baselines.bound_s(one)) for one in steps
    ]
    mine = [error for one, error in zip(found, errors(roofline(found)), strict=True) if one.family == "fcn5"]
    assert mine == pytest.approx([-0.5] * len(mine))


def test_a_linear_model_finds_planted_speeds_again(steps):
    planted = [
        replace(
            one,
            seconds=1e-3 + sum(1e-13 * part.flops + 1e-12 * part.moved for part in one.workload.operations),
        )
        for one in steps
    ]
    assert errors(linear(planted)) == pytest.approx([0.0] * len(planted), abs=0.05)


def test_the_update_counts_only_where_it_was_measured(steps):
    assert baselines.bound_s(replace(steps[0], update=False)) < baselines.bound_s(steps[0])


def test_a_line_through_two_runs_is_exact_on_a_line_and_stays_near():
    runs = [(f"b{batch}", "a", batch, 1.0 + 0.5 * batch) for batch in (1, 2, 4, 64)]
    found = through_two(runs)
    assert [label for label, _ in found] == ["b1 from b2 and b4", "b2 from b1 and b4", "b4 from b1 and b2"]
    assert errors(found) == pytest.approx([0.0] * 3)


def test_a_case_is_met_by_its_mean_and_its_p90_together():
    found = [(str(at), 0.05) for at in range(10)]
    assert Case(name="a", errors=found, target=6, p90=15).met
    assert Case(name="a", errors=found, target=4, p90=15).met is False
    assert Case(name="a", errors=found, target=6, p90=4).met is False
    assert Case(name="a", errors=found).met is None


def test_memory_may_be_too_high_but_not_too_low():
    high = Case(name="memory", errors=[("a", 0.04), ("b", -0.01)], target=5, lowest=-0.02)
    assert high.met
    assert replace(high, errors=[("a", 0.0), ("b", -0.03)]).met is False


def test_a_mean_over_devices_replaces_that_of_rows():
    case = Case(name="a", errors=[("x", 0.1), ("y", 0.3)], mean=12.0, target=12)
    assert case.figures[0] == 12.0
    assert case.met


def test_what_others_published_stands_without_rows_of_ours():
    every = [*published.UNSEEN_NETWORK, *published.UNSEEN_DEVICE, *published.TWO_RUNS, *published.TWO_GPUS]
    for case in evaluation.cited(every):
        assert case.met is None
        assert case.cells[1:6] == [""] * 5
        assert "published" in case.name


def test_every_line_has_every_column_and_the_worst_come_first():
    found = [
        Case(name="a", errors=[("mild", 0.01), ("wild", -0.5)], target=5),
        Case(name="b", instead="run x"),
    ]
    assert {line.count("|") for line in evaluation.table(found)} == {len(evaluation.HEAD) + 1}
    assert evaluation.worst(found) == ["- a: wild -50 %; mild +1 %."]
