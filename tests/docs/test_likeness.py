"""A page's output may differ from a command's in numbers, bars and verdicts on noise, and in nothing else."""

import pytest
from tools.blocks import blocks, commands
from tools.likeness import Unlike, compare

SHOWN = ["step, ms   60.2  21.8  0.36   0.33 to 0.42  faster", "…", "  64 steps · 21.8 ms each (noisy)", "…"]


def test_numbers_and_verdicts_may_differ():
    output = [
        "step, ms   592  77.9  0.13   0.08 to 0.27  cannot tell",
        "another line",
        "  64 steps · 1.2 s each (unreliable)",
        "the end",
    ]
    assert compare(SHOWN, output) == [output[0], "…", output[2], "…"]


def test_lines_may_break_elsewhere():
    assert compare(["a sentence of", "five words"], ["a sentence", "of five words"]) == [
        "a sentence",
        "of five words",
    ]


@pytest.mark.parametrize(
    "output",
    [
        ["step, seconds   60.2  21.8  0.36   0.33 to 0.42  faster", "  64 steps · 21.8 ms each (noisy)", "…"],
        ["step, ms   60.2  21.8  0.36   0.33 to 0.42  faster", "  64 steps · 21.8 ms (noisy)", "…"],
        ["before", "step, ms   60.2  21.8  0.36   0.33 to 0.42  faster", "  64 steps · 21.8 ms each (noisy)"],
    ],
)
def test_other_words_are_noticed(output):
    with pytest.raises(Unlike):
        compare(SHOWN, output)


def test_what_comes_after_the_last_line_is_noticed():
    with pytest.raises(Unlike):
        compare(["all"], ["all", "and more"])
    with pytest.raises(Unlike):
        compare([], ["something"])
    assert compare([], []) == []


def test_blocks_know_their_remarks_and_commands():
    page = "text\n\n<!-- file: a.py -->\n```python\nx = 1\n```\n```console\n$ one\nout\n$ two\n```\n"
    python, console = blocks(page)
    assert python.after("file") == "a.py"
    assert python.after("not run") is None
    assert python.text == "x = 1\n"
    assert [(one.text, one.output, one.line) for one in commands(console)] == [
        ("one", ("out",), 8),
        ("two", (), 10),
    ]
