"""What to look at first: a layer only where a step spends time on it."""

import pytest
from tests.runs.samples import a_layer_time, a_step, start

from laptime.runs import load, schema
from laptime.views.run_document import content

WALL = 0.1


def looked_at(tmp_path, layers, **accounts):
    """The sentences for steps of 100 ms with these seconds in layers and accounts."""
    writer = start(tmp_path / "run")
    nothing = dict.fromkeys(("forward_s", "backward_s", "update_s", "host_s", "unexplained_s"), 0.0)
    seconds = nothing | accounts
    steps = [a_step(number, wall_s=WALL, **seconds) for number in range(12)]
    writer.append("steps", schema.steps.table(steps))
    rows = [
        a_layer_time(number, layer, seconds=time) for number in range(12) for layer, time in layers.items()
    ]
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    return content(load(tmp_path / "run"))["look_first"]


def test_a_layer_that_takes_nothing_is_never_told(tmp_path):
    layers = {"sampler": 0.00001, "(other)": 0.09}
    told = looked_at(tmp_path, layers, forward_s=0.09, host_s=0.01)
    assert told[0] == "90.0 % of a step, 90.0 ms, is in (other), outside every layer with a name."
    assert not any("sampler" in one or " 0.0 %" in one for one in told)


def test_waiting_comes_first_where_layers_take_next_to_nothing(tmp_path):
    told = looked_at(tmp_path, {"conv": 0.0004, "fc": 0.0002}, forward_s=0.0006, data_wait_s=0.0994)
    assert told[0].startswith("99.4 % of a step goes to data_wait")
    assert not any("conv" in one for one in told)


def test_waiting_comes_before_a_layer_that_takes_little(tmp_path):
    told = looked_at(tmp_path, {"conv": 0.03 * WALL}, forward_s=0.003, data_wait_s=0.097)
    assert told[0].startswith("97.0 % of a step goes to data_wait")
    assert told[1].startswith("Layer conv takes 100.0 % of the compute")


def test_a_layer_that_takes_more_than_waiting_comes_first(tmp_path):
    told = looked_at(tmp_path, {"conv": 0.7 * WALL}, forward_s=0.07, data_wait_s=0.03)
    assert told[0].startswith("Layer conv takes 100.0 % of the compute")
    assert told[1].startswith("30.0 % of a step goes to data_wait")


def test_many_small_layers_are_told_together(tmp_path):
    layers = {f"linear{number}": 0.0005 for number in range(199)}
    told = looked_at(tmp_path, layers, forward_s=0.1)
    assert told[0] == (
        "No layer stands out: a step is spread over 199 layers that take less than 1 % of it each."
    )


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.009, 0.011, 0.04, 0.06, 0.4, 0.6])
@pytest.mark.parametrize("account", ["idle_s", "data_wait_s", "host_s", "unexplained_s", "communication_s"])
def test_no_first_sentence_is_of_a_layer_that_takes_less_than_what_a_step_waits_for(tmp_path, share, account):
    rest = {"forward_s": share * WALL, account: WALL - share * WALL}
    told = looked_at(tmp_path, {"conv": share * WALL}, **rest)
    assert ("conv" in told[0]) == (share > 0.5)
    assert not any("takes 0.0 %" in one for one in told)


@pytest.mark.parametrize(
    ("walls", "words"),
    [
        ([0.1, 0.12] * 6, "unreliable (half of them within ±9 %)"),
        ([0.02, 0.02, 0.1] * 4, "unreliable (the middle half varies more than threefold)"),
        ([0.001, 0.001, 0.002, 0.1] * 3, "unreliable (the middle half varies more than tenfold)"),
    ],
)
def test_a_spread_beyond_a_hundred_per_cent_is_said_in_words(tmp_path, walls, words):
    writer = start(tmp_path / "run")
    rest = dict.fromkeys(("forward_s", "backward_s", "update_s", "unexplained_s"), 0.0)
    rows = [a_step(number, wall_s=wall, host_s=wall, **rest) for number, wall in enumerate([0.1, *walls])]
    writer.append("steps", schema.steps.table(rows))
    writer.close("finished", {})
    told = content(load(tmp_path / "run"))["look_first"]
    assert any(words in sentence for sentence in told), told
