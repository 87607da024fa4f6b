"""`laptime predict`: tables, JSON, saved workloads, and one line for what cannot be predicted."""

import json

import pytest


def test_a_network_of_the_zoo_is_predicted_layer_by_layer(laptime):
    done = laptime("predict", "zener4", "--batch", "64", "--samples", "1000", "--epochs", "10")
    assert done.exit_code == 0
    for word in ("zener4: a training step in fp32, predicted", "conv1", "bottleneck", "h200", "seconds"):
        assert word in done.stdout


def test_devices_and_batches_make_a_table(laptime):
    words = ["--device", "a100-sxm-80gb", "--device", "gtx-1080", "--batch", "8,16", "--precision", "bf16"]
    done = laptime("predict", "resnet18", *words, "--json")
    found = json.loads(done.stdout)["predictions"]
    assert [(one["device"], one["batch"]) for one in found] == [
        ("a100-sxm-80gb", 8),
        ("gtx-1080", 8),
        ("a100-sxm-80gb", 16),
        ("gtx-1080", 16),
    ]
    assert all(one["step_s"] > 0 and one["interval_s"][0] < one["step_s"] for one in found)
    assert found[0]["peak_memory_bytes"] < found[2]["peak_memory_bytes"]


def test_a_saved_workload_predicts_the_same(laptime, tmp_path):
    file = str(tmp_path / "zener4.json")
    first = laptime("predict", "zener4", "--save", file, "--json")
    again = laptime("predict", file, "--json")
    assert json.loads(again.stdout) == json.loads(first.stdout)


def test_forward_passes_alone_take_less(laptime):
    step, forward = (
        json.loads(laptime("predict", "alexnet", "--batch", "128", *words, "--json").stdout)["predictions"][0]
        for words in ([], ["--inference"])
    )
    assert forward["step_s"] < step["step_s"] / 2
    assert forward["peak_memory_bytes"] < 0.6 * step["peak_memory_bytes"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nonsense"], "no network is called"),
        (["zener4", "--device", "h2000"], "h200"),
        (["zener4", "--batch", "0"], "--batch"),
        (["zener4", "--batch", "many"], "--batch"),
        (["zener4", "--precision", "int4"], "precision"),
        (["zener4", "--price", "-1"], "--price"),
        (["zener4", "--samples", "0"], "--samples"),
        (["zener4", "--epochs", "3"], "--samples"),
        (["zener4", "--gpus", "1000"], "16 at most"),
        (["zener4", "--gpus", "4", "--device", "i7-3820"], "is a CPU"),
        (["zener4", "--optimizer", "magic"], "optimizer"),
        (["missing.json"], "cannot be read"),
        (["torch.nn:Identity"], "--input"),
        (["torch.nn:Identity", "--input", "3x"], "--input"),
    ],
)
def test_what_cannot_be_predicted_is_told_in_one_line(laptime, words, line):
    done = laptime("predict", *words)
    assert done.exit_code in (1, 2)
    assert line in done.stderr
    assert "Traceback" not in done.stderr


def test_several_gpus_take_longer_for_a_step_and_less_for_the_training(laptime):
    words = ["predict", "resnet50", "--batch", "64", "--samples", "100000", "--epochs", "1", "--json"]
    one, eight = (
        json.loads(laptime(*words, "--gpus", count).stdout)["predictions"][0] for count in ("1", "8")
    )
    assert eight["step_s"] > one["step_s"]
    assert one["training_s"] / 8 < eight["training_s"] < one["training_s"] / 4
    assert eight["communication_s"] == pytest.approx(eight["step_s"] - one["step_s"])
    assert "ask for one GPU" in laptime("predict", "resnet50", "--inference", "--gpus", "2").stderr


def test_several_devices_can_stand_in_one_word_and_each_once(laptime):
    done = laptime("predict", "zener4", "--device", "t4,h200", "--device", "t4", "--json")
    assert [one["device"] for one in json.loads(done.stdout)["predictions"]] == ["t4", "h200"]


def test_samples_alone_give_the_time_of_an_epoch(laptime):
    words = ["predict", "alexnet", "--batch", "100", "--samples", "1000"]
    assert "epoch, seconds" in laptime(*words).stdout
    (found,) = json.loads(laptime(*words, "--json").stdout)["predictions"]
    assert found["epoch_s"] == pytest.approx(10 * found["step_s"])


def test_forward_passes_have_no_columns_of_zeros(laptime):
    done = laptime("predict", "alexnet", "--inference").stdout
    for word in ("backward", "update", "allocated", "total"):
        assert word not in done


def test_memory_is_told_as_the_peak_and_as_what_is_reserved(laptime):
    assert "needs GiB" in laptime("predict", "alexnet").stdout
    assert "the allocator reserves about 1.23 times that" in words_of(laptime("predict", "alexnet").stdout)
    assert "needs GiB: what the allocator reserves" in laptime("predict", "alexnet", "--batch", "8,16").stdout


def words_of(text):
    return " ".join(text.split())


