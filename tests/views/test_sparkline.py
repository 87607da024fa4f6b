import math

import numpy as np
import pytest
from tests.runs.samples import a_finished_run, a_step, start

from laptime.runs import load, schema
from laptime.views.run_document import content
from laptime.views.sparkline import BINS, LEVELS, blocks, course, shorter, step_blocks


def a_run(path, losses, ranks=1):
    writer = start(path)
    rows = [a_step(step, rank=rank, loss=loss) for step, loss in enumerate(losses) for rank in range(ranks)]
    writer.append("steps", schema.steps.table(rows))
    writer.close("finished", {})
    return load(path)


@pytest.mark.parametrize("steps", [1, 2, 59, 60, 61, 1000])
def test_a_course_has_at_most_sixty_numbers_and_every_step_is_in_one(tmp_path, steps):
    wall_s = np.full(steps, 0.01)
    wall_s[-1] = 0.5
    found = course(a_run(tmp_path / "run", [1.0] * 3).selected(), wall_s)
    assert len(found.step_s) == len(found.largest_s) == min(steps, BINS)
    assert found.largest_s[-1] == 0.5
    assert found.steps == steps


def test_a_course_is_part_of_the_content(tmp_path):
    found = content(load(a_finished_run(tmp_path / "run", ["conv"])))["train"]["course"]
    assert found["step_s"] == pytest.approx([0.1] * 7)  # without the first, which is a warm-up
    assert len(found["loss"]["bins"]) == 8


def test_the_loss_goes_from_its_first_to_its_last(tmp_path):
    found = course(a_run(tmp_path / "run", [4.0, 3.0, 2.0]).selected(), np.ones(3)).loss
    assert (found.first, found.last, found.not_finite) == (4.0, 2.0, 0)


def test_the_ranks_of_a_step_are_one_number(tmp_path):
    found = course(a_run(tmp_path / "run", [4.0, 3.0], ranks=3).selected(), np.ones(2)).loss
    assert found.bins == (4.0, 3.0)


def test_a_run_without_a_loss_has_none(tmp_path):
    assert course(a_run(tmp_path / "run", [None, None]).selected(), np.ones(2)).loss is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_counted_and_null(tmp_path, bad):
    found = content(a_run(tmp_path / "run", [2.0, 1.0, bad, bad]))
    loss = found["train"]["course"]["loss"]
    assert (loss["bins"], loss["last"], loss["not_finite"]) == ([2.0, 1.0, None, None], None, 2)
    assert found["look_first"][0].startswith("The loss is not finite in 2 of 4 steps")


def test_blocks_reach_from_the_lowest_to_the_highest():
    assert blocks([0.0, 3.5, 7.0]) == "▁▅█"
    assert blocks([1.0, None, 2.0]) == "▁×█"
    assert blocks([None, None]) == "××"
    assert blocks([2.0, 2.0]) == "▁▁"
    assert blocks([]) == ""


def test_steady_steps_are_a_flat_line():
    assert len(set(step_blocks([1.0, 1.01, 0.99, 1.0], 60))) == 1


def test_a_drift_climbs():
    line = step_blocks([1.0 + place / 60 for place in range(60)], 60)
    assert (line[0], line[-1]) == (LEVELS[0], LEVELS[-1])
    assert list(line) == sorted(line)


def test_one_spike_does_not_flatten_the_rest():
    line = step_blocks([1.0, 1.0, 2.0, 2.0, 1000.0, 1.0, 2.0], 60)
    assert len(set(line)) == 3


def test_a_shorter_line_has_the_medians_of_neighbours():
    assert shorter([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert shorter([1.0, None, None, None], 2) == [1.0, None]
    assert shorter([1.0], 5) == [1.0]
    assert shorter([], 5) == []
