"""A training's folders on other hosts: made before it, fetched and merged into one run after it.

`hosts.json` in the run's directory here names the folders until they are fetched. If the launcher is killed,
`--resume` brings back what the hosts have. No torch here.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from laptime.errors import LaptimeError, TrainingError
from laptime.files.parse import build
from laptime.files.read import read_json
from laptime.files.text import one_line
from laptime.files.write import write_json
from laptime.runs import load
from laptime.runs.directory import CHECKPOINT_FOLDER, OF_RANK
from laptime.runs.document import RUN_FILE
from laptime.runs.exporters.csv_files import write_csv
from laptime.runs.writer import CSV_ROWS
from laptime.training.launch.ssh_hosts import CHECK_S, Ssh, at_once, last_line

RUN = "run"  # the run's directory in a host's folder
HOSTS_FILE = "hosts.json"
_FETCHED = ".hosts"  # what the hosts have sent, until it is merged

_FOLDER = re.compile(
    r"[\w.@\[\]:%][\w.@\[\]:%-]*:(?:/(?!\.\./)[\w.+-]+)*/laptime-\w{8}"
)  # as `_MAKE` names them
_MAKE = """
umask 077
folder=$(mktemp -d "${TMPDIR:-/tmp}/laptime-XXXXXXXX") || exit 1
{ mkdir "$folder/run" && tar -xf - -C "$folder" && echo "$folder"; } || { rm -rf "$folder"; exit 1; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTask:
    """What the hosts are to do: the arguments of `laptime train` there, and the files it needs."""

    arguments: tuple[str, ...]  # of every host; files and run are in the current directory
    files: Mapping[str, Path]  # by their names on the hosts; a folder stands for all inside
    workers: int  # ranks on each host
    restarts: int  # of all ranks, after a failure
    laptime: str  # the version that each host must have


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFolder:
    """A host's folder, with the run of its ranks."""

    host: str
    path: str
    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of what is fetched from it; a host's own name may be no file's."""
        return f"ranks-from-{self.ranks[0]}"


def make_folders(
    names: Sequence[str], folders: list[HostFolder], task: HostTask, ssh: Ssh, run: Path | None
) -> None:
    """A folder on each host. Those that could be made are in `folders`, also where one fails."""

    def make(number: int) -> HostFolder | TrainingError:
        try:
            return _make_folder(names[number], number, task, ssh, run)
        except TrainingError as error:
            return error

    made = at_once(make, range(len(names)))
    folders += [each for each in made if isinstance(each, HostFolder)]
    for each in made:
        if isinstance(each, TrainingError):
            raise each


def _make_folder(host: str, number: int, task: HostTask, ssh: Ssh, run: Path | None) -> HostFolder:
    """A folder on a host: what the task needs, and the run to go on with. Only rank 0 reads checkpoints."""
    ranks = tuple(range(number * task.workers, (number + 1) * task.workers))

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(member.name).parts
        left_out = "__pycache__" in parts or parts[-1] == HOSTS_FILE
        left_out |= bool(number) and parts[:2] == (RUN, CHECKPOINT_FOLDER)
        return None if left_out else member

    files = {**task.files, **({} if run is None else {RUN: run})}
    process = ssh.start(host, _MAKE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    with suppress(BrokenPipeError), tarfile.open(fileobj=process.stdin, mode="w|") as archive:
        for name, path in files.items():
            archive.add(path, arcname=name, filter=wanted)
    output, errors = process.communicate()
    if process.returncode:
        raise TrainingError(f"no folder could be made on {host} ({last_line(errors.decode().splitlines())})")
    return HostFolder(host=host, path=last_line(output.decode().splitlines()), ranks=ranks)


# -- the run comes back --------------------------------------------------------------------------------------


def gather(folders: Sequence[HostFolder], ssh: Ssh, out: Path, say: Callable[[str], None]) -> None:
    """Merge the hosts' parts of a run into `out` and remove their folders.

    All but the rows and the health of a rank comes from rank 0's host. What cannot be fetched stays where it
    is, and `hosts.json` names it.
    """
    here = out / _FETCHED
    fetched = dict(zip(folders, at_once(lambda folder: _fetch(folder, ssh, here), folders), strict=True))
    base = next((folder for folder in folders if 0 in folder.ranks and fetched[folder]), None)
    if base is not None:
        for old in out.iterdir():
            if old.name not in (_FETCHED, HOSTS_FILE):
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        for new in (here / base.name).iterdir():
            new.rename(out / new.name)
    whole = (out / RUN_FILE).exists() or base is not None
    merged = [folder for folder in folders if fetched[folder] and whole]
    for folder in merged:
        if folder is not base:
            _merge(here / folder.name, out, set(folder.ranks))
    shutil.rmtree(here, ignore_errors=True)
    ended = at_once(
        lambda folder: ssh.answer(folder.host, shlex.join(["rm", "-rf", folder.path]), CHECK_S), merged
    )
    left = [folder for folder in folders if folder not in merged]
    for folder in left:
        say(
            f"the run of {folder.host} could not be fetched and stays in {folder.path} there; "
            "--resume asks for it again"
        )
    for folder, (status, _, _) in zip(merged, ended, strict=True):
        if status:
            say(f"{folder.path} could not be removed from {folder.host}; remove it there")
    remember(left, out)
    if len(folders) > 1 and (out / RUN_FILE).exists():
        with suppress(LaptimeError, OSError):  # `laptime export` can make them at any time
            write_csv(load(out), most_rows=CSV_ROWS)  # the first host's have the rows of its own ranks


def _fetch(folder: HostFolder, ssh: Ssh, here: Path) -> bool:
    """Bring a host's run here; False where that fails."""
    place = here / folder.name
    place.mkdir(parents=True, exist_ok=True)
    script = shlex.join(["tar", "-cf", "-", "-C", f"{folder.path}/{RUN}", "."])
    process = ssh.start(
        folder.host, script, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    with process.stdout, suppress(tarfile.TarError, OSError):
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            archive.extractall(place, filter="data")
        return process.wait() == 0
    process.wait()
    return False


def _merge(fetched: Path, out: Path, ranks: set[int]) -> None:
    """Replace the files of these ranks by those of their host."""
    for old in _of_ranks(out, ranks):
        if fetched not in old.parents:
            old.unlink()
    for new in _of_ranks(fetched, ranks):
        target = out / new.relative_to(fetched)
        target.parent.mkdir(exist_ok=True)
        new.rename(target)


def _of_ranks(folder: Path, ranks: Container[int]) -> list[Path]:
    return [path for path in folder.rglob("*") if rank_of(path) in ranks]


def rank_of(path: Path) -> int | None:
    """The rank whose rows or health a file of a run has; None for what is rank 0's to write."""
    match = OF_RANK.fullmatch(path.name)
    return int(match[1]) if match else None


def remember(left: Sequence[HostFolder], out: Path) -> None:
    """Keep in mind which folders are still on the hosts; a directory without a run is not kept."""
    if left:
        write_json(out / HOSTS_FILE, {"folders": [asdict(folder) for folder in left]})
        return
    (out / HOSTS_FILE).unlink(missing_ok=True)
    with suppress(OSError):  # it has a run
        out.rmdir()


def left_behind(out: Path) -> list[HostFolder]:
    """The folders that a killed launcher left on its hosts. Others may have written the file that says so."""
    if not (out / HOSTS_FILE).exists():
        return []
    try:
        folders = [build(HostFolder, each) for each in read_json(out / HOSTS_FILE, inside=out)["folders"]]
    except (OSError, ValueError, KeyError, TypeError):
        folders = []
    if not folders or not all(_FOLDER.fullmatch(f"{each.host}:{each.path}") for each in folders):
        raise TrainingError(
            f"{one_line(out / HOSTS_FILE)} is damaged; remove it to go on without the hosts' rows"
        )
    return folders
