"""What a launcher tells the processes it starts: their rank, and where they can agree on a directory.

Imports no torch: commands ask for a place before they load it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from laptime.errors import NotJoined
from laptime.runs.locations import default_out, unused

SLURM = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
AGREED = "laptime-run"  # the file with the directory that the ranks of a launch share


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """This process among those that were started together."""

    rank: int
    folder: Path | None = None  # the launcher's, for this start of its processes; all can write there
    job: str = ""  # a name for the launch that no other has
    far: bool = False  # rank 0 is on another machine
    restarts: int = 0

    def place(self, out: Path | None, name: str) -> Path:
        """The directory of all ranks; where nobody has given one, whoever comes first chooses."""
        if out is not None and not self.restarts:
            return out
        if self.job:
            return Path("runs") / f"{name}-{self.job}"
        return self._agreed(lambda: unused(out) if out is not None else default_out(name))

    def _agreed(self, choose: Callable[[], Path]) -> Path:
        if self.far or self.folder is None:
            raise NotJoined(
                f"rank {self.rank} is not recorded: it has no directory in common with rank 0; "
                "give --out, a folder that all machines see"
            )
        agreed, mine = self.folder / AGREED, self.folder / f"{AGREED}-{os.getpid()}"
        try:
            mine.write_text(str(choose().absolute()), "utf-8")
            with suppress(FileExistsError):
                os.link(mine, agreed)  # complete as soon as it can be seen
            mine.unlink()
            return _near(Path(agreed.read_text("utf-8")))
        except OSError as error:
            raise NotJoined(f"rank {self.rank} is not recorded: {error}; give --out") from error


def _near(path: Path) -> Path:
    """The path relative to the working directory, where it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def launched() -> Launched | None:
    """From the environment, as torchrun (and accelerate) or Slurm set it; None for a process on its own."""
    told = os.environ
    try:
        if "TORCHELASTIC_RUN_ID" in told and int(told["WORLD_SIZE"]) > 1:
            return _elastic()
        if int(told.get("SLURM_STEP_NUM_TASKS", "1")) > 1:  # of one srun; a batch script is on its own
            numbers = [told[name] for name in SLURM if name in told]
            return Launched(rank=int(told["SLURM_PROCID"]), job="-".join(["slurm", *numbers]))
    except (KeyError, ValueError):
        pass
    return None


def _elastic() -> Launched:
    # …/<launch>/attempt_<restarts>/<local rank>/error.json
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    folder = Path(file).parent.parent if file else None
    return Launched(
        rank=int(os.environ["RANK"]),
        folder=folder if folder is not None and folder.is_dir() else None,
        far=int(os.environ.get("GROUP_RANK", "0")) > 0,
        restarts=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def told_rank() -> int | None:
    """The rank that the environment gives this process."""
    try:
        if int(os.environ["WORLD_SIZE"]) > 1:
            return int(os.environ["RANK"])
    except (KeyError, ValueError):
        pass
    launch = launched()
    return launch.rank if launch is not None else None
