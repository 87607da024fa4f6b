"""One process: a script, bare or recorded, in a fresh copy of its folder."""

from __future__ import annotations

import os
import shlex
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scripts.case import Case
from benchmarks.scripts.failures import Edited

WITNESS = Path(__file__).with_name("witness")
LONGEST_S = 300.0
TIMED_OUT = 124  # as timeout(1) has it
# Nothing is downloaded, one thread, the same order of sets: what a run prints depends on the script alone.
STEADY = {
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders that do not belong to the repository."""

    repositories: Path
    packages: Path | None
    scratch: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """When an optimizer made an update, by two clocks."""

    wall_s: float
    processor_s: float  # of the process: what others on the machine take is not in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What one process did."""

    status: int
    seconds: float  # from its start to its end
    output: str
    errors: str
    updates: tuple[tuple[Update, ...], ...]  # for each process that made any
    run: Path | None  # what was recorded

    @property
    def between_updates(self) -> Update | None:
        """From one update to the next, on average, in the process with the most."""
        made = max(self.updates, key=len, default=())
        if len(made) < 2:
            return None
        first, last, number = made[0], made[-1], len(made) - 1
        return Update(
            wall_s=(last.wall_s - first.wall_s) / number,
            processor_s=(last.processor_s - first.processor_s) / number,
        )


def commit_of(case: Case, places: Places) -> str:
    """The commit that the script is at, of a checkout in which it is unedited."""
    checkout = places.repositories / case.repository
    # A checkout may belong to another user, such as one that was unpacked.
    git = ["git", "-c", "safe.directory=*", "-C", str(checkout)]
    if subprocess.run([*git, "diff", "--quiet", "HEAD", "--", case.folder], check=False).returncode:
        raise Edited(f"{case.name}: {checkout / case.folder} is not as the repository has it")
    told = subprocess.run(
        [*git, "rev-parse", "--short=7", "HEAD"], check=True, capture_output=True, text=True
    )
    return told.stdout.strip()


def execute(case: Case, places: Places, name: str, *, recorded: bool) -> Execution:
    """Run the script once, in `places.scratch / name`."""
    folder = places.scratch / name
    shutil.rmtree(folder, ignore_errors=True)
    start = folder / (Path(case.folder).name or "repository")
    shutil.copytree(
        case.source(places.repositories), start, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True
    )
    if case.data is not None:
        case.data(start)
    witness = folder / "witness"
    witness.mkdir()
    run = folder / "run"
    through = ["-m", "laptime", "run", "--out", str(run)] if recorded else []
    command = [sys.executable, *through, case.script, *shlex.split(case.arguments)]
    variables = _variables(case, places, start) | {
        "WITNESS_FOLDER": str(witness),
        "HF_HOME": str(folder / "cache"),  # else the second run finds what the first has prepared
    }
    began = time.monotonic()
    status = _run(command, start, variables, folder)
    return Execution(
        status=status,
        seconds=time.monotonic() - began,
        output=(folder / "output").read_text(encoding="utf-8", errors="replace"),
        errors=(folder / "errors").read_text(encoding="utf-8", errors="replace"),
        updates=tuple(_updates(path) for path in sorted(witness.iterdir())),
        run=run if (run / "run.json").exists() else None,
    )


def _run(command: list[str], start: Path, variables: dict[str, str], folder: Path) -> int:
    with open(folder / "output", "wb") as output, open(folder / "errors", "wb") as errors:
        try:
            done = subprocess.run(
                command,
                cwd=start,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                timeout=LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        return done.returncode


def _variables(case: Case, places: Places, start: Path) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    search = [WITNESS, places.packages, start / case.import_from if case.import_from else None, *inherited]
    paths = [str(Path(path).absolute()) for path in search if path]
    return os.environ | STEADY | {"PYTHONPATH": os.pathsep.join(paths)} | case.variables


def _updates(path: Path) -> tuple[Update, ...]:
    pairs = struct.iter_unpack("dd", path.read_bytes())
    return tuple(Update(wall_s=wall, processor_s=processor) for wall, processor in pairs)
