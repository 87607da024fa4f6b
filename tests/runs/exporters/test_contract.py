"""What every exporter keeps to, and how a new one is found."""

import json

import pytest
from tests.runs.samples import a_finished_run
from typer.testing import CliRunner

from laptime.cli import app
from laptime.runs import load
from laptime.runs.exporters import exporter, exporters, unregister


@pytest.fixture
def run(tmp_path):
    return load(a_finished_run(tmp_path / "run", ["conv", "head"]))


@pytest.mark.parametrize("name", exporters())
def test_an_exporter_writes_inside_the_run_by_default(name, run):
    files = exporters()[name](run, None)
    assert files
    assert all(file.is_file() and run.path in file.parents for file in files)


@pytest.mark.parametrize("name", exporters())
def test_an_exporter_writes_to_a_folder_that_it_is_given(name, run, tmp_path):
    place = tmp_path / "there"
    place.mkdir()
    files = exporters()[name](run, place)
    assert files
    assert all(file.is_file() and place in file.parents for file in files)


@pytest.mark.parametrize("name", exporters())
def test_a_second_export_replaces_the_first(name, run):
    first = exporters()[name](run, None)
    assert exporters()[name](run, None) == first


@pytest.mark.parametrize("name", exporters())
def test_an_exporter_leaves_the_run_as_it_was(name, run):
    before = {path: path.read_bytes() for path in run.path.rglob("*.parquet")}
    exporters()[name](run, None)
    assert {path: path.read_bytes() for path in run.path.rglob("*.parquet")} == before


@pytest.fixture
def lines():
    @exporter("lines")
    def write(run, out):
        file = (out or run.path) / "steps.txt"
        file.write_text("".join(f"{step.step} {step.wall_s}\n" for step in run.steps))
        return [file]

    yield write
    unregister("lines")


def test_an_exporter_that_is_entered_later_is_taken_by_the_command(lines, run):
    done = CliRunner().invoke(app, ["export", str(run.path), "--to", "lines", "--json"])
    assert done.exit_code == 0, done.output
    (export,) = json.loads(done.stdout)["exports"]
    assert export["files"] == [str(run.path / "steps.txt")]
    assert len((run.path / "steps.txt").read_text().splitlines()) == len(run.steps)


def test_an_unknown_format_is_refused_with_the_known_ones(run):
    done = CliRunner().invoke(app, ["export", str(run.path), "--to", "exel"])
    assert done.exit_code == 2
    assert "csv" in done.output
