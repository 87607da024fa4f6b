"""The lines of `--explain`: whole keys and values, as they are, at any width."""

import pytest

from laptime.render.terminal.table import value_lines as lines

ROWS = [
    ("network.options.num_classes_of_all", "[6, 16]", "default of network zener4", "An option of zener4."),
    ("train.batch", "16", "a.toml", "Samples in a step, on each device."),
]


@pytest.mark.parametrize("width", [None, 40, 80, 200])
def test_nothing_is_shortened_or_escaped(width):
    text = " ".join(" ".join(line.plain for line in lines(ROWS, width)).split())
    for row in ROWS:
        assert all(cell in text for cell in row)
    assert "\\" not in text


def test_without_a_terminal_a_value_is_one_line():
    assert [line.plain.split()[0] for line in lines(ROWS)] == ["key", *(row[0] for row in ROWS)]


def test_in_a_narrow_terminal_the_meaning_stands_below():
    plain = [line.plain for line in lines(ROWS, 80)]
    assert plain[2] == "    An option of zener4."
    assert plain[3].startswith("train.batch")
