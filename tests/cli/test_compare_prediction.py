"""`laptime compare RUN prediction.json`."""

import json

import pytest
from tests.cli.verbs import caller
from tests.estimate.runs import a_run, a_workload
from typer.core import TyperCommand

from laptime.cli.compare import CompareCommand, compare
from laptime.cli.predict import predict


@pytest.fixture
def laptime(monkeypatch, tmp_path):
    return caller(monkeypatch, tmp_path, compare=(compare, CompareCommand), predict=(predict, TyperCommand))


@pytest.fixture
def both(laptime, tmp_path):
    """A run whose layers took half as long again as predicted, and the prediction."""
    a_run(tmp_path / "run", times=lambda layer, phase, seconds: 1.5 * seconds, waiting_s=0.5)
    a_workload().save(tmp_path / "wide.json")
    save(laptime, tmp_path / "predicted.json")
    return tmp_path


def save(laptime, path, *options):
    done = laptime("predict", "wide.json", "--device", "h200", "--json", *options)
    assert done.exit_code == 0
    path.write_text(done.stdout)


def test_measured_and_predicted_stand_side_by_side(laptime, both):
    found = json.loads(laptime("compare", "run", "predicted.json", "--json").stdout)
    assert found["step"]["error"] == pytest.approx(1 / 1.5 - 1)
    assert found["step"]["inside"] is False
    assert found["layer_error"] == pytest.approx(1 / 3)
    assert found["layer_phase_error"] == pytest.approx(1 / 3)
    assert [row["layer"] for row in found["layers"]] == ["0", "2", "(host)", "(loss)"]
    for row in found["layers"]:
        if row["layer"] != "(host)":
            assert row["forward"]["error"] == pytest.approx(-1 / 3)
    assert [row["phase"] for row in found["phases"]] == ["forward", "backward", "update"]


def test_the_order_of_the_two_does_not_matter(laptime, both):
    one, other = (
        laptime("compare", *paths) for paths in (("run", "predicted.json"), ("predicted.json", "run"))
    )
    assert one.exit_code == other.exit_code == 0
    assert one.stdout == other.stdout
    assert "-33.3 % off" in one.stdout
    assert "(loss)" in one.stdout


def test_layers_that_only_one_side_has_are_named(laptime, both):
    document = json.loads((both / "predicted.json").read_text())
    document["predictions"][0]["layer_times"][0]["layer"] = "elsewhere"
    (both / "predicted.json").write_text(json.dumps(document))
    found = json.loads(laptime("compare", "run", "predicted.json", "--json").stdout)
    assert "only measured: 0" in found["notes"]
    assert "only predicted: elsewhere" in found["notes"]
    assert found["layer_error"] > 0.5


def test_what_is_no_layer_is_not_in_the_error_of_layers_and_is_shown(laptime, both):
    a_run(both / "waited", times=lambda layer, phase, seconds: 1.5 * seconds, rest_s=0.002)
    document = json.loads((both / "predicted.json").read_text())
    host = next(one for one in document["predictions"][0]["layer_times"] if one["layer"] == "(host)")
    host["forward_s"] = 0.1  # many times what all layers take
    (both / "predicted.json").write_text(json.dumps(document))
    found = json.loads(laptime("compare", "waited", "predicted.json", "--json").stdout)
    assert found["layer_error"] == pytest.approx(1 / 3)
    assert found["phases"][0]["error"] == pytest.approx(-1 / 3)
    row = next(one for one in found["layers"] if one["layer"] == "(host)")
    assert row["total"]["measured"] == pytest.approx(0.002)
    assert row["total"]["error"] == pytest.approx(49)
    shown = " ".join(laptime("compare", "waited", "predicted.json").stdout.split())
    assert "update" in shown.partition("(host) 2.0 100.0 +4900 %")[0]  # below the phases too
    assert "(host), Python between the phases, is no layer: 100 ms predicted, 2 ms measured" in shown


@pytest.mark.parametrize("name", ["AMD EPYC", ""])
def test_a_run_on_a_cpu_condemns_no_prediction_for_a_gpu(laptime, both, name):
    a_run(both / "here", environment={"device": {"type": "cpu", "name": name}})
    found = json.loads(laptime("compare", "here", "predicted.json", "--json").stdout)
    assert found["same_device"] is False
    assert found["step"]["ratio"] == pytest.approx(1)
    cells = [found["step"], *found["phases"], *(row["total"] for row in found["layers"])]
    assert {one["error"] for one in cells} == {found["layer_error"]} == {found["step"]["inside"]} == {None}
    assert "is not known" not in " ".join(found["notes"])
    shown = laptime("compare", "here", "predicted.json").stdout
    assert "no error of the prediction" in " ".join(shown.split())
    assert " off" not in shown
    assert " 1x" in shown


def test_layers_of_slow_marked_steps_that_exceed_the_step_are_noted(laptime, both):
    a_run(both / "marked", rest_s=1e-4, jitter=lambda layer, number: float(number > 3))
    found = json.loads(laptime("compare", "marked", "predicted.json", "--json").stdout)
    assert any(
        "more than the step: they are of steps whose layers were marked" in one for one in found["notes"]
    )
    found = json.loads(laptime("compare", "run", "predicted.json", "--json").stdout)
    assert not any("more than the step" in one for one in found["notes"])


def test_a_gpu_that_nobody_knows_may_be_the_predicted_one(laptime, both):
    a_run(both / "there", environment={"device": {"type": "cuda", "name": "NVIDIA Q1"}})
    found = json.loads(laptime("compare", "there", "predicted.json", "--json").stdout)
    assert found["same_device"] is None
    assert "whether NVIDIA Q1 is h200 is not known" in found["notes"]


def test_a_device_told_in_an_odd_way_is_not_known(laptime, both):
    a_run(both / "odd", environment={"device": "AMD"})
    found = json.loads(laptime("compare", "odd", "predicted.json", "--json").stdout)
    assert found["same_device"] is None


def test_another_device_is_noted(laptime, both):
    save(laptime, both / "h100.json", "--device", "h100-sxm")
    text = (both / "h100.json").read_text()
    document = json.loads(text)
    document["predictions"] = document["predictions"][1:]
    (both / "h100.json").write_text(json.dumps(document))
    found = json.loads(laptime("compare", "run", "h100.json", "--json").stdout)
    assert any("the devices differ: measured on h200" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch": 32}, "predict it with --batch 64"),
        ({"mode": "inference"}, "the prediction is of inference"),
        ({"gpus": 8}, "several GPUs"),
        ({"step_s": "soon"}, "is no prediction"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(laptime, both, change, said):
    document = json.loads((both / "predicted.json").read_text())
    document["predictions"][0] |= change
    (both / "predicted.json").write_text(json.dumps(document))
    done = laptime("compare", "run", "predicted.json")
    assert done.exit_code == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "is no prediction"),
        ("nonsense", "is no prediction"),
        ('{"predictions": []}', "holds no prediction"),
    ],
)
def test_a_file_that_is_no_prediction_is_refused_in_one_line(laptime, both, text, said):
    (both / "other.json").write_text(text)
    done = laptime("compare", "run", "other.json")
    assert done.exit_code == 1
    assert said in done.stderr


def test_two_predictions_or_two_runs_beside_one_are_wrong_usage(laptime, both):
    a_run(both / "second")
    save(laptime, both / "more.json")
    for paths in (("predicted.json", "more.json"), ("run", "second", "predicted.json")):
        assert laptime("compare", *paths).exit_code == 2
