"""Objectives: what a batch is worth, which parameters that trains, and that textbook formulas come out."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from laptime.errors import ConfigError
from laptime.training.networks import registry as zoo
from laptime.training.networks.autoencoder import VAE, EvidenceBound
from laptime.training.networks.boltzmann import RBM, ContrastiveDivergence, GreedyThenGentle, learned
from laptime.training.networks.gan import Adversarial, energy_distance
from laptime.training.networks.googlenet import GoogLeNetOutput
from laptime.training.networks.recurrent import NextCharacter
from laptime.training.networks.registry import entry
from laptime.training.objectives import Classification, Moment, Reconstruction, top_n
from laptime.training.optimizers import LOSSES, criterion

START = Moment(epoch=0, epochs=1)


class Says(nn.Module):
    """A network that always says the same."""

    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: object, **__: object) -> object:
        return self.output


def moment(epoch: int, epochs: int) -> Moment:
    return Moment(epoch=epoch, epochs=epochs)


# -- classes -------------------------------------------------------------------------------------------------


def test_auxiliary_heads_count_with_three_tenths() -> None:
    main, aux2, aux1 = torch.randn(3, 4, 10)
    targets = torch.arange(4)
    loss = Classification().judge(Says(GoogLeNetOutput(main, aux2, aux1)), (main, targets)).loss
    expected = F.cross_entropy(main, targets) + 0.3 * (
        F.cross_entropy(aux2, targets) + F.cross_entropy(aux1, targets)
    )
    torch.testing.assert_close(loss, expected)


def test_scores_of_classes_are_told_and_those_of_numbers_are_not() -> None:
    scores = torch.randn(4, 3)
    of_classes = Classification().judge(Says(scores), (scores, torch.tensor([0, 1, 2, 0])))
    of_numbers = Classification(F.mse_loss).judge(Says(scores), (scores, torch.rand(4, 3)))
    assert of_classes.scores is not None
    assert not of_classes.scores.requires_grad
    assert of_numbers.scores is None
    assert of_numbers.targets is None


@pytest.mark.parametrize("name", LOSSES)
def test_every_criterion_takes_class_numbers_and_prefers_the_right_class(name: str) -> None:
    targets = torch.tensor([2, 0, 1])
    right = 6.0 * F.one_hot(targets, 4) - 3
    assert criterion(name)(right, targets) < criterion(name)(-right, targets)


def test_a_named_loss_reaches_the_objective() -> None:
    objective = entry("feedforward").goal(criterion("squared"))
    scores, targets = torch.randn(4, 10), torch.arange(4)
    torch.testing.assert_close(
        objective.judge(Says(scores), (scores, targets)).loss,
        F.mse_loss(scores, F.one_hot(targets, 10).float()),
    )


def test_top_n_counts_the_classes_that_rank_high_enough() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    top1, top2 = top_n(scores, torch.tensor([0, 1, 2, 2]), 2)
    assert (top1, top2) == (0.5, 0.75)


def test_top_n_of_more_classes_than_there_are_is_everything() -> None:
    assert top_n(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), 5)[1] == 1.0


# -- giving back ---------------------------------------------------------------------------------------------


def test_a_perfect_copy_loses_nothing_and_the_label_is_left_alone() -> None:
    images = torch.rand(4, 1, 8, 8)
    part = Reconstruction().judge(nn.Identity(), (images, torch.zeros(4)))
    assert part.loss == 0
    assert part.scores is None


@pytest.mark.parametrize("name", ["autoencoder", "deconv", "vae", "gan"])
def test_cross_entropy_for_a_network_without_classes_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=r"use 'squared' or 'binary-cross-entropy'"):
        entry(name).goal(F.cross_entropy)


def test_another_loss_for_a_boltzmann_machine_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"contrastive divergence; leave loss\.name out"):
        entry("rbm").goal(criterion("squared"))


def test_evidence_bound_is_the_likelihood_of_the_sample_and_the_divergence_of_its_code() -> None:
    torch.manual_seed(0)
    samples, network = torch.rand(6, 64), VAE().eval()
    with torch.no_grad():
        logits, mean, log_variance = network(samples)
        loss = EvidenceBound().judge(network, (samples,)).loss
    lost = F.binary_cross_entropy_with_logits(logits, samples, reduction="sum") / 6
    code = Normal(mean, (0.5 * log_variance).exp())
    told = kl_divergence(code, Normal(0.0, 1.0)).sum() / 6
    torch.testing.assert_close(loss, lost + told)


# -- Boltzmann machines --------------------------------------------------------------------------------------


def contrast_gradients(network: RBM, samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The textbook's rule for one step of the chain, from the same random numbers."""
    up = (samples @ network.weight.T + network.hidden_bias).sigmoid()
    hidden = torch.bernoulli(up)
    end = (hidden @ network.weight + network.visible_bias).sigmoid()
    end_up = (end @ network.weight.T + network.hidden_bias).sigmoid()
    count = len(samples)
    weight = (end_up.T @ end - up.T @ samples) / count
    return weight, (end - samples).mean(dim=0), (end_up - up).mean(dim=0)


