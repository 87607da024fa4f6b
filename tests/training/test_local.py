"""Groups that train by themselves and average their parameters."""

import pytest
import torch
import torch.nn.functional as F
from tests.training.ranks_here import Training, losses, train_on_ranks

from laptime.runs.exchanges import read_exchanges
from laptime.training import checkpoint
from laptime.training.build import ready
from laptime.training.config.reading import read_config
from laptime.training.device_setup import DeviceSetup
from laptime.training.ranks import Ranks
from laptime.training.session import train

CONFIG = """
network = "zener4"
[data]
kind = "zener"
samples = 320
validation_samples = 30
[train]
batch = {batch}
steps = 12
epochs = 20
threads = 1
device = "cpu"
[optimizer]
name = "sgd"
lr = 0.05
[parallel]
strategy = "local"
[checkpoint]
every = 0
[record]
profile = false
"""

# Averaging the parameters of plain SGD after every step is averaging its gradients. An outer rate of 1
# without momentum takes the average.
SETTINGS = {
    "every": ("parallel.average_every=1",),
    "diloco": (
        "parallel.average_every=1",
        "parallel.average=diloco",
        "parallel.outer_lr=1",
        "parallel.outer_momentum=0",
    ),
    "seldom": ("parallel.average_every=4",),
    "apart": ("parallel.average_every=5",),  # twelve steps: the groups end apart
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    trainings = [Training(CONFIG.format(batch=8), folder / name, words) for name, words in SETTINGS.items()]
    made = train_on_ranks(trainings, 2)
    (folder / "alone.toml").write_text(CONFIG.format(batch=16))
    made["alone"] = train(read_config(folder / "alone.toml").config, out=folder / "alone")
    return made


@pytest.mark.parametrize("name", ["every", "diloco"])
def test_averaging_after_every_step_of_plain_sgd_is_synchronous_training(name, runs):
    assert losses(runs[name]) == pytest.approx(losses(runs["alone"]), rel=1e-4)


def test_groups_differ_between_two_meetings_and_communicate_seldom(runs):
    assert losses(runs["seldom"])[:1] == pytest.approx(losses(runs["alone"])[:1], rel=1e-4)
    assert losses(runs["seldom"]) != pytest.approx(losses(runs["alone"]), rel=1e-4)
    often, seldom = (read_exchanges(runs[name])[0].collectives for name in ("every", "seldom"))
    assert [each.kind for each in often] == [each.kind for each in seldom] == ["all_reduce"]
    assert often[0].bytes == 4 * seldom[0].bytes > 0


def test_what_is_validated_is_what_is_saved(runs):
    """The average of the groups, in the middle between two meetings."""
    run = runs["apart"]
    saved = checkpoint.load(run.path / checkpoint.LAST)
    config = read_config(run.path.parent / "apart-0.toml").config
    made = ready(config, DeviceSetup.of("cpu", Ranks(), threads=1))
    made.network.load_state_dict(saved["network"])
    made.network.eval()
    with torch.no_grad():
        parts = [
            (float(F.cross_entropy(made.network(images), labels)), len(labels))
            for images, labels in made.validation.epoch(0)
        ]
    expected = sum(loss * size for loss, size in parts) / sum(size for _, size in parts)
    assert saved["counts"]["validation_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_checkpoint_of_groups_cannot_be_resumed_exactly():
    from laptime.training.strategies import STRATEGIES

    assert not STRATEGIES["local"].resumes_exactly
