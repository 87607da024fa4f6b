"""Pictures of the pages for the documentation, small enough to be kept beside it."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser

from benchmarks.browser import DRAWN, browser
from benchmarks.dashboard import serving

_MOST_BYTES = 200_000
_ANSWERED = "#answer[aria-busy=false]:not(.empty)"
_IMAGENET = "samples=1281167&epochs=90"
_FILLED = "table.runs tbody tr [data-fill=step]:not(:empty)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A page, from where to where it is cut, and in which clothes."""

    name: str
    address: str
    waits: str = DRAWN
    width: int = 1280
    height: int = 1500
    scheme: Literal["light", "dark"] = "light"
    at: str = ""  # what is at its top


def screenshots(folder: Path, workplace: Path, run: Path | None = None) -> Iterator[Path]:
    """Train the demo three times, then picture its report and the dashboard's pages; gives the files.

    The report of a given `run` is pictured as `report*.png`, that of the demo as `demo-report*.png`: a
    caption that names the former must never come to stand above the latter.
    """
    folder, run = folder.resolve(), run.resolve() if run else None
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(workplace):  # so that the pages tell of runs/demo, wherever that is
        for name, more in (("demo", ()), ("demo-again", ()), ("demo-short", ("--epochs", "2"))):
            _laptime("demo", "--out", f"runs/{name}", *more)
        _laptime("report", str(run or "runs/demo"), "--out", "report.html")
        with serving(Path("runs")) as address, browser() as chromium:
            reported = "report" if run else "demo-report"
            for shot in _shots(reported, Path("report.html").resolve().as_uri(), address):
                yield _take(shot, folder, chromium)


def _laptime(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "laptime", *arguments], check=True, stdout=subprocess.DEVNULL)


def _shots(name: str, report: str, address: str) -> list[Shot]:
    return [
        Shot(name=name, address=report, height=1900),
        Shot(name=f"{name}-layers", address=report, at="#layers", height=1500),
        Shot(name=f"{name}-dark", address=report, scheme="dark", height=1100),
        Shot(name=f"{name}-phone", address=report, width=390, height=1100),
        Shot(name="dashboard-runs", address=f"{address}/", waits=_FILLED, height=420),
        Shot(name="dashboard-run", address=f"{address}/runs/demo", height=1100),
        Shot(
            name="dashboard-compare",
            address=f"{address}/compare?run=demo&run=demo-again&run=demo-short",
            height=1500,
        ),
        Shot(
            name="dashboard-predict",
            address=f"{address}/predict?network=resnet50&batch=128&precision=bf16&{_IMAGENET}&bandwidth=1.5",
            waits=_ANSWERED,
            height=1400,
        ),
    ]


def _take(shot: Shot, folder: Path, chromium: Browser) -> Path:
    context = chromium.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.scheme,
        reduced_motion="reduce",
    )
    try:
        page = context.new_page()
        page.goto(shot.address)
        page.wait_for_selector(shot.waits, state="attached", timeout=120_000)
        if shot.at:
            page.eval_on_selector(shot.at, "(one) => one.scrollIntoView()")
        page.wait_for_timeout(300)  # a figure's last transition
        return _compact(page.screenshot(), folder / f"{shot.name}.png")
    finally:
        context.close()


def _compact(png: bytes, path: Path) -> Path:
    """A palette instead of full colours: figures have few. Fewer still where the file would be large."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        image.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= _MOST_BYTES:
            break
    return path
