"""Runs to compare: their step and layer times chosen, with a little noise that is always the same."""

import numpy as np
from tests.runs.samples import a_layer_time, a_step, start

from laptime.model import Layer, Phase, Stage
from laptime.runs import schema


def a_run(
    path,
    *,
    scale=1.0,
    layers=("conv", "fc"),
    batch=64,
    steps=40,
    seed=0,
    ranks=1,
    loss=1.0,
    summary=None,
    **config,
):
    """Steps of 10 ms × scale: forward 4, backward 5, update 1, of which each layer has its share."""
    writer = start(path, **config)
    writer.network([Layer(name=name, path=name, kind="Linear") for name in layers])
    noise = 1 + 0.005 * np.random.default_rng(seed).standard_normal(steps)
    rows, times = [], []
    for rank in range(ranks):
        for number in range(steps):
            unit = 0.01 * scale * float(noise[number])
            seconds = {"forward_s": 0.4 * unit, "backward_s": 0.5 * unit, "update_s": 0.1 * unit}
            fixed = {"host_s": 0.0, "unexplained_s": 0.0, "samples": batch, "loss": loss, "top1": 0.5}
            rows.append(a_step(number, wall_s=unit, rank=rank, **seconds, **fixed))
            for name in layers:
                for phase, share in zip(Phase, (0.4, 0.5, 0.1), strict=True):
                    slower = 1 + 0.5 * rank
                    length = share * unit * slower / len(layers)
                    times.append(a_layer_time(number, name, phase, seconds=length, rank=rank))
    held_out = {"forward_s": 0.005, "backward_s": 0.0, "update_s": 0.0, "host_s": 0.0, "unexplained_s": 0.0}
    rows += [
        a_step(number, stage=Stage.VALIDATION, wall_s=0.005, loss=2 * loss, **held_out) for number in range(6)
    ]
    writer.append("steps", schema.steps.table(rows))
    if layers:
        writer.append("layers", schema.layers.table(times))
    writer.close("finished", summary or {})
    assert writer.problem is None
    return path
