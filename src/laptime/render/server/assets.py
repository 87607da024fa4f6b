"""Styles and scripts, each at an address with a hash of its content: a browser asks for one once."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from laptime.render.html.render import plotly, static

_SCRIPTS = ("page.js", "live.js", "runs.js", "predict_answer.js", "predict.js")
_STYLES = ("page.css", "serve.css")
PLOTLY = "plotly.min.js"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file that pages ask for."""

    address: str
    body: bytes
    packed: bytes  # gzip: Plotly is 4.5 MB, and someone may sit at the other end of a slow line
    kind: str


@cache
def assets() -> Mapping[str, Asset]:
    """Every style and script, by name."""
    by_name = {name: _asset(name, static(name), "text/javascript") for name in _SCRIPTS}
    by_name |= {name: _asset(name, static(name), "text/css") for name in _STYLES}
    by_name[PLOTLY] = _asset(PLOTLY, plotly(), "text/javascript")
    return MappingProxyType(by_name)


@cache
def served() -> Mapping[str, Asset]:
    """Every style and script by address: a request is looked up here, never joined to a path."""
    return MappingProxyType({asset.address: asset for asset in assets().values()})


@cache
def edition() -> str:
    """A hash over all styles and scripts; cached pages of another edition are invalid."""
    return hashlib.sha256("".join(sorted(served())).encode()).hexdigest()[:8]


def address(name: str) -> str:
    """The address of an asset in a page."""
    return assets()[name].address


def _asset(name: str, text: str, kind: str) -> Asset:
    body = text.encode()
    seal = hashlib.sha256(body).hexdigest()[:12]
    packed = gzip.compress(body, 5, mtime=0)
    return Asset(address=f"/static/{seal}/{name}", body=body, packed=packed, kind=kind)
