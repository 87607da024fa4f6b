"""Training on the virtual clock learns what the strategies learn, and knows when."""

import pytest
import torch
from tests.training.ranks_here import losses

from laptime.errors import ConfigError, TrainingError
from laptime.simulate.exchange_order import (
    ServerLink,
    ValidationPause,
    WorkerPace,
    local,
    play,
    synchronous,
)
from laptime.training.config.reading import read_config
from laptime.training.session import train
from laptime.training.virtual_clock import VirtualTraining, learn

BATCH, STEPS = 16, 20
NETWORKS = {
    "cards": ('network = "zener4"', "kind = 'zener'\nsamples = 320\nvalidation_samples = 30"),
    "digits": ('network = {name = "feedforward", options = {hidden = [64, 32, 16]}}', "kind = 'digits'"),
    "text": ('network = "lstm"', "kind = 'text'"),
}
FREE = ServerLink(push_s=0.0, pull_s=0.0, apply_s=0.0)
EQUAL = WorkerPace(step_s=1.0)


def configuration(folder, name, *settings, batch=BATCH, clip="clip = 1.0"):
    network, data = NETWORKS[name]
    file = folder / "a.toml"
    file.write_text(f"""
{network}
[data]
{data}
[train]
batch = {batch}
epochs = 20
steps = {STEPS}
threads = 1
device = "cpu"
{clip}
[optimizer]
name = "momentum"
lr = 0.02
[checkpoint]
every = 0
[record]
profile = false
""")
    return read_config(file, settings).config


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each network trained by one process."""
    folder, threads = tmp_path_factory.mktemp("alone"), torch.get_num_threads()
    runs = {name: train(configuration(folder, name), out=folder / name) for name in NETWORKS}
    torch.set_num_threads(threads)
    return runs


def validation_loss(run):
    """Of the last validation, over its samples."""
    last = {}
    for step in run.steps:
        if step.stage == "validation":
            last.setdefault(step.epoch, []).append((step.loss, step.samples))
    rows = last[max(last)]
    return sum(loss * samples for loss, samples in rows) / sum(samples for _, samples in rows)


# -- exactness -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_two_synchronous_workers_learn_what_one_process_learns_from_the_same_batches(name, alone, tmp_path):
    exchanges = synchronous([EQUAL] * 2, exchange_s=0.5, updates=STEPS, seed=0)
    learned = learn(configuration(tmp_path, name, batch=BATCH // 2), exchanges)
    expected = losses(alone[name])
    assert len(expected) == STEPS
    assert learned.losses == pytest.approx(expected, rel=1e-4)
    assert learned.curve[-1].validation_loss == pytest.approx(validation_loss(alone[name]), rel=1e-3)
    assert learned.seconds == pytest.approx(30.0)
    assert learned.updates == STEPS


@pytest.mark.parametrize("settings", [(), ("schedule.name=cosine",)], ids=["constant", "schedule"])
def test_a_staleness_of_zero_learns_what_one_process_learns(settings, tmp_path):
    # Without clipping: workers clip what they send, and one process what is averaged.
    whole = configuration(tmp_path, "cards", *settings, clip="")
    expected = losses(train(whole, out=tmp_path / "run"))
    half = configuration(tmp_path, "cards", *settings, batch=BATCH // 2, clip="")
    learned = learn(half, play([EQUAL] * 2, FREE, updates=STEPS, staleness=0, seed=0))
    pairs = zip(learned.losses[::2], learned.losses[1::2], strict=True)
    assert [(one + other) / 2 for one, other in pairs] == pytest.approx(expected, rel=1e-4)
    assert learned.staleness == {0: 2 * STEPS}


@pytest.mark.parametrize("name", NETWORKS)
def test_one_asynchronous_worker_learns_what_plain_training_learns(name, alone, tmp_path):
    exchanges = play([EQUAL], FREE, updates=STEPS, staleness=None, seed=0)
    learned = learn(configuration(tmp_path, name), exchanges)
    assert learned.losses == pytest.approx(losses(alone[name]), rel=1e-4)
    assert learned.staleness == {0: STEPS}
    assert learned.most_versions == 0


def test_workers_that_average_after_every_step_of_plain_sgd_are_synchronous(tmp_path):
    settings = ("optimizer.name=sgd",)
    config = configuration(tmp_path, "cards", *settings, batch=BATCH // 2, clip="")
    together = learn(config, synchronous([EQUAL] * 2, exchange_s=0.0, updates=STEPS, seed=0))
    averaged = learn(config, local([EQUAL] * 2, exchange_s=0.0, updates=STEPS, average_every=1, seed=0))
    pairs = zip(averaged.losses[::2], averaged.losses[1::2], strict=True)
    assert [(one + other) / 2 for one, other in pairs] == pytest.approx(together.losses, rel=1e-4)
    assert averaged.curve[-1].validation_loss == pytest.approx(together.curve[-1].validation_loss, rel=1e-4)


def test_a_group_of_two_ranks_is_one_worker_that_computes_their_mean(alone, tmp_path):
    config = configuration(tmp_path, "cards", batch=BATCH // 2)
    exchanges = play([EQUAL], FREE, updates=STEPS, staleness=None, seed=0)
    learned = learn(config, exchanges, ranks_per_worker=2)
    assert learned.losses == pytest.approx(losses(alone["cards"]), rel=1e-4)


def test_accumulated_batches_are_one_update(tmp_path):
    config = configuration(tmp_path, "cards", "train.accumulate=2", "train.steps=40", batch=BATCH // 2)
    whole = train(config, out=tmp_path / "run")
    training = VirtualTraining(config, workers=1)
    assert training.length.updates == STEPS
    learned = training.learn(play([EQUAL], FREE, updates=STEPS, staleness=None, seed=0))
    pairs = zip(losses(whole)[::2], losses(whole)[1::2], strict=True)
    assert learned.losses == pytest.approx([(one + other) / 2 for one, other in pairs], rel=1e-4)


# -- stale gradients -----------------------------------------------------------------------------------------


def test_the_order_of_updates_decides_what_is_learned(tmp_path):
    """By hand: two workers with plain SGD, the second of which reads what the first began with."""
    config = configuration(tmp_path, "digits", "optimizer.name=sgd", "train.steps=2", clip="")
    exchanges = play([EQUAL, WorkerPace(step_s=1.5)], FREE, updates=2, staleness=None, seed=0)
    assert exchanges.worker.tolist() == [0, 1, 0, 1]
    assert exchanges.read_version.tolist() == [0, 0, 1, 2]
    training = VirtualTraining(config, workers=2)
    learned = training.learn(exchanges)
    network, objective = training._ready.network, training._ready.objective
    data, rate = training._ready.data.train, config.optimizer.rate
    picks = [list(order) for order in training._orders]
    state = [parameter.detach().clone() for parameter in network.parameters()]
    versions, expected = [state], []
    for worker, step, read in [(0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 2)]:
        with torch.no_grad():
            for parameter, value in zip(network.parameters(), versions[read], strict=True):
                parameter.copy_(value)
        network.zero_grad()
        loss = objective.judge(network, data.__getitems__(picks[worker][step])).loss
        loss.backward()
        expected.append(float(loss.detach()))
        versions.append([v - rate * p.grad for v, p in zip(versions[-1], network.parameters(), strict=True)])
    assert learned.losses == pytest.approx(expected, rel=1e-5)


def test_sixty_four_workers_are_staler_than_eight_and_hold_a_version_each(tmp_path):
    learned = {}
    for workers in (8, 64):
        settings = ("data.samples=1280", "train.epochs=10", "train.steps=10", "optimizer.lr=0.001")
        config = configuration(tmp_path, "cards", *settings, batch=4)
        paces = [WorkerPace(step_s=1.0, spread=0.1)] * workers
        exchanges = play(paces, FREE, updates=10, staleness=None, seed=0)
        learned[workers] = learn(config, exchanges)
        assert learned[workers].most_versions <= workers
        assert learned[workers].updates == 10 * workers
        assert sum(learned[workers].staleness.values()) == 10 * workers
    mean = {
        workers: sum(value * count for value, count in each.staleness.items()) / (10 * workers)
        for workers, each in learned.items()
    }
    assert mean[8] < 8
    assert mean[64] > 5 * mean[8]


def test_a_network_with_batch_norm_learns_the_same_again(tmp_path):
    config = configuration(
        tmp_path, "digits", "network.name=tests.training.test_virtual_clock:normalised", clip=""
    )
    config = config.model_copy(update={"network": config.network.model_copy(update={"options": {}})})
    exchanges = play([EQUAL] * 3, FREE, updates=5, staleness=None, seed=0)
    learned = learn(config, exchanges)
    assert learned.curve[-1].validation_loss > 0
    assert learn(config, exchanges).curve == learned.curve


def normalised():
    """A network with buffers, for digits."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 10)
    )


