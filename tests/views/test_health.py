"""What a run says of its own writing, in every view and first of all."""

import io
import json

import pytest
from starlette.testclient import TestClient
from tests.runs.samples import a_layer_time, add_steps, start

from laptime.render import terminal
from laptime.render.html.run_page import notebook
from laptime.render.server.app import app
from laptime.render.terminal import run_text
from laptime.runs import load, schema
from laptime.runs.document import Health
from laptime.runs.health import why
from laptime.views.run_document import content, trial_row
from laptime.views.run_view import run_view

LOST = "6 of 10 steps were lost: the disk was full."
FULL = "No space left on device"


@pytest.fixture
def run(small_disk):
    """Ten steps, of which the disk took four."""
    disk = small_disk()
    writer = start(disk.path / "runs" / "r")
    writer.tell = lambda _: None
    add_steps(writer, range(4))
    writer.append("layers", schema.layers.table([a_layer_time(3, "conv")]))
    writer.flush()
    disk.fill()
    add_steps(writer, range(4, 10))
    writer.close("finished", {})
    return load(disk.path / "runs" / "r")


def printed(found):
    text = io.StringIO()
    terminal.print_lines(run_text.run_lines(found, 80), terminal.console(text))
    return text.getvalue()


def test_lost_steps_come_first_in_the_terminal_and_are_in_the_json(run):
    found = content(run)
    assert found["health"]["told"] == [LOST]
    assert found["health"]["lost_rows"] == {"steps": 6}
    assert found["health"]["taken_rows"]["steps"] == 10
    assert found["health"]["owner"]["pid"] == run.heartbeat["pid"]
    assert LOST in printed(run_view(run)).splitlines()[2]
    assert next(run_text.brief(run_view(run))) == LOST
    assert json.loads(json.dumps(found["health"])) == found["health"]


def test_pages_notebooks_and_lists_say_that_a_run_is_incomplete(run):
    assert LOST in notebook(run)
    client = TestClient(app(run.path.parent), base_url="http://localhost:8765")
    assert f'<p class="warning" role="alert">{LOST}</p>' in client.get("/runs/r").text
    assert '<span class="status failed">incomplete</span>' in client.get("/").text
    rows = [trial_row("r", run.status, run)]
    assert rows[0]["lost_rows"] == {"steps": 6}
    assert any("finished, incomplete" in line.plain for line in run_text.trial_lines(rows, 100))


def test_rows_that_wait_are_told_with_the_next_attempt_while_the_writer_runs(small_disk):
    disk = small_disk()
    writer = start(disk.path / "run")
    writer.tell = lambda _: None
    disk.fill()
    add_steps(writer, range(3))
    writer.flush()
    (told,) = content(load(disk.path / "run"))["health"]["told"]
    assert told.startswith("3 steps are not on disk yet: the disk is full; the next attempt is at ")
    disk.free()
    writer.flush()
    assert content(load(disk.path / "run"))["health"]["told"] == []
    writer.close("finished")


def test_layer_times_are_told_where_no_step_is_lost(tmp_path):
    assert told_of(tmp_path, lost_rows={"layers": 5}, reason=FULL) == [
        "5 of 6 layer times were lost: the disk was full."
    ]


def test_failed_checkpoints_are_told(tmp_path):
    assert told_of(tmp_path, failed_checkpoints=3, checkpoint_reason="Read-only file system") == [
        "3 checkpoints could not be written: the file system was read-only."
    ]


def told_of(path, **health):
    writer = start(path / "run")
    add_steps(writer, range(2))
    writer.append("layers", schema.layers.table([a_layer_time(1, "conv")]))
    writer.close("finished", {})
    file = path / "run" / "run.json"
    document = json.loads(file.read_text())
    document["health"] |= health
    file.write_text(json.dumps(document))
    return content(load(path / "run"))["health"]["told"]


@pytest.mark.parametrize(
    "odd", [{"lost_rows": [1]}, {"lost_rows": {"steps": "many", "layers": -1}}, {"problem": 3}, {"since": []}]
)
def test_a_health_of_another_form_is_passed_over(tmp_path, odd):
    assert told_of(tmp_path, **odd) == []
    assert not Health.of(odd).troubled


def test_reasons_are_in_plain_words():
    assert why("Disk quota exceeded", over=True) == "the disk quota was used up"
    assert why("Input/output error", over=False) == "the disk says: Input/output error"
    assert why(None, over=True) == "they never reached the disk"
