"""A run with all that a report shows: traced steps, a compiled and a frozen layer, memory, a summary."""

from pathlib import Path

from tests.runs.samples import a_layer_time, a_step, start

from laptime.model import How, Layer, Phase, Stage
from laptime.runs import schema

STEPS = 12
TRACED = 10
LAYERS = (
    Layer(name="stem", path="stem", kind="Conv2d", parameters=100, trainable=False),
    Layer(name="block", path="block", kind="compiled Block", parameters=200, compiled=True),
    Layer(name="head", path="head", kind="Linear", parameters=1000),
)
SECONDS = {"stem": 0.001, "block": 0.004, "head": 0.002}
SUMMARY = {
    "steps": {"train": STEPS, "validation": 2},
    "instrumented_steps": STEPS,
    "overhead": {
        "ratio": 1.008,
        "low": 0.996,
        "high": 1.019,
        "how": "measured",
        "instrumented_steps": 180,
        "bare_steps": 20,
    },
    "kernels": {
        "steps": [TRACED],
        "dropped": 0,
        "detach": {"ratio": 1.2, "low": 1.1, "high": 1.3, "clean": False},
        "reconciliation": {"spans_apart": 0.02, "busy_apart": 0.1, "busy_share": 0.9},
    },
    "notes": ["2 of 12 training steps had no backward pass"],
}


def a_rich_run(path: Path) -> Path:
    """Twelve training steps of 10 ms, of which data_wait takes 20 %, and two validation steps."""
    writer = start(path, batch=64)
    writer.network(LAYERS)
    steps = [_training_step(number) for number in range(STEPS)]
    steps += [_validation_step(STEPS + number) for number in range(2)]
    writer.append("steps", schema.steps.table(steps))
    rows = [row for number in range(STEPS) for row in _layer_rows(number)]
    rows += [
        a_layer_time(STEPS + 1, name, stage=Stage.VALIDATION, seconds=seconds)
        for name, seconds in SECONDS.items()
    ]
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", SUMMARY)
    assert writer.problem is None
    return path


def _training_step(number: int):
    traced = {"idle_s": 0.001, "backward_s": 0.003} if number == TRACED else {"backward_s": 0.004}
    times = {
        "forward_s": 0.0025,
        "update_s": 0.001,
        "host_s": 0.0005,
        "data_wait_s": 0.002,
        "unexplained_s": 0.0,
    }
    return a_step(number, wall_s=0.01, top1=0.5, **times, **traced)


def _validation_step(number: int):
    seconds = {"forward_s": 0.007, "backward_s": 0.0, "update_s": 0.0, "host_s": 0.001, "unexplained_s": 0.0}
    return a_step(number, stage=Stage.VALIDATION, wall_s=0.008, top1=0.25 * (number - STEPS + 1), **seconds)


def _layer_rows(number: int):
    busy = {"busy_s": 0.0005, "idle_s": 0.0001, "memory_bytes": 3 * 2**20} if number == TRACED else {}
    for name, seconds in SECONDS.items():
        yield a_layer_time(number, name, Phase.FORWARD, seconds=seconds / 4, **busy)
        yield a_layer_time(number, name, Phase.BACKWARD, seconds=seconds / 2, **busy)
        if name != "stem":
            yield a_layer_time(number, name, Phase.UPDATE, seconds=seconds / 4, how=How.ALLOCATED, **busy)
