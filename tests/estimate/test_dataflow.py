"""Data flow: the paper's example to the digit, the remedies, and a training that was measured.

"The paper" is seeds/002_d97670199c338d76.txt, "IV. B. Large scale challenges", line 217 of the text, and line
227 where storage is meant.
"""

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laptime.estimate.dataflow import PILLOW_CROP, SIMPLEJPEG_CROP, STAGES, Decoder, Flow, flow, remedies
from laptime.hardware import Link, link, raid0, storage

WIRE = Link(name="wire", title="1 GB/s", bandwidth_gbs=1.0, latency_us=0.0)
FAST = Link(name="fast", title="10 GB/s", bandwidth_gbs=10.0, latency_us=0.0)

# Storage 0.125 s, network 1, decode 0.5, host 0.2, link 2 (two GPUs in turn), device 0.75.
MANY = Flow(
    sample_bytes=0.5e9,
    decoded_bytes=1e9,
    batch=1,
    compute_s=0.75,
    gpus=2,
    gpus_per_link=2,
    storage=replace(storage("nvme-gen3"), read_gbs=8.0),
    remote=WIRE,
    decoder=Decoder(name="slow", samples_per_s=2.0),
    decode_cores=2,
    memory="shared",
    host_copy_gbs=5.0,
    link=WIRE,
)

# docs/benchmarks-training.md, "ResNet-50 on JPEGs against made-up data": H200, batch 64, 12 workers. Files
# are of 500×375 pixels, a byte for every three (training/data/generate.py); they cross the link as bytes.
# They were in the page cache: the drive is an assumption.
RESNET = Flow(
    sample_bytes=500 * 375 / 3,
    decoded_bytes=3 * 224 * 224,
    batch=64,
    compute_s=32.4e-3,
    storage=storage("nvme-gen3"),
    decoder=SIMPLEJPEG_CROP,
    decode_cores=12,
    link=link("pcie-5-x16"),
)


# --- the paper's worked example -------------------------------------------------------------------

# The paper ends a phase where the GPU's own next turn on the link begins, so the 0.253968 s of that turn are
# in no phase: 65.62 % of the time is computing. `flow` counts them: a step lasts until all four GPUs have
# been served, 1.015873 s, of which 49.22 % is computing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """GPUs that one link serves in turn, in seconds, counted as the paper counts."""

    one_s: float
    all_s: float
    compute_s: float

    @property
    def others_s(self) -> float:
        """While the others are served."""
        return self.all_s - self.one_s

    @property
    def idle_s(self) -> float:
        """Of every phase: the others are still being served, and the GPU has computed all it has."""
        return max(0.0, self.others_s - self.compute_s)

    @property
    def effective_share(self) -> float:
        """Share of a phase in which the GPU computes; its own turn is in no phase."""
        return self.compute_s / max(self.compute_s, self.others_s)


def turns(given: Flow) -> Turns:
    """The link of a flow and the computing, as the paper counts them."""
    alone = replace(given, gpus_per_link=1)
    return Turns(
        one_s=flow(alone).stages["link"], all_s=flow(given).stages["link"], compute_s=given.compute_s
    )


def paper_example() -> Flow:
    """Four GTX 1080 of 8 GB each, refreshed from main memory over one PCIe 4 ×16, and 0.5 s of computing.

    "without including any overhead produced by switching operations": hence no latency.
    """
    return Flow(
        decoded_bytes=8e9,
        batch=1,
        compute_s=0.5,
        gpus=4,
        gpus_per_link=4,
        link=replace(link("pcie-4-x16"), latency_us=0.0),
        memory="pinned",
    )


def test_one_gpu_is_refreshed_in_the_papers_time():
    """ "to refresh the complete memory of a modern GPU like NVIDIA GTX 1080, we need 0.253968 s" """
    assert f"{turns(paper_example()).one_s:.6f}" == "0.253968"


def test_four_gpus_in_turn_take_the_papers_time():
    """ "we have an absolute transfer time of 1.015873 s" """
    assert f"{turns(paper_example()).all_s:.6f}" == "1.015873"
    assert f"{flow(paper_example()).step_s:.6f}" == "1.015873"


def test_three_others_take_the_papers_time():
    """ "and for 3 units 0.7619 s" """
    assert f"{turns(paper_example()).others_s:.4f}" == "0.7619"


def test_the_gpu_is_idle_for_the_papers_time():
    """ "for example 0.5 s, we have a 0.2619 s period in which our GPU is idle every iteration" """
    assert f"{turns(paper_example()).idle_s:.4f}" == "0.2619"


def test_the_effective_share_is_the_papers():
    """ "an effective calculation computation time each phase of 65.62 %": exactly 65.625, cut off there."""
    share = turns(paper_example()).effective_share
    assert share == pytest.approx(0.65625, rel=1e-12)
    assert math.floor(share * 1e4 + 1e-6) / 100 == 65.62


