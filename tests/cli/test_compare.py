import json

import pytest
from tests.cli.verbs import caller
from tests.views.comparisons import a_run

from laptime.cli.compare import CompareCommand, compare


@pytest.fixture
def laptime(monkeypatch, tmp_path):
    return caller(monkeypatch, tmp_path, compare=(compare, CompareCommand))


@pytest.fixture
def runs(tmp_path):
    """Two groups of three: `base`, and `new`, which takes half as long again."""
    for number in (1, 2, 3):
        a_run(tmp_path / "base" / f"rep-{number}", seed=number)
        a_run(tmp_path / "new" / f"rep-{number}", seed=number + 5, scale=1.5)
    return tmp_path


def test_two_runs_are_a_and_b(laptime, runs):
    done = laptime("compare", "base/rep-1", "new/rep-1")
    assert done.exit_code == 0
    assert "slower" in done.stdout
    assert "one run each" in done.stdout
    assert done.stderr == ""


def test_json_is_one_document_with_everything(laptime, runs):
    found = json.loads(laptime("compare", "base/rep-1", "new/rep-1", "--json").stdout)
    assert found["train"]["step_s"]["ratio"] == pytest.approx(1.5, rel=0.02)
    assert found["a"]["runs"][0]["path"] == "base/rep-1"
    assert [layer["layer"] for layer in found["train"]["layers"]] == ["conv", "fc"]


def test_a_folder_of_runs_is_a_group(laptime, runs):
    found = json.loads(laptime("compare", "base", "new", "--json").stdout)
    assert [len(found[side]["runs"]) for side in "ab"] == [3, 3]
    assert found["train"]["step_s"]["unit"] == "runs"


def test_against_takes_every_path_that_follows_it(laptime, runs):
    b, a = sorted((runs / "new").iterdir()), sorted((runs / "base").iterdir())
    found = json.loads(laptime("compare", *b, "--against", *a, "--json").stdout)
    assert [len(found[side]["runs"]) for side in "ab"] == [3, 3]
    assert found["train"]["step_s"]["verdict"] == "slower"


def test_against_is_the_baseline(laptime, runs):
    found = json.loads(laptime("compare", "--json", "base", "--against", "new").stdout)
    assert found["train"]["step_s"]["verdict"] == "faster"


@pytest.mark.parametrize("given", [("base/rep-1",), ("base/rep-1", "base/rep-2", "base/rep-3")])
def test_one_or_three_groups_are_wrong_usage(laptime, runs, given):
    done = laptime("compare", *given)
    assert done.exit_code == 2
    assert "--against" in done.stderr


@pytest.mark.parametrize("given", ["nothing", "empty"])
def test_what_is_no_run_is_told_in_one_line(laptime, runs, given):
    (runs / "empty").mkdir()
    done = laptime("compare", "base", given)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert given in done.stderr


def test_a_run_compared_with_itself_is_no_difference(laptime, runs):
    found = json.loads(laptime("compare", "base/rep-1", "base/rep-1", "--json").stdout)
    assert found["train"]["step_s"]["ratio"] == 1.0
    assert found["train"]["step_s"]["verdict"] == "no difference"
