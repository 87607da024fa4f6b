"""An operation kind that is added at run time is found in workloads, predictions and `--json`."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import laptime
from laptime import hardware
from laptime.cli import app
from laptime.estimate.explain import explain
from laptime.estimate.predict import predict
from laptime.ops.registry import Growth, OperationKind, kinds, operation_kind, unregister


@pytest.fixture
def grid_sample():
    """Bilinear sampling: four neighbours for each output."""

    @operation_kind("grid_sample", "grid_sampler_2d grid_sampler_2d_backward")
    class GridSample(OperationKind):
        like = ("gather",)
        no_microbenchmark = "made for a test"

        def flops(self, sizes):
            return 8 * sizes["n"]

        def growth(self, operation, batch):
            return Growth(sizes=("n",))

    yield GridSample
    unregister("grid_sample")


class Warped(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)

    def forward(self, images):
        grid = F.affine_grid(torch.eye(2, 3).expand(len(images), 2, 3), images.shape, align_corners=False)
        return self.out(F.grid_sample(self.convolution(images), grid, align_corners=False).mean((2, 3)))


def read():
    return laptime.workload(Warped(), input=(3, 16, 16), batch=4)


def test_it_is_in_the_workload_in_the_explanation_and_in_json(grid_sample, tmp_path):
    asked = read()
    mine = [one for one in asked.operations if one.kind == "grid_sample"]
    assert {one.name for one in mine} == {"aten.grid_sampler_2d", "aten.grid_sampler_2d_backward"}
    assert all(one.covered and one.flops == 8 * one.sizes["n"] for one in mine)
    assert not any("grid_sampler" in name for name in asked.uncovered)

    device = hardware.device("h200")
    explained = {(one.kind, one.phase): one for one in explain(asked, device, predict(asked, device)).kinds}
    assert explained["grid_sample", "forward"].seconds > 0
    assert explained["grid_sample", "backward"].seconds > 0

    asked.save(tmp_path / "warped.json")
    arguments = ["predict", str(tmp_path / "warped.json"), "--device", "h200", "--explain", "--json"]
    answer = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    assert "grid_sample" in {one["kind"] for one in answer["explanation"]["kinds"]}
    assert not any("grid_sampler" in name for name in answer["predictions"][0]["uncovered"])


def test_without_it_the_operation_is_listed_as_uncovered():
    assert "grid_sample" not in kinds()
    asked = read()
    assert {one.kind for one in asked.operations if "grid_sampler" in one.name} == {"other"}
    assert "aten.grid_sampler_2d" in asked.uncovered


def test_an_operation_of_another_library_is_read_once_a_kind_claims_it():
    @torch.library.custom_op("laptime_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)
    doubled.register_autograd(lambda ctx, gradient: gradient * 2)

    class Doubling(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(8, 10)

        def forward(self, x):
            return doubled(self.out(x))

    operation_kind("doubled", "laptime_tests::doubled")(OperationKind)
    try:
        asked = laptime.workload(Doubling(), input=(8,), batch=4)
    finally:
        unregister("doubled")
    (mine,) = [one for one in asked.operations if one.kind == "doubled"]
    assert mine.name == "laptime_tests.doubled"
    assert mine.sizes == {"n": 40}
    assert mine.layer == "out"
