import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.runs.samples import (
    a_finished_run,
    a_network,
    a_step,
)

from laptime.errors import DamagedRun, LaptimeError, NewerSchema, NotARun
from laptime.model import Stage, Step
from laptime.runs import Run, directory, load, schema


def one_line(error_type: type[LaptimeError], path: Path) -> str:
    with pytest.raises(error_type) as caught:
        load(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def rewrite(path: Path, **changes: object) -> None:
    document = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**document, **changes}))


@pytest.fixture
def path(tmp_path):
    return a_finished_run(tmp_path / "run", ["conv1", "fc"])


# --- what cannot be read --------------------------------------------------------------------------


def test_what_is_not_a_run_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "new\nline").mkdir()
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "photo.jpg").write_bytes(os.urandom(100))
    (tmp_path / "junk" / "steps").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text('{"name": "another tool"}')
    assert "does not exist; give the directory of a run" in one_line(NotARun, tmp_path / "nowhere")
    assert "is not a directory" in one_line(NotARun, tmp_path / "file")
    assert "holds no run.json" in one_line(NotARun, tmp_path / "junk")
    assert "holds no run.json" in one_line(NotARun, tmp_path / "new\nline")
    assert "was not written by laptime" in one_line(NotARun, tmp_path / "other")


def test_a_run_of_a_newer_laptime_says_to_upgrade(path):
    rewrite(path, schema_version=7)
    assert one_line(NewerSchema, path).endswith(
        "was written by schema 7, this laptime reads up to 2; upgrade laptime"
    )


@pytest.mark.parametrize("keep", [0, 1, 50, 300])
def test_a_truncated_run_json_is_damage(path, keep):
    content = (path / "run.json").read_bytes()
    (path / "run.json").write_bytes(content[:keep])
    assert "run.json is " in one_line(DamagedRun, path)


@pytest.mark.parametrize("change", [{"id": None}, {"created": "yesterday"}, {"config": 3}, {"summary": []}])
def test_a_run_json_with_a_key_of_the_wrong_kind_is_damage(path, change):
    rewrite(path, **change)
    assert "run.json is damaged" in one_line(DamagedRun, path)


@pytest.mark.parametrize("table", ["steps", "layers", "kernels"])
@pytest.mark.parametrize("keep", [0, 3, 0.5, -1])
def test_a_truncated_part_is_named_with_the_remedy_and_the_remedy_works(path, table, keep):
    (part,) = (path / table).iterdir()
    content = part.read_bytes()
    part.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    message = one_line(DamagedRun, path)
    assert str(part) in message
    assert "delete it to read the rest of the run" in message
    part.unlink()
    run = load(path)
    assert len(run.steps) == (0 if table == "steps" else 9)
    assert repr(run.layers())


def test_rows_altered_inside_a_part_are_noticed(path):
    (part,) = (path / "steps").iterdir()
    content = bytearray(part.read_bytes())
    content[200:232] = os.urandom(32)
    part.write_bytes(content)
    with pytest.raises(DamagedRun, match="is damaged"):
        _ = load(path).steps.table


def test_a_foreign_parquet_file_is_not_taken_for_a_table(path):
    (part,) = (path / "steps").iterdir()
    part.write_bytes(next((path / "layers").iterdir()).read_bytes())
    assert "its columns are not those of the table steps" in one_line(DamagedRun, path)


def test_a_damaged_network_json_is_named(path):
    (path / "network.json").write_text('{"layers": [{"na')
    with pytest.raises(DamagedRun, match=r"network\.json is damaged .* delete it"):
        _ = load(path).network


# --- dead or alive --------------------------------------------------------------------------------


def shown_status(path: Path, **beat: object) -> str:
    rewrite(path, status="running", heartbeat={**directory.beat(), **beat})
    return load(path).status


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def test_a_running_run_whose_process_is_dead_is_shown_as_interrupted(path):
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert shown_status(path) == "running"
    assert shown_status(path, time=ago(1000)) == "running"  # the process lives: it may only be paused
    assert shown_status(path, pid=child.pid, started=None) == "interrupted"
    assert shown_status(path, boot_id="another boot") == "interrupted"
    assert shown_status(path, started=1) == "interrupted"  # another process has the number now
    assert shown_status(path, pid=None, time=ago(1000)) == "interrupted"


def test_a_killed_child_that_nobody_waited_for_is_dead(path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = directory.process_state(child.pid)[1]
        assert shown_status(path, pid=child.pid, started=started) == "running"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table of processes
        assert shown_status(path, pid=child.pid, started=started) == "interrupted"


def test_on_another_host_the_age_of_the_heartbeat_decides(path):
    assert shown_status(path, host="elsewhere", pid=1, time=ago(30)) == "running"
    assert shown_status(path, host="elsewhere", pid=1, time=ago(90)) == "interrupted"
    assert shown_status(path, host="elsewhere", time="soon") == "interrupted"
    assert socket.gethostname() != "elsewhere"


def test_a_finished_run_stays_finished_whatever_became_of_its_process(path):
    rewrite(path, heartbeat={})
    assert load(path).status == "finished"


# --- reading --------------------------------------------------------------------------------------


def test_a_run_knows_what_it_was(path):
    run = load(str(path))
    assert (run.path, run.status, run.config, run.summary) == (
        path,
        "finished",
        {"batch": 64},
        {"steps": {"train": 8}},
    )
    assert run.created.tzinfo is not None
    assert run.network == tuple(a_network(["conv1", "fc"]))
    assert load(path / "run.json").id == run.id
    assert repr(run) == f"<Run {run.id} at {path}: finished, 9 steps>"


def test_steps_are_a_sequence(path):
    steps = load(path).steps
    expected = [*(a_step(n) for n in range(8)), a_step(0, stage=Stage.VALIDATION, start_s=0.8)]
    assert len(steps) == 9
    assert list(steps) == expected
    assert steps[0] == expected[0]
    assert steps[-1] == expected[-1]
    assert steps[2:5] == expected[2:5]
    assert steps[::-2] == expected[::-2]
    assert list(reversed(steps)) == expected[::-1]
    assert expected[3] in steps
    assert isinstance(steps[0], Step)
    with pytest.raises(IndexError):
        steps[9]


def test_counting_steps_reads_no_rows(path, monkeypatch):
    steps = load(path).steps
    monkeypatch.setattr("laptime.runs.table_reader.pa.concat_tables", None)
    monkeypatch.setattr(schema.TableSchema, "values", None)
    assert len(steps) == 9


def test_a_subclass_loads_as_itself(path):
    class Mine(Run):
        pass

    assert type(Mine.load(path)) is Mine


def test_importing_the_store_brings_neither_torch_nor_duckdb():
    code = "import sys, laptime.runs; print([m for m in ('torch', 'duckdb', 'pandas') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
