import base64

import numpy as np
import pytest

from laptime.views.figures.figure import Choice, Figure, label, packed, short


def test_a_name_keeps_its_letters_and_a_long_one_its_end():
    assert label("<b>a&amp;b</b>") == "&lt;b&gt;a&amp;amp;b&lt;/b&gt;"
    assert label("%{x}") == "%&#123;x}"
    assert label("two\nlines") == r"two\nlines"
    assert short("module." * 20 + "conv", 12) == "…module.conv"


def test_packed_numbers_are_a_third_of_their_decimals():
    values = np.linspace(0, 1, 100)
    text = packed(values)["bdata"]
    assert np.frombuffer(base64.b64decode(text), dtype="f4") == pytest.approx(values, abs=1e-6)
    assert len(text) == -(-400 // 3) * 4


def test_the_first_choice_is_drawn_until_another_is_chosen():
    choices = [Choice(name="a", shows=[1], layout={"xaxis": {"range": [0, 1]}}), Choice(name="b", shows=[0])]
    figure = Figure(
        name="x", title="", caption="", traces=[{"type": "bar"}, {"type": "bar"}], choices=choices
    )
    document = figure.document()
    assert [one["visible"] for one in document["data"]] == [False, True]
    assert document["layout"]["xaxis"] == {"range": [0, 1]}
