"""How long pages take: a report of 1,000,000 layer times written and drawn, and the dashboard in a browser.

`python -m benchmarks.pages` makes the runs, writes reports with the real command, opens them and the
dashboard's pages in Chromium, and counts until every figure is drawn. `--screenshots FOLDER` writes pictures
of the pages instead.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from playwright.sync_api import BrowserContext

from benchmarks.browser import DRAWN, profile
from benchmarks.dashboard import EVERY, RUN_S, SAMPLED, made, serving
from benchmarks.screenshots import screenshots
from benchmarks.tables import NOTHING, Table, verdict
from laptime.model import Layer, Phase
from laptime.runs import RunWriter, from_columns

WRITE_S, WRITE_BYTES = 10.0, 10e6  # what is promised of a report of 1,000,000 layer times
ROWS = 1_000_000
AGAIN = 3  # times that a page is opened again; the median counts
SHAPES = (10, 100, 1000)  # layers; the steps follow from the rows
FIRST = ".plot[data-drawn]"
ROWS_SHOWN, FILLED = "table.runs tbody tr", "table.runs tbody tr [data-fill=loss]:not(:empty)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One report: what it is of, how long it took to write, and to draw."""

    layers: int
    steps: int
    seconds: float
    size: int
    drawn_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One page of the dashboard, from the address to its first figure or row, and to its last."""

    what: str
    first_s: float
    all_s: float
    limit_s: float | None = None


def a_run(path: Path, *, layers: int, rows: int = ROWS) -> int:
    """Write a run with about that many layer times, every layer in three phases; returns its steps."""
    steps = -(-rows // (layers * len(Phase)))
    names = [f"stage{place // 12}.block{place // 3 % 4}.conv{place % 3}" for place in range(layers)]
    writer = RunWriter.create(path, config={"network": {"name": "made up"}}, environment={"python": "3.11"})
    writer.network([Layer(name=name, path=name, kind="Conv2d", parameters=1000) for name in names])
    random = np.random.default_rng(1)
    wall = random.gamma(100.0, 1e-4, steps)
    start = np.cumsum(wall) - wall
    shares = {"forward_s": 0.3, "backward_s": 0.5, "update_s": 0.1, "data_wait_s": 0.1}
    columns: dict[str, Any] = {"stage": "train", "step": np.arange(steps), "start_s": start, "wall_s": wall}
    columns |= {name: wall * share for name, share in shares.items()}
    columns |= {
        "loss": np.exp(-np.arange(steps) / steps),
        "samples": np.full(steps, 32),
        "instrumented": True,
    }
    writer.append("steps", from_columns("steps", columns))
    for piece in np.array_split(np.arange(steps), max(1, rows // 200_000)):
        count = len(piece) * layers * len(Phase)
        columns = {
            "stage": "train",
            "step": np.repeat(piece, layers * len(Phase)),
            "layer": np.tile(np.repeat(names, len(Phase)), len(piece)),
            "phase": np.tile([phase.value for phase in Phase], len(piece) * layers),
            "start_s": np.repeat(start[piece], layers * len(Phase)),
            "seconds": random.gamma(20.0, 1.5e-5, count),
            "how": "measured",
        }
        writer.append("layers", from_columns("layers", columns))
        writer.flush()
    writer.close("finished", {"steps": {"train": steps}})
    return steps


def write(run: Path, out: Path) -> float:
    """Seconds of `laptime report`, Python's start included."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "laptime", "report", str(run), "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def until(context: BrowserContext, address: str, *sights: str) -> list[float]:
    """Seconds from the address to each of these sights, in a new tab."""
    page = context.new_page()
    begun = time.perf_counter()
    page.goto(address, wait_until="commit")
    found = []
    for sight in sights:
        page.wait_for_selector(sight, state="attached", timeout=120_000)
        found.append(time.perf_counter() - begun)
    page.close()
    return found


