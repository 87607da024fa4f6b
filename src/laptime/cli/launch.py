"""`laptime launch`: a training on machines that are elsewhere, or that have yet to be rented."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from laptime import __version__
from laptime.cli.options import wrong
from laptime.cli.outcome import Outcome, quiet_torch, say, verb, waiting
from laptime.cli.train import parallel_settings, train
from laptime.errors import TrainingError
from laptime.files.text import one_line

if TYPE_CHECKING:
    from laptime.training.launch.cloud import CloudTask, CloudTraining, Machines

_CLOUD_HELP = "Rent machines there, by SkyPilot: writes a task and a script, and rents nothing yet."
_GPU_HELP = "As SkyPilot or `laptime devices` names it, such as H100; without it, machines with CPUs alone."
_IDLE_HELP = "Minutes after which idle machines stop by themselves."
_REQUIREMENTS_HELP = "What your network needs besides torch, as pip reads it."
_TASK_HELP = "The folder that is written; by default NAME.sky."
_GO_HELP = "Run the script now: rent, train, bring the run back."
# What of `train` makes sense on a rented machine; more workers than one replace the number of its GPUs.
_FORWARDED = ("config", "settings", "repeat", "sweep", "profile", "workers", "parallel", "out", "every_layer")


def _with_options_of(command: Callable[..., None]) -> Callable[[Callable[..., Outcome]], Any]:
    """Put a verb's arguments before those of a function that takes them as `**options`."""

    def extended(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
        theirs, own = inspect.signature(command), inspect.signature(function, eval_str=True)
        parameters = [each for name, each in theirs.parameters.items() if name != "as_json"]
        parameters += [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {each.name: each.annotation for each in parameters}
        return function

    return extended


@verb
@_with_options_of(train)
def launch(
    cloud: Annotated[
        Literal["aws", "gcp", "azure", "lambda", "runpod", "kubernetes", "any"] | None,
        Option(help=_CLOUD_HELP),
    ] = None,
    gpu: Annotated[str | None, Option(metavar="NAME", help=_GPU_HELP)] = None,
    gpus: Annotated[int | None, Option(min=1, help="GPUs of each machine; by default 1.")] = None,
    nodes: Annotated[int | None, Option(min=1, help="Machines that train one run; by default 1.")] = None,
    cpus: Annotated[int | None, Option(min=1, help="Cores of each machine, at least.")] = None,
    memory: Annotated[int | None, Option(min=1, help="GiB of each machine, at least.")] = None,
    disk: Annotated[int | None, Option(min=1, help="GiB of each machine.")] = None,
    spot: Annotated[bool, Option("--spot", help="Cheaper machines that can be taken away.")] = False,
    region: Annotated[str | None, Option(metavar="NAME", help="Of the cloud, such as us-east-1.")] = None,
    idle_minutes: Annotated[int | None, Option(min=1, help=f"{_IDLE_HELP} By default 60.")] = None,
    requirements: Annotated[Path | None, Option(metavar="FILE", help=_REQUIREMENTS_HELP)] = None,
    task: Annotated[Path | None, Option(metavar="FOLDER", help=_TASK_HELP)] = None,
    go: Annotated[bool, Option("--go", help=_GO_HELP)] = False,
    **training: Any,
) -> Outcome:
    """Train elsewhere: on hosts (--hosts), on a Ray cluster (--ray), or on machines to rent (--cloud).

    With --hosts or --ray it is `laptime train` with that option.
    """
    rented = {
        "gpu": gpu,
        "gpus": gpus,
        "nodes": nodes,
        "cpus": cpus,
        "memory": memory,
        "disk": disk,
        "spot": spot,
        "region": region,
        "idle_minutes": idle_minutes,
        "requirements": requirements,
        "task": task,
        "go": go,
    }
    if cloud is None:
        if given := next((name for name, value in rented.items() if value), None):
            wrong(_flag(given), "it is for machines to rent; give --cloud, too")
        if training["hosts"] is None and training.get("ray") is None:
            wrong("--hosts / --ray / --cloud", "say where: one of them")
        outcome: Outcome = inspect.unwrap(train)(**training)
        return outcome
    usual = inspect.signature(train).parameters
    for name, value in training.items():
        if name not in _FORWARDED and value != usual[name].default:
            wrong(_flag(name), "it does not go with --cloud")
    if gpus and gpu is None:
        wrong("--gpus", "name the GPU, too: --gpu H100")
    if region is not None and not re.fullmatch(r"[\w.-]+", region):
        wrong("--region", f"{one_line(region)} is no region; write it as the cloud does, such as us-east-1")
    if gpu is not None and ":" in gpu:
        wrong("--gpu", "give the number apart: --gpu H100 --gpus 8")
    quiet_torch()  # a configuration's network is looked up with torch
    with waiting("reading the configuration"):
        machines = _machines(cloud, rented)
        asked = _training(training, machines, requirements)
        from laptime.training.launch.cloud import write_task

        written = write_task(task or Path(f"{asked.resolved.path.stem}.sky"), machines, asked)
    if go:
        return _gone(written, machines, asked)
    return _written(written, machines, asked)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _machines(cloud: str, rented: dict[str, Any]) -> Machines:
    from laptime.training.launch.cloud import Machines
    from laptime.training.launch.rented_gpus import rented_gpu

    gpu = None if rented["gpu"] is None else rented_gpu(rented["gpu"], cloud)
    return Machines(
        cloud=cloud,
        region=rented["region"],
        gpu=gpu,
        gpus=0 if gpu is None else rented["gpus"] or 1,
        nodes=rented["nodes"] or 1,
        cpus=rented["cpus"],
        memory_gib=rented["memory"],
        disk_gib=rented["disk"],
        spot=rented["spot"],
        idle_minutes=rented["idle_minutes"] or 60,
    )


def _training(given: dict[str, Any], machines: Machines, requirements: Path | None) -> CloudTraining:
    """What is trained; a configuration that cannot be is refused before anything is rented."""
    from laptime.runs.directory import default_out
    from laptime.training.config.reading import read_config
    from laptime.training.launch.cloud import CloudTraining
    from laptime.training.launch.experiment import trials
    from laptime.training.strategies import STRATEGIES

    settings = [*(given["settings"] or []), *parallel_settings(given["parallel"])]
    settings += [] if given["profile"] else ["record.profile=false"]
    sweeps: list[str] = given["sweep"] or []
    resolved = read_config(given["config"], settings)
    config, repeat = resolved.config, given["repeat"] or resolved.repeat or 1
    folds = config.validation.folds
    several = repeat > 1 or bool(sweeps) or bool(folds)
    out = given["out"] or default_out(config.name or ("experiment" if several else "train"))
    points = trials(out, repeat=repeat, sweeps=sweeps, folds=folds, seed=config.train.seed) if several else []
    read = [read_config(given["config"], settings, point.settings) for point in points]
    workers = given["workers"] if given["workers"] > 1 else max(1, machines.gpus)
    for each in read or [resolved]:
        if workers * machines.nodes > 1:
            STRATEGIES[each.config.parallel.strategy].check(each.config, workers * machines.nodes)
    words = [word for setting in settings for word in ("--set", setting)]
    words += [word for sweep in sweeps for word in ("--sweep", sweep)]
    return CloudTraining(
        resolved=resolved,
        trials=read,
        arguments=(*words, "--repeat", str(repeat)),
        workers=workers,
        out=out,
        laptime=__version__,
        requirements=requirements,
    )


def _written(task: CloudTask, machines: Machines, training: CloudTraining) -> Outcome:
    found = shutil.which("sky") is not None

    def lines(_: int) -> Iterator[str]:
        yield f"{task.file}: {_rented(machines)}, {training.workers * machines.nodes} ranks"
        yield _cost(machines)
        yield "Nothing is rented yet. To rent, train and bring the run back:"
        yield f"  sh {shlex.quote(str(task.script))}"
        if not found:
            yield f"SkyPilot is not installed here; {machines.installing_sky}"

    return Outcome(document=lambda: _document(task, machines, training), lines=lines)


def _gone(task: CloudTask, machines: Machines, training: CloudTraining) -> Outcome:
    """Run the script, which says what happens on standard error."""
    if shutil.which("sky") is None:
        raise TrainingError(f"SkyPilot is not installed; {machines.installing_sky}, then sh {task.script}")
    say(f"{_rented(machines)}. {_cost(machines)}")
    sys.stderr.flush()
    status = subprocess.call(["sh", str(task.script)], stdout=2)  # standard error: the answer is ours
    if status:
        raise TrainingError(f"{task.script} ended with status {status}; its last lines say why")
    return Outcome(
        document=lambda: _document(task, machines, training),
        lines=lambda _: [f"The run is in {training.out}"],
    )


def _document(task: CloudTask, machines: Machines, training: CloudTraining) -> dict[str, Any]:
    return {
        "task": str(task.file),
        "script": str(task.script),
        "cluster": training.cluster,
        "out": str(training.out),
        "workers": training.workers,
        "nodes": machines.nodes,
        "resources": machines.resources(),
        "dollars_per_hour": machines.dollars_per_hour,
    }


def _rented(machines: Machines) -> str:
    """`2 machines with 8 × H100 each at aws, spot`."""
    count = "1 machine" if machines.nodes == 1 else f"{machines.nodes} machines"
    gpus = "without a GPU"
    if machines.gpu is not None:
        gpus = f"with {machines.gpus} × {machines.gpu.name}{' each' if machines.nodes > 1 else ''}"
    where = "any cloud" if machines.cloud == "any" else machines.cloud
    return f"{count} {gpus} at {where}{', spot' if machines.spot else ''}"


def _cost(machines: Machines) -> str:
    if machines.gpu is None:
        return "`sky launch --dryrun` tells what machines without a GPU cost."
    price = machines.gpu.price
    if price is None or machines.dollars_per_hour is None:
        return f"laptime knows no price of {machines.gpu.name}; `sky launch --dryrun` asks the cloud's."
    number = machines.gpus * machines.nodes
    spot = ", less as spot machines" if machines.spot else ""
    return (
        f"{number} × {machines.gpu.name}: about ${machines.dollars_per_hour:,.2f} an hour{spot} "
        f"(${price.dollars_per_hour:g} each, {price.source})."
    )
