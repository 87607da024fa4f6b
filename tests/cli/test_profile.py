import json
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

from laptime.cli.options import samples
from laptime.cli.profile import traced_steps
from laptime.runs import load
from laptime.training.profiled_network import first_tensor, made_up_loss
from laptime.training.target import Sample

MODULE = """
import torch
from torch import nn

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50)

    def forward(self, ids):
        return {"logits": self.head(self.embedding(ids))}

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, left, right):
        return self.left(left) + self.right(right)

class Needs(nn.Module):
    def __init__(self, size):
        super().__init__()

instance = nn.Linear(4, 3)
number = 3
def build(): return nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 2))
def wrong(): return "a network"
def frozen(): return nn.Linear(4, 3).requires_grad_(False)
def weightless(): return nn.ReLU()
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(MODULE)
    monkeypatch.delitem(__import__("sys").modules, "shop", raising=False)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))


def profiled(laptime, *arguments):
    done = laptime("profile", *arguments, "--out", "out", "--batch", "4", "--steps", "8", "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_network_of_the_zoo_is_profiled_with_a_kernel_trace(laptime):
    found = profiled(laptime, "zener4")
    assert [one["layer"] for one in found["train"]["layers"] if one["module"]] == [
        "conv1",
        "conv2",
        "fc1",
        "fc2",
    ]
    assert found["train"]["steps"] == 8
    assert found["train"]["layers"][0]["busy_s"] is not None
    assert found["run"]["config"]["target"] == "zener4"


def test_tables_go_to_stdout_and_the_rest_to_stderr(laptime):
    done = laptime("profile", "zener4", "--batch", "2", "--steps", "4", "--device", "cpu", "--out", "out")
    assert done.exit_code == 0
    assert done.stdout.startswith("out\n")
    assert done.stderr == "zener4: input 1x32x32 (zener), batch 2, device cpu (as asked)\n"


@pytest.mark.parametrize(
    ("target", "inputs", "layers"),
    [
        ("shop:build", ["6"], ["0", "2"]),
        ("shop:instance", ["4"], ["(Linear)"]),
        ("shop:Tokens", ["int64:7"], ["embedding", "head"]),
        ("shop:Pair", ["4", "2"], ["left", "right"]),
    ],
)
def test_a_module_a_class_and_a_function_can_be_named(laptime, target, inputs, layers):
    found = profiled(laptime, target, *(word for one in inputs for word in ("--input", one)))
    assert [one["layer"] for one in found["train"]["layers"] if one["module"]] == layers


def test_inference_has_forward_passes_only(laptime):
    found = profiled(laptime, "zener4", "--inference")
    assert found["train"] is None
    assert found["validation"]["steps"] == 8
    assert all(one["backward"] is None for one in found["validation"]["layers"])


def test_the_division_into_layers_can_be_chosen(laptime):
    found = profiled(laptime, "zener4", "--layers", "0")
    assert [one["layer"] for one in found["train"]["layers"] if one["module"]] == ["(ZenerNet)"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zenner4"], "did you mean 'zener4'?"),
        (["nothing-like-it"], "known: alexnet"),
        (["shop:", "--input", "4"], "not module:callable"),
        (["nowhere:build", "--input", "4"], "nowhere cannot be imported"),
        (["shop:bild", "--input", "4"], "did you mean 'build'?"),
        (["shop:number", "--input", "4"], "is of type int"),
        (["shop:wrong", "--input", "4"], "returned a str"),
        (["shop:Needs", "--input", "4"], "missing 1 required positional argument"),
        (["shop:frozen", "--input", "4"], "--inference"),
        (["shop:weightless", "--input", "4"], "--inference"),
        (["shop:instance", "--input", "5"], "did not take 5 in batches of 16"),
        (["shop:Tokens", "--input", "int64:4@51"], "int64:LENGTH@IDS"),
        (["zener4", "--input", "3x32x32"], "did not take 3x32x32"),
        (["zener4", "--device", "abacus"], "this machine has cpu"),
        (["zener4", "--device", "cuda:99"], "there is no device 'cuda:99'"),
        (["zener4", "--device", "mps"], "cannot time 'mps'"),
        (["zener4", "--layers", "stem=conv9"], "no module 'conv9'"),
    ],
)
def test_what_cannot_be_profiled_is_told_in_one_line(laptime, arguments, said):
    done = laptime("profile", *arguments)
    assert done.exit_code == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("laptime: ")
    assert said in last
    assert len(done.stderr.splitlines()) <= 2  # what was chosen, and what went wrong


def test_a_directory_that_holds_a_run_is_not_overwritten(laptime, run):
    steps = len(load(run).steps)
    done = laptime("profile", "zener4", "--batch", "1", "--steps", "2", "--out", run)
    assert done.exit_code == 1
    assert "already holds a run" in done.stderr
    assert len(load(run).steps) == steps


@pytest.mark.parametrize(
    ("text", "sample"),
    [
        ("3x224x224", Sample(shape=(3, 224, 224))),
        ("10", Sample(shape=(10,))),
        ("int64:128", Sample(shape=(128,), dtype="int64")),
        ("128@50", Sample(shape=(128,), dtype="int64", ids=50)),
        ("BFloat16:2x2", Sample(shape=(2, 2), dtype="bfloat16")),
    ],
)
def test_the_notation_of_a_sample_reads_back(text, sample):
    assert samples([text, str(sample)]) == [sample, sample]


Output = namedtuple("Output", "main auxiliary")


@dataclass
class Answer:
    hidden: torch.Tensor
    logits: torch.Tensor


SCORES = torch.zeros(2, 3)
IDS = torch.zeros(2, dtype=torch.long)


@pytest.mark.parametrize(
    "output",
    [
        SCORES,
        (SCORES, 1),
        Output(SCORES, None),
        [IDS, SCORES],
        {"ids": IDS, "x": SCORES},
        Answer(torch.ones(2), SCORES),
    ],
)
def test_the_first_scores_are_found_in_any_output(output):
    assert first_tensor(output) is SCORES


@pytest.mark.parametrize("shape", [(), (4,), (4, 3), (4, 7, 3), (4, 3, 8, 8)])
def test_every_shape_of_output_has_a_loss(shape):
    scores = torch.randn(shape, requires_grad=True)
    loss = made_up_loss(scores)
    loss.backward()
    assert loss.dim() == 0
    assert scores.grad.shape == shape


def test_kernels_are_traced_late_with_steps_left_to_compare():
    assert traced_steps(20) == [12, 13]
    assert traced_steps(4) == [1, 2]
    assert traced_steps(3) == []
