"""`laptime simulate`: the loss first, tables, JSON, a run on disk, and one line for what cannot be."""

import json
import resource
import subprocess

import pytest
from tests.cli.conftest import ENTRY_POINT

import laptime as package

LLAMA = """
from transformers import LlamaConfig, LlamaForCausalLM


def network():
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16384,
            num_hidden_layers=126,
            num_attention_heads=128,
            num_key_value_heads=8,
            intermediate_size=53248,
            vocab_size=128256,
            max_position_embeddings=8192,
        )
    )
"""


def document(done):
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_the_largest_loss_stands_first_and_then_the_numbers(laptime):
    words = ["--samples", "10000", "--epochs", "2", "--batch", "64"]
    done = laptime("simulate", "zener4", "--cluster", "aws-p4d", "--workers", "16", *words)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].endswith("16 workers on 2 nodes of aws-p4d, simulated")
    assert " of the step" in lines[2]
    for word in ("samples/s", "efficiency", "fits", "training: 20 steps", "$", "all_reduce", "every rank"):
        assert word in done.stdout


def test_json_has_what_the_tables_have(laptime):
    words = ["--parallel", "model,stages=2", "--workers", "8", "--batch", "64", "--jitter", "0.02"]
    (made,) = document(laptime("simulate", "zener4", "--cluster", "dgx-h100", *words, "--json"))[
        "simulations"
    ]
    assert made["parallel"] == "model,data=4,stages=2,micro_batches=4"
    assert made["plan"]["stages"] == len(made["stages"]) == 2
    for stage in made["stages"]:
        assert sum(stage["accounts"].values()) == pytest.approx(made["step_s"])
    assert sum(made["accounts"].values()) == pytest.approx(made["step_s"])
    assert made["interval_s"][0] < made["step_s"] < made["interval_s"][1]
    assert {each["kind"] for each in made["exchanges"]} == {"send", "all_reduce"}
    assert made["fits"] is True
    assert 0 < made["efficiency"] < 1
    assert len(made["step_times_s"]) == 100


def test_plans_and_clusters_make_a_row_each(laptime):
    words = ["--parallel", "data; sharded;model,stages=2", "--workers", "8", "--batch", "64"]
    done = laptime("simulate", "zener4", "--cluster", "dgx-h100,aws-p4d", *words, "--json")
    found = [(each["cluster"], each["plan"]["strategy"]) for each in document(done)["simulations"]]
    assert found == [
        (cluster, plan) for cluster in ("dgx-h100", "aws-p4d") for plan in ("data", "sharded", "model")
    ]
    done = laptime("simulate", "zener4", "--cluster", "dgx-h100,aws-p4d", *words)
    assert done.exit_code == 0
    assert "fastest: " in done.stdout
    assert "cheapest: " not in done.stdout or "$" in done.stdout


def test_a_run_that_is_written_can_be_shown_reported_compared_exported_and_simulated(laptime):
    for name, plan in (("one", "data"), ("two", "sharded")):
        words = ["--workers", "8", "--batch", "64", "--parallel", plan, "--steps", "10", "--out", name]
        done = laptime("simulate", "zener4", "--cluster", "dgx-h100", *words)
        assert done.exit_code == 0, done.stderr
        assert f"The steps are in {name}" in done.stdout
    assert "simulated, not measured" in laptime("show", "one").stdout
    assert "one (simulated)" in laptime("compare", "one", "two").stdout
    assert laptime("export", "one", "--perfetto", "--out", "trace.json").exit_code == 0
    assert laptime("report", "one", "--out", "one.html").exit_code == 0
    assert laptime("report", "one", "two", "--out", "both.html").exit_code == 0
    again = document(laptime("simulate", "one", "--cluster", "dgx-h100", "--workers", "2", "--json"))
    assert again["simulations"][0]["batch"] == 64
    taken = laptime("simulate", "zener4", "--cluster", "dgx-h100", "--workers", "2", "--out", "one")
    assert taken.exit_code == 1


