"""The state of a training that a checkpoint holds: how it is collected and restored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.amp import GradScaler

from laptime.errors import TrainingError
from laptime.files.text import first_line
from laptime.training import checkpoint, resume_checks
from laptime.training.build import Ready
from laptime.training.config import Config


@dataclass(slots=True)
class Counts:
    """The progress of a training."""

    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    step: int = 0  # training steps since the start
    recorded: int = 0  # steps of the run, validation included
    updates: int = 0
    elapsed_s: float = 0.0
    attempt: int = 0
    best: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Collects and restores everything that the next step depends on."""

    config: Config
    ready: Ready
    scaler: GradScaler

    def collect(self, counts: Counts) -> dict[str, Any]:
        """The state as tensors and plain values. All ranks must call it."""
        following = replace(counts, attempt=counts.attempt + 1)
        return {
            "network": self.ready.network.state_dict(),
            "optimizers": {name: part.state_dict() for name, part in self.ready.optimizers.items()},
            "schedules": {name: part.state_dict() for name, part in self.ready.schedules.items()},
            "scaler": self.scaler.state_dict(),
            "counts": {name: getattr(following, name) for name in Counts.__slots__},
            "random": self.ready.setup.ranks.gather(checkpoint.random_states()),
            "config": self.config.model_dump(mode="json"),
            "facts": self._facts(),
        }

    def _facts(self) -> dict[str, Any]:
        """What a step depends on beside the configuration."""
        data = self.ready.data
        return {
            "workers": self.ready.setup.ranks.ranks,
            "samples": self.ready.samples,
            "classes": list(data.classes),
            "fold": data.facts.get("fold"),
        }

    def restore(self, state: dict[str, Any], out: Path) -> tuple[Counts, dict[str, Any] | None]:
        """Restore a state; returns the progress and this rank's random states."""
        rank = self.ready.setup.ranks.rank
        known = {"workers": len(state.get("random", ()))} | state.get("facts", {})
        resume_checks.refuse_if_changed(
            out, resume_checks.changed(state.get("config", {}), self.config, known, self._facts())
        )
        try:
            self.ready.network.load_state_dict(state["network"])
            for name, optimizer in self.ready.optimizers.items():
                optimizer.load_state_dict(state["optimizers"][name])
            for name, schedule in self.ready.schedules.items():
                schedule.load_state_dict(state["schedules"][name])
            self.scaler.load_state_dict(state["scaler"])
            random = state["random"][rank] if rank < len(state["random"]) else None
            return Counts(**state["counts"]), random
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise TrainingError(
                f"the checkpoint does not fit this configuration ({first_line(error)}); "
                "use the configuration it was made with, or "
                f"{checkpoint.anew(out / checkpoint.FOLDER / checkpoint.LAST)}"
            ) from error
