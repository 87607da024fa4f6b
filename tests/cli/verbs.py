"""An app of one or two verbs: what a verb does needs no other."""

import typer
from typer.testing import CliRunner

from laptime.cli.outcome import Commands


def caller(monkeypatch, tmp_path, **verbs):
    """`call("compare", …)` in an empty folder; `verbs` gives each verb and the class of its command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    app = typer.Typer(cls=Commands, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(lambda: None)
    for name, (verb, kind) in verbs.items():
        app.command(name, cls=kind)(verb)

    def call(*arguments):
        return CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)

    return call