def test_about_35_percent_is_sacrificed_as_the_paper_concludes():
    """ "about 35 % of the calculation time is sacrificed to it, as in our example previously" (V): 34.4."""
    assert 1 - turns(paper_example()).effective_share == pytest.approx(0.34375, rel=1e-12)


def test_drives_read_as_fast_as_the_paper_says():
    """Line 227: "SAMSUNG 960 PRO can reach up to 3.5 GB/s", "with 5 960 PRO […] of around 17 GB/s"."""
    one = storage("Samsung 960 PRO")
    assert one.read_gbs == 3.5
    assert int(raid0(one, 5).read_gbs) == 17
    from_drive = replace(paper_example(), storage=one, sample_bytes=8e9, gpus=1, gpus_per_link=1)
    assert flow(from_drive).stages["storage"] == pytest.approx(8 / 3.5)
    assert flow(replace(from_drive, drives=5)).stages["storage"] == pytest.approx(8 / 17.5)


def test_drives_are_slower_than_the_link_even_in_raid_as_the_paper_says():
    """Line 227: "still relatively slow compared to the maximum 31.5 GB/s possible"."""
    drives = replace(paper_example(), storage=storage("nvme-gen3"), sample_bytes=8e9, gpus=1, gpus_per_link=1)
    assert flow(drives).starving == "storage"
    assert flow(replace(drives, drives=5, compute_s=0.3)).starving == "storage"


def test_the_paper_leaves_a_gpus_own_turn_out_and_the_whole_step_has_it():
    times = flow(paper_example())
    assert times.starving == "link"
    assert times.effective_share == pytest.approx(0.5 / 1.0158730, rel=1e-7)  # 49.22 %, not 65.62
    assert times.idle_s == pytest.approx(turns(paper_example()).idle_s + turns(paper_example()).one_s)


def test_a_gpu_that_computes_longer_than_the_others_are_served_is_never_idle_in_the_papers_count():
    busy = turns(replace(paper_example(), compute_s=0.9))
    assert (busy.idle_s, busy.effective_share) == (0.0, 1.0)


# --- stages and switches ----------------------------------------------------------------------------


def test_every_stage_has_its_time():
    times = flow(MANY)
    assert tuple(times.stages) == STAGES
    assert times.stages == pytest.approx(
        {"storage": 0.125, "network": 1, "decode": 0.5, "host": 0.2, "link": 2, "direct": 0, "device": 0.75}
    )


def test_with_prefetching_the_slowest_stage_makes_the_step():
    times = flow(MANY)
    assert (times.step_s, times.starving) == (2.0, "link")
    assert times.effective_share == 0.375
    assert times.idle_share == 0.625
    assert times.idle_s == 1.25
    assert times.samples_per_s == 1.0


def test_without_prefetching_all_stages_add_up():
    times = flow(replace(MANY, prefetch=False))
    assert times.step_s == pytest.approx(4.575)
    assert times.starving == "link"


@pytest.mark.parametrize(
    ("change", "starving"),
    [
        ({"sample_bytes": 20e9, "remote": None}, "storage"),
        ({"sample_bytes": 20e9}, "network"),
        ({"decode_cores": 1, "gpus_per_link": 1, "remote": None, "compute_s": 0.9, "link": FAST}, "decode"),
        ({"host_copy_gbs": 0.1}, "host"),
        ({"same_samples": True, "direct": True, "gpu_link": replace(WIRE, bandwidth_gbs=0.1)}, "direct"),
        ({"compute_s": 2.0}, "device"),
        ({"compute_s": 3.0}, "device"),
    ],
)
def test_the_stage_that_starves_the_others_is_named(change, starving):
    times = flow(replace(MANY, **change))
    assert times.starving == starving
    assert (times.idle_s == 0) == (starving == "device")


def test_a_pageable_copy_waits_for_the_device_and_the_device_for_it():
    near = replace(MANY, remote=None, link=FAST, memory="pageable")
    assert flow(near).step_s == pytest.approx(0.2 + 0.2 + 0.75)  # host, two turns, device
    assert flow(replace(near, memory="shared")).step_s == 0.75
    assert flow(replace(near, memory="pinned")).stages["host"] == 0
    assert flow(replace(near, decode_cores=1, decoder=Decoder(name="", samples_per_s=1))).starving == "decode"


def test_gpus_with_links_of_their_own_are_served_at_once():
    assert flow(replace(MANY, gpus_per_link=1)).stages["link"] == 1.0


def test_more_gpus_read_and_decode_more_unless_they_share_a_batch():
    eight = replace(MANY, gpus=8)
    assert flow(eight).stages["decode"] == 4 * flow(MANY).stages["decode"]
    assert flow(eight).stages["storage"] == 4 * flow(MANY).stages["storage"]
    alike = flow(replace(eight, same_samples=True))
    assert alike.stages["decode"] == flow(MANY).stages["decode"] / 2
    assert alike.samples == 1


