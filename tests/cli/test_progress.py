import pytest

from laptime.cli import outcome
from laptime.cli.outcome import progress, waiting


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")  # rich draws no bar on a dumb one
    monkeypatch.setattr(outcome, "_on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes `rich` draw, too


def test_nothing_is_drawn_where_there_is_no_terminal(capsys):
    with waiting("looking"), progress("training", 3) as tell:
        tell("epoch 1")
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_a_bar_on_stderr_shows_how_far_it_is(capsys):
    with progress("[red]net", 3) as tell:
        tell("epoch 1/2")
    out, err = capsys.readouterr()
    assert out == ""
    assert "[red]net" in err
    assert "1/3" in err
    assert "epoch 1/2" in err


@pytest.mark.usefixtures("terminal")
def test_steps_in_quick_succession_are_drawn_once(capsys):
    with progress("training", 1000) as tell:
        for _ in range(1000):
            tell("")
    assert capsys.readouterr().err.count("training") < 20
