"""What a run says of its network, kept current: layers and optimizers may show themselves late."""

from __future__ import annotations

from typing import Any

from laptime.recorder.live_workload import Reading
from laptime.recorder.network_hooks import Instruments
from laptime.recorder.run_summary import Facts
from laptime.recorder.step_evidence import Seen
from laptime.recorder.watched_networks import layers_of
from laptime.runs import RunWriter


class NetworkFiles:
    """Writes `network.json` and the workload of the first step."""

    def __init__(self, writer: RunWriter, instruments: Instruments, facts: Facts) -> None:
        self.reading = Reading()
        self._writer = writer
        self._instruments = instruments
        self._facts = facts

    def write_layers(self) -> None:
        """The layers as they are known now."""
        self._writer.network(self._facts.with_memory(layers_of(self._instruments.networks)))

    def write_workload(self) -> None:
        """The operations of the step that was read, if one was."""
        if self.reading.step is not None:
            self._writer.workload(self._workload)

    def end_step(self, seen: Seen, samples: int | None) -> None:
        """A step ends whose operations were read."""
        self.reading.end_step(trains=seen.backward, samples=samples)
        if self.reading.done:
            self._instruments.reading = None
        self.write_workload()

    def _workload(self) -> dict[str, Any] | None:
        divisions = [one.division for one in self._instruments.networks if one.division.resolved]
        found = self.reading.workload(divisions, self._instruments.updates.optimizers)
        return found.document() if found is not None else None
