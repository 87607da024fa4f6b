"""Trainings in which networks are saved, each done once, and the one process that loads all their files."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import laptime
from tests.recorder.saved_contents import Content, content, mentions
from tests.recorder.saved_networks import NETWORKS, answer
from tests.recorder.saving import PROGRAMS, RECORDINGS, Moment, Way, as_file, bare, saved, train

ROOT = Path(__file__).parents[2]
LARGE_FILE = 8 * 2**20  # bytes; such a network is loaded from one file
SOURCE = Path(laptime.__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is saved of a network, when, and of which moments the files are loaded elsewhere."""

    network: str
    ways: Mapping[str, Way]
    moments: tuple[str, ...]
    loaded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a file holds and how often it names laptime; or why it could not be made."""

    content: Content
    mentions: int = 0
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What was saved in a training, by moment and way, and the weights that it ended with."""

    files: dict[tuple[str, str], Saved]
    weights: Content


class Trainings:
    """Carries out each plan once, and keeps the files that are to be loaded elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._to_load: list[dict[str, Any]] = []
        self._done: dict[tuple[str, ...], Training] = {}

    def of(self, plan: Plan, recording: str) -> Training:
        """The training of a plan: by the name of its recording, or bare."""
        key = (plan.network, *plan.ways, *plan.moments, recording)
        if key not in self._done:
            self._done[key] = self._train(plan, recording)
        return self._done[key]

    def _train(self, plan: Plan, recording: str) -> Training:
        files: dict[tuple[str, str], Saved] = {}

        def act(at: Moment) -> None:
            if at.name not in plan.moments:
                return
            for name, way in plan.ways.items():
                file = saved(way, at)
                if isinstance(file, Exception):
                    files[at.name, name] = Saved(content=[], error=file)
                    continue
                files[at.name, name] = Saved(content=content(file), mentions=mentions(file))
                small = len(file) < LARGE_FILE or name == "network.pt"
                if at.name in plan.loaded and small and recording in ("bare", *RECORDINGS):
                    self._keep(plan.network, recording, at.name, name, file)
            if recording == "bare" and at.name in plan.loaded:
                given = answer(_copied(at.network), at.batch)
                torch.save((at.batch, given), self._answer(plan.network, at.name))

        with tempfile.TemporaryDirectory() as out:
            how = RECORDINGS.get(recording, bare)
            weights = train(NETWORKS[plan.network], how, Path(out) / "run", act)
        return Training(files=files, weights=content(as_file(weights)))

    def _answer(self, network: str, moment: str) -> Path:
        return self.folder / f"{network}~{moment}~answer"

    def _keep(self, network: str, recording: str, moment: str, way: str, file: bytes) -> None:
        name = f"{network}~{recording}~{moment}~{way}"
        program = way in PROGRAMS  # torch computes otherwise in one than in a network: asked is the bare one
        if recording != "bare" or program:
            (self.folder / name).write_bytes(file)
        if recording == "bare":
            return
        answers = "weights" not in way and way not in ("safetensors", "optimizer.pickle")
        self._to_load.append(
            {
                "name": name,
                "way": way,
                "answer": self._answer(network, moment).name if answers else None,
                "bare": f"{network}~bare~{moment}~{way}" if program else None,
                "zoo": b"laptime.training.networks" in file or b"laptime/training/networks" in file,
            }
        )

    def kept(self, plan: Plan, recording: str) -> dict[str, str]:
        """The files of a plan that are to be loaded, and the way in which each was made."""
        begin = f"{plan.network}~{recording}~"
        files = {file["name"]: file["way"] for file in self._to_load if file["way"] in plan.ways}
        return {name: way for name, way in files.items() if name.startswith(begin)}

    def load_elsewhere(self) -> dict[str, str]:
        """What a fresh process says of every file that was kept: "" where all is well."""
        (self.folder / "files.json").write_text(json.dumps(self._to_load))
        command = [sys.executable, str(Path(__file__).with_name("load_saved.py")), str(self.folder)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, SOURCE)))}
        ended = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])


def _copied(network: nn.Module) -> nn.Module:
    """Whose use leaves the network as it is. What cannot be copied can be pickled."""
    try:
        return copy.deepcopy(network)
    except RuntimeError:
        return pickle.loads(pickle.dumps(network))