def test_autograd_makes_the_update_rule_of_contrastive_divergence() -> None:
    torch.manual_seed(0)
    network, samples = RBM(inputs=12, hidden=7), torch.rand(5, 12)
    torch.manual_seed(1)
    (part,) = ContrastiveDivergence().parts(network, (samples,), START)
    part.loss.backward()
    torch.manual_seed(1)
    with torch.no_grad():
        expected = contrast_gradients(network, samples)
    found = (network.weight.grad, network.visible_bias.grad, network.hidden_bias.grad)
    torch.testing.assert_close(found, expected)


def test_the_loss_of_contrastive_divergence_reads_as_the_reconstruction_error() -> None:
    torch.manual_seed(0)
    network, samples = RBM(chain=3), torch.rand(5, 64)
    (part,) = ContrastiveDivergence().parts(network, (samples,), START)
    # An untrained machine is not sure of any pixel, which costs log 2.
    assert part.loss.item() == pytest.approx(0.69, abs=0.1)


def test_a_longer_chain_ends_elsewhere() -> None:
    network, samples = RBM(), torch.rand(5, 64)
    torch.manual_seed(1)
    one = network(samples, contrast=True)
    torch.manual_seed(1)
    network.chain = 3
    three = network(samples, contrast=True)
    torch.testing.assert_close(one.logits, three.logits)
    assert not torch.equal(one.energy, three.energy)


def test_half_of_the_epochs_learns_the_machines_from_the_lowest_up() -> None:
    assert [learned(2, moment(epoch, 8)) for epoch in range(8)] == [0, 0, 1, 1, None, None, None, None]
    assert [learned(3, moment(epoch, 7)) for epoch in range(7)] == [0, 1, 2, None, None, None, None]


def test_a_single_epoch_is_backpropagation_alone() -> None:
    assert learned(2, moment(0, 1)) is None


def test_pre_training_one_machine_leaves_the_others_as_they_are() -> None:
    network, objective = zoo.build("dbn"), GreedyThenGentle()
    before = {path: value.clone() for path, value in network.state_dict().items()}
    groups = objective.groups(network)
    (part,) = objective.parts(network, (torch.rand(8, 64), torch.zeros(8)), moment(3, 8))
    part.loss.backward()
    torch.optim.SGD(groups[part.group], lr=0.1).step()
    changed = {path for path, value in network.state_dict().items() if not torch.equal(value, before[path])}
    assert part.group == "rbm2"
    assert changed == {"machines.1.weight", "machines.1.visible_bias", "machines.1.hidden_bias"}


def test_backpropagation_is_gentler_than_pre_training() -> None:
    objective = GreedyThenGentle()
    groups = objective.groups(zoo.build("dbn"))
    rates = {name: objective.rate(name) for name in groups}
    assert rates["all"] == 1.0
    assert min(rates["rbm1"], rates["rbm2"]) >= 10 * rates["all"]