def reports(folder: Path, rows: int) -> Iterator[Written]:
    """A report for each shape of network."""
    for layers in SHAPES:
        run, out = folder / f"{layers}-layers", folder / f"{layers}-layers.html"
        steps = a_run(run, layers=layers, rows=rows)
        seconds = write(run, out)
        with profile(folder / f"{layers}-profile") as context:
            (drawn,) = until(context, out.resolve().as_uri(), DRAWN)
        yield Written(layers=layers, steps=steps, seconds=seconds, size=out.stat().st_size, drawn_s=drawn)


def dashboard(folder: Path, workplace: Path) -> Iterator[Opened]:
    """Its pages from a server and a browser that are new, and from both once they know them.

    Chromium keeps a script's compiled form from the third time on: parsing Plotly is half of a first visit.
    """
    pages: list[tuple[str, str, tuple[str, str], float | None]] = [
        ("list of runs", "/", (ROWS_SHOWN, FILLED), None)
    ]
    pages += [(f"page of {name}", f"/runs/{quote(name)}", (FIRST, DRAWN), RUN_S) for name in (SAMPLED, EVERY)]
    for number, (what, place, sights, limit_s) in enumerate(pages):
        with serving(folder) as address, profile(workplace / f"profile-{number}") as context:
            time.sleep(2.0)  # someone opens the address that was printed
            tries = []
            for _ in range(3 + AGAIN):
                tries.append(until(context, address + place, *sights))
                time.sleep(0.5)
            again = sorted(tries[3:])[AGAIN // 2]
            for state, (first, whole) in (("first time ever", tries[0]), ("again", again)):
                yield Opened(what=f"{what}, {state}", first_s=first, all_s=whole, limit_s=limit_s)


def report_table(found: list[Written], rows: int) -> Table:
    """Seconds and bytes against what is promised."""
    lines = [
        (
            f"{one.layers:,} layers x {one.steps:,} steps",
            f"{one.seconds:.1f}",
            f"{one.size / 1e6:.1f}",
            f"{one.drawn_s:.1f}",
            verdict(one.seconds < WRITE_S and one.size < WRITE_BYTES),
        )
        for one in found
    ]
    return Table(
        title=f"laptime report of {rows:,} layer times",
        header=("run", "written s", "MB", "drawn after s", "kept"),
        rows=lines,
        notes=[f"promised: {WRITE_S:.0f} s to write, {WRITE_BYTES / 1e6:.0f} MB, of which Plotly is 4.8"],
    )


def dashboard_table(found: list[Opened]) -> Table:
    """Seconds from the address to the first mark and to the last."""
    lines = [
        (
            one.what,
            f"{one.first_s:.2f}",
            f"{one.all_s:.2f}",
            f"{one.limit_s:.1f}" if one.limit_s else NOTHING,
            verdict(one.all_s < one.limit_s) if one.limit_s else NOTHING,
        )
        for one in found
    ]
    return Table(
        title="The dashboard in Chromium, until all is drawn",
        header=("page", "first seen s", "all drawn s", "promised", "kept"),
        rows=lines,
        notes=[
            "first seen: a figure is drawn, or the list has its rows; all drawn: the list has its numbers"
        ],
    )


def main() -> None:
    """Make the runs, open, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="layer times of a report")
    parser.add_argument("--keep", type=Path, help="a folder for the dashboard's runs, kept and used again")
    parser.add_argument("--only", choices=("reports", "dashboard"), help="one of the two tables")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="write pictures of the pages here")
    parser.add_argument("--run", type=Path, help="whose report is pictured as report*.png; else the demo's")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laptime-pages-") as place:
        if given.screenshots:
            for path in screenshots(given.screenshots, Path(place), given.run):
                print(f"{path.name} {path.stat().st_size / 1e3:,.0f} kB")
            return
        if given.only != "dashboard":
            print(report_table(list(reports(Path(place), given.rows)), given.rows).text(), flush=True)
        if given.only != "reports":
            folder = given.keep or Path(place) / "runs"
            if not (folder / EVERY / "run.json").exists():
                made(folder)
            print(dashboard_table(list(dashboard(folder, Path(place)))).text())


if __name__ == "__main__":
    main()
