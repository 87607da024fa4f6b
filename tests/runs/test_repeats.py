"""Steps that were taken again after a resume are read once, in every table and by every reader."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from tests.runs.samples import a_layer_time, a_step, add_steps, start

from laptime.runs import live_parts, load, query, schema
from laptime.runs.health import find_losses


@pytest.fixture
def run(tmp_path):
    """Ten steps; again from 4 to 7, then from 6 to 11. Each attempt has layer times on other steps."""
    writer = start(tmp_path / "run")
    for attempt, steps in enumerate((range(10), range(4, 8), range(6, 12))):
        add_steps(writer, steps, attempt=attempt)
        marked = [number for number in steps if (number + attempt) % 2]
        rows = [a_layer_time(number, "conv", attempt=attempt) for number in marked]
        writer.append("layers", schema.layers.table(rows))
        writer.flush()
    writer.close("finished", {})
    return load(tmp_path / "run")


ATTEMPTS = [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2]


def test_the_last_attempt_of_each_step_counts(run):
    assert len(run.steps) == 12
    by_step = sorted((step.step, step.attempt) for step in run.steps)
    assert by_step == list(enumerate(ATTEMPTS))
    assert (run.last_attempt, run.accounts(skip=0).wall.count) == (2, 12)


def test_layer_times_of_an_earlier_attempt_go_with_their_step(run):
    found = {(row["step"], row["attempt"]) for row in run.layer_table.to_pylist()}
    assert found == {(step, attempt) for step, attempt in enumerate(ATTEMPTS) if (step + attempt) % 2}
    assert run.stored("layers").check() > len(found)


def test_queries_leave_them_out_too(run):
    counted = query("SELECT count(*) AS n, count(DISTINCT step) AS d FROM steps", run.path).table
    assert counted.to_pylist() == [{"n": 12, "d": 12}]
    layers = query("SELECT step, attempt FROM layers", run.path).table.to_pylist()
    assert sorted(row["step"] for row in layers) == sorted(run.layer_table["step"].to_pylist())


def test_every_attempt_can_be_read_by_who_asks(run):
    assert replace(run.stored("steps"), every_attempt=True).read(["step"]).num_rows == 20


def test_a_step_that_no_later_attempt_took_stays(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(10))
    add_steps(writer, range(4, 7), attempt=1)
    writer.close("interrupted", {})
    assert sorted(step.step for step in load(tmp_path / "run").steps) == list(range(10))


def test_ranks_and_stages_are_told_apart(tmp_path):
    first, second = start(tmp_path / "run"), start(tmp_path / "run", rank=1)
    for writer in (first, second):
        add_steps(writer, range(4))
    add_steps(first, range(2, 5), attempt=1)
    first.append("steps", schema.steps.table([a_step(3, stage="validation", attempt=1)]))
    second.close("finished", {})
    first.close("finished", {})
    run = load(tmp_path / "run")
    found = sorted((step.rank, step.stage.value, step.step, step.attempt) for step in run.steps)
    assert [one for one in found if one[0] == 1] == [(1, "train", step, 0) for step in range(4)]
    assert [one[2:] for one in found if one[:2] == (0, "train")] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)]
    assert (0, "validation", 3, 1) in found


def test_a_part_without_bounds_of_attempts_is_looked_into(run):
    """As an older laptime wrote them."""
    (part,) = live_parts(run.path / "steps")
    pq.write_table(pq.read_table(part), part, write_statistics=False)
    assert len(load(run.path).steps) == 12


def test_a_run_of_schema_1_loads_and_tells_the_rows_that_it_dropped(run):
    file = run.path / "run.json"
    document = json.loads(file.read_text())
    del document["health"]
    document |= {"schema_version": 1, "summary": {"dropped_rows": {"layers": 7}}}
    file.write_text(json.dumps(document))
    old = load(run.path)
    assert (old.status, len(old.steps)) == ("finished", 12)
    assert find_losses(old).lost == {"layers": 7}
    document["summary"] = {}
    file.write_text(json.dumps(document))
    assert find_losses(load(run.path)).lost == {}
