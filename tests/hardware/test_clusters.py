"""Clusters: the catalog is checked against itself, a user's file is one line away from being right."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from laptime import hardware
from laptime.errors import CatalogError, HardwareError
from laptime.hardware import Cluster, cluster, cluster_links, clusters
from laptime.hardware.cluster import THIS_MACHINE
from laptime.hardware.lookup import key

CLUSTERS = clusters()
MINE = """
name = "my-rack"
device = "rtx-4090"
nodes = 3
devices_per_node = 2
inside = "pcie-4-x16"
wiring = "host"
between = "office-network"

[[link]]
name = "office-network"
bandwidth_gbs = 0.3
latency_us = 80
source = "iperf3 on a Sunday"
"""

every = pytest.mark.parametrize("one", CLUSTERS, ids=lambda one: one.name)


def written(folder, text=MINE, name="mine.toml"):
    path = folder / name
    path.write_text(text)
    return path


def test_the_catalog_holds_more_than_a_dozen():
    assert len(CLUSTERS) > 12
    assert {one.device for one in CLUSTERS} >= {"h100-sxm", "a100-sxm-80gb", "b200", "gtx-1080", "cpu"}


@every
def test_every_figure_and_every_name_has_a_source(one):
    names = ("device", "inside", "between", "storage")
    figures = ("nodes", "devices_per_node", "dollars_per_hour", "node_hours_between_failures")
    stated = {figure for figure in (*names, *figures) if getattr(one, figure) is not None}
    stated |= {figure for figure in ("rails", "oversubscription", "slowdown") if getattr(one, figure) != 1}
    assert stated <= set(one.sources)
    assert set(one.estimated) <= set(one.sources)
    for source in one.sources.values():
        assert len(source) > 16, source  # a document, not the short name of one that is not there


@every
def test_names_are_the_catalog_s(one):
    if one.device not in THIS_MACHINE:
        assert hardware.device(one.device).name == one.device
    inside, between = cluster_links(one)
    assert (inside and inside.name) == one.inside
    assert (between and between.name) == one.between
    assert one.storage is None or hardware.storage(one.storage).name == one.storage


@every
def test_a_cluster_is_a_value_that_can_be_a_key(one):
    assert {one: 1}[cluster(one.name)] == 1


@every
def test_a_price_says_when(one):
    if one.dollars_per_hour is not None:
        assert "20" in one.sources["dollars_per_hour"]


def test_no_two_clusters_share_a_name():
    keys = [key(name) for one in CLUSTERS for name in (one.name, *one.aliases)]
    assert sorted(keys) == sorted(set(keys))


def test_failures_are_what_their_sources_spell_out():
    assert cluster("meta-24k").node_hours_between_failures == round(2048 * 54 * 24 / 419)
    assert cluster("opt-175b").node_hours_between_failures == round(124 * 1440 / 105)
    assert cluster("meta-rsc-1").node_hours_between_failures == round(24_000 / 6.5)
    assert cluster("bloom").node_hours_between_failures == 48 * 168 / 1.5


@pytest.mark.parametrize(
    ("name", "gbit"),
    [
        ("dgx-h100", 3200),
        ("dgx-a100", 1600),
        ("dgx-1-v100", 400),
        ("aws-p3", 25),
        ("aws-p3dn", 100),
        ("aws-p4d", 400),
        ("aws-p5", 3200),
        ("aws-p5en", 3200),
        ("aws-p6-b200", 3200),
        ("azure-nd-h100-v5", 3200),
        ("gcp-a3-high", 800),
        ("meta-24k", 3200),
        ("testbed-100m", 0.1),
    ],
)
def test_the_network_of_a_node_adds_up(name, gbit):
    one = cluster(name)
    _, between = cluster_links(one)
    assert one.rails * between.bandwidth * 8 / 1e9 == pytest.approx(gbit)


def test_the_guide_s_clusters_give_the_guide_s_seconds():
    node = cluster("guide-node")
    inside, between = cluster_links(node)
    assert (node.devices, node.wiring, between) == (4, "host", None)
    assert 4 * 8e9 / inside.bandwidth == pytest.approx(1.015873, abs=1e-6)
    assert cluster("guide-clusters").devices == 16


def test_a_name_an_alias_and_the_value_itself_are_the_same():
    one = cluster("dgx-h100-4")
    assert one == cluster("DGX H100") == cluster(one)
    assert cluster("p5.48xlarge").name == "aws-p5"


def test_the_number_of_nodes_can_be_another():
    assert cluster("dgx-h100", nodes=16).devices == 128
    assert cluster(cluster("dgx-h100"), nodes=1).devices == 8
    assert replace(cluster("dgx-h100"), nodes=2) == cluster("dgx-h100", nodes=2)


@pytest.mark.parametrize("nodes", [0, -1, 2.5, True])
def test_no_cluster_has_such_a_number_of_nodes(nodes):
    with pytest.raises(HardwareError, match=r"nodes is .*; give a whole number of at least 1"):
        cluster("dgx-h100", nodes=nodes)


def test_more_nodes_need_a_link_between_them():
    with pytest.raises(HardwareError, match="guide-node has 2 nodes and no link between them; give between"):
        cluster("guide-node", nodes=2)


def test_an_unknown_cluster_is_one_line_with_the_nearest():
    with pytest.raises(HardwareError) as caught:
        cluster("dgx-h10")
    assert str(caught.value).startswith("no cluster is called 'dgx-h10'; nearest: dgx-h100")
    assert "`laptime devices --clusters` lists all" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cluster_of_one_s_own_is_one_file_with_its_own_links(tmp_path):
    path = written(tmp_path)
    one = cluster(path)
    assert one == cluster(str(path))
    assert (one.title, one.devices, one.wiring) == ("my-rack", 6, "host")
    assert one.sources["nodes"] == one.sources["between"] == str(path)
    inside, between = cluster_links(one)
    assert inside == hardware.link("pcie-4-x16")
    assert (between.bandwidth, between.latency_s) == (pytest.approx(3e8), pytest.approx(80e-6))
    assert between.sources == dict.fromkeys(("bandwidth_gbs", "latency_us"), "iperf3 on a Sunday")
    assert hash(one) == hash(cluster(path))
    assert cluster(path, nodes=9).links == one.links
    assert "my-rack" not in {known.name for known in clusters()}


def test_a_link_without_a_source_has_the_file(tmp_path):
    path = written(tmp_path, MINE.replace('source = "iperf3 on a Sunday"', ""))
    assert cluster(path).links[0].sources["latency_us"] == str(path)


def test_a_device_is_named_as_anywhere_else(tmp_path):
    one = cluster(written(tmp_path, MINE.replace("rtx-4090", "NVIDIA GeForce RTX 4090")))
    assert one.device == "rtx-4090"


@pytest.mark.parametrize("device", ["cpu", "CPU", "cuda"])
def test_the_machine_at_hand_can_be_the_device(tmp_path, device):
    assert cluster(written(tmp_path, MINE.replace("rtx-4090", device))).device == device.lower()


def test_a_device_file_lies_beside_the_cluster_s(tmp_path):
    written(tmp_path, 'name = "card"\nkind = "gpu"\nmemory_bandwidth_gbs = 500\nfp32 = 12\n', "card.toml")
    one = cluster(written(tmp_path, MINE.replace("rtx-4090", "card.toml")))
    assert hardware.device(one.device).name == "card"


def test_one_device_a_node_needs_no_link_inside(tmp_path):
    text = MINE.replace("devices_per_node = 2", "devices_per_node = 1").replace('inside = "pcie-4-x16"', "")
    one = cluster(written(tmp_path, text))
    assert cluster_links(one)[0] is None


def test_a_share_of_slow_nodes_may_be_none_or_all(tmp_path):
    for share in (0, 1):
        text = f"slow_share = {share}\nslowdown = 1.5\n{MINE}"
        assert cluster(written(tmp_path, text)).slow_share == share


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("nodes = 3", "nodes = 0"), "nodes is 0; give a whole number of at least 1"),
        (("nodes = 3", "nodes = 2.5"), "nodes is 2.5; give a whole number of at least 1"),
        (("nodes = 3", ""), "nodes is missing; give a whole number of at least 1"),
        (("nodes = 3", "nodes = 3\nrails = 0"), "rails is 0; give a whole number"),
        (('between = "office-network"', ""), "3 nodes and no link between them; give between"),
        (('inside = "pcie-4-x16"', ""), "2 devices a node and no link inside; give inside"),
        (("rtx-4090", "rtx-4099"), "no device is called 'rtx-4099'; nearest: rtx-4090"),
        (("rtx-4090", "a100"), "'a100' can be a100-sxm-40gb"),
        (("rtx-4090", "card.toml"), "card.toml does not exist"),
        (("pcie-4-x16", "pcie-4x16"), "inside is 'pcie-4x16', which is no link; did you mean 'pcie-4-x16'?"),
        (('= "office-network"\n\n', '= "ofice-network"\n\n'), "did you mean 'office-network'?"),
        (("bandwidth_gbs = 0.3", "bandwidth_gbs = 0"), "bandwidth_gbs is 0; give more than 0 GB/s"),
        (("bandwidth_gbs = 0.3", "bandwidth_gbs = -1"), "bandwidth_gbs is -1; give more than 0 GB/s"),
        (("latency_us = 80", ""), "link office-network: latency_us is missing; give it in µs"),
        (('name = "office-network"', ""), "link: name is missing; give a text"),
        (('"office-network"', '"ethernet-10g"'), "'ethernet-10g' is a link already; choose another name"),
        (("[[link]]", "[link]"), "write each link under a line [[link]]"),
        (("nodes = 3", "nodes = 3\noversubscription = 0.5"), "oversubscription is 0.5; give at least 1"),
        (("nodes = 3", "nodes = 3\noversubscription = nan"), "oversubscription is nan; give a number"),
        (("nodes = 3", "nodes = 3\nslow_share = 1.5"), "slow_share is 1.5; give a share of the nodes"),
        (("nodes = 3", "nodes = 3\nslow_share = -0.1"), "slow_share is -0.1; give a share of the nodes"),
        (("nodes = 3", "nodes = 3\nslowdown = 0.9"), "slowdown is 0.9; give at least 1"),
        (("nodes = 3", "nodes = 3\ndollars_per_hour = 0"), "dollars_per_hour is 0; give more than 0"),
        (('"host"', '"ring"'), "wiring is 'ring'; give one of switch, mesh, pairs, host"),
        (("nodes = 3", 'nodes = 3\nstorage = "nvme-gen9"'), "which is no storage; did you mean 'nvme-gen"),
        (("nodes = 3", "nodes = 3\nrail = 2"), "'rail' is no key; did you mean 'rails'?"),
        (("nodes = 3", "nodes = 3\nlinks = []"), "'links' is no key"),
        (('"my-rack"', '"My Rack"'), "name is 'My Rack'; write it as 'my-rack'"),
        (("nodes = 3", "nodes = 3,5"), "is not TOML"),
    ],
)
def test_what_is_wrong_is_one_line_with_file_key_and_remedy(tmp_path, change, said):
    assert change[0] in MINE
    path = written(tmp_path, MINE.replace(*change))
    with pytest.raises(CatalogError) as caught:
        cluster(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CatalogError, match=r"nowhere\.toml does not exist; check the path"):
        cluster(Path(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize("figure", ["oversubscription", "slowdown", "slow_share", "dollars_per_hour"])
def test_a_value_made_in_python_is_checked_too(figure):
    with pytest.raises(HardwareError, match=f"{figure} is nan"):
        replace(cluster("dgx-h100"), **{figure: math.nan})


def test_a_lone_device_is_a_cluster():
    one = Cluster(name="alone", title="alone", device="h200", nodes=1, devices_per_node=1)
    assert cluster_links(one) == (None, None)
