"""What a run of stages records: every layer where it is computed, every sample once."""

import pytest
from tests.training.ranks_here import Training, train_on_ranks

CONFIG = """
network = "zener4"
[data]
kind = "zener"
samples = 96
validation_samples = 24
[train]
batch = 8
epochs = 1
threads = 1
device = "cpu"
[parallel]
strategy = "model"
schedule = "gpipe"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages")
    return train_on_ranks([Training(CONFIG, folder / "run")], 2)["run"]


def test_each_rank_times_the_layers_of_its_stage_and_the_run_lists_all_of_them(run):
    rows = run.layer_table.to_pylist()
    by_rank = [
        {row["layer"] for row in rows if row["rank"] == rank} - {"(loss)", "(other)"} for rank in (0, 1)
    ]
    assert not by_rank[0] & by_rank[1]
    assert [layer.name for layer in run.network] == ["conv1", "conv2", "fc1", "fc2"]
    assert by_rank[0] | by_rank[1] == {layer.name for layer in run.network}


def test_a_layer_is_called_once_for_each_part_of_the_batch(run):
    calls = {
        row["calls"] for row in run.layer_table.to_pylist() if row["step"] > 1 and row["phase"] == "forward"
    }
    assert 4 in calls


def test_samples_that_go_through_all_stages_are_counted_once(run):
    counted = [step.samples for step in run.steps if step.stage == "train" and step.samples is not None]
    assert sum(counted) == 96


def test_the_rank_with_the_last_stage_has_the_loss(run):
    assert {step.rank for step in run.steps if step.loss is not None} == {1}
