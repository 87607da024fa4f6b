"""A configured training from start to end, in this process: one rank, or the only one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from laptime.errors import ConfigError
from laptime.runs import Run, load
from laptime.runs.locations import default_out
from laptime.training import checkpoint, target
from laptime.training.build import ready, wanted
from laptime.training.config import Config
from laptime.training.data import Data, open_data
from laptime.training.data.kinds import FolderData
from laptime.training.data.subset import folds
from laptime.training.device_setup import DeviceSetup
from laptime.training.launch import telling
from laptime.training.loop import Progress, TrainingLoop
from laptime.training.networks.registry import entry
from laptime.training.ranks import Ranks
from laptime.training.stop_signals import end_with_parent


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
    with telling(ranks.rank):
        if ":" in config.network.name:
            target.look_in(Path.cwd())
            target.look_in(folder or Path.cwd())
        setup = DeviceSetup.of(
            config.train.device, ranks, threads=config.train.threads, memory_limit=config.train.memory_limit
        )
        with ranks.joined(setup.device), telling(ranks.rank):
            out = Path(ranks.gather(str(out or default_out(config.name or "train")))[0])
            # A rank that died is started again with all the others, and they go on together.
            again = resume or (ranks.restarts > 0 and (out / checkpoint.FOLDER / checkpoint.LAST).exists())
            _bring(config, ranks, say)
            data = None if fold is None else held_out(config, fold)
            made = ready(config, setup, data)
            training = TrainingLoop(config, made, out=out, resume=again, watch=watch, say=say)
            if again and training.done and load(out).status == "finished":
                say("the training is complete already; raise train.epochs or train.steps to go on")
                return load(out)
            begin(training)
            run = training.run()
            ranks.wait()
            return run


def _bring(config: Config, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Fetch images that are not here yet from the place that the configuration names."""
    asked = config.data
    if isinstance(asked, FolderData) and asked.remote is not None and not asked.path.exists():
        if ranks.local == 0:
            from laptime.training.data.sync import sync

            say(f"{asked.path} is not here yet: bringing its images from the place in data.remote")
            sync(asked.remote, asked.path, classes=asked.classes)
        ranks.wait()


def held_out(config: Config, fold: int) -> Data:
    """The data with one of its folds held out for validation."""
    count = config.validation.folds
    if not 1 <= fold <= count:
        raise ConfigError(f"there is no fold {fold}; validation.folds is {count}")
    known = None if ":" in config.network.name else entry(config.network.name)
    data = open_data(config.data, wanted(config, known))
    if len(data.train) < count:  # type: ignore[arg-type]
        raise ConfigError(f"validation.folds = {count} is more than there are samples; lower it")
    chosen, held = folds(data.train, count, seed=config.train.seed)[fold - 1]
    facts = {**data.facts, "fold": fold}
    return Data(train=chosen, validation=held, classes=data.classes, facts=facts, problems=data.problems)
