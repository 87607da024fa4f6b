"""The dashboard's addresses. Answers are made in threads; the event loop itself never waits."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from laptime.errors import LaptimeError
from laptime.files.text import one_line
from laptime.render.html import comparison_page, run_page
from laptime.render.server import listing, pages
from laptime.render.server.guard import Guard, Token
from laptime.render.server.index import Index, RunEntry
from laptime.render.server.pages import Content, Workers, draw, tag, told
from laptime.render.server.planning import Planning
from laptime.render.server.predicting import Networks, Predicting
from laptime.runs import load
from laptime.views import format

_FOREVER = "public, max-age=31536000, immutable"
_FIRST = 3  # newest runs, whose pages are made before anyone asks


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
        *(Route(address, lambda _: RedirectResponse("/")) for address in ("/runs", "/runs/")),
        Route("/runs/{name:anything}", dashboard.run),
        Route("/compare", dashboard.compare),
        Route("/predict", dashboard.predict),
        Route("/plan", dashboard.plan),
        Route("/api/results", dashboard.results),
        Route("/api/networks", dashboard.networks),
        Route("/api/predict", dashboard.answer),
        Route("/static/{name:path}", static),
        Route("/healthz", healthy),
    ]
    # The traceback of an internal error goes to standard error, not into the page.
    handlers = {
        HTTPException: _refused,
        LaptimeError: lambda _, error: told(500, "This cannot be shown", dashboard.index.below(str(error))),
        Exception: lambda _, error: told(500, "A mistake of laptime", _mistake(error)),
    }
    inner = Starlette(routes=routes, exception_handlers=handlers, lifespan=dashboard.warm)
    return Guard(inner, token)


class Dashboard:
    """What is asked of a folder of runs."""

    def __init__(self, folder: Path, networks: Networks | None = None) -> None:
        self.index = Index(folder)
        self._predicting = Predicting(self.index, networks)
        self._planning = Planning(networks)
        self._listing = listing.Listing()
        self._failed: set[str] = set()  # states whose page could not be made
        # What takes long has threads of its own, so that the list need not wait for it.
        self._quick, self._drawing, self._reading, self._summing, self._searching = map(
            Workers, (4, 2, 1, 1, 1)
        )

    @asynccontextmanager
    async def warm(self, _: Starlette) -> AsyncIterator[None]:
        """While the server starts: the pages that are likely asked for first."""
        pages.assets()  # once, before several threads would do so
        task = asyncio.create_task(self._draw_first())
        yield
        task.cancel()

    async def _draw_first(self) -> None:
        with suppress(Exception):  # whoever asks for one is told what is wrong
            await self._quick.now("predict", self._prediction_page)
            rows = await self._quick.now("first", lambda: self._listing.rows(self.index.entries()))
            for row in listing.ListRequest().chosen(rows)[:_FIRST]:
                with suppress(Exception):
                    entries, state = await self._quick.now(row.name, partial(self._found, "run", [row.name]))
                    await self._drawn(entries[0], state)

    async def _drawn(self, entry: RunEntry, state: str) -> Content:
        def make() -> Content:
            run, opening = load(entry.path), _opening(entry)
            shown = {"name": entry.name, "seal": state, "predictable": listing.predictable(run)}
            html = draw("run.html", here="runs", page=run_page.run_page(run, title=entry.name), **shown)
            return Content.of(opening, html.removeprefix(opening))

        return await self._drawing.once(state, make)

    def _found(self, kind: str, names: Sequence[str]) -> tuple[list[RunEntry], str]:
        """The runs of these names that there are, and an ETag of what is shown of them."""
        entries = [entry for name in names if (entry := self.index.find(name)) is not None]
        return entries, tag(kind, entries)

    async def runs(self, request: Request) -> Response:
        """The list."""
        wanted = listing.ListRequest.of(request.query_params)
        return _hashed(request, await self._quick.now(("runs", wanted), lambda: self._list(wanted)))

    def _list(self, wanted: listing.ListRequest) -> bytes:
        rows = self._listing.rows(self.index.entries())
        chosen = wanted.chosen(rows)
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
            pages=range(1, pages + 1),
            wanted=wanted,
            choices=listing.choices(rows),
        )

    async def run(self, request: Request) -> Response:
        """A run's page."""
        if b"%2f" in request.scope.get("raw_path", b"").lower():
            raise HTTPException(404)  # a slash of its own is no part of a name
        name = request.path_params["name"]
        entries, state = await self._quick.now(("run", name), lambda: self._found("run", [name]))
        if not entries:
            raise HTTPException(404)
        [entry] = entries
        if entry.reason:
            return told(500, entry.name, entry.reason)
        unchanged = _unchanged(request, state)
        if unchanged is not None and state not in self._failed:
            return unchanged
        if self._drawing.has(state):
            return _sent(request, await self._drawn(entry, state), _tagged(state))
        await self._quick.now(("whole", state), lambda: load(entry.path))  # damage is told with its status
        packed = _encoding(request)
        headers = {"Vary": "Accept-Encoding", **packed, **_tagged(state)}
        pieces = self._pieces(entry, state, packed=bool(packed))
        return StreamingResponse(pieces, media_type="text/html", headers=headers)

    async def _pieces(self, entry: RunEntry, state: str, *, packed: bool) -> AsyncIterator[bytes]:
        """The page in two pieces: its head at once, so that a browser compiles Plotly meanwhile."""
        opening = _opening(entry)
        yield Content.of(opening, b"").packed[0] if packed else opening
        try:
            page = await self._drawn(entry, state)
            self._failed.discard(state)
        except Exception as error:  # perhaps of a part that was merged away: asked again, it is made anew
            self._failed.add(state)
            reason = self._why(error, f"the page of {one_line(entry.name)}")
            page = Content.of(opening, draw("failed.html", reason=reason))
        yield page.packed[1] if packed else page.plain[1]

    async def compare(self, request: Request) -> Response:
        """Several runs side by side; the first is what the others are measured by."""
        names = tuple(dict.fromkeys(request.query_params.getlist("run")))
        if len(names) > listing.MOST:
            return told(400, "Too many runs", f"A comparison has {listing.MOST} runs at most; {_CHOOSE}")
        entries, state = await self._quick.now(("compare", names), lambda: self._found("compare", names))
        unknown = [name for name in names if name not in {entry.name for entry in entries}]
        if unknown:
            return told(404, "No such run", f"No run is called {format.name(unknown[0])}; {_CHOOSE}")
        if len(entries) < 2:
            return told(400, "Nothing to compare", f"A comparison needs two runs or more; {_CHOOSE}")
        broken = next((entry for entry in entries if entry.reason), None)
        if broken is not None:
            return told(500, broken.name, broken.reason)

        def make() -> Content:
            page = comparison_page.comparison_page([[load(entry.path) for entry in entries]], names)
            return Content.of(b"", draw("compare.html", here="runs", page=page, names=names))

        unchanged = _unchanged(request, state)
        return unchanged or _sent(request, await self._drawing.once(state, make), _tagged(state))

    async def results(self, request: Request) -> Response:
        """What the list fills in for the rows in view."""
        names = tuple(request.query_params.getlist("run")[: listing.MOST])

        def make() -> dict[str, dict[str, str]]:
            known = [self._found("results", [name]) for name in names]
            return {entry.name: listing.results(entry.path, state) for runs, state in known for entry in runs}

        return JSONResponse(await self._summing.now(names, make))

    async def predict(self, request: Request) -> Response:
        """The prediction page; its script asks `/api/predict`."""
        return _hashed(request, await self._quick.now("predict", self._prediction_page))

    def _prediction_page(self) -> bytes:
        return draw("predict.html", here="predict", **self._predicting.form())

    async def networks(self, _: Request) -> Response:
        """Which networks can be read here."""
        return JSONResponse({"networks": await self._reading.now("networks", self._predicting.networks)})

    async def answer(self, request: Request) -> Response:
        """A question's answer, or what is wrong with it."""
        query = dict(request.query_params)
        try:
            key = tuple(sorted(query.items()))
            return JSONResponse(await self._reading.now(key, lambda: self._predicting.answer(query)))
        except Exception as error:  # its script reads JSON, and no page
            status = 400 if isinstance(error, LaptimeError) else 500
            return JSONResponse({"error": self._why(error, "a prediction")}, status_code=status)

    async def plan(self, request: Request) -> Response:
        """The plan page, with what a search found where one was asked for."""
        query = dict(request.query_params)
        shown: dict[str, Any] = {"page": None, "reason": ""}
        status = 200
        if query:
            try:
                found = await self._searching.once(
                    repr(sorted(query.items())), lambda: self._planning.page(query)
                )
                shown["page"] = found
            except LaptimeError as error:
                shown["reason"], status = self._why(error, "a plan"), 400

        def make() -> bytes:
            return draw("plan.html", here="plan", **self._planning.form(query), **shown)

        page = await self._quick.now(("plan", object()), make)
        return _hashed(request, page) if status == 200 else HTMLResponse(page, status_code=status)

    def _why(self, error: Exception, what: str) -> str:
        if isinstance(error, LaptimeError):
            return self.index.below(one_line(error))
        logging.getLogger("uvicorn.error").error(what, exc_info=error)
        return _mistake(error)