# -- time and target -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["served", "synchronous", "local"])
def test_validations_come_after_each_epoch_of_the_first_worker(kind, tmp_path):
    config = configuration(tmp_path, "cards", "train.epochs=2", "train.steps=40", batch=8)
    training = VirtualTraining(config, workers=2)
    assert (training.length.validate_every, training.length.updates) == (20, 40)
    pause = ValidationPause(every=20, seconds=3.0)
    paces, asked = [EQUAL] * 2, {"updates": 40, "seed": 0, "validation": pause}
    made = {
        "served": lambda: play(paces, FREE, staleness=None, **asked),
        "synchronous": lambda: synchronous(paces, exchange_s=0.0, **asked),
        "local": lambda: local(paces, exchange_s=0.0, average_every=8, **asked),
    }
    learned = training.learn(made[kind]())
    assert [point.seconds for point in learned.curve] == [23.0, 46.0]
    assert learned.curve[0].updates == (39 if kind == "served" else 20)
    assert learned.reached_s is None


def test_a_target_ends_the_training_when_a_validation_reaches_it(tmp_path):
    config = configuration(tmp_path, "cards", "train.until.loss=1.4", "train.steps=160", batch=8)
    training = VirtualTraining(config, workers=2)
    exchanges = synchronous([EQUAL] * 2, exchange_s=0.0, updates=training.length.updates, seed=0)
    learned = training.learn(exchanges)
    *before, last = [point.validation_loss for point in learned.curve]
    assert last <= 1.4 < min(before)
    assert learned.reached_s == learned.seconds == learned.curve[-1].seconds < exchanges.seconds
    assert len(learned.losses) == learned.updates == learned.curve[-1].updates


