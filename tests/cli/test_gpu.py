"""The verbs that meet a device, where there is one."""

import json

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_doctor_finds_the_gpu_and_times_its_marks(laptime):
    found = json.loads(laptime("doctor", "--json").stdout)
    assert found["devices"]["cuda:0"]["memory_bytes"] > 0
    assert [clock["device"] for clock in found["clocks"]] == ["cpu", "cuda:0"]


@pytest.mark.parametrize("inference", [[], ["--inference"]])
def test_profile_takes_the_gpu_by_itself(laptime, inference):
    done = laptime(
        "profile", "resnet50", "--batch", "8", "--steps", "16", "--json", "--out", "out", *inference
    )
    assert done.exit_code == 0, done.stderr
    assert "device cuda:0" in done.stderr
    found = json.loads(done.stdout)
    part = found["train"] or found["validation"]
    assert part["explained_share"] == pytest.approx(1.0, abs=0.02)
    assert any(layer["busy_s"] for layer in part["layers"])
