"""The dashboard's addresses. Answers are made in threads; the event loop itself never waits."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from laptime.errors import LaptimeError
from laptime.files.text import one_line
from laptime.render.server import assets, listing
from laptime.render.server.drawing import draw, told
from laptime.render.server.guard import Guard, Token
from laptime.render.server.index import Index, RunEntry
from laptime.render.server.listing import predictable
from laptime.render.server.live import Kept, tag
from laptime.render.server.predicting import Networks, Predicting, form
from laptime.render.server.results import MOST, Results
from laptime.render.server.workers import Workers
from laptime.runs import load
from laptime.views import format

_FOREVER = "public, max-age=31536000, immutable"


class _Anything(StringConvertor):
    """A path with whatever letters: starlette's own `path` ends at a line feed, which a folder may have."""

    regex = r"[\s\S]*"


register_url_convertor("anything", _Anything())


def app(folder: Path, *, networks: Networks | None = None, token: Token | None = None) -> ASGIApp:
    """The dashboard of a folder of runs.

    networks  by name, what reads a workload at a batch and in a precision; None where torch is absent
    token     what every request must bear; None: only this machine may ask, by its loopback names
    """
    dashboard = Dashboard(folder, networks)
    routes = [
        Route("/", dashboard.runs),
        Route("/runs", everything),
        Route("/runs/", everything),
        Route("/runs/{name:anything}", dashboard.run),
        Route("/compare", dashboard.compare),
        Route("/predict", dashboard.predict),
        Route("/api/results", dashboard.results),
        Route("/api/networks", dashboard.networks),
        Route("/api/predict", dashboard.answer),
        Route("/static/{name:path}", static),
        Route("/healthz", healthy),
    ]
    handlers = {HTTPException: _refused, LaptimeError: dashboard.failed, Exception: _broken}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), told=told, token=token)


