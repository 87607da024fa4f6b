import json
import math
import shutil

import pytest
from tests.runs.samples import HOSTILE, a_finished_run, a_layer_time, a_step, add_steps, start
from tests.views.samples import a_rich_run

from laptime.runs import load, schema
from laptime.views.run_document import content


@pytest.fixture
def rich(tmp_path):
    return content(load(a_rich_run(tmp_path / "run")))


def test_content_is_strict_json(rich):
    assert json.loads(json.dumps(rich, allow_nan=False)) == rich


def test_the_means_of_the_accounts_add_up_to_the_mean_wall_time(rich):
    accounts = [one for one in rich["train"]["accounts"] if not one["traced"] and one["seconds"]]
    total = sum(one["seconds"]["mean"] for one in accounts)
    assert math.isclose(total, rich["train"]["wall_s"]["mean"], rel_tol=1e-9)
    assert math.isclose(sum(one["share"] for one in accounts), 1.0)
    assert rich["train"]["explained_share"] == pytest.approx(1.0)


def test_idle_time_of_traced_steps_stands_beside_the_books(rich):
    (idle,) = (one for one in rich["train"]["accounts"] if one["account"] == "idle")
    assert idle["traced"]
    assert idle["share"] == pytest.approx(0.1)


def test_an_allocated_phase_says_so(rich):
    head = next(one for one in rich["train"]["layers"] if one["layer"] == "head")
    assert (head["forward"]["how"], head["update"]["how"]) == ("measured", "allocated")


def test_a_phase_that_a_layer_never_had_is_null(rich):
    stem = next(one for one in rich["train"]["layers"] if one["layer"] == "stem")
    assert stem["update"] is None
    assert stem["trainable"] is False


def test_validation_stands_apart_and_keeps_its_results(rich):
    assert rich["validation"]["steps"] == 2
    assert rich["validation"]["results"]["top1"] == pytest.approx(0.375)


def test_results_are_those_of_the_last_epoch_weighted_by_samples(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(4), epoch=0, top1=0.0)
    add_steps(writer, range(4, 5), epoch=1, top1=1.0, samples=30)
    add_steps(writer, range(5, 6), epoch=1, top1=0.0, samples=10)
    writer.close("finished", {})
    results = content(load(tmp_path / "run"))["train"]["results"]
    assert results["epoch"] == 1
    assert results["top1"] == pytest.approx(0.75)


def test_what_to_look_at_first_names_the_largest_layer_and_the_wait_for_data(rich):
    assert "block takes" in rich["look_first"][0]
    assert "the largest part in backward" in rich["look_first"][0]  # half of it, and half is not most
    assert "20.0 % of a step goes to data_wait" in rich["look_first"][1]
    assert len(rich["look_first"]) <= 3


def test_a_run_of_few_steps_is_said_to_be_one(tmp_path):
    found = content(load(a_finished_run(tmp_path / "run", ["conv"], steps=3)))
    assert any("steps were timed" in sentence for sentence in found["look_first"])


def test_a_run_without_steps_has_content(tmp_path):
    start(tmp_path / "run").close("failed", {})
    found = content(load(tmp_path / "run"))
    assert found["train"] is found["validation"] is None
    assert found["look_first"] == ["No step was recorded, so there is nothing to look at."]
    assert "failed" in found["notes"][0]


def test_a_run_that_is_being_written_has_content_and_says_so(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(6))
    writer.flush()
    found = content(load(tmp_path / "run"))
    assert found["train"]["steps"] == 6
    assert "still being written" in found["notes"][0]
    writer.close("finished", {})


def test_names_are_kept_as_they_are(tmp_path):
    found = content(load(a_finished_run(tmp_path / "run", HOSTILE)))
    assert [one["layer"] for one in found["train"]["layers"] if one["module"]] == HOSTILE


def a_run_of(path, hosts, *, account="host_s", summary=None, config=None):
    """Steps of 10 ms and what `hosts` adds to each, on an account of its own."""
    writer = start(path, **(config or {}))
    seconds = {
        "forward_s": 0.004,
        "backward_s": 0.005,
        "update_s": 0.001,
        "host_s": 0.0,
        "unexplained_s": 0.0,
    }
    rows = [
        a_step(number, wall_s=0.01 + more, **(seconds | {account: more})) for number, more in enumerate(hosts)
    ]
    writer.append("steps", schema.steps.table(rows))
    writer.close("finished", summary or {})
    return content(load(path))


