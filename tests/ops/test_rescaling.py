"""A workload at another batch size is the one that tracing at that size gives."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import laptime
from laptime.errors import WorkloadError
from laptime.ops.rescaling import rescaled


class Sentences(nn.Module):
    """Embedding, attention, norms and a recurrent layer, with positions that no batch has a part in."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(12, 32)
        self.mixed, self.norm = nn.Linear(32, 96), nn.LayerNorm(32)
        self.recurrent, self.out = nn.GRU(32, 24, batch_first=True), nn.Linear(24, 50)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = (one.unflatten(-1, (4, 8)).transpose(1, 2) for one in self.mixed(x).chunk(3, -1))
        x = self.norm(x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.out(self.recurrent(x)[0])


def pictures():
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, groups=4, bias=False),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def read(kind, batch, precision="fp32"):
    with torch.device("meta"):
        if kind == "pictures":
            network, example = pictures(), torch.empty(batch, 3, 40, 40)
        else:
            network, example = Sentences(), torch.zeros(batch, 10, dtype=torch.long)
    return laptime.workload(network, example=example, precision=precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["pictures", "sentences"])
@pytest.mark.parametrize(("old", "new"), [(7, 21), (21, 7), (16, 64)])
def test_sizes_and_flops_are_those_of_tracing_it_anew(kind, precision, old, new):
    made, wanted = rescaled(read(kind, old, precision), new), read(kind, new, precision)
    assert [one.name for one in made.operations] == [one.name for one in wanted.operations]
    assert made.flops == wanted.flops
    different = [
        (one.name, one.layer)
        for one, other in zip(made.operations, wanted.operations, strict=True)
        if dict(one.sizes) != dict(other.sizes)
    ]
    assert {name for name, _ in different} <= {"aten.embedding"}  # of positions, that 16 happens to divide
    moved = [sum(one.moved for one in each.operations) for each in (made, wanted)]
    assert moved[0] == pytest.approx(moved[1], rel=0.03)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["pictures", "sentences"])
def test_memory_is_near_that_of_tracing_it_anew(kind, precision):
    made, wanted = rescaled(read(kind, 16, precision), 64).memory, read(kind, 64, precision).memory
    assert made.inputs == wanted.inputs
    assert made.activations == pytest.approx(wanted.activations, rel=0.05 if precision == "fp32" else 0.15)
    assert made.peak == pytest.approx(wanted.peak, rel=0.06)


def test_what_is_alive_at_each_operation_is_that_of_tracing_it_anew():
    made, wanted = (
        max(one.alive for one in step.operations)
        for step in (rescaled(read("pictures", 8), 64), read("pictures", 64))
    )
    assert made == pytest.approx(wanted, rel=0.005)


@pytest.mark.parametrize(("old", "new"), [(3072, 3), (3, 3072), (21, 3)])
def test_an_update_that_needs_more_than_the_backward_pass_makes_the_peak(old, new):
    def peak(batch):
        with torch.device("meta"):
            network = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
            example = torch.empty(batch, 512)
        return laptime.workload(network, example=example, optimizer="adam")

    made, wanted = rescaled(peak(old), new), peak(new)
    assert made.memory.peak == pytest.approx(wanted.memory.peak, rel=0.06)
    static = made.memory.static + made.memory.inputs
    assert static + max(one.alive for one in made.operations) <= made.memory.peak


def test_the_update_and_the_weights_stay_what_they_are():
    small = read("pictures", 8)
    large = rescaled(small, 32)
    assert large.memory.parameters == small.memory.parameters
    assert [one for one in large.operations if one.kind == "optimizer"] == [
        one for one in small.operations if one.kind == "optimizer"
    ]


def test_its_own_batch_changes_nothing_and_another_is_noted():
    small = read("pictures", 8)
    assert rescaled(small, 8) is small
    assert rescaled(small, 16).notes == ("sizes of batch 16 follow from those of batch 8",)


@pytest.mark.parametrize("batch", [0, -3, 2.5, True])
def test_a_batch_of_nothing_is_refused_in_one_line(batch):
    with pytest.raises(WorkloadError, match="give a whole number above 0"):
        rescaled(read("pictures", 8), batch)
