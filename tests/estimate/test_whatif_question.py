"""What the prediction page may ask, and what it is told otherwise."""

import json
from dataclasses import asdict

import pytest

from laptime.errors import PredictionError
from laptime.estimate.whatif import LIMITS, MOST_DEVICES, Question


def test_an_empty_query_asks_for_the_workload_as_it_is():
    assert Question.of({}) == Question() == Question.of({"batch": " ", "devices": ""})
    assert not Question().imagines


def test_every_field_of_a_query_is_read():
    query = {
        "batch": "8", "precision": "bf16", "devices": "t4, h200,t4", "shown": "t4", "sort": "time",
        "gpus": "2", "samples": "1000", "epochs": "3", "price_per_hour": "1.5", "compute": "2",
        "bandwidth": "0.5", "link": "4", "host": "1.5", "loader": "250",
    }  # fmt: skip
    made = Question.of(query)
    assert made.devices == ("t4", "h200")
    assert (made.batch, made.gpus, made.samples, made.epochs) == (8, 2, 1000, 3)
    assert (made.compute, made.bandwidth, made.link, made.host, made.loader) == (2.0, 0.5, 4.0, 1.5, 250.0)
    assert (made.precision, made.shown, made.sort, made.price_per_hour) == ("bf16", "t4", "time", 1.5)
    assert made.imagines
    assert json.loads(json.dumps(asdict(made)))["devices"] == ["t4", "h200"]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("text", ["many", "nan", "inf", "-1", "0", "1e99", "9" * 5000, "٣x", "1;2", "True"])
def test_a_number_beyond_its_bounds_is_named_with_them(name, text):
    with pytest.raises(PredictionError, match=f"^{name} is .*; give a .*number from .* to ") as told:
        Question.of({name: text, "samples": text if name == "samples" else "10"})
    assert len(str(told.value)) < 200
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", LIMITS)
def test_the_ends_of_the_bounds_can_be_asked_for(name):
    for end in LIMITS[name]:
        assert getattr(Question.of({"samples": "10", name: repr(end)}), name) == end


@pytest.mark.parametrize("name", ["batch", "gpus", "samples", "epochs"])
def test_half_a_sample_is_refused(name):
    with pytest.raises(PredictionError, match=f"{name} is '2.5'; give a whole number"):
        Question.of({name: "2.5"})


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"precision": "fp8"}, "precision is 'fp8'; give fp32, bf16 or fp16"),
        ({"sort": "name"}, "sort is 'name'; give cost or time"),
        ({"epochs": "3"}, "epochs is given without samples"),
        ({"bach": "3"}, "did you mean batch?"),
        ({"<script>": "3"}, "there are batch, precision"),
        ({"devices": ",".join(f"x{one}" for one in range(MOST_DEVICES + 1))}, "give 32 at most"),
        ({"devices": "x" * 200}, "80 characters at most"),
    ],
)
def test_nonsense_gets_one_line(query, said):
    with pytest.raises(PredictionError) as told:
        Question.of(query)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["/etc/passwd", "../mine.toml", "mine.toml", "..\\mine", "MINE.TOML"])
def test_no_file_can_be_named_over_a_url(name):
    for field in ("devices", "shown"):
        with pytest.raises(PredictionError, match="a file"):
            Question.of({field: name})