_CHOOSE = "tick them in the list of runs and press compare."


def _opening(entry: RunEntry) -> bytes:
    return draw("opening.html", here="runs", title=f"{entry.name} · laptime", figures=True)


def static(request: Request) -> Response:
    """A style or a script, by its whole address."""
    asset = pages.assets().get(request.scope["path"])
    if asset is None:
        raise HTTPException(404)
    return _sent(request, asset, {"Cache-Control": _FOREVER})


async def healthy(_: Request) -> Response:
    """That it answers. No thread is needed for it: it does when all of them are busy."""
    return PlainTextResponse("ok")


def _unchanged(request: Request, state: str) -> Response | None:
    """The answer to a browser that has cached this state."""
    held = request.headers.get("if-none-match", "").split(",")
    if state in {seal.strip().removeprefix("W/") for seal in held}:
        return Response(status_code=304, headers=_tagged(state))
    return None


def _tagged(state: str) -> dict[str, str]:
    return {"ETag": state, "Cache-Control": "no-cache"}


def _hashed(request: Request, page: bytes) -> Response:
    state = f'"{hashlib.sha256(page).hexdigest()[:24]}"'
    made = Response(page, media_type="text/html", headers=_tagged(state))
    return _unchanged(request, state) or made


def _sent(request: Request, content: Content, headers: Mapping[str, str]) -> Response:
    packed = _encoding(request)
    body = b"".join(content.packed if packed else content.plain)
    return Response(body, media_type=content.kind, headers={"Vary": "Accept-Encoding", **packed, **headers})


def _encoding(request: Request) -> dict[str, str]:
    """Content-Encoding, where the browser takes gzip."""
    return {"Content-Encoding": "gzip"} if "gzip" in request.headers.get("accept-encoding", "") else {}


def _refused(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return told(404, "Nothing is here", "No run and no page has this address; the list has them all.")
    return told(status, "That did not work", "The server cannot answer this; go back to the list of runs.")


def _mistake(error: Exception) -> str:
    return f"laptime itself failed ({type(error).__name__}); the terminal of `laptime serve` says where."
