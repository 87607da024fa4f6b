"""Numbers of predictions as text."""

import math

from laptime.views.format import cells, figures


def test_an_infinite_number_is_written_as_such():
    assert figures(math.inf) == "inf"
    assert cells([math.inf, 0.25], 1) == ["inf", "0.25"]
