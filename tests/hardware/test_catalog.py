"""The catalog is checked against itself: no figure stands alone."""

import math
import re
import subprocess
import sys

import pytest

from laptime import hardware
from laptime.hardware.lookup import key

DEVICES = hardware.devices()
GPUS = [one for one in DEVICES if one.kind == "gpu"]
CPUS = [one for one in DEVICES if one.kind == "cpu"]
PEAKS = ("fp64", "fp32", "fp16_vector", "fp32_matrix", "tf32", "fp16", "bf16")
# CUDA programming guide, throughput of native arithmetic instructions; AMD's CDNA whitepapers. GP100 halves
# Pascal's, GA100 halves Ampere's.
CORES = {
    "fermi": 32, "kepler": 192, "maxwell": 128, "pascal": 128, "volta": 64, "turing": 64, "ampere": 128,
    "ada": 128, "hopper": 128, "blackwell": 128, "cdna": 64, "cdna2": 64, "cdna3": 128,
}  # fmt: skip
HALVED = ("p100-", "a100-", "a30")
# FLOP that the matrix units of one processor do in a cycle, fp16 in and fp32 out: the vendors' whitepapers.
# GA100 doubles Ampere's, B200 has eight times what RTX cards have; GeForce cards, A10G and L40 get half.
MATRIX = {
    "volta": 1024, "turing": 1024, "ampere": 1024, "ada": 1024, "hopper": 4096, "blackwell": 1024,
    "cdna": 1024, "cdna2": 1024, "cdna3": 2048,
}  # fmt: skip
MATRIX_DOUBLED = {"a100-": 2, "a30": 2, "b200": 8}
MATRIX_HALVED = ("NVIDIA GeForce", "NVIDIA A10G", "NVIDIA L40")
# Their vendor states matrix peaks at a lower clock than the boost clock: 1830 MHz of 1980 for an H100 SXM.
MATRIX_SLOWER = ("h100-", "h200", "gh200-", "b200", "titan-v")

every = pytest.mark.parametrize("one", DEVICES, ids=lambda one: one.name)


@every
def test_every_figure_has_a_source(one):
    figures = [
        figure
        for figure in (*PEAKS, "memory_gib", "memory_bandwidth_gbs", "l2_mib", "sms", "clock_mhz", "tdp_w")
        if getattr(one, figure) is not None
    ]
    assert set(figures) <= set(one.sources)
    for source in one.sources.values():
        assert len(source) > 8, source  # a document, not the short name of one that is not there


@every
def test_lower_precision_is_never_slower(one):
    assert one.peak("fp16") >= one.peak("fp32")
    assert one.peak("bf16") >= one.peak("fp32")
    assert one.peak("tf32") >= one.peak("fp32")
    assert one.fp64 is None or one.fp64 <= one.fp32 * 1.01


@pytest.mark.parametrize("one", GPUS, ids=lambda one: one.name)
def test_fp32_is_processors_times_cores_times_two_times_clock(one):
    cores = CORES[one.architecture] / (2 if one.name.startswith(HALVED) else 1)
    assert one.fp32 == pytest.approx(one.sms * cores * 2 * one.clock_mhz / 1e6, rel=0.025)


@pytest.mark.parametrize("one", [one for one in GPUS if one.fp16], ids=lambda one: one.name)
def test_fp16_is_what_the_matrix_units_do_and_never_a_sparse_or_doubled_figure(one):
    rate = MATRIX[one.architecture] * math.prod(
        times for prefix, times in MATRIX_DOUBLED.items() if one.name.startswith(prefix)
    )
    if one.title.startswith(MATRIX_HALVED) and one.name != "l40s":
        rate /= 2
    share = one.fp16 / (one.sms * rate * one.clock_mhz / 1e6)
    assert (0.85 if one.name.startswith(MATRIX_SLOWER) else 0.98) < share < 1.01


@pytest.mark.parametrize("file", ["gpus-nvidia.toml", "gpus-amd.toml", "cpus.toml"])
def test_every_document_says_how_far_it_was_checked(file):
    from laptime.hardware.lookup import _file

    documents = [text for text in _file(file)["documents"].values() if "http" in text]
    assert documents
    for text in documents:
        assert re.search(r" \((read|quoted|unverified)[^()]*\)$", text), text


@pytest.mark.parametrize(
    ("told", "cores"),
    [
        ("CPU: Dual Xeon E5-2630 v3", 16),
        ("CPU: Dual Xeon E5-2666 v3", 20),
        ("CPU i9-10940X", 14),
        ("CPU i7-12700H", 14),
        ("AWS EC2 C5.18xlarge (CPU)", 36),
        ("AWS EC2 C5.9xlarge (CPU)", 18),
    ],
)
def test_the_cpu_of_a_published_measurement_is_found_with_all_its_sockets(told, cores):
    assert hardware.device(told).sms == cores


