"""Collectives against closed forms, and how groups of ranks share links."""

import math

import pytest

from laptime.errors import HardwareError
from laptime.hardware.cluster import Cluster
from laptime.model.plan import Plan
from laptime.simulate import fabric
from laptime.simulate.fabric import Fabric, Group, LinkHabits, Way, groups_of

WHOLE = LinkHabits(inside_beside=1.0, inside_alone=1.0, between=1.0)
SIZE = 1e9


def cluster(**fields) -> Cluster:
    given = {
        "name": "test", "title": "test", "device": "h100-sxm", "nodes": 4, "devices_per_node": 8,
        "inside": "nvlink-4", "between": "infiniband-ndr", "rails": 8,
    }  # fmt: skip
    return Cluster(**{**given, **fields})


def way(inside=100e9, between=10e9, latency=0.0) -> Way:
    return Way(inside=inside, inside_latency_s=latency, between=between, between_latency_s=latency)


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_a_ring_all_reduce_sends_two_times_n_less_one_over_n_of_the_bytes(ranks):
    group = Group(ranks=ranks, per_node=ranks)
    expected = 2 * (ranks - 1) / ranks * SIZE / 100e9
    assert fabric.ring_all_reduce(SIZE, group, way()) == pytest.approx(expected)


def test_a_ring_of_one_node_has_two_times_n_less_one_hops():
    group = Group(ranks=8, per_node=8)
    assert fabric.ring_all_reduce(0.0, group, way(latency=1e-6)) == pytest.approx(14e-6)


def test_a_ring_over_nodes_is_as_slow_as_the_network():
    group = Group(ranks=16, per_node=8)
    assert fabric.ring_all_reduce(SIZE, group, way()) == pytest.approx(2 * 15 / 16 * SIZE / 10e9)


def test_a_tree_has_a_logarithm_of_hops():
    slow = way(latency=1e-5)
    many = Group(ranks=1024, per_node=1)
    assert fabric.tree_all_reduce(0.0, many, slow) == pytest.approx(2 * 10 * 1e-5)
    assert fabric.tree_all_reduce(0.0, many, slow) < fabric.ring_all_reduce(0.0, many, slow)


def test_a_hierarchical_all_reduce_crosses_the_network_between_nodes_only():
    group = Group(ranks=16, per_node=8)
    expected = 2 * (7 / 8 * SIZE / 100e9 + 1 / 2 * SIZE / 10e9)
    assert fabric.hierarchical_all_reduce(SIZE, group, way()) == pytest.approx(expected)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    links = Fabric(cluster=cluster(), habits=WHOLE)
    group = Group(ranks=8, per_node=8)
    halves = links.seconds("reduce_scatter", SIZE, group) + links.seconds("all_gather", SIZE, group)
    assert links.seconds("all_reduce", SIZE, group) == pytest.approx(halves)


def test_an_all_to_all_sends_to_every_other_rank_once():
    group = Group(ranks=4, per_node=1)
    assert fabric.all_to_all(SIZE, group, way()) == pytest.approx(3 / 4 * SIZE / 10e9)


def test_the_fastest_way_is_taken():
    links = Fabric(cluster=cluster(), habits=WHOLE)
    group = Group(ranks=32, per_node=8)
    ways = [
        method(SIZE, group, links.way(group, beside=False))
        for method in fabric.METHODS["all_reduce"].values()
    ]
    assert links.seconds("all_reduce", SIZE, group) == min(ways)


def test_replicas_that_split_features_in_a_node_share_its_network_links():
    groups = groups_of(Plan(strategy="hybrid", data=4, feature=8), cluster())
    assert (groups.feature.per_node, groups.feature.nodes) == (8, 1)
    assert (groups.data.per_node, groups.data.sharers, groups.data.nodes) == (1, 8, 4)


def test_oversubscription_divides_the_network():
    group = Group(ranks=32, per_node=8)
    plain = Fabric(cluster=cluster(), habits=WHOLE).way(group, beside=False).between
    shared = Fabric(cluster=cluster(oversubscription=4.0), habits=WHOLE).way(group, beside=False).between
    assert shared == pytest.approx(plain / 4)


def test_stages_in_the_same_node_do_not_use_the_network():
    near = groups_of(Plan(strategy="model", stages=8, micro_batches=8), cluster()).neighbours[0]
    far = groups_of(Plan(strategy="hybrid", stages=4, data=8, micro_batches=8), cluster()).neighbours[0]
    assert (near.nodes, far.nodes) == (1, 2)
    assert far.sharers == 8


def test_several_nodes_without_a_link_are_refused():
    with pytest.raises(HardwareError, match="no link between them"):
        cluster(between=None)


def test_one_rank_exchanges_nothing():
    links = Fabric(cluster=cluster(), habits=WHOLE)
    assert links.seconds("all_reduce", SIZE, Group(ranks=1, per_node=1)) == 0.0
    assert math.isfinite(links.seconds("send", SIZE, Group(ranks=2, per_node=2)))
