"""A run in MLflow, read back by MLflow's own client from a folder."""

import http.server
import json
import math
import os
import re
import sys
import threading

import pytest
from tests.runs.samples import HOSTILE, a_finished_run, a_layer_time, a_step, add_steps, start

from laptime.errors import MissingExtra, RunError
from laptime.runs import load, schema, write_csv, write_mlflow

mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of MLflow's, and a client that may read it."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    folder = tmp_path / "mlruns"
    return str(folder), mlflow.MlflowClient(tracking_uri=str(folder))


def history(client, run_id, name):
    return [(one.step, one.value) for one in client.get_metric_history(run_id, name)]


def test_metrics_parameters_tags_and_files_are_read_back(tmp_path, place):
    uri, client = place
    run = load(a_finished_run(tmp_path / "runs" / "mine", ["conv1", "fc"]))
    write_csv(run)
    sent = write_mlflow(run, uri)
    found = client.get_run(sent.run_id)
    assert client.get_experiment(found.info.experiment_id).name == sent.experiment == "runs"
    assert (found.info.run_name, found.info.status) == ("mine", "FINISHED")
    assert found.info.start_time == round(run.created.timestamp() * 1e3) <= found.info.end_time
    assert found.data.params == {"batch": "64"}
    assert found.data.tags["laptime.id"] == run.id
    assert found.data.tags["laptime.status"] == "finished"
    assert history(client, sent.run_id, "train/loss") == [(n, 1 / (n + 1)) for n in range(8)]
    assert history(client, sent.run_id, "validation/loss") == [(0, 1.0)]
    assert history(client, sent.run_id, "train/layer/fc/backward")[7] == (7, pytest.approx(1.0))
    assert found.data.metrics["books/backward_share"] == pytest.approx(0.5)
    assert "books/idle_share" not in found.data.metrics
    files = {file.path for file in client.list_artifacts(sent.run_id, "csv")}
    assert files == {"csv/layers.csv", "csv/iterations.csv", "csv/experiment.csv"}


def test_exporting_again_leaves_one_run(tmp_path, place):
    uri, client = place
    run = load(a_finished_run(tmp_path / "run", ["conv1"]))
    first = write_mlflow(run, uri, "mine")
    second = write_mlflow(run, uri, "mine")
    assert (first.replaced, second.replaced) == ((), (first.run_id,))
    (left,) = client.search_runs([second.experiment_id])
    assert left.info.run_id == second.run_id
    assert client.get_run(first.run_id).info.lifecycle_stage == "deleted"


@pytest.mark.parametrize("odd", ["O'Brien", "both \" and '", "a\\", "100%"])
def test_a_run_whose_id_would_end_a_filters_text_is_found_and_no_other(tmp_path, place, odd):
    uri, client = place
    for name, own in (("run", odd), ("other", re.sub(r"\W", "x", odd))):
        path = a_finished_run(tmp_path / name, ["conv1"]) / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"id": own}))
    other = write_mlflow(load(tmp_path / "other"), uri, "mine")
    first = write_mlflow(load(tmp_path / "run"), uri, "mine")
    second = write_mlflow(load(tmp_path / "run"), uri, "mine")
    assert (first.replaced, second.replaced) == ((), (first.run_id,))
    left = {one.info.run_id for one in client.search_runs([second.experiment_id])}
    assert left == {other.run_id, second.run_id}


def test_names_that_mlflow_does_not_take_stay_apart(tmp_path, place):
    uri, client = place
    names = [*HOSTILE, "conv_1", "a", "a/forward", "..", "", "x" * 400, "x" * 401, "层" * 200]
    writer = start(tmp_path / "run", **{"odd|key": 1, "odd?key": 2})
    add_steps(writer, range(1))
    rows = [a_layer_time(0, name, seconds=place * 1e-3) for place, name in enumerate(names)]
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    found = client.get_run(write_mlflow(load(tmp_path / "run"), uri).run_id).data
    layers = {name: value for name, value in found.metrics.items() if name.startswith("train/layer/")}
    assert sorted(layers.values()) == pytest.approx(range(len(names)))
    assert found.params == {"odd_key": "1", "odd_key 2": "2"}


