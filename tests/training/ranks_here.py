"""Trainings on several ranks of this machine, without a launcher: for tests that look at what they learn."""

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

import torch.multiprocessing as mp

import laptime
from laptime.training.config.reading import read_config
from laptime.training.session import train


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@dataclass
class Training:
    """A configuration to train, the run's directory, and whether it is resumed there."""

    text: str
    out: Path
    settings: tuple[str, ...] = ()
    resume: bool = False
    port: int = field(default_factory=free_port)


def train_on_ranks(trainings, ranks, *, before=None):
    """Train one after the other on so many ranks; the last run of each directory, by its name.

    `before` is called with a directory's name and a rank: it may plant something.
    """
    mp.spawn(_on_a_rank, args=(ranks, trainings, before), nprocs=ranks)
    return {training.out.name: laptime.load(training.out) for training in trainings}


def _on_a_rank(rank, ranks, trainings, before):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    for training in trainings:
        os.environ["MASTER_PORT"] = str(training.port)
        file = training.out.parent.absolute() / f"{training.out.name}-{rank}.toml"
        file.write_text(training.text)
        if before is not None:
            before(training.out.name, rank)
        config = read_config(file, training.settings).config
        train(config, out=training.out, resume=training.resume)


def losses(run, stage="train"):
    """The mean loss over the ranks that have one, by step."""
    by_step = {}
    for step in run.steps:
        if step.stage == stage and step.loss is not None:
            by_step.setdefault(step.step, []).append(step.loss)
    return [sum(values) / len(values) for _, values in sorted(by_step.items())]
