"""Colours: the same word always has the same one, on black and on white, and only where they are wanted."""

import io
import re
from importlib import resources

import pytest
from rich.console import Console
from rich.text import Text
from tests.views.samples import a_rich_run
from tests.views.views import kinds, shown

from laptime.model import ACCOUNTS
from laptime.model.comparison import Verdict
from laptime.model.statistics import Noise
from laptime.render import terminal
from laptime.render.html.page import static
from laptime.render.terminal import run_text
from laptime.runs import load
from laptime.views import palette
from laptime.views.run_view import run_view

CODES = re.compile(r"\x1b\[([0-9;]*)m")
# Of the sixteen colours those that cannot be read on black or on white, as codes of the foreground.
UNREADABLE = {"30", "37", "92", "93", "96", "97"}


@pytest.fixture
def rich(tmp_path):
    return run_view(load(a_rich_run(tmp_path / "run")))


def test_no_code_is_in_what_is_no_terminal(rich):
    assert "\x1b" not in shown(rich)


def test_colours_can_be_asked_for_anywhere_and_change_no_letter(rich):
    text = shown(rich, colour=True)
    assert CODES.search(text)
    assert CODES.sub("", text) == shown(rich)


def test_without_colour_a_terminal_has_bold_and_faint_alone(rich):
    file = io.StringIO()
    to = Console(file=file, force_terminal=True, no_color=True, width=80, markup=False)
    terminal.print_lines(run_text.run_lines(rich, 80), to)
    assert {code for codes in CODES.findall(file.getvalue()) for code in codes.split(";")} <= {"0", "1", "2"}


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_the_usual_variables_decide(rich, monkeypatch, variables, coloured):
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert bool(re.search(r"\x1b\[[0-9;]*3[1-6]m", shown(rich))) == coloured


def test_every_colour_can_be_read_on_black_and_on_white(tmp_path):
    codes = {
        code
        for found in kinds(tmp_path)
        for codes in CODES.findall(shown(found, colour=True))
        for code in codes.split(";")
    }
    assert len(codes) > 6
    assert not codes & UNREADABLE


def test_every_account_and_verdict_has_its_own_colour():
    assert set(palette.ACCOUNTS) == {account.value for account in ACCOUNTS}
    assert len({colour.light for colour in palette.ACCOUNTS.values()}) == len(ACCOUNTS)
    assert len({colour.ansi for colour in palette.ACCOUNTS.values()}) == len(ACCOUNTS)
    assert set(palette.VERDICTS) == {verdict.value for verdict in Verdict}
    assert set(palette.NOISE) | {"none"} == {noise.value for noise in Noise}
    assert [palette.of(word) for word in ("steady", "noisy", "unreliable")] == ["green", "yellow", "red"]


def test_a_word_has_its_colour_wherever_it_stands_alone():
    line = palette.painted(Text("backward of my.backward, pre-backward: unreliable."))
    assert [(span.start, span.end) for span in line.spans] == [(0, 8), (39, 49)]


def test_bars_and_words_of_a_phase_have_one_colour(rich):
    text = shown(rich, colour=True)
    assert re.search(r"\x1b\[94m█+\x1b\[0m\x1b\[35m▒+\x1b\[0m\x1b\[36m░+", text)  # one bar
    assert re.search(r"\x1b\[35mbackward", text)  # in the books
    assert re.search(r"\x1b\[1;35m *backward", text)  # in the table's head


def test_shares_are_louder_the_larger_they_are():
    words = [palette.word_of_layer_share(share) for share in (0.3, 0.2, 0.05, 0.001, None)]
    assert [palette.of(word) for word in words] == ["bold red", "bold", "", "dim", "dim"]
    assert palette.of(palette.word_of_share(0.9)) == "bold"


def test_pages_take_their_colours_from_the_palette():
    style = static("page.css")
    for word, colour in (palette.ACCOUNTS | palette.TONES | palette.STATUS).items():
        assert f"--{word}:{colour.light};" in style
    folder = resources.files("laptime.render.html") / "static"
    every = "".join((folder / name).read_text() for name in ("page.css", "serve.css", "predict_answer.js"))
    used = {colour for entry in palette.PALETTE.values() for colour in (entry.light, entry.dark) if colour}
    assert not [colour for colour in used if colour in every]


def test_a_word_without_an_entry_has_one_of_the_colours_for_many():
    assert palette.colour("checkpoint") in palette.MANY
    assert palette.colour("checkpoint") == palette.colour("checkpoint")
    assert palette.of("checkpoint") == ""
