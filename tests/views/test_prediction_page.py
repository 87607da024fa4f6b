"""The pages of saved predictions: every number is one of the document's."""

import json

import pytest
from tests.views.test_comparison_page import check, figures, sections, table

from laptime.errors import PredictionError
from laptime.render.html.prediction_page import beside_page, prediction_page, read_predictions
from laptime.render.html.render import standalone

GIB = 2**30
EVIL = "<img src=x onerror=alert(1)>"


def a_prediction(device="h200", **changed):
    """A step of 10 ms: 4 forward, 5 backward, 1 update in two layers."""
    layers = [
        {"layer": "conv", "forward_s": 0.003, "backward_s": 0.004, "update_s": 0.0005},
        {"layer": "(loss)", "forward_s": 0.001, "backward_s": 0.001, "update_s": 0.0005},
    ]
    values = {
        "network": "wide",
        "device": device,
        "batch": 64,
        "precision": "fp32",
        "mode": "training",
        "step_s": 0.01,
        "interval_s": [0.008, 0.013],
        "busy_s": 0.009,
        "host_s": 0.004,
        "phases": {"forward": 0.003, "loss": 0.001, "backward": 0.005, "update": 0.001},
        "layer_times": layers,
        "bottleneck": "memory traffic: 52% of the device's time",
        "uncovered": {},
        "peak_memory_bytes": 4 * GIB,
        "reserved_memory_bytes": 5 * GIB,
        "device_memory_bytes": 16 * GIB,
        "basis": "calibration of h200",
        "notes": [],
        "gpus": 1,
        "communication_s": 0.0,
        "samples": None,
        "epochs": None,
        "price_per_hour": None,
        "samples_per_s": 6400.0,
        "fits": True,
        "epoch_s": None,
        "training_s": None,
        "dollars": None,
        "kilowatt_hours": None,
    }
    return values | changed


def page_of(*predictions, **more):
    return check(prediction_page({"predictions": list(predictions), **more}))


def tiles(page):
    return {tile.name: tile for tile in page.tiles}


def test_one_prediction_has_its_step_memory_and_bottleneck_in_tiles():
    found = tiles(page_of(a_prediction()))
    assert found["a step on h200"].value == "10 ms"
    assert found["a step on h200"].note == "nine in ten: 8 ms to 13 ms"
    assert (found["memory"].value, found["memory"].tone) == ("5.0 GiB", "good")
    assert found["bottleneck"].value == "memory traffic"
    assert "money" not in found


def test_hours_and_money_are_there_where_they_were_asked_for():
    whole = {"training_s": 7200.0, "epochs": 90, "dollars": 5.0, "price_per_hour": 2.5, "kilowatt_hours": 1.4}
    page = page_of(a_prediction(**whole), a_prediction("t4", **(whole | {"training_s": 36000.0})))
    assert tiles(page)["training"].value == "2.00 h"
    assert tiles(page)["money"].value == "$5.00"
    assert [row["training, hours"] for row in table(page, "predictions")] == ["2.00", "10.00"]


def test_devices_are_drawn_with_their_intervals_by_whether_they_fit():
    slow = {"step_s": 0.02, "interval_s": [0.01, 0.03], "fits": False}
    page = page_of(a_prediction(), a_prediction("t4", **slow), a_prediction("mine", fits=None))
    by_name = {trace["name"]: trace for trace in figures(page)["predicted-steps"].traces}
    assert by_name["fits"]["y"] == ["h200"]
    assert by_name["does not fit"]["x"] == [20.0]
    assert by_name["does not fit"]["error_x"]["array"] == [10.0]
    assert by_name["memory not known"]["y"] == ["mine"]
    assert any("does not fit: t4" in line for line in sections(page)["first"].bullets)