def test_two_sockets_are_twice_one():
    for name in ("xeon-e5-2630-v3", "xeon-e5-2666-v3", "xeon-platinum-8124m"):
        one, two = hardware.device(name), hardware.device(f"dual-{name}")
        for figure in ("fp32", "memory_bandwidth_gbs", "sms", "l2_mib", "tdp_w"):
            assert getattr(two, figure) == pytest.approx(2 * getattr(one, figure), rel=1e-3)


@pytest.mark.parametrize("one", CPUS, ids=lambda one: one.name)
def test_a_cpu_s_source_spells_out_its_peak(one):
    terms = re.findall(r"(\d+) cores × ([\d.]+) GHz × (\d+) FLOP", one.sources["fp32"])
    total = sum(int(cores) * float(clock) * int(flop) for cores, clock, flop in terms)
    assert one.fp32 == pytest.approx(total / 1e3, rel=1e-3)


@pytest.mark.parametrize("one", CPUS, ids=lambda one: one.name)
def test_a_cpu_s_source_spells_out_its_bandwidth(one):
    channels, kind = one.sources["memory_bandwidth_gbs"].split(" × ")
    assert one.memory_bandwidth_gbs == pytest.approx(
        int(channels) * int(kind.split("-")[1]) * 8 / 1e3, rel=2e-3
    )


@pytest.mark.parametrize("one", GPUS, ids=lambda one: one.name)
def test_matrix_units_multiply_in_simple_ratios(one):
    if one.tf32 and one.fp16:
        assert one.fp16 == pytest.approx(2 * one.tf32, rel=0.02)
    if one.fp16 and one.bf16 and one.name != "mi100":  # which halves bf16
        assert one.fp16 == one.bf16


def test_only_ampere_and_later_have_bf16():
    without = {"fermi", "kepler", "maxwell", "pascal", "volta", "turing"}
    assert {one.architecture for one in GPUS if one.bf16 is None} == without
    assert {one.architecture for one in GPUS if one.fp16 is None} == without - {"volta", "turing"}


def test_no_two_devices_share_a_name():
    keys = [key(name) for one in DEVICES for name in (one.name, *one.aliases)]
    assert sorted(keys) == sorted(set(keys))


def test_no_two_links_or_drives_share_a_name():
    for rows in (hardware.links(), hardware.storages()):
        keys = [key(name) for one in rows for name in (one.name, *one.aliases)]
        assert sorted(keys) == sorted(set(keys))


@pytest.mark.parametrize("one", hardware.links(), ids=lambda one: one.name)
def test_a_link_has_bandwidth_latency_and_their_sources(one):
    assert one.bandwidth > 0
    assert one.latency_s > 0
    assert set(one.sources) == {"bandwidth_gbs", "latency_us"}


def test_pcie_is_what_its_standard_says():
    for generation, transfers in ((3, 8), (4, 16), (5, 32)):
        for lanes in (8, 16):
            found = hardware.link(f"pcie-{generation}-x{lanes}").bandwidth_gbs
            assert found == pytest.approx(transfers * lanes * 128 / 130 / 8, rel=1e-3)


def test_the_paper_s_figures_are_there():
    assert 8e9 / hardware.link("pcie-4-x16").bandwidth == pytest.approx(0.253968, abs=1e-6)
    assert hardware.storage("nvme-gen3").read_gbs == 3.5
    assert hardware.storage("raid0-5x-nvme-gen3").read_gbs == 17.5
    assert hardware.device("gtx-1080").memory_gib == 8


def test_every_price_is_of_a_known_device_and_says_when_and_where():
    from laptime.hardware.lookup import _shipped

    prices = _shipped().prices
    assert set(prices) <= {one.name for one in DEVICES}
    for one in prices.values():
        assert one.example
        assert one.dollars_per_hour > 0
        assert one.date.startswith("20")
        assert len(one.source) > 8


def test_ambiguous_names_lead_to_devices():
    from laptime.hardware.lookup import _shipped

    assert {name for names in _shipped().index.values() for name in names} == {one.name for one in DEVICES}


def test_looking_a_device_up_imports_no_torch_and_nothing_heavy():
    code = (
        "import sys; from laptime.hardware import device; device('h200'); "
        "print(sorted({'torch', 'numpy', 'pyarrow', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
