"""What strategies exchange is counted by kind of collective, and its waits add up to the account."""

import pytest
from tests.training.ranks_here import Training, train_on_ranks

from laptime.model import Stage
from laptime.runs.exchanges import read_exchanges
from laptime.views.ranks import ranks_view

STEPS, BATCH, MICRO_BATCHES = 6, 16, 4
STRATEGIES = ("data", "sharded", "model", "feature")
CONFIG = f"""
network = {{name = "feedforward", options = {{hidden = [64, 32]}}}}
data.kind = "digits"
checkpoint.every = 0
[train]
batch = {BATCH}
epochs = 1
steps = {STEPS}
threads = 1
device = "cpu"
[parallel]
strategy = "NAME"
micro_batches = {MICRO_BATCHES}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exchanged")
    return train_on_ranks([Training(CONFIG.replace("NAME", name), folder / name) for name in STRATEGIES], 2)


def exchanged(run, rank=0):
    """What a rank has exchanged, by kind."""
    found = read_exchanges(run)[rank]
    assert found.steps == STEPS
    return {each.kind: each for each in found.collectives}


def parameters(run):
    return sum(layer.parameters for layer in run.network)


def test_buckets_of_gradients_are_counted_once_and_say_whose_they_are(runs):
    all_reduce = exchanged(runs["data"])["all_reduce"]
    assert all_reduce.calls == STEPS
    assert all_reduce.bytes == 4 * parameters(runs["data"]) * STEPS
    assert all_reduce.wire_bytes == all_reduce.bytes  # two ranks send each other one half, then the other
    for rank in (0, 1):
        (bucket,) = read_exchanges(runs["data"])[rank].buckets
        assert bucket.layers == tuple(layer.name for layer in runs["data"].network)
        assert (bucket.bucket, bucket.calls, bucket.bytes) == (0, STEPS, all_reduce.bytes)
        assert 0 < bucket.exposed_s <= bucket.seconds


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_kind_tells_how_long_it_was_under_way_and_at_which_rate(name, runs):
    shown = ranks_view(runs[name], Stage.TRAIN)
    assert shown.collectives
    for kind in shown.collectives:
        assert kind.seconds > 0
        assert kind.bandwidth == pytest.approx(kind.wire_bytes / kind.seconds)
        assert kind.overlapped_s == pytest.approx(max(0.0, kind.seconds - kind.exposed_s))


def test_sharded_parameters_are_gathered_and_their_gradients_scattered(runs):
    kinds = exchanged(runs["sharded"])
    assert kinds["reduce_scatter"].calls == STEPS
    whole = 4 * parameters(runs["data"]) * STEPS
    for kind in ("reduce_scatter", "all_gather"):
        assert kinds[kind].bytes == pytest.approx(whole, rel=0.2)  # padded; gathered once more at the end


def test_stages_send_and_receive_each_part_of_a_batch(runs):
    for rank in (0, 1):
        kinds = exchanged(runs["model"], rank)
        for kind in ("send", "recv"):
            assert STEPS * MICRO_BATCHES <= kinds[kind].calls <= STEPS * MICRO_BATCHES + 4  # shapes, once
            assert kinds[kind].bytes > 0


def test_slices_of_features_are_summed_in_both_passes(runs):
    kinds = exchanged(runs["feature"])
    assert kinds["all_reduce"].calls >= 2 * STEPS
    assert kinds["all_reduce"].bytes > 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_waits_by_kind_add_up_to_the_account(name, runs):
    for rank in (0, 1):
        kinds = exchanged(runs[name], rank).values()
        steps = [step for step in runs[name].steps if step.rank == rank and step.stage == "train"]
        account = sum(step.communication_s + (step.idle_s or 0.0) for step in steps)  # bubbles are idle
        assert sum(kind.exposed_s for kind in kinds) == pytest.approx(account, rel=1e-6)