def test_batches_and_gpus_are_lines_of_throughput():
    made = [
        a_prediction(batch=batch, gpus=gpus, samples_per_s=100.0 * batch * gpus)
        for batch in (32, 64)
        for gpus in (1, 8)
    ]
    page = page_of(*made)
    one, eight = figures(page)["throughput-batch"].traces
    assert (one["name"], one["x"], one["y"]) == ("h200, 1 GPU", [32, 64], [3200.0, 6400.0])
    assert eight["y"] == [25600.0, 51200.0]
    assert figures(page)["throughput-gpus"].traces[0]["x"] == [1, 8]


def test_layers_are_those_of_the_first_with_their_phases():
    page = page_of(a_prediction(), a_prediction("t4", layer_times=[]))
    forward, backward, update = figures(page)["predicted-layers"].traces
    assert forward["y"] == ["conv", "(loss)"]
    assert (forward["x"], backward["x"], update["x"]) == ([3.0, 1.0], [4.0, 1.0], [0.5, 0.5])
    assert "Predicted" in figures(page)["predicted-layers"].caption


def test_memory_stands_beside_what_the_device_has():
    tensors, rounding, room = figures(page_of(a_prediction()))["predicted-memory"].traces
    assert (tensors["x"], rounding["x"], room["x"]) == ([4.0], [1.0], [16.0])


def test_the_chosen_one_is_what_tiles_and_layers_are_of():
    chosen = a_prediction("t4", step_s=0.02)
    choice = {"wanted": "the cheapest within 20 h", "why": "t4 it is", "chosen": chosen, "left_out": []}
    page = page_of(a_prediction(), chosen, choices=[choice])
    assert "a step on t4" in tiles(page)
    assert "the cheapest within 20 h: t4 it is" in sections(page)["first"].bullets


def test_what_is_not_covered_assumed_or_rested_on_is_said_once():
    odd = {"uncovered": {"fft": 0.25}, "notes": ["a guess"]}
    said = sections(page_of(a_prediction(), a_prediction("t4", **odd)))["limits"].bullets
    assert "times rest on: calibration of h200" in said
    assert "t4: a guess" in said
    assert any(line.startswith("t4: without a formula") and "fft (25.0%" in line for line in said)


def test_data_flow_largest_batch_and_constants_have_tables():
    flow = {"stages": {"storage": 0.0, "decode": 0.02, "device": 0.01}, "step_s": 0.02, "starving": "decode"}
    flow |= {"device": "h200", "batch": 64, "gpus": 1, "rests_on": ["16 cores"]}
    constant = {"name": "h200: fp32", "value": 66.9, "unit": "TFLOP/s", "source": "white paper"}
    kind = {"kind": "mm", "phase": "forward", "count": 2, "seconds": 0.001, "share": 0.1, "of_bound": 0.5}
    page = page_of(
        a_prediction(),
        data_flow=[flow],
        largest=[{"device": "h200", "batch": 1416, "exact": True, "samples_per_s": 9.0, "prediction": None}],
        explanation={"constants": [constant], "kinds": [kind]},
    )
    (row,) = table(page, "flow")
    assert (row["decode"], row["step"], row["waits for"]) == ("20", "20", "decode")
    assert table(page, "predictions")[0]["largest batch"] == "1,416"
    assert table(page, "constants")[0]["source"] == "white paper"
    assert table(page, "kinds")[0]["share"] == "10.0 %"


def test_hostile_names_stay_text():
    layer = {"layer": EVIL, "forward_s": 1e-3, "backward_s": 0.0, "update_s": 0.0}
    evil = {"network": EVIL, "notes": [EVIL], "basis": EVIL, "layer_times": [layer], "bottleneck": EVIL}
    page = page_of(a_prediction(EVIL, **evil), a_prediction())
    assert "<img" not in standalone(page)
    assert "<img" not in json.dumps([figure.document() for figure in figures(page).values()])


def test_a_hundred_devices_make_a_small_page():
    page = page_of(*(a_prediction(f"device-{number}") for number in range(100)))
    assert len(table(page, "predictions")) == 100
    assert "The first 60 of 100" in figures(page)["predicted-steps"].caption


# -- files -----------------------------------------------------------------------------------------


