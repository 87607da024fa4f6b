"""The files about a run's network, kept current: layers and optimizers may appear late."""

from __future__ import annotations

from typing import Any

from laptime.recorder.network_hooks import NetworkHooks
from laptime.recorder.run_summary import Facts
from laptime.recorder.running_step import StepEvidence
from laptime.recorder.watched_networks import layers_of
from laptime.runs import RunWriter


class NetworkFiles:
    """Writes `network.json` and the workload of the first step."""

    def __init__(self, writer: RunWriter, hooks: NetworkHooks, facts: Facts) -> None:
        self._writer = writer
        self._hooks = hooks
        self._facts = facts
        self._written = 0  # the version of the layers that was written last

    def write_new_layers(self) -> None:
        """Write the layers, if more were discovered."""
        if self._hooks.version != self._written:
            self.write_layers()

    def write_layers(self) -> None:
        """The layers as they are known now, with what the traced steps said of their memory."""
        self._written = self._hooks.version
        self._writer.network(self._facts.with_memory(layers_of(self._hooks.networks)))

    def write_workload(self) -> None:
        """The operations of the step that was read, if one was."""
        if self._hooks.reading.step is not None:
            self._writer.workload(self._workload)

    def end_step(self, evidence: StepEvidence, samples: int | None) -> None:
        """A step ends whose operations were read."""
        self._hooks.reading.end_step(trains=evidence.backward, samples=samples)
        self.write_workload()

    def _workload(self) -> dict[str, Any] | None:
        divisions = [network.division for network in self._hooks.networks if network.division.resolved]
        workload = self._hooks.reading.workload(divisions, self._hooks.updates.optimizers)
        return workload.document() if workload is not None else None
