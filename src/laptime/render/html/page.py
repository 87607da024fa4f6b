"""A page as plain values, and as HTML. Every string is text: the templates escape all of it.

A file carries everything it needs, so it opens without a network and asks for nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laptime.errors import MissingExtra, RunError
from laptime.files.text import first_line, one_line
from laptime.files.write import plain, replacing
from laptime.views import palette
from laptime.views.figures.figure import Figure
from laptime.views.table import Table

if TYPE_CHECKING:
    import jinja2

REPORT_FILE = "report.html"
_NO_MARKUP = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One number that counts, what it is of, and what to think of it."""

    name: str
    value: str
    note: str = ""
    tone: str = ""  # good, fair or bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page with a title of its own."""

    name: str
    title: str
    sentences: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    bullets: Sequence[str] = ()

    @classmethod
    def of(
        cls, name: str, title: str, *parts: str | Figure | Table | None, bullets: Iterable[str] = ()
    ) -> Section:
        """A section of sentences, and of the figures and tables that are not empty; None is nothing too."""
        return cls(
            name=name,
            title=title,
            sentences=[part for part in parts if isinstance(part, str)],
            figures=[part for part in parts if isinstance(part, Figure) and part],
            tables=[part for part in parts if isinstance(part, Table) and part],
            bullets=[one_line(bullet) for bullet in bullets],
        )

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.sentences or self.figures or self.tables or self.bullets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that is shown of a run, a comparison or a prediction."""

    title: str
    subtitle: str = ""
    status: str = ""
    about: Sequence[str] = ()
    warnings: Sequence[str] = ()  # what makes the numbers below incomplete
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = ()


def write_page(page: Page, out: Path | str | None = None) -> Path:
    """Write a page as one file; by default `report.html` in this folder. Return its path."""
    html = standalone(page)
    target = Path(out) if out is not None else Path(REPORT_FILE)
    if target.is_dir():
        target /= REPORT_FILE
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(html.encode("utf-8", "replace"))
    except OSError as error:
        raise RunError(
            f"{one_line(target)} cannot be written ({first_line(error)}); --out gives another place"
        ) from error
    return target


def standalone(page: Page) -> str:
    """One HTML document with its style, its scripts and Plotly inside."""
    scripts = [plotly(), static("page.js")]
    # Scripts by their content: no other one may run in the page, whatever a run is called.
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return render(
        "standalone.html",
        page=page,
        style=static("page.css"),
        scripts=scripts,
        policy=f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'",
    )


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


def render(template: str, **values: Any) -> str:
    """HTML from a template, which escapes whatever it is given."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> jinja2.Environment:
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
    templates.filters["script_json"] = script_json
    try:
        templates.globals["version"] = metadata.version("laptime")
    except metadata.PackageNotFoundError:  # run from its source
        templates.globals["version"] = ""
    return templates


def prose(text: str) -> Any:
    """A sentence, escaped; what stands between backticks is set as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def script_json(value: Any) -> Any:
    """JSON that cannot end the script element it stands in."""
    from markupsafe import Markup

    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_NO_MARKUP))
