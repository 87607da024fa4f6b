"""Runs whose layers took what a test says, with the workload of a small network."""

from functools import cache
from pathlib import Path

import torch
from torch import nn

import laptime
from laptime.estimate import device_speed
from laptime.estimate.predict import predict
from laptime.model import How, Layer, LayerTime, Phase, Stage, Step
from laptime.runs import RunWriter, schema

H200 = {"device": {"type": "cuda", "name": "NVIDIA H200"}}


@cache
def a_workload(batch=64):
    """Two wide layers, so that the device is what is waited for."""
    with torch.device("meta"):
        network = nn.Sequential(nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 8192))
        example = torch.empty(batch, 8192)
    return laptime.workload(network, example=example, name="wide")


def predicted(workload, device="h200"):
    """The prediction that a run of it is compared with."""
    return predict(workload, device_speed.device(device))


def a_run(
    path: Path,
    *,
    times=lambda layer, phase, seconds: seconds,
    rest_s=0.0,
    waiting_s=0.0,
    steps=6,
    environment=H200,
    workload=None,
    stage=Stage.TRAIN,
    config=None,
    status="finished",
    jitter=lambda layer, number: 1.0,
    accumulate=1,
):
    """A run of `a_workload` whose layers took what `times` makes of their predictions for an H200."""
    asked = workload or a_workload()
    made = predicted(asked)
    writer = RunWriter.create(path, config=config or {}, environment=environment)
    writer.network([Layer(name=name, path=name, kind="Linear") for name in asked.layers])
    rows, books = [], []
    for number in range(steps):
        whole = 0.0
        for one in made.layers():
            each = zip(Phase, (one.forward_s, one.backward_s, one.update_s), strict=True)
            for phase, seconds in each:
                spent = times(one.layer, phase, seconds) * jitter(one.layer, number)
                if phase is Phase.UPDATE and number % accumulate:
                    continue
                if spent and (stage is Stage.TRAIN or phase is Phase.FORWARD):
                    whole += spent
                    rows.append(
                        LayerTime(
                            stage=stage,
                            step=number,
                            layer=one.layer,
                            phase=phase,
                            start_s=0.0,
                            seconds=spent,
                            how=How.MEASURED,
                        )
                    )
        books.append(
            Step(
                stage=stage,
                step=number,
                optimizer_step=number // accumulate,
                start_s=float(number),
                wall_s=whole + rest_s + waiting_s,
                forward_s=whole,
                host_s=rest_s,
                data_wait_s=waiting_s,
                samples=asked.batch,
                instrumented=True,
            )
        )
    if steps:
        writer.append("layers", schema.layers.table(rows))
        writer.append("steps", schema.steps.table(books))
    writer.workload(asked.document)
    writer.close(status, {})
    assert writer.problem is None
    return laptime.load(path)
