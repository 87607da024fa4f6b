"""Pages as HTML. A file carries everything it needs, so it opens without a network and asks for nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

from laptime.errors import MissingExtra
from laptime.files.write import plain
from laptime.render.html.page import Page
from laptime.views import palette
from laptime.views.figures.figure import Figure

if TYPE_CHECKING:
    import jinja2

_NO_MARKUP: dict[str, str | int | None] = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def standalone(page: Page) -> str:
    """One HTML document with its style, its scripts and Plotly inside."""
    scripts = [plotly(), static("page.js")]
    return (
        environment()
        .get_template("standalone.html")
        .render(
            page=page,
            style=static("page.css"),
            scripts=scripts,
            policy=f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; "
            "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'",
        )
    )


def _hash(script: str) -> str:
    """A script by its content: no other one may run in the page, whatever a run is called."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def plotly() -> str:
    """Plotly's own script, from its package."""
    try:
        package = resources.files("plotly.package_data")
    except ModuleNotFoundError:
        raise MissingExtra("plotly", "report") from None
    return (package / "plotly.min.js").read_text(encoding="utf-8")


@cache
def static(name: str) -> str:
    """A style or a script of ours. The colours of the style are those of the palette."""
    text = (resources.files("laptime.render.html") / "static" / name).read_text(encoding="utf-8")
    return f"{text}\n{palette.css()}" if name == "page.css" else text


@cache
def environment() -> jinja2.Environment:
    """Templates that escape whatever they are given."""
    try:
        import jinja2
    except ModuleNotFoundError:
        raise MissingExtra("jinja2", "report") from None
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("laptime.render.html"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["prose"] = prose
    templates.filters["figure_json"] = _figure_json
    templates.filters["plain_json"] = script_json
    templates.globals["version"] = _version()
    return templates


def _version() -> str:
    try:
        return metadata.version("laptime")
    except metadata.PackageNotFoundError:  # run from its source
        return ""


def prose(text: str) -> Any:
    """A sentence, escaped; what stands between backticks is set as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _figure_json(figure: Figure) -> Any:
    return script_json(figure.document())


def script_json(value: Any) -> Any:
    """JSON that cannot end the script element it stands in."""
    from markupsafe import Markup

    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(str.maketrans(_NO_MARKUP)))
