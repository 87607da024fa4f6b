"""One Chromium for this folder, and `look`: a page that is opened, watched and judged when it is left."""

import os
from contextlib import ExitStack, contextmanager

import pytest
import torch

import laptime
from benchmarks import browser as chromium
from tests.browser.looking import Looked


@pytest.fixture(scope="package")
def browser():
    # Of the package, not of the session: while it runs, Playwright keeps an event loop in this thread, and
    # asyncio.run() in any later test would be refused.
    if chromium.chromium() is None:
        missing = "Chromium is not installed; on Debian: apt-get install chromium"
        if os.environ.get("LAPTIME_REQUIRE_CHROMIUM"):
            pytest.fail(missing)
        pytest.skip(missing)
    with chromium.browser() as started:
        yield started


@contextmanager
def _looking(browser, address, *, width=1280, scheme="light", drawn=True, quiet=True, **more):
    options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    context = browser.new_context(**options, **more, reduced_motion="reduce", has_touch=width < 600)
    try:
        seen = Looked(context.new_page())
        seen.open(address, drawn=drawn)
        yield seen
        if quiet:
            seen.was_quiet()
    finally:
        context.close()


@pytest.fixture
def look(browser):
    """`with look(file_or_address) as seen:` — all figures are drawn; on leaving, the page was quiet."""
    return lambda address, **options: _looking(browser, address, **options)


@pytest.fixture(scope="module")
def look_once(browser):
    """A page for several tests of a file: opening one takes a second, most of it to parse Plotly."""
    with ExitStack() as opened:
        yield lambda address, **options: opened.enter_context(_looking(browser, address, **options))


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="package")
def recorded(folder):
    """A tiny network, really trained and recorded: what a step asks for is known."""
    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    data = [(torch.randn(4, 8), torch.randint(2, (4,))) for _ in range(12)]
    with laptime.record(network, optimizer, out=folder / "recorded", every_step=True) as recording:
        for images, labels in recording.steps(data):
            loss = torch.nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.log(loss=loss)
    return recording.run
