"""`laptime serve`: a folder of runs in a browser, on this machine."""

from __future__ import annotations

import json
import os
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from laptime.cli.options import Json, wrong
from laptime.cli.outcome import fail, print_out, quiet_torch, say

_TOKEN = "LAPTIME_TOKEN"
_NEEDED = ("starlette", "uvicorn", "jinja2", "plotly")
_RUNS_HELP = "The folder that is searched for runs."
_PUBLIC_HELP = f"Let other machines ask, with a token: {_TOKEN}, or one made up."


def serve(
    runs: Annotated[Path, Argument(metavar="RUNS", help=_RUNS_HELP)] = Path("runs"),
    port: Annotated[int, Option(min=0, max=65535, help="The port; 0 is any free one.")] = 8765,
    host: Annotated[str, Option(help="The address to serve on.")] = "127.0.0.1",
    public: Annotated[bool, Option("--public", help=_PUBLIC_HELP)] = False,
    browser: Annotated[bool, Option("--open", help="Open it in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Show runs in a browser: a list to search, each run as it trains, comparisons, predictions.

    Nothing is ever written, and no file of a run is handed out as it is. Links to folders are not followed: a
    run that is one is not listed. Ctrl-C ends it.
    """
    if not runs.is_dir():
        fail(f"{runs} is not a folder; give the one that holds your runs, or record some with `laptime demo`")
    for name in _NEEDED:  # all of them now: a page would only miss one when it is asked for
        if find_spec(name) is None:
            from laptime.errors import MissingExtra

            raise MissingExtra(name, "serve")
    from laptime.api import zoo_workloads
    from laptime.render.server import connections, guard
    from laptime.render.server.app import app

    if not public and not guard.is_loopback(host):
        wrong("--host", f"{host} can be reached from other machines; add --public, which asks for a token")
    own = os.environ.get(_TOKEN) or ""
    if public and own and len(own.strip()) < guard.SHORTEST:
        fail(f"{_TOKEN} can be guessed; give {guard.SHORTEST} letters or more, or unset it for a made-up one")
    token = guard.Token(own or secrets.token_urlsafe(24)) if public else None
    place = connections.open_place(host, port)
    url = place.url(None if own else token)  # their own is theirs to keep
    if as_json:
        print_out(json.dumps({"url": url, "runs": str(runs)}), flush=True)
    else:
        print_out(f"{runs} is at {url}", flush=True)
        say("Ctrl-C ends it.")
    if public:
        say("laptime: what is sent is not encrypted; use it in networks that you trust")
    if public and own:
        say(f"laptime: put ?token= and the value of {_TOKEN} after it; a browser is asked once")
    if browser:
        import webbrowser

        webbrowser.open(place.url(token))
    quiet_torch()  # which predictions of the zoo's networks import
    connections.serve(app(runs, networks=zoo_workloads(), token=token), place)