# -- adversaries ---------------------------------------------------------------------------------------------


def test_each_adversary_is_trained_by_its_own_loss_alone() -> None:
    network, objective = zoo.build("gan"), Adversarial()
    seen = []
    for part in objective.parts(network, (torch.rand(4, 1, 8, 8),), START):
        network.zero_grad()
        part.loss.backward()
        touched = {path.split(".")[0] for path, one in network.named_parameters() if one.grad is not None}
        seen.append((part.group, touched))
        assert all(parameter.requires_grad for parameter in network.parameters())
    assert seen == [("discriminator", {"discriminator"}), ("generator", {"generator"})]


def test_energy_distance_is_zero_between_a_set_and_itself_and_grows_with_a_shift() -> None:
    torch.manual_seed(0)
    images = torch.rand(30, 1, 4, 4)
    assert energy_distance(images, images).item() == pytest.approx(0.0, abs=1e-3)
    near, far = energy_distance(images, images + 0.1), energy_distance(images, images + 0.5)
    assert 0 < near < far


def test_one_image_has_an_energy_distance_too() -> None:
    assert energy_distance(torch.zeros(1, 4), torch.ones(1, 4)).item() == pytest.approx(4.0)


# -- characters ----------------------------------------------------------------------------------------------


def test_every_position_of_a_text_is_ranked() -> None:
    scores, following = torch.randn(3, 5, 11), torch.randint(11, (3, 5))
    part = NextCharacter().judge(Says(scores), (following, following))
    torch.testing.assert_close(part.loss, F.cross_entropy(scores.view(15, 11), following.view(15)))
    assert part.scores is not None
    assert part.targets is not None
    assert (part.scores.shape, part.targets.shape) == ((15, 11), (15,))


def test_one_target_for_each_sample_is_held_against_the_last_position() -> None:
    scores, labels = torch.randn(3, 5, 11), torch.randint(11, (3,))
    part = NextCharacter().judge(Says(scores), (labels, labels))
    torch.testing.assert_close(part.loss, F.cross_entropy(scores[:, -1], labels))


# -- data parallelism ----------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one process: the wrapping and its reducer, without anybody to talk to."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["gan", "dbn", "rbm", "vae", "googlenet"])
def test_gradients_through_the_parallel_wrapper_are_those_without_it(name: str) -> None:
    known = entry(name)
    options = {"num_classes": 3} if name == "googlenet" else {}
    network, objective = zoo.build(name, **options), known.goal(None)
    several = len(objective.groups(network)) > 1
    wrapped = DistributedDataParallel(copy.deepcopy(network), find_unused_parameters=several)
    shape = (3, 64, 64) if name == "googlenet" else known.input
    batch = torch.rand(2, *shape), torch.tensor([0, 1])

    def gradients(called: nn.Module, epoch: int) -> Iterator[list[Tensor | None]]:
        torch.manual_seed(epoch)
        groups = objective.groups(called.module if called is wrapped else called)
        for part in objective.parts(called, batch, moment(epoch, 4)):
            called.zero_grad()
            part.loss.backward()
            yield [parameter.grad for parameter in groups[part.group]]

    for epoch in range(4):
        torch.testing.assert_close([*gradients(wrapped, epoch)], [*gradients(network, epoch)])


def test_top_n_counts_neither_ties_nor_what_is_no_number_as_known():
    targets = torch.tensor([0, 1, 2])
    known = torch.tensor([[3.0, 2, 1], [3, 2, 1], [3, 2, 1]])
    assert [float(share) for share in top_n(known, targets, 2)] == pytest.approx([1 / 3, 2 / 3])
    for scores in (torch.zeros(3, 3), torch.full((3, 3), torch.nan)):
        assert [float(share) for share in top_n(scores, targets, 2)] == [0, 0]
