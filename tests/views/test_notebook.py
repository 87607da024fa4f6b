"""A run shows itself in a notebook: an HTML fragment without scripts, in which every name is text."""

import re

import pytest
from IPython.core.formatters import DisplayFormatter
from tests.runs.samples import a_finished_run

import laptime

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def run(tmp_path):
    return laptime.load(a_finished_run(tmp_path / HOSTILE.replace("/", ""), ["conv1", HOSTILE]))


def test_a_notebook_takes_the_run_s_own_html(run):
    shown, _ = DisplayFormatter().format(run)
    assert "training step" in shown["text/html"]
    assert "wall time" in shown["text/html"]
    assert shown["text/plain"].startswith("<Run ")


def test_the_fragment_runs_nothing_and_asks_for_nothing(run):
    html = run._repr_html_()
    assert not re.search(r"<(script|iframe|link|img)|src=[^x]|href=|url\(", html.replace("src=x", ""))


def test_names_stay_text(run):
    html = run._repr_html_()
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    assert "<img" not in html


def test_report_writes_a_file_and_says_where(run, tmp_path):
    assert run.report() == run.path / "report.html"
    mine = run.report(tmp_path / "new folder" / "mine.html")
    assert mine.read_text().startswith("<!doctype html>")
