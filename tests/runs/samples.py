"""Rows and runs for the tests of `store`."""

from pathlib import Path

from laptime.model import How, KernelTime, Layer, LayerTime, Phase, Stage, Step
from laptime.runs import RunWriter, schema

HOSTILE = [
    "conv,1",
    'say "hi"',
    "two\nlines",
    "carriage\rreturn\r\n",
    "<script>alert(1)</script>&amp;",
    "=HYPERLINK(1)",
    "+1",
    "@SUM(A1)",
    "'quoted'",
    "naïve 层 🏎",
    "back\\slash",
    "tab\there",
    "{}[]*?",
    " padded ",
    "null",
    "\u2028separator",
]


def a_step(number: int, **fields: object) -> Step:
    values: dict[str, object] = {
        "step": number,
        "optimizer_step": number,
        "start_s": number * 0.1,
        "wall_s": 0.1,
        "forward_s": 0.03,
        "backward_s": 0.05,
        "update_s": 0.01,
        "host_s": 0.008,
        "unexplained_s": 0.002,
        "samples": 64,
        "loss": 1.0 / (number + 1),
        "instrumented": True,
    }
    return Step(**{**values, **fields})  # type: ignore[arg-type]


def a_layer_time(number: int, layer: str, phase: Phase = Phase.FORWARD, **fields: object) -> LayerTime:
    values: dict[str, object] = {"start_s": number * 0.1, "seconds": 0.01}
    return LayerTime(step=number, layer=layer, phase=phase, **{**values, **fields})  # type: ignore[arg-type]


def a_kernel(number: int, layer: str, **fields: object) -> KernelTime:
    values: dict[str, object] = {"phase": "forward", "kind": "kernel", "name": "gemm", "stream": 7}
    values |= {"start_s": number * 0.1, "seconds": 0.001}
    return KernelTime(step=number, layer=layer, **{**values, **fields})  # type: ignore[arg-type]


def a_network(names: list[str]) -> list[Layer]:
    return [
        Layer(name=name, path=f"net.{i}", kind="Conv2d", parameters=100 * (i + 1))
        for i, name in enumerate(names)
    ]


def start(path: Path, rank: int = 0, **config: object) -> RunWriter:
    return RunWriter.create(path, config=config, environment={"python": "3.11"}, rank=rank)


def add_steps(writer: RunWriter, numbers: range, **fields: object) -> None:
    rows = [a_step(number, rank=writer.rank, **fields) for number in numbers]
    writer.append("steps", schema.steps.table(rows))


def a_finished_run(path: Path, names: list[str], steps: int = 8) -> Path:
    """A closed run: training steps and a validation step, every layer in all three phases, some kernels."""
    writer = start(path, batch=64)
    writer.network(a_network(names))
    add_steps(writer, range(steps))
    writer.append("steps", schema.steps.table([a_step(0, stage=Stage.VALIDATION, start_s=steps * 0.1)]))
    rows = []
    for number in range(steps):
        at = number * 0.1
        for phase, how in zip(Phase, (How.MEASURED, How.MEASURED, How.ALLOCATED), strict=True):
            for name in [*names, "(loss)", "(other)"]:
                rows.append(a_layer_time(number, name, phase, start_s=at, seconds=0.001, how=how))
                at += 0.001
    writer.append("layers", schema.layers.table(rows))
    writer.append("kernels", schema.kernels.table([a_kernel(steps - 1, name) for name in names]))
    writer.close("finished", {"steps": {"train": steps}})
    assert writer.problem is None
    return path