class Dashboard:
    """What is asked of a folder of runs."""

    def __init__(self, folder: Path, networks: Networks | None = None) -> None:
        self.index = Index(folder)
        self._predicting = Predicting(self.index, networks)
        self._results = Results()
        self._listing = listing.Listing()
        self._pages = Kept()
        self._failed: set[str] = set()  # states whose page could not be made
        # What takes long has threads of its own, so that the list need not wait for it.
        self._quick, self._drawing, self._reading = Workers(4), Workers(2), Workers(1)

    async def runs(self, request: Request) -> Response:
        """The list."""
        wanted = listing.ListRequest.of(request.query_params)
        return _hashed(request, await self._quick.run(("runs", wanted), lambda: self._list(wanted)))

    def _list(self, wanted: listing.ListRequest) -> bytes:
        rows = self._listing.rows(self.index.entries())
        chosen = listing.chosen(rows, wanted)
        pages = -(-len(chosen) // listing.PAGE)
        wanted = replace(wanted, page=max(1, min(wanted.page, pages)))
        first = (wanted.page - 1) * listing.PAGE
        return draw(
            "runs.html",
            here="runs",
            folder=format.name(str(self.index.folder)),
            every=rows,
            found=chosen,
            rows=chosen[first : first + listing.PAGE],
            first=first,
            pages=range(1, pages + 1),
            wanted=wanted,
            choices=listing.choices(rows),
            address=wanted.address,
        )

    async def run(self, request: Request) -> Response:
        """A run's page."""
        if b"%2f" in request.scope.get("raw_path", b"").lower():
            raise HTTPException(404)  # a slash of its own is no part of a name
        name = request.path_params["name"]
        held = _held(request)
        entry, seal = await self._quick.run(("run", name, held), lambda: self._checked(name, held))
        if entry.reason:
            return told(500, entry.name, entry.reason)
        if seal in held and seal not in self._failed:
            return _unchanged(seal)
        headers = {"ETag": seal, "Cache-Control": "no-cache"}
        return StreamingResponse(self._opened(entry, seal), media_type="text/html", headers=headers)

    def _checked(self, name: str, held: frozenset[str]) -> tuple[RunEntry, str]:
        """A run and its state; a damaged one is told with its status, before anything is sent."""
        entry = self.index.find(name)
        if entry is None:
            raise HTTPException(404)
        seal = "" if entry.reason else tag("run", [entry])
        if seal and (seal not in held or seal in self._failed):
            load(entry.path)
        return entry, seal

    async def _opened(self, entry: RunEntry, seal: str) -> AsyncIterator[bytes]:
        """The page in two pieces: its head at once, so that a browser compiles Plotly meanwhile."""
        opening = draw("opening.html", here="runs", title=f"{entry.name} · laptime", figures=True)
        yield opening
        try:
            page = await self._drawing.run(
                seal, lambda: self._pages.get(seal, entry.name, lambda: _run_page(entry, seal))
            )
            self._failed.discard(seal)
            yield page.removeprefix(opening)
        except LaptimeError as error:  # perhaps of a part that was merged away: asked again, it is made anew
            self._failed.add(seal)
            yield draw("failed.html", reason=self.index.below(str(error)))
        except Exception as error:
            self._failed.add(seal)
            logging.getLogger("uvicorn.error").exception("the page of %s", one_line(entry.name))
            yield draw("failed.html", reason=_mistake(error))

    async def compare(self, request: Request) -> Response:
        """Several runs side by side; the first is what the others are measured by."""
        names = tuple(dict.fromkeys(request.query_params.getlist("run")))
        if len(names) > MOST:
            return told(400, "Too many runs", f"A comparison has {MOST} runs at most; {_CHOOSE}")
        entries, seal = await self._quick.run(("compare", names), lambda: self._compared(names))
        unknown = [name for name in names if name not in {entry.name for entry in entries}]
        if unknown:
            return told(404, "No such run", f"No run is called {format.name(unknown[0])}; {_CHOOSE}")
        if len(entries) < 2:
            return told(400, "Nothing to compare", f"A comparison needs two runs or more; {_CHOOSE}")
        broken = next((entry for entry in entries if entry.reason), None)
        if broken is not None:
            return told(500, broken.name, broken.reason)
        if seal in _held(request):
            return _unchanged(seal)
        page = await self._drawing.run(
            seal, lambda: self._pages.get(seal, seal, lambda: _comparison(entries, names))
        )
        return _tagged(request, page, seal)

    def _compared(self, names: Sequence[str]) -> tuple[list[RunEntry], str]:
        entries = [entry for name in names if (entry := self.index.find(name)) is not None]
        return entries, tag("compare", entries)

    async def results(self, request: Request) -> Response:
        """What the list fills in for the rows in view."""
        names = tuple(request.query_params.getlist("run")[:MOST])
        return JSONResponse(await self._quick.run(("results", names), lambda: self._results_of(names)))

    def _results_of(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        return self._results.of([entry for name in names if (entry := self.index.find(name)) is not None])

    async def predict(self, request: Request) -> Response:
        """The prediction page; its script asks `/api/predict`."""

        def make() -> bytes:
            return draw("predict.html", here="predict", subjects=self._predicting.at_once(), **form())

        return _hashed(request, await self._quick.run("predict", make))

    async def networks(self, _: Request) -> Response:
        """Which networks can be read here."""
        return JSONResponse({"networks": await self._reading.run("networks", self._predicting.networks)})

    async def answer(self, request: Request) -> Response:
        """A question's answer, or what is wrong with it."""
        query = dict(request.query_params)
        try:
            key = tuple(sorted(query.items()))
            return JSONResponse(await self._reading.run(key, lambda: self._predicting.answer(query)))
        except LaptimeError as error:
            return JSONResponse({"error": self.index.below(one_line(error))}, status_code=400)
        except Exception as error:  # its script reads JSON, and no page
            logging.getLogger("uvicorn.error").exception("a prediction")
            return JSONResponse({"error": _mistake(error)}, status_code=500)

    def failed(self, _: Request, error: Exception) -> Response:
        """What cannot be read, in one line."""
        return told(500, "This cannot be shown", self.index.below(str(error)))


_CHOOSE = "tick them in the list of runs and press compare."


def _run_page(entry: RunEntry, seal: str) -> bytes:
    from laptime.render.html.run_page import run_page

    run = load(entry.path)
    page = run_page(run, title=entry.name)
    return draw("run.html", here="runs", page=page, name=entry.name, seal=seal, predictable=predictable(run))


def _comparison(entries: Sequence[RunEntry], names: Sequence[str]) -> bytes:
    from laptime.render.html.comparison_page import comparison_page

    page = comparison_page([[load(entry.path) for entry in entries]], names)
    return draw("compare.html", here="runs", page=page, names=names)


def everything(_: Request) -> Response:
    """`/runs/` without a run redirects to the list."""
    return RedirectResponse("/")


def static(request: Request) -> Response:
    """A style or a script, by its whole address."""
    asset = assets.served().get(request.scope["path"])
    if asset is None:
        raise HTTPException(404)
    headers = {"Cache-Control": _FOREVER, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.packed, media_type=asset.kind, headers=headers)
    return Response(asset.body, media_type=asset.kind, headers=headers)


async def healthy(_: Request) -> Response:
    """That it answers. No thread is needed for it: it does when all of them are busy."""
    return PlainTextResponse("ok")


def _held(request: Request) -> frozenset[str]:
    """The ETags that the browser has cached."""
    held = request.headers.get("if-none-match", "")
    return frozenset(seal.strip().removeprefix("W/") for seal in held.split(","))


def _unchanged(seal: str) -> Response:
    return Response(status_code=304, headers={"ETag": seal, "Cache-Control": "no-cache"})


def _tagged(request: Request, page: bytes, seal: str) -> Response:
    if seal in _held(request):
        return _unchanged(seal)
    headers = {"ETag": seal, "Cache-Control": "no-cache"}
    return Response(page, media_type="text/html", headers=headers)


def _hashed(request: Request, page: bytes) -> Response:
    return _tagged(request, page, f'"{hashlib.sha256(page).hexdigest()[:24]}"')


def _refused(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return told(404, "Nothing is here", "No run and no page has this address; the list has them all.")
    return told(status, "That did not work", "The server cannot answer this; go back to the list of runs.")


def _broken(_: Request, error: Exception) -> Response:
    """An internal error: the traceback goes to standard error, not into the page."""
    return told(500, "A mistake of laptime", _mistake(error))


def _mistake(error: Exception) -> str:
    return f"laptime itself failed ({type(error).__name__}); the terminal of `laptime serve` says where."
