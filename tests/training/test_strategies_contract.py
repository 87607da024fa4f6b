"""What holds for every strategy: exact ones learn what one process learns from the same batches."""

import pytest
import torch
from tests.training.ranks_here import Training, losses, train_on_ranks

from laptime.errors import ConfigError
from laptime.training.checkpoint import load
from laptime.training.config.reading import read_config
from laptime.training.session import train
from laptime.training.strategies import STRATEGIES

BATCH, STEPS = 16, 20
NETWORKS = {
    "cards": ('network = "zener4"', "kind = 'zener'\nsamples = 320\nvalidation_samples = 30"),
    "digits": ('network = {name = "feedforward", options = {hidden = [64, 32, 16]}}', "kind = 'digits'"),
    "text": ('network = "lstm"', "kind = 'text'"),
}
# Ranks, how many of them read the same samples, and settings. The others need Ray: test_servers.py.
EXACT = {
    "data": (2, 1, ()),
    "sharded": (2, 1, ()),
    "model": (2, 2, ()),
    "feature": (2, 2, ()),
    "hybrid": (4, 2, ("parallel.stages=2",)),
}
ELSEWHERE = {"single", "local", "asynchronous", "mixed"}


def configurations(batch):
    return {
        name: f"""
{network}
[data]
{data}
[train]
batch = {batch}
epochs = 20
steps = {STEPS}
threads = 1
device = "cpu"
clip = 1.0
[optimizer]
name = "momentum"
lr = 0.02
[checkpoint]
every = 0
[record]
profile = false
"""
        for name, (network, data) in NETWORKS.items()
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each network trained by one process: losses, validation losses and final weights."""
    folder, threads = tmp_path_factory.mktemp("alone"), torch.get_num_threads()
    runs = {}
    for name, text in configurations(BATCH).items():
        (folder / f"{name}.toml").write_text(text)
        runs[name] = train(read_config(folder / f"{name}.toml").config, out=folder / name)
    torch.set_num_threads(threads)
    return runs


def trainings(strategy, folder):
    """The same on the ranks of a strategy; one of them stopped half-way and resumed."""
    ranks, shared, settings = EXACT[strategy]
    settings = (f"parallel.strategy={strategy}", *settings)
    texts = configurations(BATCH * shared // ranks)
    whole = [Training(text, folder / f"{strategy}-{name}", settings) for name, text in texts.items()]
    resumed, half = folder / f"{strategy}-resumed", (*settings, f"train.steps={STEPS // 2}")
    return [
        *whole,
        Training(texts["cards"], resumed, half),
        Training(texts["cards"], resumed, settings, resume=True),
    ]


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory):
    """All strategies of two ranks, one after the other in the same processes: starting them takes long."""
    folder = tmp_path_factory.mktemp("two")
    names = [name for name, (ranks, *_) in EXACT.items() if ranks == 2]
    return train_on_ranks([each for name in names for each in trainings(name, folder)], 2)


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=pytest.mark.slow if r > 2 else ()) for n, (r, *_) in EXACT.items()],
)
def together(request, tmp_path_factory):
    strategy = request.param
    if EXACT[strategy][0] == 2:
        runs = request.getfixturevalue("of_two_ranks")
    else:
        runs = train_on_ranks(trainings(strategy, tmp_path_factory.mktemp(strategy)), EXACT[strategy][0])
    return {name.removeprefix(f"{strategy}-"): run for name, run in runs.items()}


def test_ranks_learn_what_one_process_learns_from_the_same_batches(alone, together):
    for name, run in alone.items():
        expected = losses(run)
        assert len(expected) == STEPS
        assert losses(together[name]) == pytest.approx(expected, rel=1e-4), name
        judged = losses(together[name], "validation")[-1]
        assert judged == pytest.approx(losses(run, "validation")[-1], rel=0.05)


def test_a_checkpoint_holds_the_whole_network(alone, together):
    for name, run in alone.items():
        whole = load(run.path / "checkpoint" / "last.pt")["network"]
        mine = load(together[name].path / "checkpoint" / "last.pt")["network"]
        assert mine.keys() == whole.keys()
        for key, weights in whole.items():
            torch.testing.assert_close(mine[key], weights, rtol=1e-3, atol=1e-5)


def test_a_resumed_training_goes_on_as_an_unbroken_one(alone, together):
    assert losses(together["resumed"]) == pytest.approx(losses(alone["cards"]), rel=1e-4)


def test_every_strategy_is_tried_here_or_beside():
    assert set(STRATEGIES) == EXACT.keys() | ELSEWHERE
    assert len({STRATEGIES[name].__module__ for name in STRATEGIES}) == len(STRATEGIES)


@pytest.mark.parametrize(
    ("ranks", "settings", "said"),
    [
        (3, ["parallel.strategy=hybrid", "stages=2"], "parallel.stages = 2 does not divide 3 ranks"),
        (2, ["parallel.strategy=hybrid"], "needs parallel.stages"),
        (2, ["parallel.strategy=model", "stages=3"], "parallel.stages = 3 needs as many ranks"),
        (2, ["parallel.strategy=model", "micro_batches=5"], "micro_batches = 5 does not divide train.batch"),
        (2, ["parallel.strategy=model", "drop_last=false"], "loader.drop_last"),
        (4, ["parallel.strategy=local", "groups=3"], "parallel.groups = 3 does not divide 4 ranks"),
        (4, ["parallel.strategy=mixed"], "needs parallel.groups"),
        (5, ["parallel.strategy=mixed", "groups=2"], "parallel.groups = 2 does not divide 5 ranks"),
        (4, ["parallel.strategy=asynchronous", "groups=2"], "leave it out, or use 'mixed'"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_in_one_line(ranks, settings, said, tmp_path):
    (tmp_path / "a.toml").write_text(configurations(BATCH)["cards"])
    config = read_config(
        tmp_path / "a.toml", [s if "." in s else s.replace("strategy", "parallel.strategy") for s in settings]
    ).config
    with pytest.raises(ConfigError, match=said) as refused:
        STRATEGIES[config.parallel.strategy].check(config, ranks)
    assert "\n" not in str(refused.value)
