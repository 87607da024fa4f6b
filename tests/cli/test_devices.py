import json
import subprocess
import sys

import pytest
from tests.cli.verbs import caller

from laptime.cli.devices import devices


@pytest.fixture
def call(monkeypatch, tmp_path):
    monkeypatch.delenv("LAPTIME_DEVICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return caller(monkeypatch, tmp_path, devices=(devices, None))


def test_devices_lists_every_device_with_its_figures(call):
    done = call("devices")
    assert done.exit_code == 0
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert lines["device"] == ["GiB", "GB/s", "fp32", "tf32", "fp16", "bf16", "W", "$/h", "year"]
    assert lines["h200"] == ["141", "4800", "66.9", "494.7", "989.4", "989.4", "700", "3.59", "2024"]
    assert lines["i7-3820"][0] == "-"
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_a_narrow_terminal_leaves_columns_out(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    done = call("devices")
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert "year" not in done.stdout.splitlines()[0]


def test_one_device_shows_every_figure_and_its_source(call):
    done = call("devices", "NVIDIA V100")
    assert done.stdout.startswith("NVIDIA Tesla V100 SXM2 16 GB (v100-sxm2-16gb)")
    for words in ("memory_bandwidth_gbs", "fp16 (TFLOP/s)", "[1] NVIDIA Tesla V100 whitepaper", "3.06 $/h"):
        assert words in done.stdout
    assert "in bf16 no units for bf16: runs as fp32" in done.stdout


def test_estimated_figures_are_marked(call):
    line = next(line for line in call("devices", "k520").stdout.splitlines() if line.startswith("tdp_w"))
    assert line.split() == ["tdp_w", "112.5", "est.", "[3]"]


@pytest.mark.parametrize(("text", "count"), [("h100", 3), ("titan x", 3), ("volta", 6), ("Quadro", 3)])
def test_a_text_that_names_no_single_device_filters(call, text, count):
    assert len(call("devices", text).stdout.splitlines()) == count + 1


def test_an_unknown_device_is_one_line_and_status_1(call):
    done = call("devices", "h2oo")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("laptime: no device is called 'h2oo'; nearest: ")
    assert done.stderr.count("\n") == 1


def test_a_file_of_one_s_own_is_shown(call, tmp_path):
    (tmp_path / "mine.toml").write_text('name = "mine"\nkind = "cpu"\nmemory_bandwidth_gbs = 40\nbf16 = 1\n')
    done = call("devices", "./mine.toml")
    assert done.exit_code == 0
    assert "mine (mine)" in done.stdout
    assert "whether a network fits cannot be said" in done.stdout
    assert json.loads(call("devices", "./mine.toml", "--json").stdout)["devices"][0]["peaks"]["fp32"] is None


def test_a_wrong_file_is_one_line_and_status_1(call, tmp_path):
    (tmp_path / "mine.toml").write_text('name = "mine"\nkind = "cpu"\nmemory_bandwidth_gbs = 40\nfp23 = 1\n')
    done = call("devices", "mine.toml")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "laptime: mine.toml: 'fp23' is no key; did you mean 'fp32'?\n"


def test_json_is_one_document_with_sources_and_peaks(call):
    (found,) = json.loads(call("devices", "gtx 1080", "--json").stdout)["devices"]
    assert found["fp32"] == 8.873
    assert "whitepaper" in found["sources"]["fp32"]
    assert found["peaks"]["fp16"] == {
        "flops": pytest.approx(8.873e12),
        "figure": "fp32",
        "fallback": "no units for fp16: runs as fp32",
    }
    assert found["price"] is None
    assert len(json.loads(call("devices", "--json").stdout)["devices"]) > 70


def test_links_and_storage_have_tables_and_json(call):
    assert "pcie-4-x16" in call("devices", "--links").stdout
    found = json.loads(call("devices", "--links", "--json").stdout)
    assert {one["name"] for one in found["storage"]} >= {"hdd", "nvme-gen3", "raid0-5x-nvme-gen3"}
    assert found["links"][0]["sources"]["latency_us"].startswith("NCCL")


def test_devices_imports_no_torch():
    code = (
        "import sys; from laptime.cli import app; app(['devices', 'h200'], standalone_mode=False); "
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"


def test_clusters_have_a_table_with_size_links_and_price(call):
    done = call("devices", "--clusters")
    assert done.exit_code == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines()}
    assert lines["cluster"] == "size device inside between $/h"
    assert lines["aws-p4d"] == "4 × 8 a100-sxm-40gb nvlink-3 4 × efa-100g 87.84"
    assert lines["guide-node"] == "1 × 4 gtx-1080 pcie-4-x16 - -"
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_clusters_are_one_json_document_with_sources(call):
    found = json.loads(call("devices", "--clusters", "--json").stdout)["clusters"]
    assert len(found) > 12
    (one,) = json.loads(call("devices", "p5.48xlarge", "--clusters", "--json").stdout)["clusters"]
    assert (one["name"], one["rails"]) == ("aws-p5", 32)
    assert "Capacity Blocks" in one["sources"]["rails"]


def test_a_text_that_names_no_single_cluster_filters(call):
    assert len(call("devices", "dgx", "--clusters").stdout.splitlines()) == 6 + 1
    done = call("devices", "dgz-h100x", "--clusters")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("laptime: no cluster is called 'dgz-h100x'; nearest: ")


def test_a_cluster_of_one_s_own_is_shown(call, tmp_path):
    text = 'name = "mine"\ndevice = "h200"\nnodes = 2\ndevices_per_node = 1\nbetween = "lan"\n'
    link = '[[link]]\nname = "lan"\nbandwidth_gbs = {}\nlatency_us = 50\n'
    (tmp_path / "mine.toml").write_text(text + link.format(1))
    assert "lan" in call("devices", "./mine.toml", "--clusters").stdout
    (tmp_path / "mine.toml").write_text(text + link.format(-1))
    done = call("devices", "./mine.toml", "--clusters")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("laptime: mine.toml: link lan: bandwidth_gbs is -1; give more than 0 GB/s")
