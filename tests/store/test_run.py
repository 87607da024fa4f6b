import json
import math
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from laptime.errors import DamagedRun, LaptimeError, NewerSchema, NotARun
from laptime.record import Account, Noise, Phase, Stage, Step
from laptime.store import heartbeat, load, schema
from tests.store.samples import (
    HOSTILE,
    a_finished_run,
    a_layer_time,
    a_network,
    a_step,
    add_steps,
    start,
)


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
        "was written by schema 7, this laptime reads up to 1; upgrade laptime"
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
    rewrite(path, status="running", heartbeat={**heartbeat.beat(), **beat})
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
        started = heartbeat._process(child.pid)[1]
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
    assert (run.path, run.status, run.config, run.summary) == (path, "finished", {"batch": 64}, {"steps": 8})
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
    monkeypatch.setattr("laptime.store.stored.pa.concat_tables", None)
    monkeypatch.setattr(schema.TableSchema, "values", None)
    assert len(steps) == 9


# --- summaries ------------------------------------------------------------------------------------


def test_the_accounts_of_a_run_close(path):
    accounts = load(path).accounts()
    assert list(accounts) == list(Account)
    assert accounts.wall.count == 7  # the first is left out
    assert accounts[Account.FORWARD].seconds.median == pytest.approx(0.03)
    assert accounts[Account.BACKWARD].total_s == pytest.approx(0.35)
    assert accounts[Account.BACKWARD].share == pytest.approx(0.5)
    assert sum(one.share for one in accounts.values() if not math.isnan(one.share)) == pytest.approx(1.0)
    assert math.isnan(accounts[Account.IDLE].share)
    assert "backward" in repr(accounts)
    assert load(path).unexplained_share() == pytest.approx(0.02)
    assert load(path).accounts(skip=0).wall.count == 8
    assert load(path).accounts("validation", skip=0).wall.count == 1


def test_traced_steps_give_only_idle_time_to_the_accounts(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(10))
    rows = [a_step(n, forward_s=0.2, idle_s=0.1, wall_s=0.37, instrumented=False) for n in (10, 11)]
    writer.append("steps", schema.steps.table(rows))
    writer.close("finished", {})
    accounts = load(tmp_path / "run").accounts()
    assert accounts.wall.count == 9
    assert accounts[Account.FORWARD].seconds.high == pytest.approx(0.03)
    assert accounts[Account.IDLE].traced
    assert accounts[Account.IDLE].share == pytest.approx(0.2 / 0.74)
    assert sum(one.share for one in accounts.values() if not one.traced) == pytest.approx(1.0)
    only_traced = load(tmp_path / "run").accounts(instrumented=False)
    assert only_traced.wall.count == 2
    assert sum(one.share for one in only_traced.values()) == pytest.approx(1.0)


def test_layers_come_in_network_order_with_the_units_that_are_no_module_last(tmp_path):
    names = ["zeta", "alpha", *HOSTILE]
    layers = load(a_finished_run(tmp_path / "run", names)).layers()
    assert [one.layer for one in layers] == [*names, "(loss)", "(other)"]
    assert layers[0].kind == "Conv2d"
    assert layers["alpha"].parameters == 200
    assert layers["alpha"].forward.count == 7
    assert layers["alpha"].forward.noise is Noise.STEADY
    assert layers["alpha"].total_s == pytest.approx(0.003)
    assert sum(one.share for one in layers) == pytest.approx(1.0)
    with pytest.raises(KeyError):
        layers["nothing"]


def test_the_repr_of_layers_is_a_table_of_one_line_each(tmp_path):
    lines = repr(load(a_finished_run(tmp_path / "run", ["conv1", *HOSTILE])).layers()).split("\n")
    assert len(lines) == 1 + 1 + len(HOSTILE) + 2
    assert lines[0].split() == "layer kind parameters calls forward ms backward ms update ms total ms share".split()
    assert lines[1].split()[:6] == ["conv1", "Conv2d", "100", "1", "1.000", "±0%"]


def test_rows_of_one_layer_in_one_step_add_up_to_one_sample(tmp_path):
    writer = start(tmp_path / "run")
    writer.network(a_network(["shared", "never called"]))
    add_steps(writer, range(5))
    rows = [a_layer_time(n, "shared", seconds=s, calls=1) for n in range(5) for s in (0.01, 0.02)]
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    shared, silent = load(tmp_path / "run").layers()
    assert (shared.forward.count, shared.calls) == (4, 2)
    assert shared.forward.median == pytest.approx(0.03)
    assert (silent.layer, silent.calls, silent.forward, silent.total_s) == ("never called", 0, None, 0.0)


