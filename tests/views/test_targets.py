"""Runs with one target are compared by the time to it, with an interval over repetitions."""

import json
import math
import shutil

import pytest
from tests.training.test_loop import configured, training

import laptime
from laptime.model.comparison import mean_interval
from laptime.render.html.comparison_page import comparison_page
from laptime.render.terminal.run_text import comparison_lines
from laptime.views.comparison.several import side_by_side
from laptime.views.comparison.sides import compare

GOAL = {"metric": "loss", "value": 0.5, "step": 10, "epoch": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    import sys

    from tests.training import test_loop

    sys.modules[test_loop.__name__] = test_loop
    return training(tmp_path_factory.mktemp("trained") / "run", configured()).run().path


def runs_of(folder, trained, name, times, **goal):
    """Copies of a run as repetitions; a time is None where the target was not reached."""
    made = []
    for place, seconds in enumerate(times):
        path = folder / name / f"rep-{place + 1}"
        shutil.copytree(trained, path)
        document = json.loads((path / "run.json").read_text())
        spent = 99.0 if seconds is None else seconds
        told = {**GOAL, **goal, "reached": seconds is not None, "seconds": spent}
        document["summary"]["target"] = told
        document["id"] += f"{name}{place}"
        document["config"]["name"] = name
        (path / "run.json").write_text(json.dumps(document))
        made.append(laptime.load(path))
    return made


def test_repetitions_give_the_mean_time_to_the_target_an_interval(trained, tmp_path):
    a = runs_of(tmp_path, trained, "slow", [10.0, 11.0, 12.0])
    b = runs_of(tmp_path, trained, "fast", [5.0, 5.5, 6.0])
    target = compare(a, b).target
    first, second = target.groups
    assert first.mean_s == pytest.approx((10 * 11 * 12) ** (1 / 3))
    assert first.interval_s[0] < 10.9 < first.interval_s[1]
    assert second.against_first.ratio == pytest.approx(0.5)
    assert second.against_first.high < 0.7
    text = "\n".join(map(str, comparison_lines(compare(a, b), 100)))
    assert "Time to loss 0.5" in text
    assert "3 of 3" in text
    document = compare(a, b).document()["target"]
    assert [group["reached"] for group in document["groups"]] == [3, 3]


def test_a_group_that_did_not_reach_the_target_says_so_and_has_no_ratio(trained, tmp_path):
    a = runs_of(tmp_path, trained, "a", [10.0, 11.0])
    b = runs_of(tmp_path, trained, "b", [None, None])
    view = compare(a, b)
    assert view.target.groups[1].against_first is None
    text = "\n".join(map(str, comparison_lines(view, 120)))
    assert "did not reach it in 1.65 min" in text
    assert "0 of 2" in text
    some = compare(a, runs_of(tmp_path, trained, "c", [7.0, None])).target.groups[1]
    assert (some.seconds, some.runs, some.against_first) == ((7.0,), 2, None)


def test_runs_of_other_targets_are_not_compared_by_time_to_it(trained, tmp_path):
    a = runs_of(tmp_path, trained, "a", [10.0])
    assert compare(a, runs_of(tmp_path, trained, "b", [9.0], value=0.4)).target is None
    assert compare(a, [laptime.load(trained)]).target is None


def test_a_page_of_several_runs_has_the_time_to_the_target_and_the_loss_over_seconds(trained, tmp_path):
    groups = [runs_of(tmp_path, trained, name, [10.0, 11.0]) for name in ("a", "b", "c")]
    view = side_by_side(groups)
    assert [group.runs for group in view.target.groups] == [2, 2, 2]
    learned = next(section for section in comparison_page(groups).sections if section.name == "learning")
    table, figure = learned.tables[0], learned.figures[0]
    assert table.title == "Time to loss 0.5"
    assert figure.choices[0].name == "over seconds"
    assert figure.layout["shapes"][0]["y0"] == 0.5


def test_a_single_run_has_no_interval():
    assert all(map(math.isnan, mean_interval([3.0])))
    low, high = mean_interval([1.0, 1.0, 1.0])
    assert (low, high) == (1.0, 1.0)
