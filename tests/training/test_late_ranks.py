"""A rank that takes longer by a known time: the other waits as long, in the account that is meant for it."""

import itertools
import os
import statistics
import time
from pathlib import Path

import pytest
from tests.training.ranks_here import Training, train_on_ranks

import laptime
from laptime.model import ACCOUNTS, BUBBLE_COLUMNS, Stage
from laptime.runs.exchanges import read_exchanges

STEPS, MICRO_BATCHES = 12, 4
PLANTED_S = 0.8  # in every other step: a busy machine gives a process its turn tens of milliseconds late
TOLERANCE = 0.05
CONFIG = f"""
network = {{name = "feedforward", options = {{hidden = [64, 32]}}}}
data.kind = "digits"
checkpoint.every = 0
validation.every = 0
[train]
batch = 16
epochs = 1
steps = {STEPS}
threads = 1
device = "cpu"
[parallel]
strategy = "STRATEGY"
micro_batches = {MICRO_BATCHES}
schedule = "SCHEDULE"
average_every = 2
"""
CONFIGS = {
    schedule: CONFIG.replace("STRATEGY", "model").replace("SCHEDULE", schedule)
    for schedule in ("1f1b", "gpipe")
}
OTHERS = {
    name: CONFIG.replace("STRATEGY", name).replace("SCHEDULE", "1f1b")
    for name in ("data", "sharded", "feature", "local")
}
HYBRID = CONFIGS["1f1b"].replace('"model"', '"hybrid"') + 'stages = 2\nouter = "model"\n'
SERVED = {  # groups of ranks that wait for each other at the parameter server, and ranks in each
    "asynchronous": (2, 1),
    "mixed": (2, 2),
}
# Python finds it by its name when a process starts: workers of parameter servers are commands.
CUSTOMIZE = """
import os

if os.environ.get("LAPTIME_GROUP") == "1":
    from tests.training.test_late_ranks import sleep_before_forward

    sleep_before_forward()
"""


def sleep_before_forward():
    """Every other step of this process begins late."""
    from laptime.training.strategies.contract import Strategy

    losses, turn = Strategy.losses, itertools.count()

    def late_losses(strategy, *arguments):
        if next(turn) % 2 == 1:
            time.sleep(PLANTED_S)
        return losses(strategy, *arguments)

    Strategy.losses = late_losses


def sleep_in_forward():
    """In every other step a stage sleeps in each of its forward passes."""
    from laptime.training.strategies.hybrid import Hybrid
    from laptime.training.strategies.model import ModelParallel

    run, turn = ModelParallel._run, itertools.count()
    sleeps = False

    def in_turn(strategy, *arguments, **named):
        nonlocal sleeps
        sleeps = next(turn) % 2 == 1
        return run(strategy, *arguments, **named)

    def slowed(called):
        def slow(strategy, network):
            wait = PLANTED_S / MICRO_BATCHES
            network.register_forward_pre_hook(lambda *_: time.sleep(wait) if sleeps else None)
            return called(strategy, network)

        return slow

    ModelParallel._run = in_turn
    for kind in (ModelParallel, Hybrid):
        kind._called = slowed(kind._called)


def late(name, rank):
    """The second rank is late, in this training and those that follow it."""
    if rank == 1 and name == next(iter(CONFIGS)):
        sleep_in_forward()
    if rank == 1 and name == next(iter(OTHERS)):
        sleep_before_forward()


def late_in_hybrid(name, rank):
    """The last stage of the second pipeline is late."""
    if rank == 3:
        sleep_in_forward()


# Planted delays have to be long beside the noise.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages")
    return train_on_ranks([Training(text, folder / name) for name, text in CONFIGS.items()], 2, before=late)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    return train_on_ranks([Training(text, folder / name) for name, text in OTHERS.items()], 2, before=late)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    return train_on_ranks([Training(HYBRID, folder / "hybrid")], 4, before=late_in_hybrid)["hybrid"]


def steps_of(run, rank):
    return [step for step in run.steps if step.rank == rank and step.stage is Stage.TRAIN]


def grown(run, rank):
    """By how much each account of a late step is longer than that of the step before, in the median."""
    steps = steps_of(run, rank)[2:]
    return {
        account.value: statistics.median(
            (getattr(late, account.column) or 0.0) - (getattr(before, account.column) or 0.0)
            for before, late in zip(steps[::2], steps[1::2], strict=True)
        )
        for account in ACCOUNTS
    }


