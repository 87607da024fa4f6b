"""What `laptime predict` answers beyond one step: the largest batch, choices, data flow, explanations."""

import json

import pytest
from tests.estimate.runs import a_run, a_workload

FLOW = ["--storage", "nvme", "--sample-bytes", "110000", "--decode-cores", "1"]
WHOLE = ["--samples", "100000", "--epochs", "10"]
TWO = ["--device", "t4", "--device", "quadro-p600"]


def asked(laptime, *words):
    done = laptime("predict", *words, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_the_largest_batch_is_a_column_with_its_throughput(laptime):
    done = laptime("predict", "resnet18", *TWO, "--largest-batch")
    assert "largest batch" in done.stdout
    assert "samples/s there" in done.stdout
    t4, p600 = asked(laptime, "resnet18", *TWO, "--largest-batch")["largest"]
    assert t4["batch"] > p600["batch"] > 32
    assert t4["prediction"]["batch"] == t4["batch"]
    assert t4["prediction"]["fits"]


def test_without_a_backward_pass_more_fits(laptime):
    words = ["vgg11", "--device", "quadro-p600", "--largest-batch"]
    (trained,), (used,) = (asked(laptime, *words, *more)["largest"] for more in ([], ["--inference"]))
    assert used["batch"] > 5 * trained["batch"]


def test_not_even_one_sample_is_said(laptime):
    done = laptime("predict", "vgg11", "--device", "quadro-p600", "--optimizer", "adam", "--largest-batch")
    assert "not even 1" in done.stdout


def test_a_device_without_its_memory_says_what_is_missing(laptime, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\nkind = "gpu"\nmemory_bandwidth_gbs = 100\nfp32 = 2\nhost_link = "pcie-3-x16"\n'
    )
    done = laptime("predict", "zener4", "--device", "./mine.toml", "--largest-batch")
    assert done.exit_code == 0
    assert "the memory of mine is not known" in done.stdout
    assert "memory_gib" in done.stdout


def test_the_cheapest_in_time_is_chosen_among_all_that_have_a_price(laptime):
    words = ["alexnet", "--batch", "64,128", "--gpus", "1,2", *WHOLE, "--within", "2"]
    found = asked(laptime, *words)
    (choice,) = found["choices"]
    good = [one for one in found["predictions"] if one["fits"] and one["training_s"] <= 7200]
    assert choice["chosen"]["dollars"] == min(one["dollars"] for one in good)
    assert choice["runner_up"]["device"] != choice["chosen"]["device"]
    assert {one["gpus"] for one in found["predictions"]} == {1, 2}
    done = laptime("predict", *words)
    assert "the cheapest within 2 h: " in done.stdout
    assert "more are left out" in done.stdout


def test_the_fastest_for_the_money_and_what_comes_closest(laptime):
    words = ["alexnet", *TWO, "--price", "1", *WHOLE]
    fastest = asked(laptime, *words, "--under", "1000")["choices"][0]["chosen"]
    assert fastest["device"] == "t4"
    nothing = asked(laptime, *words, "--within", "0.001")["choices"][0]
    assert nothing["chosen"] is None
    assert nothing["closest"]["device"] == "t4"


def test_a_choice_counts_the_hours_that_data_takes(laptime):
    words = ["alexnet", "--device", "h200", "--batch", "128", *WHOLE, "--within", "10000"]
    alone, fed = (asked(laptime, *words, *more)["choices"][0]["chosen"] for more in ([], FLOW))
    assert fed["training_s"] == pytest.approx(100_000 * 10 / 400, rel=0.01)  # Pillow's 400 images a second
    assert alone["training_s"] < fed["training_s"] / 5


def test_data_flow_names_the_stage_that_starves_the_others_and_the_remedy(laptime):
    words = ["alexnet", "--device", "h200", "--batch", "128", *WHOLE, *FLOW]
    done = laptime("predict", *words)
    for text in (
        "decode starves the others",
        "without data",
        "Pillow",
        "with decoding with simplejpeg",
        "epoch",
    ):
        assert text in done.stdout
    (flow,) = asked(laptime, *words)["data_flow"]
    assert flow["starving"] == "decode"
    assert flow["step_s"] == pytest.approx(128 / 400)
    assert flow["epoch_s"] == pytest.approx(782 * 128 / 400)


def test_with_data_flow_table_and_json_are_of_the_step_that_waits(laptime):
    words = [
        "resnet50",
        "--batch",
        "64",
        "--samples",
        "1281167",
        "--epochs",
        "90",
        *FLOW[2:4],
        "--storage",
        "hdd",
    ]
    found = asked(laptime, *words, "--decode-cores", "2")
    (one,), (flow,) = found["predictions"], found["data_flow"]
    assert one["step_s"] == flow["step_s"] == pytest.approx(64 / 800)
    assert one["samples_per_s"] == flow["samples_per_s"] == pytest.approx(800)
    assert one["training_s"] / 3600 == pytest.approx(flow["hours"])
    assert (one["dollars"], one["kilowatt_hours"]) == (flow["dollars"], flow["kilowatt_hours"])
    assert one["bottleneck"].startswith("decode")
    assert flow["stages"]["device"] < one["step_s"]
    done = laptime("predict", *words, "--decode-cores", "2").stdout
    row = done.splitlines()[3].split()
    for cell in ("80", "800", f"{flow['hours']:.2f}", f"{flow['dollars']:.2f}", "decode"):
        assert cell in row
    assert "memory traffic" not in done


def test_gpus_that_share_samples_do_not_count_them_twice(laptime):
    words = ["alexnet", "--gpus", "2", "--same-samples", "--batch", "100"]
    (one,) = asked(laptime, *words)["predictions"]
    assert one["samples_per_s"] == pytest.approx(100 / one["step_s"])


def test_rows_that_qualify_are_marked_and_the_best_come_first(laptime):
    words = ["alexnet", "--batch", "64,128", *WHOLE, "--within", "2", "--under", "0.017"]
    (choice,) = (found := asked(laptime, *words))["choices"]
    good = [
        one
        for one in found["predictions"]
        if one["fits"] and one["training_s"] <= 7200 and one["dollars"] <= 0.017
    ]
    assert 0 < len(good) < 12
    assert choice["wanted"] == "the cheapest within 2 h and under $0.017"
    assert choice["chosen"]["dollars"] == min(one["dollars"] for one in good)
    rows = laptime("predict", *words).stdout.splitlines()[3:15]
    assert [" * " in row for row in rows] == [True] * len(good) + [False] * (12 - len(good))
    assert rows[0].startswith(choice["chosen"]["device"])


def test_every_remedy_is_a_switch(laptime):
    slow = ["--remote", "1GbE", "--storage", "hdd", "--sample-bytes", "110000", "--host-memory", "pageable"]
    slow += ["--no-prefetch", "--gpus", "2", "--gpus-per-link", "2"]
    (flow,) = asked(laptime, "alexnet", "--batch", "128", *slow)["data_flow"]
    offered = " ".join(name for name, _ in flow["remedies"])
    for word in ("prefetching", "kept at the node", "RAID 0", "shared memory", "pinned memory", "GPU-to-GPU"):
        assert word in offered
    fast = ["--storage", "5xnvme", "--sample-bytes", "110000", "--host-memory", "pinned", "--gpus", "2"]
    (better,) = asked(laptime, "alexnet", "--batch", "128", *fast, "--same-samples", "--direct")["data_flow"]
    assert better["starving"] == "device"
    assert better["remedies"] == []


def test_an_explanation_lists_constants_sources_and_kinds(laptime):
    done = laptime("predict", "alexnet", "--device", "a100-sxm-80gb", "--gpus", "2", "--explain")
    for text in (
        "HOST_OPERATION",
        "Constants.bound[memory]",
        "Habits.link_share",
        "of roofline",
        "convolution_backward",
        "[1]",
    ):
        assert text in done.stdout
    found = asked(laptime, "alexnet", "--device", "a100-sxm-80gb", "--explain")["explanation"]
    assert all(one["source"] for one in found["constants"])
    assert sum(one["share"] for one in found["kinds"]) == pytest.approx(1)


def test_a_choice_can_be_explained(laptime):
    words = ["zener4", *TWO, "--price", "1", *WHOLE, "--within", "100", "--explain"]
    found = asked(laptime, *words)
    chosen = found["choices"][0]["chosen"]["device"]
    assert any(one["name"].startswith(f"{chosen}: ") for one in found["explanation"]["constants"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["zener4", "--within", "3"], "--samples and --epochs"),
        (["zener4", "--under", "3", "--samples", "10"], "--samples and --epochs"),
        (["zener4", "--within", "0", *WHOLE], "above 0"),
        (["zener4", "--under", "-2", *WHOLE], "above 0"),
        (["zener4", "--gpus", "0"], "--gpus"),
        (["zener4", "--gpus", "1,x"], "--gpus"),
        (["zener4", "--storage", "nvme"], "--sample-bytes"),
        (["zener4", "--storage", "tape", "--sample-bytes", "1"], "no storage is called 'tape'"),
        (["zener4", "--storage", "floppy", "--sample-bytes", "1"], "`laptime devices --links` lists"),
        (["zener4", "--remote", "wet-string", "--sample-bytes", "1"], "`laptime devices --links` lists"),
        (["zener4", "--storage", "0xnvme", "--sample-bytes", "1"], "no drives"),
        (["zener4", "--sample-bytes", "-1"], "--sample-bytes"),
        (["zener4", "--decode-cores", "0"], "--decode-cores"),
        (["zener4", "--decode-rate", "0"], "--decode-rate"),
        (["zener4", "--link", "rope"], "no link is called 'rope'"),
        (["zener4", "--host-memory", "swapped"], "pinned"),
        (["zener4", "--gpus-per-link", "4"], "--gpus-per-link"),
        (["zener4", "--direct"], "--same-samples"),
        (["zener4", "--same-samples", *WHOLE], "one step"),
        (["zener4", "--explain", "--batch", "1,2"], "one prediction"),
    ],
)
def test_nonsense_is_told_in_one_line(laptime, words, line):
    done = laptime("predict", *words)
    assert done.exit_code in (1, 2)
    assert line in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [["--precision", "bf16"], ["--input", "3x8x8"], ["--inference"]],
    ids=" ".join,
)
def test_a_saved_workload_is_what_it_is(laptime, tmp_path, words):
    file = str(tmp_path / "zener4.json")
    laptime("predict", "zener4", "--save", file)
    done = laptime("predict", file, *words)
    assert done.exit_code == 2
    assert words[0] in done.stderr
    assert "network" in done.stderr


