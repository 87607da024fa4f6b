"""`laptime serve`: a folder of runs in a browser, on this machine."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from laptime.cli.options import Json, wrong
from laptime.cli.outcome import fail, say
from laptime.cli.zoo_workloads import zoo_workloads

_TOKEN = "LAPTIME_TOKEN"
_NEEDED = ("starlette", "uvicorn", "jinja2", "plotly")


def serve(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="The folder that is searched for runs.")
    ] = Path("runs"),
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port; 0 is any free one.")
    ] = 8765,
    host: Annotated[str, typer.Option("--host", help="The address to serve on.")] = "127.0.0.1",
    public: Annotated[
        bool,
        typer.Option("--public", help=f"Let other machines ask, with a token: {_TOKEN}, or one made up."),
    ] = False,
    browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Show runs in a browser: a list to search, each run as it trains, comparisons, predictions.

    Nothing is ever written, and no file of a run is handed out as it is. Ctrl-C ends it.
    """
    if not runs.is_dir():
        fail(f"{runs} is not a folder; give the one that holds your runs, or record some with `laptime demo`")
    try:
        from laptime.report.serve import guard, running
        from laptime.report.serve.app import app
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        from laptime.errors import MissingExtra

        raise MissingExtra(error.name, "serve") from None
    if not public and not guard.is_loopback(host):
        wrong("--host", f"{host} can be reached from other machines; add --public, which asks for a token")
    token = guard.Token(os.environ.get(_TOKEN) or secrets.token_urlsafe(24)) if public else None
    place = running.open_place(host, port)
    made_up = token if not os.environ.get(_TOKEN) else None  # the user's own is theirs to keep
    _tell(place.url(made_up), runs, as_json=as_json, public=public)
    if browser:
        import webbrowser

        webbrowser.open(place.url(token))
    running.serve(app(runs, networks=zoo_workloads(), token=token), place)


def _tell(url: str, runs: Path, *, as_json: bool, public: bool) -> None:
    if as_json:
        import json

        print(json.dumps({"url": url, "runs": str(runs)}), flush=True)
    else:
        print(f"{runs} is at {url}", flush=True)
        say("Ctrl-C ends it.")
    if public:
        say("laptime: what is sent is not encrypted; use it in networks that you trust")
