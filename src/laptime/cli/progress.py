"""Progress on standard error: a bar on a terminal, nothing anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_REFRESH_S = 0.2

Tell = Callable[[str], None]


@contextmanager
def progress(title: str, total: int) -> Iterator[Tell]:
    """A function to call after each of `total` steps, with a few words on how it goes.

    The bar is drawn from the loop itself, five times a second: a thread would take the processor from the
    steps that are being timed.
    """
    if not _on_terminal():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from laptime.render.terminal.run_text import console

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True, auto_refresh=False) as shown:
        task = shown.add_task(title, total=total, words="")
        drawn = 0.0

        def tell(words: str) -> None:
            nonlocal drawn
            shown.advance(task)
            if time.monotonic() - drawn >= _REFRESH_S:
                shown.update(task, words=words, refresh=True)
                drawn = time.monotonic()

        yield tell


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """A spinner while something of unknown length goes on."""
    if not _on_terminal():
        yield
        return
    from laptime.render.terminal.run_text import console

    with console(sys.stderr).status(title):
        yield


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