def test_traced_steps_give_busy_and_idle_and_no_time(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(6))
    rows = [a_layer_time(n, "conv", seconds=0.01) for n in range(5)]
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        rows.append(a_layer_time(5, "conv", phase, seconds=9.0, busy_s=0.004, idle_s=0.001, memory_bytes=512))
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    layers = load(tmp_path / "run").layers()
    assert not layers.traced
    assert layers["conv"].forward.count == 4
    assert layers["conv"].total_s == pytest.approx(0.01)
    assert layers["conv"].backward is None
    assert (layers["conv"].busy_s, layers["conv"].idle_s) == (pytest.approx(0.008), pytest.approx(0.002))
    assert layers["conv"].memory_bytes == 512
    assert "busy ms" in repr(layers)


def test_where_only_traced_steps_exist_their_times_are_shown_and_marked(tmp_path):
    writer = start(tmp_path / "run")
    rows = [a_layer_time(n, "conv", seconds=0.01, busy_s=0.004, idle_s=0.001) for n in range(5)]
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    layers = load(tmp_path / "run").layers()
    assert layers.traced
    assert layers["conv"].total_s == pytest.approx(0.01)


def test_the_first_steps_of_each_attempt_and_rank_are_left_out(tmp_path):
    writer = start(tmp_path / "run")
    for attempt, first in ((0, 0), (1, 100)):
        add_steps(writer, range(first, first + 5), attempt=attempt)
        rows = [
            a_layer_time(n, "conv", attempt=attempt, seconds=9.0 if n == first else 0.01)
            for n in range(first, first + 5)
        ]
        writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    layers = load(tmp_path / "run").layers()
    assert (layers["conv"].forward.count, layers.skipped) == (8, 1)
    assert layers["conv"].forward.mean == pytest.approx(0.01)
    assert load(tmp_path / "run").layers(skip=2)["conv"].forward.count == 6


def test_sampled_layers_do_not_lose_their_first_sample_to_the_warm_up(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(20))
    writer.append("layers", schema.layers.table([a_layer_time(n, "conv") for n in (5, 10, 15)]))
    writer.close("finished", {})
    assert load(tmp_path / "run").layers()["conv"].forward.count == 3


def test_a_run_of_one_step_shows_that_step(tmp_path):
    run = load(a_finished_run(tmp_path / "run", ["conv"], steps=1))
    assert run.layers()["conv"].forward.count == 1
    assert run.layers().skipped == 0
    assert run.accounts().wall.count == 1


def test_the_named_share_leaves_out_only_other(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(3))
    shares = {"conv": 0.06, "(loss)": 0.03, "(other)": 0.01}
    rows = [a_layer_time(n, name, seconds=s) for n in range(3) for name, s in shares.items()]
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    assert load(tmp_path / "run").named_share() == pytest.approx(0.9)


def test_a_run_without_rows_has_empty_summaries(tmp_path):
    start(tmp_path / "run").close("interrupted", {})
    run = load(tmp_path / "run")
    assert len(run.layers()) == 0
    assert repr(run.layers()) == "no layers"
    assert repr(run.accounts()) == "no steps"
    assert math.isnan(run.named_share())
    assert math.isnan(run.unexplained_share())


def test_layer_statistics_agree_with_a_plain_reckoning(tmp_path):
    rng = np.random.default_rng(1)
    writer = start(tmp_path / "run")
    names = [f"layer{i}" for i in range(7)]
    rows = [
        a_layer_time(n, name, phase, rank=rank, seconds=float(rng.lognormal(-5)))
        for n in range(30)
        for rank in (0, 3)
        for name in names
        for phase in Phase
    ]
    rng.shuffle(rows)
    add_steps(writer, range(30))
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    layers = load(tmp_path / "run").layers()
    for name in names:
        for phase in Phase:
            expected = [
                row.seconds for row in rows if row.layer == name and row.phase == phase and row.step >= 1
            ]
            found = getattr(layers[name], phase)
            assert found.count == len(expected) == 58
            assert found.median == pytest.approx(float(np.median(expected)))
            assert found.mean == pytest.approx(float(np.mean(expected)))
