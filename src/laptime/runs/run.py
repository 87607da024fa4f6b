"""A run read back: `load` gives a `Run`, which reads what it is asked for when it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, overload

from laptime.errors import DamagedRun, RunError
from laptime.files.parse import build
from laptime.files.read import read_json
from laptime.files.text import first_line, one_line
from laptime.model import Account, Layer, Stage, Step
from laptime.runs import schema
from laptime.runs.directory import is_alive
from laptime.runs.document import NETWORK_FILE, RUN_FILE, Health, created_at, read_document, sound
from laptime.runs.select import RunTables, SelectedLayers, SelectedSteps, select_layers
from laptime.runs.summaries import AccountSummaries, LayerSummaries, summarize_accounts, summarize_layers
from laptime.runs.table_reader import StoredTable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """The content of `network.json`."""

    layers: tuple[Layer, ...]


class Steps(Sequence[Step]):
    """The steps of a run: rank by rank, each in the order it happened; of one taken again, the last.

    Counting them reads no rows, unless the run was resumed.
    """

    def __init__(self, stored: StoredTable[Step]) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return int(self.table.num_rows) if "table" in self.__dict__ else self._count

    @cached_property
    def _count(self) -> int:
        return self._stored.check() - len(self._stored.repeats())

    @cached_property
    def table(self) -> Any:
        """Every step as one Arrow table."""
        return self._stored.read()

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        table = self.table
        chosen = range(table.num_rows)[index]
        if isinstance(chosen, int):
            return next(schema.steps.values(table.slice(chosen, 1)))
        return list(schema.steps.values(table.take(list(chosen))))

    def __iter__(self) -> Iterator[Step]:
        if "table" in self.__dict__:
            yield from schema.steps.values(self.table)
            return
        for rows in self._stored.row_groups():
            yield from schema.steps.values(rows)

    def __repr__(self) -> str:
        return f"<{len(self)} steps>"


class Viewer(Protocol):
    """Shows a run as a page or in a notebook. It is in a higher import layer, so `Run` is given it."""

    def report(self, run: Run, out: Path | str | None) -> Path:
        """Write a page, and say where."""

    def html(self, run: Run) -> str:
        """A run in a notebook."""


class Run:
    """One execution: configuration, environment and steps. What is not asked for is not read."""

    viewer: ClassVar[Viewer | None] = None  # set by `laptime.api`

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self.path = path
        self.id: str = document["id"]
        self.status: str = document["status"]
        self.created: datetime = created_at(document)
        self.config: dict[str, Any] = document["config"]
        self.environment: dict[str, Any] = sound(document, "environment")
        self.summary: dict[str, Any] = sound(document, "summary")
        self.outputs: dict[str, str] = document["outputs"]
        self.heartbeat: dict[str, Any] = document["heartbeat"]
        self.health = Health.of(document["health"])
        self.closed = self.status != "running"  # by its writer, which said how it ended
        if self.status == "running" and not is_alive(self.heartbeat):
            self.status = "interrupted"
        self.tables = RunTables(self.stored("steps"), self.stored("layers"))  # read when first asked for

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The run at `path`, its parts checked to be whole."""
        directory = Path(path)
        if directory.name == RUN_FILE and directory.is_file():
            directory = directory.parent
        run = cls(directory, read_document(directory))
        for name in schema.TABLES:
            run.stored(name).check()
        return run

    def stored(self, name: str) -> StoredTable[Any]:
        """A table of this run on disk: `steps`, `layers` or `kernels`."""
        return StoredTable(directory=self.path / name, schema=schema.TABLES[name])

    @cached_property
    def network(self) -> tuple[Layer, ...]:
        """The layers in order; empty where the run ended before its network was known."""
        path = self.path / NETWORK_FILE
        if not path.exists():
            return ()
        try:
            return build(_Network, read_json(path, inside=self.path)).layers
        except (OSError, ValueError) as error:
            raise DamagedRun(
                f"{one_line(path)} is damaged ({first_line(error)}); delete it to read the rest of the run"
            ) from error

    @cached_property
    def steps(self) -> Steps:
        """Every step, training and validation."""
        return Steps(self.stored("steps"))

    @cached_property
    def layer_table(self) -> Any:
        """Every layer time as one Arrow table."""
        return self.stored("layers").read()

    @cached_property
    def kernel_table(self) -> Any:
        """Every kernel of the kernel-traced steps as one Arrow table."""
        return self.stored("kernels").read()

    @property
    def last_attempt(self) -> int:
        """The highest attempt of any row; -1 without rows."""
        attempts = [self.stored(name).last_attempt() for name in schema.TABLES]
        return max((attempt for attempt in attempts if attempt is not None), default=-1)

    @property
    def simulated(self) -> bool:
        """Whether it was made by `laptime simulate`, and nothing in it is measured."""
        return self.environment.get("simulated") is True

    @property
    def disturbed(self) -> list[int]:
        """Untraced steps that starting or reading a kernel trace slowed."""
        kernels = self.summary.get("kernels") or {}
        return list(kernels.get("disturbed") or ())

    def selected(
        self, stage: str = Stage.TRAIN, skip: int = 1, instrumented: bool | None = None
    ) -> SelectedSteps:
        """The steps of a stage that count; `laptime.runs.select` says which."""
        if stage not in tuple(Stage):
            raise RunError(f"no stage is called {stage!r}; a run has {' and '.join(Stage)}")
        return self.tables.select(
            Stage(stage), skip=skip, instrumented=instrumented, disturbed=self.disturbed
        )

    def selected_layers(self, stage: str = Stage.TRAIN, skip: int = 1) -> SelectedLayers:
        """The layer times of these steps."""
        steps = self.selected(stage, skip)
        return select_layers(steps, self.tables.layers[steps.stage])

    def accounts(
        self, stage: str = Stage.TRAIN, instrumented: bool | None = None, skip: int = 1
    ) -> AccountSummaries:
        """Where the time of the steps went. `skip` leaves out the first steps, which warm up."""
        return summarize_accounts(self.selected(stage, skip, instrumented))

    def layers(self, stage: str = Stage.TRAIN, skip: int = 1) -> LayerSummaries:
        """Time per layer and phase, in network order. `skip` leaves out the first steps, which warm up."""
        return summarize_layers(self.selected_layers(stage, skip), self.network)

    def named_share(self, stage: str = Stage.TRAIN, skip: int = 1) -> float:
        """The share of compute charged to a named unit, not to "(other)"; NaN without layer times."""
        return self.layers(stage, skip).named_share

    def unexplained_share(self, stage: str = Stage.TRAIN, skip: int = 1) -> float:
        """The share of wall time that no account explains; NaN without steps."""
        return self.accounts(stage, skip=skip)[Account.UNEXPLAINED].share

    def report(self, out: Path | str | None = None) -> Path:
        """Write everything there is to see of it as one HTML file; by default `report.html` in the run."""
        if self.viewer is None:
            raise RunError("nothing here can draw a run; load it with laptime.load(path)")
        return self.viewer.report(self, out)

    def _repr_html_(self) -> str | None:
        """What a notebook shows."""
        return self.viewer.html(self) if self.viewer is not None else None

    def __repr__(self) -> str:
        return f"<Run {self.id} at {one_line(self.path)}: {self.status}, {len(self.steps)} steps>"


def load(path: Path | str) -> Run:
    """The run at `path`. NotARun, NewerSchema and DamagedRun say in one line what is wrong and what to do."""
    return Run.load(path)