def test_a_few_steps_with_checkpoints_are_not_a_typical_step(tmp_path):
    found = a_run_of(tmp_path / "run", [0.0, *([0.001] * 4 + [0.1]) * 4])
    (told,) = (one for one in found["look_first"] if "host" in one)
    assert told.startswith("67.5 % of the time goes to host, half of that in 3 of 20 steps: checkpoints")


def test_host_time_in_every_step_is_of_a_step(tmp_path):
    (told,) = (one for one in a_run_of(tmp_path / "run", [0.01] * 8)["look_first"] if "host" in one)
    assert told.startswith("50.0 % of a step goes to host: Python between the phases")
    assert "checkpoints" in told


@pytest.mark.parametrize(
    ("kernels", "words"),
    [(None, "2 steps have layer marks)"), ({"steps": [1]}, "layer marks, 1 step was kernel-traced)")],
)
def test_the_recorders_own_time_stands_beside_what_was_asked_of_it(tmp_path, kernels, words):
    summary = {"kernels": kernels, "instrumented_steps": 2}
    found = a_run_of(tmp_path / "run", [0.0, 0.005, 0.005], account="instrument_s", summary=summary)
    (told,) = (one for one in found["look_first"] if "instrument" in one)
    assert "the recorder's own work (the first steps find the layers, " in told
    assert words in told


def test_a_recorder_busy_in_many_steps_is_not_said_to_be_in_the_first_ones(tmp_path):
    busy = [0.0, *([0.0, 0.0, 0.005] * 20)]
    summary = {"instrumented_steps": 20}
    found = a_run_of(tmp_path / "run", busy, account="instrument_s", summary=summary)
    (told,) = (one for one in found["look_first"] if "instrument" in one)
    assert "of 60 steps: the first steps find the layers, 20 steps have layer marks." in told


def test_a_share_by_medians_is_of_a_typical_step_where_the_books_have_another(tmp_path):
    found = a_run_of(tmp_path / "run", [0.0, *[0.01] * 15, *[0.2] * 5])
    (told,) = (one for one in found["look_first"] if "host" in one)
    assert told.startswith("50.0 % of a typical step goes to host, 85.2 % of the whole time: ")
    (host,) = (one for one in found["train"]["accounts"] if one["account"] == "host")
    assert round(host["share"], 3) == 0.852


def test_a_log_is_said_to_hold_no_accounts(tmp_path):
    config = {"collected": {"source": "log", "files": []}}
    found = a_run_of(tmp_path / "run", [0.01] * 6, account="unexplained_s", config=config)
    assert "The log holds no accounts: it does not say where the time of a step went." in found["look_first"]
    assert not any("unexplained" in one for one in found["look_first"])


def test_steps_that_a_resume_took_again_are_noted(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(10))
    add_steps(writer, range(7, 12), attempt=1)
    writer.close("finished", {})
    notes = content(load(tmp_path / "run"))["notes"]
    assert any(note.startswith("3 steps were taken again after a resume") for note in notes)


@pytest.mark.parametrize(("table", "what"), [("layers", "layer times were"), ("steps", "8 steps were")])
def test_a_folder_that_is_gone_is_noted(tmp_path, table, what):
    writer = start(tmp_path / "run")
    add_steps(writer, range(8))
    writer.append("layers", schema.layers.table([a_layer_time(number, "conv") for number in range(8)]))
    writer.close("finished", {"steps": {"train": 8}, "named_share": 1.0})
    assert content(load(tmp_path / "run"))["lost"] == {}
    shutil.rmtree(tmp_path / "run" / table)
    note = f"{what} recorded, but the run's `{table}` folder is gone"
    assert note in content(load(tmp_path / "run"))["notes"]


def test_the_steps_of_several_ranks_are_counted_once(tmp_path):
    writer = start(tmp_path / "run")
    for rank in range(2):
        writer.append("steps", schema.steps.table([a_step(number, rank=rank) for number in range(8)]))
    writer.close("finished", {})
    train = content(load(tmp_path / "run"))["train"]
    assert (train["steps"], train["ranks"]) == (8, 2)
