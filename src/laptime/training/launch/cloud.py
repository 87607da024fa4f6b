"""Machines to rent, as a SkyPilot task: a folder with the task, what it needs, and a script.

task.yaml    what is rented, how it is set up, and how it trains
launch.sh    rents, trains, brings the run back, gives the machines back
files/       the configuration, the user's module, data and laptime itself, as they are now

Laptime rents nothing itself: `sky` does, when the script is run. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from laptime.errors import ConfigError
from laptime.files.text import one_line
from laptime.files.write import replacing
from laptime.training.launch.cloud_files import copy_files, needed_files, write_wheel
from laptime.training.launch.cloud_scripts import launch_script, run_script, setup_script

if TYPE_CHECKING:
    from laptime.training.config.reading import Resolved
    from laptime.training.launch.rented_gpus import RentedGpu

TASK_FILE, SCRIPT_FILE, FILES = "task.yaml", "launch.sh", "files"
# An idle machine of these is stopped and keeps its disk; others, and spot machines, can only be ended.
_STOPPABLE = ("aws", "gcp", "azure")  # by SkyPilot 0.14


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What is rented: `nodes` machines, all alike."""

    cloud: str = "any"
    region: str | None = None
    gpu: RentedGpu | None = None
    gpus: int = 0  # of each machine
    nodes: int = 1
    cpus: int | None = None  # at least
    memory_gib: int | None = None  # at least
    disk_gib: int | None = None
    spot: bool = False
    idle_minutes: int = 60  # after which they stop by themselves

    @property
    def stops(self) -> bool:
        """Whether an idle machine keeps its disk."""
        return self.cloud in _STOPPABLE and not self.spot

    @property
    def installing_sky(self) -> str:
        """How SkyPilot for this cloud is installed."""
        return f"pip install 'skypilot[{'all' if self.cloud == 'any' else self.cloud}]'"

    @property
    def dollars_per_hour(self) -> float | None:
        """Of the GPUs of all machines; None where no price is known."""
        if self.gpu is None or self.gpu.price is None:
            return None
        return self.gpu.price.dollars_per_hour * self.gpus * self.nodes

    def resources(self) -> dict[str, Any]:
        """As the section `resources` of a task."""
        infra = "/".join(filter(None, ("*" if self.cloud == "any" else self.cloud, self.region)))
        asked = {
            "infra": None if infra == "*" else infra,
            "accelerators": None if self.gpu is None else {self.gpu.name: self.gpus},
            "cpus": None if self.cpus is None else f"{self.cpus}+",
            "memory": None if self.memory_gib is None else f"{self.memory_gib}+",
            "disk_size": self.disk_gib,
            "use_spot": self.spot or None,
            "autostop": {"idle_minutes": self.idle_minutes, "down": not self.stops},
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudTraining:
    """What the machines are to do."""

    resolved: Resolved
    trials: Sequence[Resolved]  # every run of an experiment; empty for a single run
    arguments: tuple[str, ...]  # of `laptime train CONFIG` there
    workers: int  # ranks on each machine
    out: Path  # where the run comes back to
    laptime: str  # this version
    requirements: Path | None = None

    @property
    def cluster(self) -> str:
        """What SkyPilot calls the machines, in letters that every cloud takes; `out` ends with the time."""
        return "laptime-" + re.sub(r"[^a-z0-9]+", "-", self.out.name.lower())[-40:].strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudTask:
    """A task that was written."""

    file: Path
    script: Path


def write_task(folder: Path, machines: Machines, training: CloudTraining) -> CloudTask:
    """Write the task. An earlier one in the folder is replaced; a folder with anything else is refused."""
    needs = needed_files(training, machines)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--task {one_line(folder)} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / TASK_FILE).is_file():
        raise ConfigError(f"--task {one_line(folder)} holds other files; give another folder")
    copy_files(needs, folder / FILES)
    wheel = write_wheel(folder / FILES, training.laptime)
    task = {
        "name": training.cluster,
        "num_nodes": machines.nodes,
        "resources": machines.resources(),
        "workdir": str((folder / FILES).resolve()),
        "setup": setup_script(wheel.name, needs),
        "run": run_script(needs, machines, training),
    }
    heading = f"# Written by laptime {training.laptime}; {SCRIPT_FILE} rents this and brings the run back.\n"
    text = yaml.dump(task, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    written = CloudTask(file=folder / TASK_FILE, script=folder / SCRIPT_FILE)
    for path, content in (
        (written.file, heading + text),
        (written.script, launch_script(written.file, machines, training)),
    ):
        with replacing(path) as file:
            file.write(content.encode())
    return written


class _Dumper(yaml.SafeDumper):
    """Scripts as blocks of lines."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)
