"""A configured training from start to end in this process, which may be one of several ranks (`launch/`)."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from laptime.errors import LaptimeError
from laptime.files.text import first_line
from laptime.files.write import write_json
from laptime.runs import Run, load
from laptime.runs.directory import default_out
from laptime.runs.document import RUN_FILE
from laptime.training import checkpoint, target
from laptime.training.build import held_out, ready
from laptime.training.config import Config
from laptime.training.data.kinds import FolderData
from laptime.training.device_setup import DeviceSetup
from laptime.training.launch.node import REPORTS, FailedRank
from laptime.training.launch.ray_cluster import connected
from laptime.training.loop import Progress, TrainingLoop
from laptime.training.ranks import Ranks, waited_in_vain
from laptime.training.stop_signals import end_with_parent
from laptime.training.strategies import STRATEGIES


def train(
    config: Config,
    *,
    out: Path | None = None,
    resume: bool = False,
    fold: int | None = None,
    folder: Path | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    begin: Callable[[TrainingLoop], None] = lambda _: None,
) -> Run:
    """Train as configured. `fold` trains on all parts of the data but one, which is held out.

    A network of the user's own is looked for in `folder`, the configuration's, then where the command was
    given.
    """
    end_with_parent()
    ranks = Ranks.here()
    with _reporting(ranks.number, config):
        if ":" in config.network.name:
            target.look_in(Path.cwd())
            target.look_in(folder or Path.cwd())
        setup = DeviceSetup.of(
            config.train.device, ranks, threads=config.train.threads, memory_limit=config.train.memory_limit
        )
        served = STRATEGIES[config.parallel.strategy].served
        joined = ranks.joined(setup.device, timeout_s=config.parallel.timeout)
        with ExitStack() as cluster, joined, _reporting(ranks.number, config):
            out = Path(ranks.gather(str(out or default_out(config.name or "train")))[0])
            # A rank that died is started again with all the others, and they go on together.
            # Rank 0 decides: on another machine there is no checkpoint.
            lost = ranks.restarts > 0 and not served
            again = resume or (lost and ranks.of_first((out / checkpoint.LAST).exists))
            # Groups with parameter servers go on by themselves, after what they have on disk.
            rejoin = served and ranks.restarts > 0 and any(ranks.gather((out / RUN_FILE).exists()))
            _bring_images(config, ranks, say)
            made = ready(config, setup, None if fold is None else held_out(config, fold))
            if served and ranks.rank == 0:
                cluster.enter_context(connected())  # now: it starts while the network is built
            training = TrainingLoop(config, made, out=out, resume=again, rejoin=rejoin, watch=watch, say=say)
            if again and training.done and ranks.of_first(lambda: load(out).status) == "finished":
                say("the training is complete already; raise train.epochs or train.steps to go on")
                return load(out)
            begin(training)
            run = training.run()
            ranks.wait()
            return run


def _bring_images(config: Config, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Fetch images that are not here yet from the place that the configuration names."""
    asked = config.data
    if isinstance(asked, FolderData) and asked.remote is not None and not asked.path.exists():
        if ranks.local == 0:
            from laptime.training.data.sync import sync

            say(f"{asked.path} is not here yet: bringing its images from the place in data.remote")
            sync(asked.remote, asked.path, classes=asked.classes)
        ranks.wait_for_long_work("images")


def launched() -> bool:
    """Whether a launcher of laptime started this process and hears why it ends."""
    return REPORTS in os.environ


@contextmanager
def _reporting(rank: int, config: Config) -> Iterator[None]:
    """Report to the launcher what ends this rank, before the other ranks notice it."""
    try:
        yield
    except Exception as error:
        file = Path(os.environ.get(REPORTS, "")) / f"rank-{rank}.json"
        if launched() and not file.exists():
            failed = FailedRank(line=str(error), final=True)
            if waited_in_vain(error):
                wait = f"{config.parallel.timeout:g} s (parallel.timeout)"
                failed = FailedRank(line=f"rank {rank} waited {wait} for another rank", waited=True)
            elif not isinstance(error, LaptimeError):
                line = f"rank {rank} failed ({type(error).__name__}: {first_line(error)})"
                advice = "; its traceback is above"
                failed = FailedRank(line=line, advice=advice, trace=traceback.format_exc())
            write_json(file, asdict(failed))
        raise
