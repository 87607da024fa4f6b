"""Runs to draw: one with all there can be, hostile ones, and every odd one that a reader may come with."""

import math

from tests.runs.samples import a_kernel, a_layer_time, a_step

from laptime.model import How, Layer, Phase, Stage
from laptime.runs import RunWriter, schema
from laptime.runs.importers import collect
from laptime.views.run_tables import BY_TIME, in_order

NESTED = (
    ("stem", "stem.conv", 0.002),
    ("blocks.0", "blocks.0.attention", 0.004),
    ("blocks.0.mlp", "blocks.0.mlp", 0.006),
    ("blocks.1", "blocks.1.attention", 0.003),
    ("head", "head", 0.001),
)
STEPS = 40
TRACED = 31
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "<b>bold</b>",
    "a&amp;b",
    "%{x}",
    "javascript:alert(1)",
    "naïve 层 🏎",
    '" onmouseover="alert(1)',
    "{{ 7 * 7 }}",
    "long " + "x" * 295,
)
ENVIRONMENT = {"python": "3.11", "torch": "2.13.0", "device": {"name": "a made-up CPU"}}


def write(path, *, layers=NESTED, steps=STEPS, ranks=1, validation=4, status="finished", **more):
    """Training steps of 40 ms, the 20th of 400 ms, one traced, then validation; `more` goes to each step."""
    writers = [
        RunWriter.create(path, config=more.pop("config", {"batch": 64}), environment=ENVIRONMENT, rank=rank)
        for rank in range(ranks)
    ]
    writers[0].network([Layer(name=n, path=p, kind="Linear", parameters=100) for n, p, _ in layers])
    for writer in writers:
        fill(writer, layers, range(steps), **more)
        if validation:
            _validate(writer, layers, range(steps, steps + validation))
    for writer in reversed(writers):
        writer.close(status, {"notes": []})
        assert writer.problem is None
    return path


def fill(writer, layers, numbers, **more):
    """Steps of 40 ms with their layers; `loss` may be a function of the step's number."""
    steps, rows, kernels = [], [], []
    for number in numbers:
        traced = number == TRACED
        given = {name: value(number) if callable(value) else value for name, value in more.items()}
        steps.append(_step(number, writer.rank, traced=traced, **given))
        for row in _rows(number, layers, writer.rank, traced=traced) if steps[-1].instrumented else ():
            rows.append(row)
            if traced:
                at = {"start_s": row.start_s, "seconds": row.seconds / 2, "rank": writer.rank}
                kernels.append(a_kernel(number, row.layer, name=f"gemm<{row.layer}>", **at))
    if steps:
        writer.append("steps", schema.steps.table(steps))
    if rows:
        writer.append("layers", schema.layers.table(rows))
    if kernels:
        writer.append("kernels", schema.kernels.table(kernels))
    writer.flush()


def _step(number, rank, *, traced=False, **given):
    wall = 0.4 if number == 20 else 0.04
    parts = {"forward_s": 0.010, "backward_s": 0.016, "update_s": 0.004, "data_wait_s": wall - 0.032}
    parts |= {"host_s": 0.001 if traced else 0.002, "unexplained_s": 0.0} | (
        {"idle_s": 0.001} if traced else {}
    )
    at = {"start_s": _start(number), "wall_s": wall, "rank": rank, "device": f"cuda:{rank}"}
    values = {"epoch": number // 20, "top1": min(0.9, number / 50), "instrumented": number % 5 != 4}
    return a_step(number, **at, **parts, **values | given)


def _start(number):
    return number * 0.04 + (0.36 if number > 20 else 0.0)


def _rows(number, layers, rank, *, traced=False):
    extra = {"busy_s": 0.0004, "idle_s": 0.0001, "memory_bytes": (number + 1) * 2**20} if traced else {}
    at = _start(number) + 0.001
    for phase, share in ((Phase.FORWARD, 0.3), (Phase.BACKWARD, 0.5), (Phase.UPDATE, 0.2)):
        for name, _, seconds in layers:
            how = How.ALLOCATED if phase is Phase.UPDATE else How.MEASURED
            taken = {"start_s": at, "seconds": seconds * share, "how": how, "rank": rank}
            yield a_layer_time(number, name, phase, **taken, **extra)
            at += seconds * share


def _validate(writer, layers, numbers):
    parts = {"forward_s": 0.019, "host_s": 0.001, "unexplained_s": 0.0, "backward_s": 0.0, "update_s": 0.0}
    where = {"stage": Stage.VALIDATION, "rank": writer.rank, "device": f"cuda:{writer.rank}", "wall_s": 0.02}
    values = {"loss": 0.5, "top1": 0.75, "epoch": 1}
    rows = [a_step(number, start_s=_start(number), **where, **parts, **values) for number in numbers]
    writer.append("steps", schema.steps.table(rows))
    times = [
        a_layer_time(number, name, stage=Stage.VALIDATION, seconds=seconds, rank=writer.rank)
        for number in numbers
        for name, _, seconds in layers
    ]
    if times:
        writer.append("layers", schema.layers.table(times))


def everything(path):
    """Two ranks, nested modules, kernels, memory, validation, a slow step, bare steps."""
    return write(path, ranks=2)


def hostile(path):
    """Layers, modules, kernels, settings and the folder called what would run, if it were not text."""
    layers = tuple((name, name, 0.001 * (place + 1)) for place, name in enumerate(HOSTILE))
    settings = {**{name: name for name in HOSTILE}, "network": {"<i>inner</i>": HOSTILE[0]}}
    return write(path / "<img src=x onerror=alert(1)>", layers=layers, config=settings)


def failed(path):
    return write(path, steps=7, validation=0, status="failed")


def interrupted(path):
    return write(path, steps=7, validation=0, status="interrupted")


def one_step(path):
    return write(path, steps=1, validation=0)


def no_layers(path):
    return write(path, layers=())


def no_steps(path):
    return write(path, steps=0, validation=0)


def lost_losses(path):
    """NaN from the tenth step on, infinite at the ninth."""
    return write(path, loss=lambda n: math.nan if n >= 10 else math.inf if n == 9 else 1 / (n + 1))


def validation_only(path):
    return write(path, steps=0)


def no_losses(path):
    return write(path, validation=0, loss=None, top1=None)


def of_a_log(path):
    log = path.with_suffix(".log")
    log.write_text("".join(f"step {n} loss={2 / (n + 1)} {0.1 + n % 3 / 100} sec/batch\n" for n in range(30)))
    collect(log, path)
    return path


ODD = {
    failed: "the run failed: these are the steps before that",
    interrupted: "the run was interrupted: these are the steps that reached the disk",
    one_step: "too few",
    no_layers: "No layer times were recorded, so nothing can be said of layers.",
    no_steps: "No step was recorded.",
    lost_losses: "steps have a loss that is no number (NaN or infinite)",
    validation_only: "A validation step",
    no_losses: "No loss was logged: recording.log(loss=loss) keeps it, and never waits for it.",
    of_a_log: "A log holds times, and no accounts.",
}
"""Runs that are not as they should be, and the sentence that a reader looks for."""


def by_time(layers):
    """The names of the layers, the largest first, as the pages give them to the figures."""
    return [layer.layer for layer in in_order(layers, BY_TIME)]
