"""Several processes on this machine that train together, started by torch's elastic launcher.

If one dies, all restart from the checkpoint, except after a `LaptimeError`, which would only be repeated.
Ranks can be started by `torchrun` as well.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laptime.errors import LaptimeError, TrainingError
from laptime.files.read import read_json
from laptime.files.text import first_line
from laptime.files.write import write_json
from laptime.training import checkpoint
from laptime.training.stop_signals import CHILD, INTERRUPTED, Terminated, end_with_parent

RESTARTS = 3
CLOSING_S = 60  # in which ranks that were asked to stop take their last step and save it
FOLDER = "LAPTIME_RANKS"  # in a rank's environment: the folder where it tells its launcher why it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRank:
    """The rank that failed first, and why."""

    line: str
    advice: str = ""
    trace: str = ""
    final: bool = False  # a restart would fail in the same way


def launch(
    arguments: Sequence[str],
    *,
    workers: int,
    out: Path,
    say: Callable[[str], None] = lambda _: None,
    restarts: int = RESTARTS,
) -> None:
    """Run `laptime ARGUMENTS` as `workers` ranks, and again from their checkpoint if one of them dies."""
    from torch.distributed.elastic.multiprocessing import SignalException

    end_with_parent()
    logging.disable(logging.ERROR)  # the agent would log every failure that is reported here
    with tempfile.TemporaryDirectory(prefix="laptime-") as name:
        os.environ |= {FOLDER: name, CHILD: "1"}
        policy = _Policy(folder=Path(name), out=out, say=say, saved=_saved(out))
        agent = _agent([sys.executable, "-m", "laptime", *arguments], workers, restarts, policy)
        try:
            result = agent.run()
        except SignalException as asked:
            raise (Terminated if asked.sigval == signal.SIGTERM else KeyboardInterrupt) from None
        finally:
            logging.disable(logging.NOTSET)
            del os.environ[FOLDER], os.environ[CHILD]
        if result.is_failed():
            fallen = policy.fallen or policy.cause(result)
            if fallen.trace:
                say(fallen.trace)
            raise TrainingError(f"{fallen.line}{fallen.advice}")


@dataclass(slots=True, kw_only=True)
class _Policy:
    """Decides whether ranks are restarted."""

    folder: Path
    out: Path
    say: Callable[[str], None]
    saved: int | None
    fallen: FailedRank | None = None

    def again(self, result: Any) -> bool:
        """Whether to restart: not after a `LaptimeError`, and not without a new checkpoint."""
        self.fallen, before = self.cause(result), self.saved
        self.saved = _saved(self.out)
        return not self.fallen.final and self.saved != before

    def tell(self) -> None:
        """Say that all ranks restart, and remove their failure reports."""
        if self.fallen is not None:
            self.say(f"{self.fallen.line}; all ranks start again from the last checkpoint")
        for file in self.folder.glob("rank-*.json"):
            file.unlink()

    def cause(self, result: Any) -> FailedRank:
        """The rank that failed first, by its report or its exit status."""
        return _cause(self.folder, {rank: failure.exitcode for rank, failure in result.failures.items()})


def _agent(command: Sequence[str], workers: int, restarts: int, policy: _Policy) -> Any:
    """Torch's agent of one machine, with our policy on restarts."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous import registry as rendezvous

    class Agent(LocalElasticAgent):
        def _monitor_workers(self, *args: Any, **kwargs: Any) -> Any:
            result = super()._monitor_workers(*args, **kwargs)
            if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
                if not policy.again(result):
                    self._remaining_restarts = 0
                elif self._remaining_restarts:
                    policy.tell()
            return result

    handler = rendezvous.get_rendezvous_handler(
        RendezvousParameters(
            backend="c10d", endpoint="127.0.0.1:0", run_id="laptime", min_nodes=1, max_nodes=1, is_host=True
        )
    )
    spec = WorkerSpec(
        role="laptime",
        local_world_size=workers,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=handler,
        max_restarts=restarts,
        monitor_interval=0.1,
        local_addr="127.0.0.1",
    )
    # A terminal's progress bar is rank 0's; what others say is looked at when they end badly.
    quiet = {rank: Std.OUT if rank == 0 else Std.ALL for rank in range(workers)}
    logs = DefaultLogsSpecs(log_dir=str(policy.folder / "logs"), redirects=quiet)
    known = inspect.signature(LocalElasticAgent.__init__).parameters
    options: dict[str, Any] = {"shutdown_timeout": CLOSING_S} if "shutdown_timeout" in known else {}
    return Agent(spec=spec, logs_specs=logs, start_method="spawn", **options)


def _saved(out: Path) -> int | None:
    """When the last checkpoint was written."""
    try:
        return (out / checkpoint.FOLDER / checkpoint.LAST).stat().st_mtime_ns
    except OSError:
        return None


def _cause(folder: Path, ended: Mapping[int, int]) -> FailedRank:
    """The first failure: a rank that was killed, else the earliest report."""
    for rank, status in ended.items():
        # NCCL aborts a rank when another one is gone.
        if status < 0 and -status != signal.SIGABRT and status not in INTERRUPTED:
            name = signal.strsignal(-status) or "an unknown one"
            line = f"rank {rank} was ended by signal {-status}, {name}{_last(folder, rank)}"
            return FailedRank(line=line, advice="; if memory ran out, lower train.batch or --workers")
    told = [read_json(file, inside=folder) for file in folder.glob("rank-*.json")]
    if told:
        first = min(told, key=lambda report: report["at"])
        advice = "" if first["final"] else "; its traceback is above"
        return FailedRank(line=first["line"], advice=advice, trace=first["trace"], final=first["final"])
    rank, status = next(iter(ended.items()))
    if status in INTERRUPTED:  # a signal to a rank, not to this process
        raise INTERRUPTED[status]()
    line = f"rank {rank} ended with status {status}{_last(folder, rank)}"
    return FailedRank(line=line, advice="; what it said itself tells why")


def _last(folder: Path, rank: int) -> str:
    """The last line of a rank's output, which may say why."""
    files = sorted(folder.glob(f"logs/**/{rank}/stderr.log"))
    lines = files[-1].read_text("utf-8", "replace").strip().splitlines() if files else []
    return f" ({lines[-1].strip()[:200]})" if lines else ""


# -- in a rank -----------------------------------------------------------------------------------------------


def launched() -> bool:
    """Whether this process is a rank of the launcher above."""
    return FOLDER in os.environ


@contextmanager
def telling(rank: int) -> Iterator[None]:
    """Report to the launcher what ends this rank, before the other ranks notice it."""
    try:
        yield
    except Exception as error:
        if launched():
            _tell(Path(os.environ[FOLDER]) / f"rank-{rank}.json", rank, error)
        raise


def _tell(file: Path, rank: int, error: Exception) -> None:
    if file.exists():
        return
    ours = isinstance(error, LaptimeError)
    failed = f"rank {rank} failed ({type(error).__name__}: {first_line(error)})"
    report: dict[str, Any] = {
        "at": time.time(),
        "line": str(error) if ours else failed,
        "trace": "" if ours else traceback.format_exc(),
        "final": ours,
    }
    write_json(file, report)