def test_long_steps_are_told_in_seconds(laptime, tmp_path):
    (tmp_path / "slow.toml").write_text(
        'name = "slow"\nkind = "gpu"\nmemory_bandwidth_gbs = 1\nfp32 = 0.01\n'
    )
    done = laptime("predict", "vgg11", "--device", "./slow.toml,h200", "--batch", "64").stdout
    assert "step s" in done
    assert "e+0" not in laptime("predict", "vgg11", "--device", "./slow.toml", "--batch", "64").stdout + done


def test_short_trainings_cost_more_than_nothing(laptime):
    done = laptime("predict", "zener4", "--batch", "64", "--samples", "6400", "--epochs", "1").stdout
    titles, row = done.splitlines()[2:4]
    names = titles.replace("step ms", "ms").replace("needs GiB", "GiB").replace("training, ", "").split()
    told = dict(zip(names, row.replace(" %", "").split(), strict=True))
    assert float(told["seconds"]) > 0
    assert float(told["$"]) > 0


@pytest.mark.parametrize("width", [60, 80])
def test_what_was_asked_for_is_left_out_last_and_what_is_gone_is_told(laptime, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    words = [
        "--device",
        "rtx-4090,a100-sxm-80gb",
        "--batch",
        "64,128",
        "--samples",
        "1281167",
        "--epochs",
        "90",
    ]
    done = laptime("predict", "resnet50", *words).stdout
    titles = done.splitlines()[2]
    assert "hours" in titles
    assert "$" in titles
    assert ("±" in titles) == ("nine in ten" in done)
    assert ("needs GiB" in titles) == ("needs GiB:" in done)
    if width == 60:
        assert "no room for ±, samples/s" in words_of(done)
    assert max(map(len, done.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize(
    "words", [["--gpus", "2"], ["--sample-bytes", "110000", "--storage", "hdd"]], ids=str
)
def test_an_explanation_stays_within_the_terminal_and_names_its_constants_in_full(
    laptime, monkeypatch, width, words
):
    monkeypatch.setenv("COLUMNS", str(width))
    done = laptime("predict", "alexnet", "--device", "a100-sxm-80gb", "--explain", *words).stdout
    assert max(map(len, done.splitlines())) <= width
    table = done.split("\nConstants\n")[1].split("\n\n")[0].splitlines()
    assert not [line for line in table if line.startswith("…")]
    assert "a100-sxm-80gb: fp32 " in done
    assert "nvlink-3: latency_us " in done


def test_a_saved_workload_that_is_none_says_which_command_saves_one(laptime, tmp_path):
    (tmp_path / "none.json").write_text("{}")
    assert "--save FILE" in laptime("predict", "none.json").stderr


def test_a_callable_that_raises_is_told_so_and_one_that_wants_arguments_too(laptime, tmp_path):
    (tmp_path / "raising_network.py").write_text(
        "def raises():\n    raise RuntimeError('no weights')\ndef wants(width):\n    pass\n"
    )
    done = laptime("predict", "raising_network:raises", "--input", "4")
    assert "no weights; mend it" in words_of(done.stderr)
    assert "takes no arguments" in laptime("predict", "raising_network:wants", "--input", "4").stderr


def test_a_gpu_that_is_not_calibrated_is_told_so(laptime, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    done = laptime("predict", "zener4", "--device", "cuda")
    assert done.exit_code == 1
    assert "GPU, if there is one, is not calibrated yet" in done.stderr


def test_a_loss_without_parameters_is_told_the_option(laptime):
    done = laptime("predict", "torch.nn:ReLU", "--input", "4")
    assert done.exit_code == 1
    assert "mode=" not in done.stderr


def test_columns_that_were_asked_for_go_one_by_one(laptime, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    words = ["--device", "a100-sxm-80gb,t4", "--gpus", "1,2", "--samples", "1281167", "--epochs", "90"]
    done = laptime("predict", "resnet18", *words, "--largest-batch").stdout
    titles = done.splitlines()[2]
    assert "hours" in titles
    assert "$" in titles
    assert "largest batch, samples/s there" in words_of(done)


def test_the_list_of_devices_ends_within_the_terminal(laptime, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    told = laptime("devices").stderr
    assert max(map(len, told.splitlines())) <= 60
    assert "No room for tf32" in words_of(told)


def test_a_language_model_in_a_file_is_predicted_from_its_configuration(laptime, tmp_path):
    (tmp_path / "language.py").write_text(
        "from transformers import GPT2Config, GPT2LMHeadModel\n\n"
        "def build():\n"
        "    sizes = {'n_positions': 24, 'n_embd': 16, 'n_layer': 1, 'n_head': 2}\n"
        "    return GPT2LMHeadModel(GPT2Config(vocab_size=99, **sizes))\n"
    )
    for target in ("language.py:build", "language:build"):
        found = json.loads(laptime("predict", target, "--batch", "2", "--json").stdout)
        [made] = found["predictions"]
        assert made["network"] == target
        assert any("24 token ids" in note for note in made["notes"])


def test_a_network_of_words_without_a_configuration_is_told_of_token_ids(laptime, tmp_path):
    (tmp_path / "words.py").write_text("from torch import nn\nbuild = lambda: nn.Embedding(10, 4)\n")
    done = laptime("predict", "words.py:build")
    assert done.exit_code == 2
    assert "--input" in done.stderr
    assert "int64:128" in words_of(done.stderr)
    assert "224" not in done.stderr