@pytest.mark.parametrize(
    ("status", "theirs"), [("finished", "FINISHED"), ("failed", "FAILED"), ("interrupted", "KILLED")]
)
def test_a_run_of_any_end_is_taken_without_steps_too(tmp_path, place, status, theirs):
    uri, client = place
    start(tmp_path / "run").close(status, {})
    found = client.get_run(write_mlflow(load(tmp_path / "run"), uri).run_id)
    assert (found.info.status, found.data.metrics) == (theirs, {})


def test_a_run_that_goes_on_is_running_and_nan_stays_nan(tmp_path, place):
    uri, client = place
    writer = start(tmp_path / "run")
    writer.append("steps", schema.steps.table([a_step(0, loss=math.nan)]))
    writer.flush()
    found = client.get_run(write_mlflow(load(tmp_path / "run"), uri).run_id)
    writer.close("finished", {})
    assert (found.info.status, found.info.end_time) == ("RUNNING", None)
    assert math.isnan(found.data.metrics["train/loss"])


def test_long_parameters_are_cut_and_named(tmp_path, place):
    uri, client = place
    many = {f"key{n}": "层" * 7000 for n in range(30)}
    start(tmp_path / "run", short="yes", **many).close("finished", {})
    sent = write_mlflow(load(tmp_path / "run"), uri)
    found = client.get_run(sent.run_id).data
    assert set(sent.cut) == set(many)
    assert found.params["key7"] == "层" * 6000
    assert found.params["short"] == "yes"
    assert "key7" in found.tags["laptime.cut"]


def test_more_points_than_one_call_takes_are_sent_in_several(tmp_path, place):
    uri, client = place
    writer = start(tmp_path / "run")
    add_steps(writer, range(3000))
    writer.close("finished", {})
    sent = write_mlflow(load(tmp_path / "run"), uri)
    points = history(client, sent.run_id, "train/loss")
    assert len(points) == 1000
    assert points[-1][0] == 2999


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("nonsense://x", "give a folder, http://host:port or sqlite:///mlflow.db"),
        ("postgresql://me:secret@host/db", "pip install mlflow"),
        ("http://127.0.0.1:9", "no MLflow server answers at http://127.0.0.1:9 (Connection refused)"),
        ("http://me:secret@127.0.0.1:9", "start it with `mlflow server`"),
        ("http://host:port", "is no address"),
        ("http://", "no MLflow server answers"),
    ],
)
def test_a_bad_address_is_told_in_one_line_without_its_password(tmp_path, uri, says):
    run = load(a_finished_run(tmp_path / "run", ["conv1"], steps=1))
    with pytest.raises(RunError) as caught:
        write_mlflow(run, uri)
    if says == "pip install mlflow" and "did not take" in str(caught.value):
        pytest.skip("all of MLflow is installed")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_is_no_folder_and_a_web_page_no_server(tmp_path):
    run = load(a_finished_run(tmp_path / "run", ["conv1"], steps=1))
    with pytest.raises(RunError, match="did not take the run: Not a directory"):
        write_mlflow(run, str(run.path / "run.json"))

    class NotMlflow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), NotMlflow) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(RunError, match=r"did not take the run: .*404"):
                write_mlflow(run, f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


def test_half_a_run_is_taken_back(tmp_path, place, monkeypatch):
    uri, client = place
    run = load(a_finished_run(tmp_path / "run", ["conv1"], steps=1))

    def refuse(*_, **__):
        raise mlflow.MlflowException("the disk\nis full")

    monkeypatch.setattr(mlflow.MlflowClient, "set_terminated", refuse)
    with pytest.raises(RunError, match=r"did not take the run: the disk$"):
        write_mlflow(run, uri, "mine")
    assert client.search_runs([client.get_experiment_by_name("mine").experiment_id]) == []


def test_the_environment_is_left_as_it_was(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    before = dict(os.environ)
    write_mlflow(load(a_finished_run(tmp_path / "run", ["conv1"], steps=1)), str(tmp_path / "mlruns"))
    assert dict(os.environ) == before


def test_without_mlflow_the_extra_is_named(tmp_path, monkeypatch):
    run = load(a_finished_run(tmp_path / "run", ["conv1"], steps=1))
    monkeypatch.setitem(sys.modules, "mlflow.client", None)
    with pytest.raises(MissingExtra, match=r"mlflow-skinny .*laptime\[export\]"):
        write_mlflow(run, str(tmp_path / "mlruns"))
