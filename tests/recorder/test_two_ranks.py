"""Two ranks, one of them late by a known time: the other's wait is communication, and no layer's time."""

import statistics

import pytest

import laptime
from tests.recorder import two_ranks
from tests.recorder.two_ranks import PLANTED_S, STEPS

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not two_ranks.has_gloo(), reason="this build of torch has no gloo to connect ranks with"
    ),
]


def waits(run):
    """Seconds of communication of a typical step, by rank."""
    by_rank = [[s.communication_s for s in run.steps if s.rank == rank and s.step > 0] for rank in (0, 1)]
    assert [len(one) for one in by_rank] == [STEPS - 1] * 2
    # What the exchange itself takes, both ranks have alike.
    return statistics.median(a - b for a, b in zip(*by_rank, strict=True))


def longest_layer_s(run):
    rows = [row for row in run.layer_table.to_pylist() if row["rank"] == 0 and row["step"] > 0]
    return statistics.median(
        max(row["seconds"] for row in rows if row["step"] == step) for step in range(1, STEPS)
    )


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    assert two_ranks.start(two_ranks.planted, folder, ["ddp", "fsdp2", "by_hand"], ["layers"]) == [0, 0]
    return folder


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "by_hand"])
def test_waiting_for_a_late_rank_is_communication_and_in_no_layer(name, planted):
    run = laptime.load(planted / name / "layers")
    assert waits(run) == pytest.approx(PLANTED_S, rel=0.05)
    assert longest_layer_s(run) < 0.1 * PLANTED_S
    assert run.status == "finished"


@pytest.mark.slow
def test_waiting_is_found_without_layer_marks_and_by_every_way_of_exchanging(tmp_path):
    names = list(two_ranks.CASES)
    assert two_ranks.start(two_ranks.planted, tmp_path, names, ["bare"]) == [0, 0]
    found = {name: waits(laptime.load(tmp_path / name / "bare")) for name in names}
    assert found == dict.fromkeys(names, pytest.approx(PLANTED_S, rel=0.05))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainers")
    assert two_ranks.start(two_ranks.trainers, folder) == [0, 0]
    return folder


@pytest.mark.parametrize("name", ["transformers", "lightning"])
def test_the_ranks_of_a_trainer_are_one_run_and_its_waits_are_communication(name, trained):
    (path,) = [trained / "transformers"] if name == "transformers" else (trained / "runs").iterdir()
    run = laptime.load(path)
    assert waits(run) == pytest.approx(PLANTED_S, rel=0.05)
    assert longest_layer_s(run) < 0.1 * PLANTED_S
    assert run.status == "finished"
    # The last rank to end has written these, with the rows of both.
    assert len((path / "csv" / "iterations.csv").read_text().splitlines()) == 2 * STEPS + 1
