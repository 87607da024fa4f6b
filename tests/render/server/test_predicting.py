"""The prediction page: what can be asked, and what a bad question is told."""

import json

import pytest

import laptime
from laptime.api import zoo_workloads
from laptime.model import Memory, Operation, Phase, Workload
from laptime.render.server.index import Index


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    """No calibrations, devices and prices of whoever runs the tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("LAPTIME_DEVICES", raising=False)


def a_workload(batch=64, precision="fp32", network="<b>small</b>"):
    moved = batch * 4096 * 4
    shape = {"m": batch, "k": 4096, "n": 4096}
    return Workload(
        network=network,
        mode="training",
        batch=batch,
        precision=precision,
        parameters=4096**2,
        tensors=1,
        sample_bytes=4096 * 4,
        layers=("<i>fc</i>",),
        operations=tuple(
            Operation(
                name="aten.mm",
                kind="matmul",
                phase=phase,
                layer="<i>fc</i>",
                dtype="float32",
                sizes=shape,
                flops=2 * batch * 4096**2,
                read=moved + 4096**2 * 4,
                written=moved,
                alive=moved,
            )
            for phase in (Phase.FORWARD, Phase.BACKWARD)
        ),
        memory=Memory(
            parameters=2**26, gradients=2**26, buffers=0, state=2**26, inputs=moved, activations=moved,
            peak=2**28 + 2 * moved,
        ),
    )  # fmt: skip


@pytest.fixture
def client(serve, folder):
    (folder / "models").mkdir()
    a_workload().save(folder / "models" / "<b>.json")
    return serve(folder)


def asked(client, **query):
    answer = client.get("/api/predict", params=query)
    return answer.status_code, answer.json()


SAVED = "models/<b>.json"


def test_a_saved_workload_is_predicted(client):
    status, found = asked(client, workload=SAVED, devices="h200,l4", samples=1000, epochs=2)
    assert status == 200
    assert sorted(row["device"] for row in found["rows"]) == ["h200", "l4"]
    assert all(row["hours"] > 0 for row in found["rows"])
    assert (found["kind"], found["name"]) == ("workload", SAVED)
    assert found["baseline"] is None


def test_a_slider_is_told_against_the_machine_as_it_is(client):
    _, found = asked(client, workload=SAVED, devices="h200", host="4", batch="8")
    [now], [before] = found["rows"], found["baseline"]["rows"]
    assert now["step_s"] < before["step_s"]


def test_the_same_question_again_rests_on_the_same_workload(folder):
    a_workload().save(folder / "one.json")
    saved = Index(folder)
    assert saved.workload("one.json") is saved.workload("one.json")
    a_workload(batch=32).save(folder / "one.json")
    assert saved.workload("one.json").batch == 32


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({}, "give one network, run or workload"),
        ({"workload": SAVED, "run": "first"}, "give one network, run or workload"),
        ({"workload": "../secret.json"}, "no workload is called"),
        ({"workload": "first/run.json"}, "no workload is called"),
        ({"run": "../first"}, "no run is called"),
        ({"run": "first"}, "first"),
        ({"run": "broken"}, "restore it from a copy"),
        ({"network": "resnet50"}, "without torch"),
        ({"workload": SAVED, "batch": "0"}, "batch is 0"),
        ({"workload": SAVED, "batch": "many"}, "batch is 'many'"),
        ({"workload": SAVED, "compute": "nan"}, "compute is"),
        ({"workload": SAVED, "devices": "/etc/passwd.toml"}, "a file"),
        ({"workload": SAVED, "precision": "bf16"}, "precision is bf16"),
        ({"workload": SAVED, "bacth": "3"}, "did you mean batch?"),
        ({"workload": SAVED, "epochs": "3"}, "samples"),
    ],
)
def test_a_bad_question_is_told_in_one_line(client, query, said):
    status, found = asked(client, **query)
    assert status == 400
    assert list(found) == ["error"]
    assert said in found["error"]
    assert "\n" not in found["error"]


def test_networks_are_read_once_for_a_precision_whatever_the_batch(serve, folder):
    read = []

    def reads(batch, precision):
        read.append((batch, precision))
        return a_workload(batch, precision)

    client = serve(folder, networks={"mine": reads})
    assert client.get("/api/networks").json() == {"networks": ["mine"]}
    for batch in (16, 64, 200):
        status, found = asked(client, network="mine", batch=batch, devices="h200")
        assert status == 200
        assert found["question"]["batch"] == batch
    asked(client, network="mine", precision="bf16", devices="h200")
    assert read == [(32, "fp32"), (32, "bf16")]
    assert "choose one of the list" in asked(client, network="other")[1]["error"]


def test_the_page_and_the_api_say_the_same_memory_of_a_network_at_another_batch(serve, folder):
    client = serve(folder, networks=zoo_workloads())
    _, found = asked(client, network="resnet18", batch=256, devices="h200")
    [row] = found["rows"]
    made = laptime.predict("resnet18", batch=256, device="h200")
    assert row["reserved_memory_bytes"] == pytest.approx(made.reserved_memory_bytes, rel=5e-4)
    assert row["step_s"] == pytest.approx(made.step_s, rel=1e-3)


def test_without_torch_no_network_is_offered(client):
    assert client.get("/api/networks").json() == {"networks": None}


def test_the_page_offers_runs_with_a_workload_and_saved_ones_as_text(client, folder):
    path = folder / "first" / "run.json"
    document = json.loads(path.read_text())
    document["summary"]["workload"] = {"read": True}
    path.write_text(json.dumps(document))
    text = client.get("/predict").text
    assert '<option value="run:first">' in text
    assert "run:sweep" not in text
    assert "models/&lt;b&gt;.json" in text
    assert "<b>" not in text
    assert 'type="range"' in text


def test_the_newest_run_is_offered_first(serve, folder):
    for name, day in (("first", 1), ("sweep/lr=0.1", 2)):
        path = folder / name / "run.json"
        document = json.loads(path.read_text())
        document["summary"]["workload"] = {"read": True}
        document["created"] = f"2026-01-0{day}T00:00:00+00:00"
        path.write_text(json.dumps(document))
    text = serve(folder).get("/predict").text
    assert text.index('value="run:sweep/lr=0.1"') < text.index('value="run:first"')


def test_a_question_about_a_known_workload_walks_no_folder(folder, monkeypatch):
    a_workload().save(folder / "kept.json")
    saved = Index(folder)
    saved.workloads()
    monkeypatch.setattr("os.walk", None)
    assert saved.workload("kept.json").batch == 64
    (folder / "kept.json").unlink()
    assert saved.workload("kept.json") is None


def test_workloads_that_are_gone_are_forgotten(folder):
    a_workload().save(folder / "kept.json")
    saved = Index(folder)
    assert list(saved.workloads()) == ["kept.json"]
    (folder / "kept.json").unlink()
    assert list(saved.workloads()) == []
    assert not saved._looked_at


def test_workloads_are_found_by_their_content_and_never_through_links(folder):
    a_workload().save(folder / "kept.json")
    a_workload().save(folder / ".hidden.json")
    a_workload().save(folder / "first" / "workload.json")
    a_workload().save(folder.parent / "outside.json")
    (folder / "other.json").write_text('{"name": "laptime"}')
    (folder / "linked.json").symlink_to(folder.parent / "outside.json")
    assert Index(folder).workloads() == ["kept.json"]


def test_a_workload_that_only_looks_like_one_is_told_in_one_line(client, folder):
    (folder / "odd.json").write_text('{"laptime_workload": 1, "network": ')
    (folder / "deep.json").write_text('{"laptime_workload": ' + "[" * 100_000)
    for name in ("odd.json", "deep.json"):
        status, found = asked(client, workload=name)
        assert status == 400
        assert "workload" in found["error"]