def test_the_same_seed_learns_the_same_and_leaves_random_numbers_alone(tmp_path):
    config = configuration(tmp_path, "digits", "network.dropout=0.5")
    exchanges = play([WorkerPace(step_s=1.0, spread=0.3)] * 4, FREE, updates=10, staleness=2, seed=1)
    before = torch.get_rng_state()
    training = VirtualTraining(config, workers=4)
    first = training.learn(exchanges)
    assert torch.equal(before, torch.get_rng_state())
    assert training.learn(exchanges) == first == learn(config, exchanges)


def test_a_training_that_diverges_ends_and_says_so(tmp_path):
    config = configuration(tmp_path, "cards", "optimizer.lr=1e20", clip="")
    learned = learn(config, play([EQUAL] * 4, FREE, updates=10, staleness=None, seed=0))
    assert learned.diverged
    assert learned.reached_s is None
    assert len(learned.losses) < 40


# -- refusals ------------------------------------------------------------------------------------------------


def test_a_schedule_that_is_not_this_trainings_is_refused(tmp_path):
    training = VirtualTraining(configuration(tmp_path, "cards"), workers=2)
    with pytest.raises(TrainingError, match="3 workers, the training 2"):
        training.learn(synchronous([EQUAL] * 3, exchange_s=0.0, updates=5, seed=0))
    with pytest.raises(TrainingError, match="21 updates a worker"):
        training.learn(synchronous([EQUAL] * 2, exchange_s=0.0, updates=21, seed=0))
    pause = ValidationPause(every=7, seconds=0.0)
    with pytest.raises(TrainingError, match="every 7 updates, the training every 10"):
        training.learn(synchronous([EQUAL] * 2, exchange_s=0.0, updates=20, seed=0, validation=pause))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("train.precision=fp16", "train.device=cuda"), "fp16"),
        (("train.batch=200",), "do not fill one batch"),
        (("train.until.loss=0.1", "data.validation_samples=0"), "looked for in validations"),
    ],
)
def test_what_the_virtual_clock_cannot_train_is_refused_in_one_line(settings, said, tmp_path):
    config = configuration(tmp_path, "cards", *settings)
    with pytest.raises(ConfigError, match=said) as refused:
        VirtualTraining(config, workers=2)
    assert "\n" not in str(refused.value)
