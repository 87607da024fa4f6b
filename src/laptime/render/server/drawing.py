"""The dashboard's pages as HTML."""

from __future__ import annotations

from typing import Any

from starlette.responses import HTMLResponse, Response

from laptime.render.html.render import environment
from laptime.render.server import assets


def draw(template: str, **values: Any) -> bytes:
    """A page from its template."""
    text = environment().get_template(template).render(asset=assets.address, **values)
    return text.encode("utf-8", "replace")


def told(status: int, title: str, reason: str) -> Response:
    """A page that says in one line what is wrong and what to do."""
    return HTMLResponse(draw("error.html", title=title, reason=reason), status_code=status)
