"""A verb that returns its answer: the decorator adds `--json`, prints, and exits."""

import json
from typing import Annotated

import typer
from typer.testing import CliRunner

from laptime.cli.outcome import Commands, Outcome, verb

app = typer.Typer(cls=Commands)


@app.command()
@verb
def count(
    words: list[str], longest: Annotated[int, typer.Option("--longest", min=1, help="Letters.")] = 9
) -> Outcome:
    """Count words."""
    long = [word for word in words if len(word) > longest]
    return Outcome(
        document=lambda: {"words": len(words)}, lines=lambda _: [f"words: {len(words)}"], status=len(long)
    )


@app.command()
def other() -> None:
    """A second verb, so that both have names."""


def called(*arguments):
    return CliRunner().invoke(app, [*arguments])


def test_an_answer_is_shown_or_printed_as_one_json_document():
    assert called("count", "a", "b").stdout == "words: 2\n"
    assert json.loads(called("count", "a", "b", "--json").stdout) == {"words": 2}


def test_an_answer_has_an_exit_status_either_way():
    assert called("count", "a", "b").exit_code == 0
    assert called("count", "abc", "--longest", "2").exit_code == 1
    assert called("count", "abc", "--longest", "2", "--json").exit_code == 1


def test_the_verb_keeps_its_options_and_words_and_json_is_its_last_option():
    text = called("count", "--help").stdout
    assert "Count words." in text
    assert text.index("--longest") < text.index("--json") < text.index("--help")
    assert called("count", "a", "--longest", "0").exit_code == 2