def test_several_files_are_one_page(tmp_path):
    for device in ("h200", "t4"):
        text = json.dumps({"predictions": [a_prediction(device)]})
        (tmp_path / f"{device}.json").write_text(text)
    found = read_predictions([tmp_path / "h200.json", tmp_path / "t4.json"])
    assert [one["device"] for one in found["predictions"]] == ["h200", "t4"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"predictions": []}',
        '{"predictions": [{}]}',
        json.dumps({"predictions": [a_prediction(step_s="soon")]}),
        json.dumps({"predictions": [a_prediction(interval_s=[1])]}),
        json.dumps({"predictions": [a_prediction(step_s=0)]}),
    ],
)
def test_a_file_that_is_no_prediction_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(PredictionError, match="laptime predict") as caught:
        read_predictions([tmp_path / "p.json"])
    assert "\n" not in str(caught.value)


# -- beside a run ----------------------------------------------------------------------------------


def cell(measured, predicted):
    ratio = predicted / measured if measured and predicted is not None else None
    error = None if ratio is None else ratio - 1
    return {"measured": measured, "predicted": predicted, "ratio": ratio, "error": error}


def a_layer(name, measured, predicted):
    each = cell(measured, predicted)
    return {"layer": name, "forward": each, "backward": cell(None, None), "update": cell(None, None)} | {
        "total": each
    }


def beside(layers):
    return {
        "same_device": True,
        "run": {"id": "1", "path": "runs/one", "device": "NVIDIA H200", "steps": 40},
        "prediction": {"path": "p.json", "network": "wide", "device": "h200", "batch": 64}
        | {"mode": "training", "basis": "calibration of h200"},
        "step": cell(0.01, 0.012) | {"low": 0.009, "high": 0.011, "interval": [0.009, 0.015], "inside": True},
        "phases": [{"phase": "forward", **cell(0.01, 0.012)}],
        "layers": layers,
        "layer_error": 0.2,
        "layer_phase_error": 0.2,
        "notes": ["measured are medians over steps"],
    }


def test_layers_stand_measured_beside_predicted_with_their_error():
    page = check(beside_page(beside([a_layer("conv", 0.004, 0.005), a_layer("fc", 0.002, 0.001)])))
    measured, predicted = figures(page)["measured-predicted"].traces
    assert (measured["x"], predicted["x"]) == ([4.0, 2.0], [5.0, 1.0])
    assert figures(page)["layer-errors"].traces[0]["x"] == pytest.approx([25.0, -50.0])
    assert tiles(page)["off by"].value == "+20.0 %"
    assert [row["off"] for row in table(page, "layers")] == ["+25 %", "-50 %"]
    assert table(page, "phases")[-1]["phase"] == "step"


def test_beside_a_run_on_another_device_a_ratio_stands_and_nothing_is_called_off():
    layer = a_layer("conv", 0.004, 0.001)
    found = beside([layer]) | {"same_device": False, "layer_error": None}
    for one in (found["step"], layer["total"], *found["phases"]):
        one["error"] = None
    page = check(beside_page(found))
    assert tiles(page)["predicted over measured"].value == "1.2x"
    assert "off by" not in tiles(page)
    assert {one.tone for one in page.tiles} == {""}
    assert [row["ratio"] for row in table(page, "layers")] == ["0.25x"]
    assert "layer-errors" not in figures(page)
    assert "no error of the prediction" in page.sections[0].bullets[0]


def test_layers_that_one_side_lacks_are_left_blank():
    page = check(beside_page(beside([a_layer(EVIL, None, 0.005), a_layer("fc", 0.002, None)])))
    measured, predicted = figures(page)["measured-predicted"].traces
    assert measured["x"] == [None, 2.0]
    assert predicted["x"] == [5.0, None]
    assert "layer-errors" not in figures(page)
    assert "<img" not in standalone(page)


def test_a_run_without_layers_beside_a_prediction_is_a_page():
    page = check(beside_page(beside([])))
    assert figures(page) == {}
