"""Every error laptime raises on purpose. Each message is one line that says what to change.

LaptimeError
├── RecordingError            something about a recording
│   ├── AlreadyRecording      a second recording in the same process
│   ├── ForeignOptimizer      the optimizer updates none of the network's parameters
│   ├── UnsupportedDevice     no clock for this device
│   ├── UnknownGranularity    `layers=` was not understood
│   ├── NotJoined             a rank has no place in the run of the others
│   └── UnbalancedStep        the accounts of a step do not add up to its wall time
├── RunError                  something about a run directory
│   ├── NotARun               no run.json there
│   ├── NewerSchema           written by a newer laptime
│   ├── DamagedRun            a file of the run cannot be read
│   └── RunExists             `out` already holds a run
├── QueryError                DuckDB did not accept the SQL
├── UnknownNetwork            no network of that name
├── HardwareError             something about a device, a link, storage or a price
│   ├── UnknownDevice         none of that name
│   ├── AmbiguousDevice       a name that several devices bear
│   └── CatalogError          a device file that cannot be used
├── WorkloadError             a network that cannot be read
│   └── UnknownInput          nothing tells what the network takes
├── CalibrationError          a calibration that cannot be made, read or used
├── PredictionError           a prediction that cannot be made
│   └── FixedOption           an option that a run or a saved workload has already
├── PlanError                 a plan that cannot be carried out
├── ServeError                the dashboard cannot be served as asked
├── BadTarget                 a `module:callable` that cannot be imported or called
├── ScriptError               `laptime run` could not start the script
├── ConfigError               a configuration that cannot be used
├── DataError                 data that cannot be read, found or synchronised
│   └── UnreadableImage       in training/data/images.py: one file of a folder
├── TrainingError             a training cannot start or go on
│   └── RanksFailed           in training/launch/local_ranks.py: the ranks of this machine
└── MissingExtra              an optional package is not installed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LaptimeError(Exception):
    """Base of every error that laptime raises on purpose."""


class RecordingError(LaptimeError):
    """A recording cannot start or go on."""


class AlreadyRecording(RecordingError):
    """A recording is active in this process already."""


class ForeignOptimizer(RecordingError):
    """The optimizer given updates no parameter of the networks given."""


class UnsupportedDevice(RecordingError):
    """No clock can time this device."""


class UnknownGranularity(RecordingError):
    """The `layers` argument names no division of a network."""


class NotJoined(RecordingError):
    """A rank cannot write to the run of the others; it goes on unrecorded."""


class UnbalancedStep(RecordingError):
    """The accounts of a step do not add up to its wall time."""


class RunError(LaptimeError):
    """A run directory cannot be used."""


class NotARun(RunError):
    """The path holds no run."""


class NewerSchema(RunError):
    """The run was written by a newer laptime."""


class DamagedRun(RunError):
    """A file of the run is cut off or altered."""


class RunExists(RunError):
    """The output directory holds a run already."""


class QueryError(LaptimeError):
    """The SQL was not accepted."""


class UnknownNetwork(LaptimeError):
    """No network is known by that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}; or give module:callable"
        super().__init__(f"no network is called {name!r}; {hint}")


class HardwareError(LaptimeError):
    """A device, a link, storage or a price cannot be used as asked."""


class UnknownDevice(HardwareError):
    """No device, link or storage is known by that name."""

    def __init__(self, name: str, known: Iterable[str], *, what: str = "device") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}; " if near else ""
        more = ", and a file such as ./mine.toml can describe another" if what == "device" else ""
        where = "laptime devices" if what == "device" else "laptime devices --links"
        super().__init__(f"no {what} is called {name!r}; {hint}`{where}` lists all{more}")


class AmbiguousDevice(HardwareError):
    """Several devices bear that name."""

    def __init__(self, name: str, candidates: Iterable[str]) -> None:
        super().__init__(f"{name!r} can be {', '.join(candidates)}; give one of these names")


class CatalogError(HardwareError):
    """A file of devices, links, storage or prices cannot be used."""


class PlanError(LaptimeError):
    """A plan of a training on several devices cannot be carried out."""


class ServeError(LaptimeError):
    """The dashboard cannot be served as asked."""


class BadTarget(LaptimeError):
    """A `module:callable` target could not be resolved to a network."""


class ScriptError(LaptimeError):
    """A training script could not be started."""


class MissingExtra(LaptimeError):
    """An optional package is needed and absent."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; pip install 'laptime[{extra}]' brings it")


class ConfigError(LaptimeError):
    """A configuration, or something that it names, cannot be used."""


class DataError(LaptimeError):
    """Data cannot be found, read or synchronised."""


class TrainingError(LaptimeError):
    """A training cannot start or go on; what was recorded is kept."""


class WorkloadError(LaptimeError):
    """A workload cannot be read off a network, or from a file."""


class UnknownInput(WorkloadError):
    """Nothing tells what the network takes."""


class CalibrationError(LaptimeError):
    """A calibration cannot be made or read."""


class PredictionError(LaptimeError):
    """A prediction was asked for that cannot be made."""


class FixedOption(PredictionError):
    """A run or a saved workload has this option already."""

    def __init__(self, option: str, what: str) -> None:
        self.option = option
        self.reason = f"{what} has its own; name the network instead to change it"
        super().__init__(f"{option}= is given, but {self.reason}")