def test_a_saved_workload_has_other_batches_and_a_largest_one(laptime, tmp_path):
    file = str(tmp_path / "resnet18.json")
    words = ["--device", "quadro-p600", "--batch", "32,64", "--largest-batch"]
    read = asked(laptime, "resnet18", *words)
    laptime("predict", "resnet18", "--save", file)
    saved = asked(laptime, file, *words)
    for one, other in zip(read["predictions"], saved["predictions"], strict=True):
        assert one["step_s"] == pytest.approx(other["step_s"], rel=0.05)
    assert saved["largest"][0]["batch"] == pytest.approx(read["largest"][0]["batch"], rel=0.15)


def test_a_run_has_a_largest_batch_corrected_by_the_run(laptime, tmp_path):
    (found,) = asked(laptime, a_run(tmp_path / "run").path, "--device", "t4", "--largest-batch")["largest"]
    assert found["batch"] > a_workload().batch
    assert "refined by run" in found["prediction"]["basis"]


def test_a_run_is_predicted_at_its_own_batch_and_at_others(laptime, tmp_path):
    run = a_run(tmp_path / "run")
    own, other = (
        asked(laptime, run.path, "--device", "h200", *words)["predictions"]
        for words in ([], ["--batch", "16,64"])
    )
    assert own[0]["batch"] == a_workload().batch
    assert f"refined by run {run.id}" in own[0]["basis"]
    assert [one["batch"] for one in other] == [16, 64]
    assert "refined by run" in laptime("predict", run.path / "run.json").stdout


def test_a_run_has_a_data_flow_an_explanation_and_choices_too(laptime, tmp_path):
    run = a_run(tmp_path / "run")
    found = asked(laptime, run.path, "--device", "h200", *FLOW, *WHOLE, "--within", "1000", "--explain")
    assert found["data_flow"][0]["starving"] == "decode"
    assert found["choices"][0]["chosen"]["device"] == "h200"
    assert found["explanation"]["kinds"]


@pytest.mark.parametrize("words", [["--optimizer", "adam"], ["--inference", "--explain"]])
def test_what_a_run_cannot_say_is_told_in_one_line(laptime, tmp_path, words):
    done = laptime("predict", a_run(tmp_path / "run").path, *words)
    assert done.exit_code == 2
    assert "network instead" in " ".join(done.stderr.split())


def test_a_network_that_cannot_be_read_ends_with_one_line(laptime, tmp_path):
    (tmp_path / "unreadable_network.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(4, 4)\n"
        "    def forward(self, x):\n"
        "        return super().forward(x)[x > 0]\n"
    )
    done = laptime("predict", "unreadable_network:Net", "--input", "4")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("laptime: aten.nonzero in Net (Net.forward, unreadable_network.py:6)")