def found_in(run, *, late, waiting, cause, effect):
    """A late rank's time is in `cause` alone, and another's wait for it in `effect` alone."""
    of_late, of_waiting = grown(run, late), grown(run, waiting)
    planted = of_late.pop(cause)  # a busy machine sleeps longer than it is asked to
    assert planted >= (1 - TOLERANCE) * PLANTED_S
    assert of_waiting.pop(effect) == pytest.approx(planted, rel=TOLERANCE)
    elsewhere = {**{f"late {name}": s for name, s in of_late.items()}, **of_waiting}
    assert all(abs(seconds) < TOLERANCE * planted for seconds in elsewhere.values()), elsewhere


@pytest.mark.parametrize("schedule", CONFIGS)
def test_a_late_stage_is_in_the_bubbles_of_the_other_and_in_no_other_account(schedule, stages):
    found_in(stages[schedule], late=1, waiting=0, cause="forward", effect="idle")


@pytest.mark.parametrize("name", OTHERS)
def test_a_late_rank_is_communication_of_the_other_and_no_bubble(name, others):
    found_in(others[name], late=1, waiting=0, cause="host", effect="communication")
    assert all(step.bubble_drain_s is None for step in others[name].steps)


@pytest.mark.parametrize(
    ("rank", "account"),
    [(1, "idle"), (2, "communication"), (0, "idle")],
    ids=["stage-before", "same-stage", "before-same-stage"],
)
def test_a_late_stage_of_a_hybrid_is_communication_of_the_same_stage_and_a_bubble_of_those_before(
    rank, account, hybrid
):
    """The same stage of the other pipeline waits for the average before its last gradient goes on."""
    found_in(hybrid, late=3, waiting=rank, cause="forward", effect=account)


@pytest.mark.parametrize("name", SERVED)
def test_a_late_worker_is_communication_of_those_that_wait_for_it(name, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="laptime[ray] is not installed")
    from laptime.training.launch.groups import Groups, launch_groups

    groups, size = SERVED[name]
    (tmp_path / "sitecustomize.py").write_text(CUSTOMIZE)
    root = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), root, *filter(None, [known])]))
    text = CONFIG.replace("STRATEGY", name).replace("SCHEDULE", "1f1b")
    (tmp_path / "a.toml").write_text(f"{text}groups = {groups}\nstaleness = 0\n")
    arguments = ["train", str(tmp_path / "a.toml"), "--out", str(tmp_path / "run"), "--workers", str(size)]
    plan = Groups(groups=groups, size=size, servers=1, out=tmp_path / "run")
    launch_groups(arguments, plan, say=lambda _: None)
    run = laptime.load(tmp_path / "run")
    found_in(run, late=size, waiting=0, cause="host", effect="communication")
    kinds = {rank: {each.kind for each in found.collectives} for rank, found in read_exchanges(run).items()}
    assert set(kinds) == set(range(groups * size))
    assert "parameter_server" in kinds[0] & kinds[size]  # those of all groups


@pytest.mark.parametrize("name", CONFIGS)
def test_the_causes_of_bubbles_add_up_to_idle_time_and_the_accounts_to_the_step(name, stages):
    steps = [step for step in stages[name].steps if step.stage is Stage.TRAIN]
    assert len(steps) == 2 * STEPS
    for step in steps:  # a step that does not add up could not be read
        assert sum(getattr(step, column) for column in BUBBLE_COLUMNS) == pytest.approx(step.idle_s, abs=1e-9)
    assert not stages[name].selected().traced.any()


def test_the_first_stage_waits_for_no_input_and_the_last_one_does(stages):
    for run in (stages[name] for name in CONFIGS):
        assert all(step.bubble_fill_s == 0.0 for step in steps_of(run, 0)[1:])  # the first tells shapes
        assert all(step.bubble_fill_s > 0.0 for step in steps_of(run, 1))


def test_gradients_of_a_late_stage_are_waited_for_after_the_last_forward(stages):
    late = steps_of(stages["gpipe"], 0)[3::2]
    assert statistics.median(step.bubble_drain_s for step in late) > PLANTED_S / MICRO_BATCHES
