"""What goes along to a rented machine: the configuration, the user's module, data, and laptime itself.

SkyPilot leaves out what a `.gitignore` names, also one further up, and data often is. A `.skyignore` of ours
takes its place, and data goes as one archive, which also is the fastest way for many small files.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from laptime.errors import ConfigError
from laptime.files.text import one_line
from laptime.training.data.kinds import FolderData
from laptime.training.launch.hosts import host_files
from laptime.training.strategies import STRATEGIES

if TYPE_CHECKING:
    from laptime.training.config.reading import Resolved
    from laptime.training.launch.cloud import CloudTraining, Machines

DATA, DATA_ARCHIVE = "data", "data.tar"
REQUIREMENTS = "requirements.txt"
MOST_BYTES = 2 * 2**30  # of data that goes along: minutes over a home connection
_EXTRAS = {"folder": "images", "digits": "digits"}  # of laptime, by the kind of data


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededFiles:
    """What the machines need from here."""

    files: dict[str, Path]  # by their names there
    data: dict[str, Path]  # the same, for what may be large
    settings: list[str]  # that find things there
    extras: list[str]  # of laptime


def needed_files(training: CloudTraining, machines: Machines) -> NeededFiles:
    """What goes along. Refuses what cannot train there."""
    resolved, config = training.resolved, training.resolved.config
    strategy = STRATEGIES[config.parallel.strategy]
    if machines.nodes > 1 and (training.trials or strategy.served):
        what = config.parallel.strategy if strategy.served else "an experiment of several runs"
        raise ConfigError(f"{what} trains on one rented machine; leave --nodes out, and raise --gpus")
    files, settings = host_files(resolved)
    settings = [setting for setting in settings if not setting.startswith("data.")]
    for trial in training.trials:
        files |= host_files(trial)[0]
        network = trial.config.network.name
        elsewhere = network != config.network.name and os.sep in network
        if elsewhere or _paths(trial) != _paths(resolved):
            raise ConfigError("--sweep over files is not for --cloud; launch once for each of them")
    data, fetched = {}, _fetched_there(resolved)
    for name, path in _paths(resolved).items():
        place = f"{DATA}/{name}/{path.name}"
        settings.append(f"data.{name}={place}")
        if not (name == "path" and fetched):
            data[place] = _sendable(path, name)
    if training.requirements is not None:
        if not training.requirements.is_file():
            raise ConfigError(f"there is no file {one_line(training.requirements)}; give one as pip reads it")
        files[REQUIREMENTS] = training.requirements
    extras = [_EXTRAS[config.data.kind]] if config.data.kind in _EXTRAS else []
    extras += [name for name, wanted in (("remote", fetched), ("ray", strategy.served)) if wanted]
    return NeededFiles(files=files, data=data, settings=settings, extras=extras)


def _paths(resolved: Resolved) -> dict[str, Path]:
    """The files and folders of data, by their keys."""
    return {name: value for name, value in resolved.config.data if isinstance(value, Path)}


def _fetched_there(resolved: Resolved) -> bool:
    """Whether the training fetches its data itself, from an address that is not on this machine."""
    data = resolved.config.data
    remote = data.remote if isinstance(data, FolderData) else None
    return remote is not None and "://" in remote and not remote.startswith("file:")


def _sendable(path: Path, name: str) -> Path:
    """Data that is here and small enough to go along."""
    if not path.exists():
        raise ConfigError(f"data.{name}: there is nothing at {one_line(path)} to send along; check the path")
    total = 0
    for size in _sizes(path):
        total += size
        if total > MOST_BYTES:
            raise ConfigError(
                f"data.{name}: {one_line(path)} has more than {MOST_BYTES >> 30} GiB, too much to send; put "
                "it where the machine can fetch it and set data.remote, such as s3://bucket/images"
            )
    return path


def _sizes(path: Path) -> Iterator[int]:
    """The sizes of all files, one after the other: there may be millions."""
    if path.is_file():
        yield path.stat().st_size
    for folder, _, names in os.walk(path):
        for name in names:
            place = os.path.join(folder, name)
            yield os.path.getsize(place) if os.path.exists(place) else 0


# -- the folder that is sent ---------------------------------------------------------------------------------


def copy_files(needs: NeededFiles, folder: Path) -> None:
    """Fill the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / ".skyignore").touch()
    for name, path in needs.files.items():
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(path, folder / name)
    if needs.data:
        with tarfile.open(folder / DATA_ARCHIVE, "w", dereference=True) as archive:
            for name, path in needs.data.items():
                archive.add(path, arcname=name)


def write_wheel(folder: Path, laptime: str) -> Path:
    """This laptime as a wheel: what is trained there is what is here, also from a changed source tree."""
    try:
        installed = distribution("laptime")
    except PackageNotFoundError:
        raise ConfigError("laptime is not installed here and cannot be sent; pip install it first") from None
    info = f"laptime-{laptime}.dist-info"
    package = Path(__file__).parents[2]
    contents = {
        f"laptime/{file.relative_to(package).as_posix()}": file.read_bytes()
        for file in sorted(package.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }
    for name in ("METADATA", "entry_points.txt"):
        contents[f"{info}/{name}"] = (installed.read_text(name) or "").encode()
    tags = "Wheel-Version: 1.0\nGenerator: laptime\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents[f"{info}/WHEEL"] = tags.encode()
    record = [f"{name},{_digest(content)},{len(content)}" for name, content in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"laptime-{laptime}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return wheel


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
