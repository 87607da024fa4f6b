import math

import numpy as np
import pytest
from tests.runs.samples import HOSTILE, a_finished_run, a_layer_time, a_network, a_step, add_steps, start

from laptime.model import Account, Noise, Phase
from laptime.runs import load, schema


@pytest.fixture
def path(tmp_path):
    return a_finished_run(tmp_path / "run", ["conv1", "fc"])


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
    words = " ".join(lines[0].split())
    assert words == "layer kind parameters calls forward ms backward ms update ms total ms median ms share"
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
    add_steps(writer, range(5))
    add_steps(writer, range(5, 6), idle_s=0.05, backward_s=0.0)
    rows = [a_layer_time(n, "conv", seconds=0.01) for n in range(5)]
    traced = {"seconds": 9.0, "busy_s": 0.004, "idle_s": 0.001, "memory_bytes": 512}
    rows += [a_layer_time(5, "conv", phase, **traced) for phase in (Phase.FORWARD, Phase.BACKWARD)]
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
    add_steps(writer, range(5), idle_s=0.05, backward_s=0.0)
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
    writer.append("steps", schema.steps.table([a_step(n, rank=rank) for rank in (0, 3) for n in range(30)]))
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


def test_a_step_without_an_update_counts_as_none_of_its_time(tmp_path):
    writer = start(tmp_path / "run")
    writer.network(a_network(["conv1"]))
    rows = []
    for rank in (0, 1):
        for number in range(13):
            rows += [
                a_layer_time(number, "conv1", phase, rank=rank) for phase in (Phase.FORWARD, Phase.BACKWARD)
            ]
            if number % 4 == 0:
                rows.append(a_layer_time(number, "conv1", Phase.UPDATE, rank=rank, seconds=0.008))
    writer.append("layers", schema.layers.table(rows))
    writer.append("steps", schema.steps.table([a_step(n, rank=rank) for rank in (0, 1) for n in range(13)]))
    writer.close("finished", {})
    layers = load(tmp_path / "run").layers()
    update = layers["conv1"].update
    assert (update.count, update.median) == (24, 0.0)
    assert update.mean == pytest.approx(0.002)
    assert layers["conv1"].total_s == pytest.approx(0.01 + 0.01 + 0.002)
    assert layers["conv1"].median_s == pytest.approx(0.02)
    assert (layers.steps, layers.updates) == (24, 6)


def test_where_every_step_has_an_update_it_is_all_of_them(path):
    layers = load(path).layers()
    assert layers.steps == layers.updates == layers["fc"].update.count == 7
