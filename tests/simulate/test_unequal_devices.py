"""Clusters whose nodes have different devices: who waits for whom, what fits, what it costs."""

from dataclasses import replace

import numpy as np
import pytest

import laptime
from laptime import hardware
from laptime.errors import CatalogError, HardwareError
from laptime.hardware.cluster import OtherNodes
from laptime.simulate.work import LayerWork, cut


@pytest.fixture(scope="module")
def gpt2():
    return laptime.workload("gpt2", batch=8, precision="bf16")


@pytest.fixture(scope="module")
def fast():
    return hardware.cluster("aws-p5", nodes=2)


@pytest.fixture(scope="module")
def unequal(fast):
    slow = OtherNodes(device="a100-sxm-80gb", nodes=1, dollars_per_hour=20.0)
    return replace(fast, others=(slow,))


@pytest.fixture(scope="module")
def slow(fast):
    return replace(fast, device="a100-sxm-80gb")


def test_synchronous_training_takes_as_long_as_on_the_slower_device(gpt2, fast, unequal, slow):
    steps = [laptime.simulate(gpt2, cluster=each).step_s for each in (fast, unequal, slow)]
    assert steps[1] == pytest.approx(steps[2], rel=0.02)
    assert steps[0] < 0.7 * steps[1]


def test_ranks_of_the_faster_device_wait(gpt2, unequal, tmp_path):
    made = laptime.simulate(gpt2, cluster=unequal, out=tmp_path / "run")
    assert set(made.slowest.tolist()) <= set(range(8, 16))
    steps = laptime.load(tmp_path / "run").steps.table
    ranks, waits = (np.array(steps[name]) for name in ("rank", "communication_s"))
    forward, walls = (np.array(steps[name]) for name in ("forward_s", "wall_s"))
    quick = ranks < 8
    assert forward[quick].mean() < 0.7 * forward[~quick].mean()
    assert waits[quick].mean() > waits[~quick].mean() + 0.2 * made.step_s
    assert walls[quick] == pytest.approx(walls[~quick][: quick.sum()])


def test_asynchronous_workers_go_at_their_own_pace(gpt2, fast, unequal, slow):
    plan = {"parallel": "asynchronous,servers=4", "steps": 40}
    made = laptime.simulate(gpt2, cluster=unequal, **plan)
    ends = [made.exchanges.answered_s[made.exchanges.worker == worker].max() for worker in range(16)]
    assert max(ends[:8]) < 0.8 * min(ends[8:])


def test_a_pipeline_gives_fewer_layers_to_the_slower_device(gpt2, unequal):
    made = laptime.simulate(gpt2, cluster=unequal, parallel="hybrid,stages=2,data=8", batch=8)
    equal = laptime.simulate(
        gpt2, cluster=replace(unequal, others=()), parallel="hybrid,stages=2,data=8", batch=8
    )
    layers = [len(rank.layers()) for rank in made.step.ranks]
    assert layers[1] < [len(rank.layers()) for rank in equal.step.ranks][1]


def test_memory_is_that_of_the_smallest_device_and_the_price_that_of_all_nodes(gpt2, unequal):
    made = laptime.simulate(gpt2, cluster=unequal)
    assert made.device_memory_bytes == hardware.device("a100-sxm-80gb").memory_bytes
    assert made.dollars_per_hour == pytest.approx(unequal.dollars_per_hour + 20.0)
    unpriced = replace(unequal, others=(OtherNodes(device="a100-sxm-80gb", nodes=1),))
    assert laptime.simulate(gpt2, cluster=unpriced).dollars_per_hour is None


def test_a_cut_for_unequal_stages_is_the_best_there_is():
    random = np.random.default_rng(0)
    for _ in range(50):
        seconds, factors = random.uniform(0.1, 2.0, 7), random.uniform(1.0, 3.0, 3)
        layers = [
            LayerWork(
                name=f"l{place}",
                forward_s=each / 3,
                backward_s=2 * each / 3,
                update_s=0.0,
                parameters=0,
                output_bytes=0.0,
                kept_bytes=0.0,
            )
            for place, each in enumerate(seconds)
        ]
        parts = cut(layers, 3, factors.tolist())
        assert [layer for part in parts for layer in part] == layers
        longest = max(
            sum(layer.forward_s + layer.backward_s for layer in part) * factor
            for part, factor in zip(parts, factors, strict=True)
        )
        best = min(
            max(
                seconds[:a].sum() * factors[0],
                seconds[a:b].sum() * factors[1],
                seconds[b:].sum() * factors[2],
            )
            for a in range(1, 6)
            for b in range(a + 1, 7)
        )
        assert longest == pytest.approx(best)


MINE = """
name = "mine"
device = "h100-sxm"
nodes = 3
devices_per_node = 8
inside = "nvlink-4"
between = "infiniband-ndr"
"""


def test_a_file_describes_other_nodes(tmp_path):
    (tmp_path / "mine.toml").write_text(MINE + '[[other]]\ndevice = "A100 SXM 80GB"\nnodes = 1\n')
    mine = hardware.cluster(tmp_path / "mine.toml")
    assert [mine.device_of(node) for node in range(3)] == ["h100-sxm", "h100-sxm", "a100-sxm-80gb"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ('[[other]]\ndevice = "a101"\nnodes = 1\n', "a101"),
        ('[[other]]\ndevice = "a100-sxm-80gb"\nnodes = 3\n', "all with other devices"),
        ('[[other]]\ndevice = "a100-sxm-80gb"\nnodes = -1\n', "at least 1"),
        ('[[other]]\ndevice = "a100-sxm-80gb"\n', "nodes is missing"),
        ('[[other]]\ndevice = "a100-sxm-80gb"\nnodes = 1\nprice = 3\n', "no key"),
        ("other = 3\n", r"under a line \[\[other\]\]"),
    ],
)
def test_other_nodes_that_cannot_be_are_refused_in_one_line(tmp_path, other, said):
    (tmp_path / "mine.toml").write_text(MINE + other)
    with pytest.raises(CatalogError, match=said) as refused:
        hardware.cluster(tmp_path / "mine.toml")
    assert "\n" not in str(refused.value)


def test_fewer_nodes_than_other_ones_are_refused(unequal):
    with pytest.raises(HardwareError, match="give more nodes"):
        hardware.cluster(unequal, nodes=1)
