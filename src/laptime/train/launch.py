"""Several processes on this machine, by torch's elastic launcher: if one dies, all start again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from laptime.errors import TrainingError

RESTARTS = 3


def launch(arguments: Sequence[str], *, workers: int, restarts: int = RESTARTS) -> None:
    """Run `laptime ARGUMENTS` as `workers` ranks, and again from their checkpoint if one of them dies."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        monitor_interval=0.2,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "laptime", *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise TrainingError(
            f"rank {rank} ended with status {failure.exitcode}, also after {restarts} restarts; its own line "
            "above says why"
        ) from None