def test_direct_transfer_sends_what_is_the_same_over_the_hosts_link_once():
    four = replace(MANY, gpus=4, gpus_per_link=4, same_samples=True, gpu_link=FAST)
    assert flow(four).stages["link"] == 4.0
    direct = flow(replace(four, direct=True)).stages
    assert direct["link"] == 1.0
    assert direct["direct"] == pytest.approx(0.3)


def test_direct_transfer_gives_nothing_where_every_gpu_has_samples_of_its_own():
    assert flow(replace(MANY, direct=True)).stages == flow(MANY).stages


def test_each_transfer_pays_the_links_latency():
    late = replace(MANY, link=replace(WIRE, latency_us=1000.0))
    assert flow(late).stages["link"] == pytest.approx(2.002)


# --- remedies ---------------------------------------------------------------------------------------


def test_remedies_are_ranked_and_each_is_the_step_with_that_change_alone():
    worst = replace(
        MANY, prefetch=False, memory="pageable", decoder=PILLOW_CROP, same_samples=True, gpu_link=FAST
    )
    found = remedies(worst)
    assert found == flow(worst).remedies
    assert [one.step_s for one in found] == sorted(one.step_s for one in found)
    expected = {
        "prefetching": replace(worst, prefetch=True),
        "data kept at the node": replace(worst, remote=None),
        "RAID 0 of 5 drives": replace(worst, drives=5),
        "decoding with simplejpeg, crop and resize by OpenCV": replace(worst, decoder=SIMPLEJPEG_CROP),
        "shared memory, pinned by a thread": replace(worst, memory="shared"),
        "pinned memory": replace(worst, memory="pinned"),
        "direct GPU-to-GPU transfer": replace(worst, direct=True),
    }
    assert dict(found) == {name: flow(after).step_s for name, after in expected.items()}
    # Whoever makes the copy, without prefetching all wait for it.
    assert [name for name, step_s in found if step_s == flow(worst).step_s] == [
        "shared memory, pinned by a thread"
    ]


def test_what_is_in_use_or_has_no_place_is_no_remedy():
    assert remedies(replace(MANY, gpus=1, gpus_per_link=1, remote=None, storage=None, memory="pinned")) == ()
    assert "RAID 0 of 5 drives" not in dict(remedies(replace(MANY, drives=5)))


def test_a_remedy_for_another_stage_changes_nothing():
    assert dict(remedies(MANY))["RAID 0 of 5 drives"] == flow(MANY).step_s


# --- against a measured training --------------------------------------------------------------------


def test_resnet_50_on_an_h200_is_bound_by_the_device_as_measured():
    times = flow(RESNET)
    assert times.starving == "device"
    assert times.step_s == 32.4e-3  # the measured median of JPEGs and of data kept on the GPU
    assert times.samples_per_s == pytest.approx(1930, rel=0.03)  # measured from step 10 on
    assert max(seconds for name, seconds in times.stages.items() if name != "device") < 0.2 * 32.4e-3


def test_resnet_50_on_an_h200_starves_for_decoding_on_few_cores():
    assert flow(replace(RESNET, decode_cores=1)).starving == "decode"
    assert flow(replace(RESNET, decode_cores=2)).starving == "device"
    pillow = replace(RESNET, decode_cores=4, decoder=PILLOW_CROP)
    assert flow(pillow).samples_per_s == pytest.approx(1600)
    assert flow(pillow).remedies[0] == (
        "decoding with simplejpeg, crop and resize by OpenCV",
        pytest.approx(32.4e-3),
    )


# --- laws ---------------------------------------------------------------------------------------------


@given(
    compute_s=st.floats(1e-4, 10),
    stored=st.integers(1, 10**9),
    decoded=st.integers(0, 10**9),
    gpus=st.integers(1, 16),
    cores=st.integers(1, 64),
    prefetch=st.booleans(),
    memory=st.sampled_from(["pinned", "shared", "pageable"]),
)
def test_a_step_is_never_shorter_than_any_stage_nor_longer_than_all(
    compute_s, stored, decoded, gpus, cores, prefetch, memory
):
    any_flow = replace(
        MANY,
        compute_s=compute_s,
        sample_bytes=stored,
        decoded_bytes=decoded,
        gpus=gpus,
        gpus_per_link=1,
        decode_cores=cores,
        prefetch=prefetch,
        memory=memory,
    )
    times = flow(any_flow)
    assert max(times.stages.values()) <= times.step_s <= sum(times.stages.values()) * (1 + 1e-12)
    assert 0 < times.effective_share <= 1
    assert (times.starving == "device") == (times.idle_s == 0)
    # Every GPU gets samples of its own here, so no remedy does harm.
    assert all(one.step_s <= times.step_s * (1 + 1e-12) for one in times.remedies)
