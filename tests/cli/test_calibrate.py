"""`laptime calibrate`: what it saves, prints and refuses; and that predictions find it."""

import json
from dataclasses import replace
from functools import partial

import pytest
from typer.testing import CliRunner

from laptime import hardware, microbench
from laptime.cli import app
from laptime.errors import CalibrationError, UnknownDevice
from laptime.estimate import device_speed
from laptime.microbench.calibrate import KindError
from laptime.microbench.run import HostStopwatch


@pytest.fixture
def calibrations(monkeypatch, tmp_path):
    """An empty folder for the user's calibrations."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "laptime" / "calibrations"


def hurry(patch):
    """Sweeps of tiny operations, each timed once."""
    tiny = partial(microbench.Sweep, largest_s=0.0005, store_bytes=1 << 22, watch=HostStopwatch(most=1))
    patch.setattr(microbench, "Sweep", tiny)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A user's calibration of three seconds: what the command told, and the folder of all data."""
    data = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(data))
        for variable in ("KINETO_LOG_LEVEL", "TORCH_CPP_LOG_LEVEL"):  # which commands set for good
            patch.setenv(variable, "2")
        hurry(patch)
        done = CliRunner().invoke(app, ["calibrate", "--device", "cpu", "--seconds", "3", "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout), data


def test_a_calibration_is_saved_where_predictions_look(calibrated, monkeypatch):
    found, data = calibrated
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    calibrations = data / "laptime" / "calibrations"
    file = calibrations / f"{found['device']}.npz"
    assert found["file"] == str(file)
    assert file.is_file()
    assert len(file.with_suffix(".csv").read_text().splitlines()) == found["rows"] + 1
    assert sum(one["rows"] for one in found["kinds"]) == found["rows"]
    assert not list(calibrations.glob(".*"))

    known = device_speed.device("cpu")
    speed = device_speed.speed_of(known)
    calibration = speed.calibration
    assert speed.measured
    assert not speed.hosted
    assert known.name == found["device"] == calibration.device
    assert calibration.facts["host"] == "device"
    assert calibration.facts["environment"]["torch"]
    assert calibration.basis == f"calibration of {found['date']}"
    assert known.memory_bandwidth == pytest.approx(found["bandwidth"])
    assert known.peak("fp32") == pytest.approx(found["peaks"]["float32"])


def test_a_calibration_is_saved_where_it_is_asked_for(
    laptime, calibrations, calibrated, tmp_path, monkeypatch
):
    rows = calibrated[0]["rows_file"]  # timed before
    monkeypatch.setattr(microbench, "Sweep", lambda place, seconds: microbench.read_rows(rows))
    done = laptime("calibrate", "--device", "cpu", "--seconds", "2", "--out", "mine/here.npz")
    assert done.exit_code == 0
    for word in ("operations timed", "kind", "rows"):  # a busy machine may give no kind a model
        assert word in done.stdout
    assert (tmp_path / "mine" / "here.npz").is_file()
    assert (tmp_path / "mine" / "here.csv").is_file()
    assert not calibrations.exists()


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["--seconds", "0"], 2, "--seconds"),
        (["--seconds", "1000"], 2, "--seconds"),
        (["--out", "mine.csv"], 2, "--out"),
        (["--device", "tpu"], 1, "tpu"),
        (["--device", "cuda:99"], 1, "cuda:99"),
    ],
)
def test_what_cannot_be_calibrated_is_told(laptime, words, status, line):
    done = laptime("calibrate", *words)
    assert done.exit_code == status
    assert line in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.usefixtures("calibrations")
def test_a_sweep_that_is_too_short_is_told_in_one_line(laptime, monkeypatch):
    hurry(monkeypatch)
    done = laptime("calibrate", "--device", "cpu", "--seconds", "0.01")
    assert done.exit_code == 1
    assert "--seconds" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("calibrations")
def test_without_a_calibration_the_machine_at_hand_is_not_known():
    with pytest.raises(CalibrationError, match="run `laptime calibrate` first"):
        device_speed.device("cpu")
    with pytest.raises(UnknownDevice):
        device_speed.device("no-such-card")
    assert device_speed.device("h200") == hardware.device("h200")


def test_the_user_s_own_calibration_goes_before_the_shipped_one(calibrations):
    h200 = hardware.device("h200")
    shipped = device_speed.speed_of(h200).calibration
    assert shipped.basis == "calibration of h200"
    calibrations.mkdir(parents=True)
    replace(shipped, facts={"date": "2026-11-15"}).save(calibrations / "h200.npz")
    own = device_speed.speed_of(h200)
    assert own.measured
    assert own.calibration.basis == "calibration of 2026-11-15"


def test_the_newest_calibration_of_a_cpu_is_meant(calibrations):
    calibrations.mkdir(parents=True)
    figures = {"title": "mine", "kind": "cpu", "memory_bandwidth_gbs": 10.0, "fp32": 0.1}
    for name, date in (("this-cpu", "2026-11-15"), ("i7-3820", "2026-11-14"), ("h200", "2026-11-16")):
        facts = {"date": date, "type": "cuda" if name == "h200" else "cpu", "figures": figures}
        replace(device_speed.shipped("h200"), device=name, facts=facts).save(calibrations / f"{name}.npz")
    assert device_speed.device("cpu").name == "this-cpu"
    assert device_speed.device("cuda").name == "h200"


def test_a_sweep_without_a_product_gives_no_peak_of_0():
    import torch

    from laptime.microbench import SweepRow
    from laptime.microbench.calibrate import figures
    from laptime.model import Operation, Phase

    copied = Operation(name="aten.clone", kind="copy", phase=Phase.FORWARD, layer="", dtype="float32", read=8)
    row = SweepRow(operation=copied, device_us=1.0, host_us=0.0, calls=3)
    with pytest.raises(CalibrationError, match="give more --seconds"):
        figures([row], torch.device("cpu"))


def a_kind(name):
    return KindError(kind=name, dtype="float32", rows=30, median_error=0.1, model=True)


def test_kinds_that_nearly_every_network_has_are_asked_for():
    from laptime.cli.calibrate import _advice
    from laptime.ops.registry import kinds as known

    common = [name for name, kind in known().items() if kind.common]
    kinds = [a_kind(kind) for kind in ("mm", *common)]
    assert _advice(kinds, 20) is None
    few = [replace(kind, model=kind.kind != "mm") for kind in kinds]
    assert "too few rows for mm" in _advice(few, 20)
    assert "give more --seconds" in _advice(few, 20)
    assert "--seconds" not in _advice(few, 120)


def test_kinds_without_a_model_are_counted_rather_than_listed(tmp_path):
    from laptime.cli.calibrate import _lines

    one = a_kind("mm")
    none = replace(one, kind="pool", rows=3, median_error=None, model=False)
    document = {"device": "mine", "rows": 33, "kinds": [one, none], "file": tmp_path, "rows_file": tmp_path}
    told = " ".join(line.plain for line in _lines(document, 100))
    assert "pool" not in told
    assert "error" in told
    assert "10%" in told
    assert "1 more kinds and types have too few rows" in told
