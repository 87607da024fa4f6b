"""The pages of saved predictions: every number is one of the document's."""

import json

import pytest
from tests.views.test_comparison_page import check, figures, sections, table

from laptime.errors import PredictionError
from laptime.estimate.run_correction import MeasuredStep
from laptime.files.write import plain
from laptime.model import Phase, summarize
from laptime.model.prediction import PredictedTime, Prediction
from laptime.render.html.comparison_page import predicted_comparison_page
from laptime.render.html.page import standalone
from laptime.render.html.prediction_page import prediction_page
from laptime.views.comparison.predicted import PredictedComparison
from laptime.views.comparison.sides import LayerComparison
from laptime.views.prediction import PredictionView, read_view

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
        "layer_times": layers,
        "busy_s": 0.009,
        "host_s": 0.002,
        "phases": {"forward": 0.004, "backward": 0.005, "update": 0.001},
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
        "watts": None,
    }
    return values | changed


def page_of(*predictions, **more):
    return check(prediction_page(PredictionView.of({"predictions": list(predictions), **more})))


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
    whole = {"samples": 64 * 8000, "epochs": 90, "price_per_hour": 2.5, "watts": 700.0}
    page = page_of(a_prediction(**whole), a_prediction("t4", **whole, step_s=0.05, interval_s=[0.04, 0.06]))
    assert tiles(page)["training"].value == "2.00 h"
    assert tiles(page)["money"].value == "$5.00"
    assert [row["training, hours"] for row in table(page, "predictions")] == ["2.00", "10.00"]


def test_devices_are_drawn_with_their_intervals_by_whether_they_fit():
    slow = {"step_s": 0.02, "interval_s": [0.01, 0.03], "device_memory_bytes": 4 * GIB}
    page = page_of(a_prediction(), a_prediction("t4", **slow), a_prediction("mine", device_memory_bytes=None))
    by_name = {trace["name"]: trace for trace in figures(page)["predicted-steps"].traces}
    assert by_name["fits"]["y"] == ["h200"]
    assert by_name["does not fit"]["x"] == [20.0]
    assert by_name["does not fit"]["error_x"]["array"] == [10.0]
    assert by_name["memory not known"]["y"] == ["mine"]
    assert any("does not fit: t4" in line for line in sections(page)["first"].bullets)


def test_batches_and_gpus_are_lines_of_throughput():
    made = [a_prediction(batch=batch, gpus=gpus) for batch in (32, 64) for gpus in (1, 8)]
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
    chosen = a_prediction("t4", step_s=0.02, samples=64, epochs=1)
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
        largest=[{"device": "h200", "batch": 1416, "exact": True, "prediction": None}],
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
    found = read_view([tmp_path / "h200.json", tmp_path / "t4.json"])
    assert [made.device for made in found.predictions] == ["h200", "t4"]


def test_a_view_is_read_back_from_its_document_as_it_was():
    flow = {"stages": {"decode": 0.02, "device": 0.01}, "step_s": 0.02, "starving": "decode", "samples": 64}
    flow |= {"device": "h200", "batch": 64, "gpus": 1, "rests_on": ["16 cores"], "remedies": [["more", 0.01]]}
    made = a_prediction(samples=6400, epochs=2, price_per_hour=2.0)
    choice = {"wanted": "the cheapest within 20 h", "why": "it is", "chosen": made, "within_hours": 20.0}
    view = PredictionView.of(
        {
            "predictions": [made],
            "data_flow": [flow],
            "largest": [{"device": "h200", "batch": 128, "prediction": made, "readings": 3, "exact": False}],
            "choices": [choice],
            "explanation": {"constants": [], "kinds": []},
        }
    )
    document = json.loads(json.dumps(plain(view.document())))
    assert PredictionView.of(document) == view
    assert document["predictions"][0]["dollars"] == view.predictions[0].dollars
    assert document["data_flow"][0]["effective_share"] == 0.5


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
        json.dumps({"predictions": [a_prediction(batch="64")]}),
        json.dumps({"predictions": [a_prediction()], "largest": [1]}),
    ],
)
def test_a_file_that_is_no_prediction_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(PredictionError, match="laptime predict") as caught:
        read_view([tmp_path / "p.json"])
    assert "\n" not in str(caught.value)


# -- beside a run ----------------------------------------------------------------------------------


def a_layer(name, measured, predicted, *, same_device=True):
    total = PredictedTime(measured=measured, predicted=predicted, same_device=same_device)
    nothing = PredictedTime(measured=None, predicted=None, same_device=same_device)
    phases = {Phase.FORWARD: total, Phase.BACKWARD: nothing, Phase.UPDATE: nothing}
    return LayerComparison(layer=name, phases=phases, total=total)


def beside(layers, *, same_device=True):
    predicted = a_prediction(
        step_s=0.012, interval_s=[0.009, 0.015], phases={}, busy_s=0.01, host_s=0.001, layer_times=[]
    )
    measured = MeasuredStep(
        run="1",
        device="NVIDIA H200",
        mode="training",
        steps=40,
        batch=64.0,
        step_s=summarize([0.009, 0.01, 0.01, 0.01, 0.011]),
        layers={},
    )
    return PredictedComparison(
        same_device=same_device,
        run_path="runs/one",
        measured=measured,
        prediction_path="p.json",
        prediction=Prediction.of(predicted),
        layers=tuple(layers),
        notes=("measured times are medians over steps",),
    )


def test_layers_stand_measured_beside_predicted_with_their_error():
    page = check(
        predicted_comparison_page(beside([a_layer("conv", 0.004, 0.005), a_layer("fc", 0.002, 0.001)]))
    )
    measured, predicted = figures(page)["measured-predicted"].traces
    assert (measured["x"], predicted["x"]) == ([4.0, 2.0], [5.0, 1.0])
    assert figures(page)["layer-errors"].traces[0]["x"] == pytest.approx([25.0, -50.0])
    assert tiles(page)["off by"].value == "+20.0 %"
    assert tiles(page)["layers are off by"].value == "33.3 %"
    assert [row["off"] for row in table(page, "layers")] == ["+25 %", "-50 %"]
    assert table(page, "phases")[-1]["phase"] == "step"


def test_beside_a_run_on_another_device_a_ratio_stands_and_nothing_is_called_off():
    found = beside([a_layer("conv", 0.004, 0.001, same_device=False)], same_device=False)
    page = check(predicted_comparison_page(found))
    assert tiles(page)["predicted over measured"].value == "1.2x"
    assert "off by" not in tiles(page)
    assert {one.tone for one in page.tiles} == {""}
    assert [row["ratio"] for row in table(page, "layers")] == ["0.25x"]
    assert "layer-errors" not in figures(page)
    assert "no error of the prediction" in page.sections[0].bullets[0]


def test_layers_that_one_side_lacks_are_left_blank():
    found = beside([a_layer(EVIL, None, 0.005), a_layer("fc", 0.002, None)])
    page = check(predicted_comparison_page(found))
    measured, predicted = figures(page)["measured-predicted"].traces
    assert measured["x"] == [None, 2.0]
    assert predicted["x"] == [5.0, None]
    assert "layer-errors" not in figures(page)
    assert "<img" not in standalone(page)


def test_a_run_without_layers_beside_a_prediction_is_a_page():
    page = check(predicted_comparison_page(beside([])))
    assert figures(page) == {}