def test_explain_gives_every_constant_with_its_source_and_the_spans_of_the_slowest_rank(laptime):
    words = ["--cluster", "dgx-h100", "--parallel", "model,stages=2", "--workers", "2", "--batch", "64"]
    told = document(laptime("simulate", "zener4", *words, "--explain", "--json"))["explanation"]
    names = {constant["name"] for constant in told["constants"]}
    assert {"LinkHabits.between", "BUCKET_BYTES", "INPUT_SHARE", "RESTART_S", "dgx-h100: rails"} <= names
    assert {"infiniband-ndr: bandwidth_gbs", "h100-sxm: memory_bandwidth_gbs"} <= names
    assert all(constant["source"] for constant in told["constants"])
    assert sum(each["share"] for each in told["spans"]) == pytest.approx(1.0)
    text = laptime("simulate", "zener4", *words, "--explain").stdout
    assert "The slowest rank" in text
    assert "LinkHabits.between" in text


def test_storage_that_is_too_slow_is_the_largest_loss(laptime):
    words = ["--cluster", "dgx-h100", "--workers", "8", "--batch", "64", "--storage", "hdd"]
    done = laptime("simulate", "zener4", *words, "--sample-bytes", "110000")
    assert "for their data" in done.stdout.splitlines()[2]


def test_a_configuration_is_simulated_and_learns_on_the_virtual_clock(laptime, tmp_path):
    (tmp_path / "zener.toml").write_text(
        '[network]\nname = "zener4"\n[data]\nkind = "zener"\nsamples = 96\nvalidation_samples = 32\n'
        "[train]\nepochs = 2\nbatch = 8\n"
    )
    words = ["--cluster", "dgx-h100", "--workers", "2", "--parallel", "asynchronous", "--learn", "--json"]
    found = document(laptime("simulate", "zener.toml", *words))
    assert found["simulations"][0]["batch"] == 8
    assert len(found["learned"]["curve"]) == 2
    text = laptime("simulate", "zener.toml", *words[:-1])
    assert "of virtual time" in text.stdout


