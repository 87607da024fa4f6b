"""Chromium without a window, for what has to be seen drawn: the tests of pages and their benchmark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, ViewportSize, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# No sandbox: it needs user namespaces, which containers seldom allow. The rest keeps it from calling home.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DRAWN = "body[data-drawn=all]"
"""What a page matches once its script has drawn every figure."""


def chromium() -> str | None:
    """Where Chromium is; None where it is not installed (on Debian: apt-get install chromium)."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block. Playwright's own, downloaded ones are not used."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=list(_FLAGS))
        try:
            yield started
        finally:
            started.close()


@contextmanager
def profile(folder: Path) -> Iterator[BrowserContext]:
    """A browser as someone has it at home, kept in `folder`: scripts stay cached, and in time compiled."""
    with sync_playwright() as playwright:
        size: ViewportSize = {"width": 1280, "height": 900}
        started = playwright.chromium.launch_persistent_context(
            folder, executable_path=chromium(), args=list(_FLAGS), viewport=size
        )
        try:
            yield started
        finally:
            started.close()
