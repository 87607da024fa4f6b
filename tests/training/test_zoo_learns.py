"""Every network of the zoo, with its own objective, beats a trivial baseline on its own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laptime.training.data import NetworkInput, open_data
from laptime.training.data.kinds import DataConfig, DigitsData, TextData, TreesData, ZenerData
from laptime.training.networks import registry as zoo
from laptime.training.networks.gan import energy_distance
from laptime.training.networks.registry import entry
from laptime.training.objectives import Batch, Classification, Moment, Objective, StepLoss

BATCH = 32


def data(config: DataConfig, name: str) -> tuple[Batch, Batch]:
    """What the network is trained on and what is held out, whole."""
    known = entry(name)
    found = open_data(config, NetworkInput(input=known.input, classes=known.classes, ids=known.ids))
    train, held = (
        one.__getitems__(list(range(len(one))))  # type: ignore[union-attr, attr-defined, arg-type]
        for one in (found.train, found.validation)
    )
    return train, held


def train(
    network: nn.Module, objective: Objective, samples: Batch, *, epochs: int, rate: float, **adam: Any
) -> None:
    """A plain loop: shuffled full batches, and Adam for each group at a rate that falls to zero."""
    groups = objective.groups(network)
    optimizers = {
        name: torch.optim.Adam(group, lr=rate * objective.rate(name), **adam)
        for name, group in groups.items()
    }
    network.train()
    for epoch in range(epochs):
        for name, optimizer in optimizers.items():
            optimizer.param_groups[0]["lr"] = rate * objective.rate(name) * (1 - epoch / epochs)
        for picks in torch.randperm(len(samples[0])).split(BATCH):
            if len(picks) < BATCH:
                continue
            batch = tuple(tensor[picks] for tensor in samples)
            for part in objective.parts(network, batch, Moment(epoch=epoch, epochs=epochs)):
                part.loss.backward()  # type: ignore[no-untyped-call]
                optimizers[part.group].step()
                optimizers[part.group].zero_grad()


def judged(network: nn.Module, objective: Objective, held: Batch) -> StepLoss:
    network.eval()
    with torch.no_grad():
        return objective.judge(network, held)


def accuracy(part: StepLoss) -> float:
    assert part.scores is not None
    assert part.targets is not None
    return (part.scores.argmax(dim=1) == part.targets).double().mean().item()


def learned(name: str, found: tuple[Batch, Batch], *, epochs: int, rate: float, **options: Any) -> StepLoss:
    """What the network is worth on held-out data after a short training."""
    torch.manual_seed(0)
    adam = options.pop("adam", {})
    network, objective = zoo.build(name, **options), entry(name).goal(None)
    train(network, objective, found[0], epochs=epochs, rate=rate, **adam)
    return judged(network, objective, found[1])


def majority(found: tuple[Batch, Batch]) -> float:
    """The share of the most frequent class in the held-out data."""
    targets: Tensor = found[1][1].flatten()
    return targets.bincount().max().item() / len(targets)


def linear_accuracy(found: tuple[Batch, Batch], classes: int) -> float:
    """Of logistic regression on the pixels."""
    torch.manual_seed(0)
    network, objective = nn.Sequential(nn.Flatten(), nn.LazyLinear(classes)), Classification()
    network(found[0][0][:2])
    train(network, objective, found[0], epochs=10, rate=1e-3)
    return accuracy(judged(network, objective, found[1]))


# -- classifiers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """How long and how fast a network is trained, and the accuracy it must reach."""

    config: DataConfig
    epochs: int
    rate: float
    least: float
    options: dict[str, Any]


SMALL = {"inputs": 64, "num_classes": 10, "hidden": 256}  # the framework study's networks, narrow, on digits
LESSONS = {
    "feedforward": Lesson(config=DigitsData(), epochs=10, rate=1e-3, least=0.9, options={}),
    "dbn": Lesson(config=DigitsData(), epochs=20, rate=2e-3, least=0.8, options={}),
    "fcn5": Lesson(config=DigitsData(), epochs=4, rate=1e-3, least=0.8, options=SMALL),
    "fcn8": Lesson(config=DigitsData(), epochs=4, rate=1e-3, least=0.8, options=SMALL),
    "recursive": Lesson(config=TreesData(), epochs=4, rate=5e-3, least=0.9, options={}),
}


@pytest.mark.parametrize("name", LESSONS)
def test_classifier_beats_the_most_frequent_class_by_far(name: str) -> None:
    lesson = LESSONS[name]
    found = data(lesson.config, name)
    part = learned(name, found, epochs=lesson.epochs, rate=lesson.rate, **lesson.options)
    assert majority(found) < 0.6
    assert accuracy(part) > lesson.least


CARDS = ZenerData(samples=2500, validation_samples=500)


@pytest.mark.parametrize(
    ("name", "rate"), [("zener4", 2e-3), pytest.param("zener7", 1e-3, marks=pytest.mark.slow)]
)
def test_zener_network_is_right_on_19_of_20_cards(name: str, rate: float) -> None:
    assert accuracy(learned(name, data(CARDS, name), epochs=6, rate=rate)) >= 0.95


def test_a_linear_classifier_is_wrong_on_two_of_five_of_the_same_cards() -> None:
    assert linear_accuracy(data(CARDS, "zener4"), 5) < 0.6


# -- those that give their input back ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "config"), [("autoencoder", DigitsData()), ("deconv", CARDS)])
def test_what_is_given_back_is_closer_than_the_mean_image(name: str, config: DataConfig) -> None:
    found = data(config, name)
    images, held = found[0][0], found[1][0]
    baseline = F.mse_loss(images.mean(dim=0).expand_as(held), held)
    assert learned(name, found, epochs=5, rate=2e-3).loss < 0.6 * baseline


def marginal(found: tuple[Batch, Batch]) -> Tensor:
    """Nats that a pixel costs if each is told by its own mean alone."""
    means = found[0][0].mean(dim=0).clamp(0.01, 0.99)
    return F.binary_cross_entropy(means.expand_as(found[1][0]), found[1][0])


def test_boltzmann_machine_knows_digits_better_than_the_mean_of_each_pixel() -> None:
    found = data(DigitsData(), "rbm")
    assert learned("rbm", found, epochs=5, rate=1e-2).loss < 0.8 * marginal(found)


def test_evidence_of_the_variational_auto_encoder_is_better_than_that_of_independent_pixels() -> None:
    found = data(DigitsData(), "vae")
    # A bound: the evidence itself is better still.
    assert learned("vae", found, epochs=12, rate=3e-3).loss < 64 * marginal(found) - 1


def test_pre_training_alone_makes_the_machines_of_a_deep_belief_network_know_their_input() -> None:
    torch.manual_seed(0)
    (images, _), (held, _) = found = data(DigitsData(), "dbn")
    network, objective = zoo.build("dbn"), entry("dbn").goal(None)
    machine = network.get_submodule("machines.0")
    groups = objective.groups(network)
    optimizer = torch.optim.Adam(groups["rbm1"], lr=1e-2)
    for picks in torch.randperm(len(images)).split(BATCH):
        batch = (images[picks], None)
        for part in objective.parts(network, batch, Moment(epoch=0, epochs=2)):
            part.loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        assert F.binary_cross_entropy_with_logits(machine(held), held) < marginal(found)


# -- those that make something up ----------------------------------------------------------------------------


def test_made_digits_are_nearer_to_real_ones_than_the_mean_digit_is() -> None:
    found = data(DigitsData(), "gan")
    images, held = found[0][0], found[1][0]
    mean = images.mean(dim=0, keepdim=True).expand_as(held)
    part = learned("gan", found, epochs=8, rate=3e-3, width=16, adam={"betas": (0.5, 0.999)})
    assert part.loss < energy_distance(mean, held)
    assert energy_distance(mean, held) < judged(zoo.build("gan"), entry("gan").goal(None), found[1]).loss


@pytest.mark.parametrize("name", ["rnn", "lstm"])
def test_character_model_knows_the_next_letter_better_than_by_frequency(name: str) -> None:
    found = data(TextData(), name)
    counts = found[0][1].flatten().bincount(minlength=256) + 1.0
    unigram = -(counts / counts.sum()).log()[found[1][1]].mean()
    assert learned(name, found, epochs=2, rate=3e-3).loss < 0.9 * unigram


# -- the large ones, on small images -------------------------------------------------------------------------


LARGE = ["googlenet", "resnet18", "resnet50"]
# Adam on a hundred million weights takes a second a step.
LARGEST = ["alexnet", "vgg11", "vgg13", "vgg16", "vgg19"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", [*LARGE, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGEST)])
def test_large_network_learns_one_batch_by_heart(name: str) -> None:
    torch.manual_seed(0)
    size = 64 if name == "alexnet" else 32  # smaller images do not survive its poolings
    batch = torch.randn(4, 3, size, size), torch.arange(4)
    assert halves(zoo.build(name, num_classes=4), entry(name).goal(None), batch)


@pytest.mark.parametrize("name", ["fcn5", "fcn8"])
def test_network_of_the_framework_study_learns_one_batch_by_heart(name: str) -> None:
    torch.manual_seed(0)
    batch = torch.randn(8, 512), torch.arange(8)
    assert halves(zoo.build(name), entry(name).goal(None), batch)


def halves(network: nn.Module, objective: Objective, batch: Batch) -> bool:
    """Whether a few steps on the same batch halve its loss, without dropout's noise."""
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    losses: list[float] = []
    for _ in range(24):
        (part,) = objective.parts(network, batch, Moment(epoch=0, epochs=1))
        part.loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(part.loss.item())
        if losses[-1] < losses[0] / 2:
            return True
    return False


def test_every_network_of_the_zoo_is_taught_here() -> None:
    others = {"zener4", "zener7", "autoencoder", "deconv", "rbm", "vae", "gan", "rnn", "lstm"}
    assert {*LESSONS, *LARGE, *LARGEST, *others} == set(zoo.entries())