@pytest.mark.parametrize(
    ("train", "words", "said"),
    [
        ("accumulate = 4\n", [], "train.accumulate = 1"),
        ("", ["--batch", "16"], "the configuration says what is trained"),
        ("", ["--search"], "the configuration says what is trained"),
    ],
)
def test_what_is_learned_and_what_is_played_must_be_the_same(laptime, tmp_path, train, words, said):
    (tmp_path / "zener.toml").write_text(
        '[network]\nname = "zener4"\n[data]\nkind = "zener"\nsamples = 96\n'
        f"[train]\nepochs = 1\nbatch = 8\n{train}"
    )
    done = laptime("simulate", "zener.toml", "--cluster", "dgx-h100", "--workers", "2", "--learn", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_search_finds_the_fastest_and_the_cheapest_plan(laptime):
    words = ["--cluster", "aws-p4d", "--nodes", "1", "--samples", "100000", "--global-batch", "512"]
    found = document(laptime("simulate", "zener4", *words, "--search", "--within", "24", "--json"))
    assert set(found["picked"]) == {"fastest", "cheapest", "in time"}
    times = [each["training_s"] for each in found["plans"]]
    assert found["picked"]["fastest"]["training_s"] == pytest.approx(min(times), rel=0.2)
    assert {each["global_batch"] for each in found["plans"]} == {512}
    done = laptime("simulate", "zener4", *words, "--search", "--within", "0.0001")
    assert "fastest: " in done.stdout
    assert "surely trains within" in done.stdout


MINE = (
    'name = "mine"\ntitle = "mine"\ndevice = "h200"\nnodes = 2\ndevices_per_node = 4\ninside = "nvlink-4"\n'
)
OWN_LINK = 'between = "own"\n[[link]]\nname = "own"\ntitle = "own"\nbandwidth_gbs = -3\nlatency_us = 2\n'


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--cluster", "dgx-h1000"], "no cluster is called 'dgx-h1000'; nearest: dgx-h100"),
        (["--cluster", "nolink.toml"], "no link between them"),
        (["--cluster", "negative.toml"], "bandwidth_gbs is -3; give more than 0"),
        (["--cluster", "dgx-h100", "--parallel", "model,stages=16"], "16 stages of 4 layers"),
        (["--cluster", "dgx-h100", "--parallel", "data=3,stages=2", "--workers", "8"], "and 8 are given"),
        (["--cluster", "dgx-h100", "--parallel", "model,stage=2"], "did you mean 'stages'?"),
        (
            ["--cluster", "dgx-h100", "--parallel", "model,stages=2", "--workers", "2", "--batch", "7"],
            "7 samples do not divide into 4 micro-batches; give batch=8",
        ),
        (["--cluster", "dgx-h100", "--nodes", "1", "--workers", "64"], "the plan takes 64 workers"),
        (["--cluster", "dgx-h100", "--parallel", "data;"], "the plan is empty"),
        (["--cluster", "dgx-h100", "--sample-bytes", "1", "--storage", "floppy"], "no storage is called"),
    ],
)
def test_nonsense_is_told_in_one_line(laptime, tmp_path, words, told):
    (tmp_path / "nolink.toml").write_text(MINE)
    (tmp_path / "negative.toml").write_text(MINE + OWN_LINK)
    done = laptime("simulate", "zener4", *words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert told in done.stderr


def test_a_workload_without_a_backward_pass_is_refused_in_one_line(laptime, tmp_path):
    package.workload("zener4", batch=8, mode="inference").save(tmp_path / "forward.json")
    done = laptime("simulate", "forward.json", "--cluster", "dgx-h100")
    assert done.exit_code == 1
    assert "no backward pass" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--cluster", ","],
        ["--cluster", "dgx-h100", "--jitter", "-1"],
        ["--cluster", "dgx-h100", "--epochs", "3"],
        ["--cluster", "dgx-h100", "--nodes", "0"],
        ["--cluster", "dgx-h100", "--storage", "nvme"],
        ["--cluster", "dgx-h100", "--learn"],
        ["--cluster", "dgx-h100", "--within", "3"],
        ["--cluster", "dgx-h100", "--search", "--within", "3"],
        ["--cluster", "dgx-h100,aws-p4d", "--explain"],
        ["--cluster", "dgx-h100", "--parallel", "data;sharded", "--out", "x"],
        [],
    ],
)
def test_options_that_say_nothing_end_with_status_2(laptime, words):
    done = laptime("simulate", "zener4", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage: " in done.stderr


def test_workers_beyond_the_catalog_s_cluster_get_as_many_nodes_as_they_need(laptime):
    words = ["--cluster", "dgx-h100", "--workers", "64", "--batch", "64", "--json"]
    assert document(laptime("simulate", "zener4", *words))["simulations"][0]["nodes"] == 8


@pytest.mark.slow
def test_a_network_of_405_billion_parameters_is_planned_without_allocating_it(tmp_path):
    (tmp_path / "llama.py").write_text(LLAMA)
    words = ["--input", "int64:8192", "--precision", "bf16", "--optimizer", "adamw", "--batch", "32"]
    plan = ["--parallel", "hybrid,stages=16,feature=8,micro_batches=32", "--workers", "8192"]
    command = ["simulate", "llama.py:network", "--cluster", "meta-pod", *words, *plan, "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = subprocess.run(
        [ENTRY_POINT, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    (made,) = json.loads(done.stdout)["simulations"]
    assert made["workers"] == 8192
    assert made["step_s"] > 1
    assert peak_kib <= max(before, 2 * 2**20)  # of 1.6 TB that the parameters take
