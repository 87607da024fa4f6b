"""`laptime train`: a configuration, trained and recorded; repeated, swept and spread over ranks as asked."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from laptime import __version__
from laptime.cli.options import EveryLayer, Out, wrong
from laptime.cli.outcome import Outcome, answer, laptime_command, progress, quiet_torch, say, verb, waiting
from laptime.errors import ConfigError, TrainingError, UnsupportedDevice

if TYPE_CHECKING:
    from rich.text import Text

    from laptime.runs import Run
    from laptime.training.config.reading import Resolved
    from laptime.training.launch.experiment import Spread, Start, Trial
    from laptime.training.launch.ray_process import NodeTask
    from laptime.training.launch.ssh_hosts import Ssh
    from laptime.training.loop import Progress, TrainingLoop
    from laptime.views.run_view import RunView

_SET_HELP = "Change a value: train.batch=64, or just batch=64."
_SWEEP_HELP = "Train once for each value; several make a grid."
_PARALLEL_HELP = "How the workers share the work: data, sharded, model,stages=2 and so on."
_HOSTS_HELP = "Train on these machines, over ssh; or a file with a name in each line."
_RAY_HELP = "Train on the nodes of this Ray cluster: HOST:PORT, or auto."
_SSH_HELP = "What to call instead of ssh, such as 'ssh -F FILE'."
_PYTHON_HELP = "The hosts' Python interpreter; by default the path of this one."
_EXPLAIN_HELP = "Print every value and why it has it; train nothing."


@verb
def train(
    config: Annotated[Path, Argument(metavar="CONFIG", help="A TOML, YAML or XML file.")],
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=_SET_HELP)] = None,
    repeat: Annotated[int | None, Option(min=1, help="Train this often, with other seeds.")] = None,
    sweep: Annotated[list[str] | None, Option(metavar="KEY=V1,V2", help=_SWEEP_HELP)] = None,
    profile: Annotated[bool, Option("--profile/--no-profile", help="Time every layer.")] = True,
    resume: Annotated[bool, Option("--resume", help="Go on where it stopped.")] = False,
    workers: Annotated[int, Option(min=1, help="Processes that train together, on each host.")] = 1,
    parallel: Annotated[str | None, Option(metavar="STRATEGY[,KEY=VALUE]", help=_PARALLEL_HELP)] = None,
    hosts: Annotated[str | None, Option(metavar="A,B,C|FILE", help=_HOSTS_HELP)] = None,
    ssh: Annotated[str | None, Option(metavar="COMMAND", help=_SSH_HELP)] = None,
    python: Annotated[str | None, Option(metavar="PATH", help=_PYTHON_HELP)] = None,
    ray: Annotated[str | None, Option(metavar="ADDRESS", help=_RAY_HELP)] = None,
    out: Out = None,
    explain: Annotated[bool, Option("--explain", help=_EXPLAIN_HELP)] = False,
    fold: Annotated[int | None, Option(min=1, hidden=True)] = None,
    every_layer: EveryLayer = False,
) -> Outcome:
    """Train a network as a configuration file says, and record where the time goes."""
    quiet_torch()  # a configuration's network is looked up with torch
    from laptime.runs.directory import default_out
    from laptime.training.config.reading import read_config
    from laptime.training.launch.ssh_hosts import Ssh, read_hosts

    given = [*(settings or []), *parallel_settings(parallel), *([] if profile else ["record.profile=false"])]
    if resume and out is None:
        wrong("--resume", "give the run to go on with: --out DIR")
    if explain and sweep:
        wrong("--explain", "it tells of one configuration; give one value of the sweep by --set instead")
    if ray is not None and hosts is not None:
        wrong("--ray", "it trains on the nodes of a cluster, --hosts over ssh; give one of them")
    with waiting("reading the configuration"):
        resolved = read_config(config, given)
    if explain:
        return _explanation(resolved, workers)
    folds = resolved.config.validation.folds if fold is None else 0
    times = repeat or resolved.repeat or 1
    several = times > 1 or bool(sweep) or bool(folds)
    asked = _Asked(
        file=config,
        settings=given,
        resolved=resolved,
        resume=resume,
        workers=workers,
        hosts=read_hosts(hosts) if hosts is not None else [],
        ssh=Ssh.of(ssh, python),
        ray=ray,
        fold=fold,
        out=out or default_out(resolved.config.name or ("experiment" if several else "train")),
    )
    if several:
        return _experiment(asked, times, sweep or [], folds)
    from laptime.training.launch.node import Node
    from laptime.training.ranks import GROUP, Ranks
    from laptime.training.strategies import STRATEGIES

    if asked.hosts:
        return _ended(_launched_on_hosts(asked), every_layer)
    strategy = resolved.config.parallel.strategy
    served = STRATEGIES[strategy].served
    if ray is not None and not served:
        raise ConfigError(
            f"{strategy} does not train on a Ray cluster: use --workers on this machine, --hosts on several, "
            "or asynchronous or mixed; --ray runs the trials of a --sweep or --repeat with any strategy"
        )
    if served and GROUP not in os.environ:
        return _ended(_launched_groups(asked), every_layer)
    if (workers > 1 or Node.here() is not None) and not Ranks.here().started:
        return _ended(_launched(asked), every_layer)
    return _ended(_trained(asked), every_layer)


def parallel_settings(parallel: str | None) -> list[str]:
    """`model,stages=2` as settings of the section `parallel`."""
    name, *others = (parallel or "").split(",")
    return [f"parallel.strategy={name}", *(f"parallel.{each}" for each in others)] if name else []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the command line asks for."""

    file: Path
    settings: list[str]
    resolved: Resolved
    resume: bool
    workers: int
    hosts: list[str]
    ssh: Ssh
    ray: str | None  # the address of a cluster
    fold: int | None
    out: Path  # of the run, or of the experiment

    def arguments(self) -> list[str]:
        """The arguments of a process that trains this run."""
        options = [word for setting in self.settings for word in ("--set", setting)]
        options += ["--out", str(self.out), *(["--resume"] if self.resume else [])]
        options += ["--repeat", "1"]  # whatever the file says: the parent process does the repetitions
        options += [] if self.fold is None else ["--fold", str(self.fold)]
        return ["train", str(self.file), *options]

    def spread(self) -> list[str]:
        """The options that say on which machines, and how many ranks on each."""
        where = ["--hosts", ",".join(self.hosts), *self.ssh.options()] if self.hosts else []
        where += ["--ray", self.ray] if self.ray is not None else []
        return ["--workers", str(self.workers), *where]


def _explanation(resolved: Resolved, workers: int) -> Outcome:
    from laptime.render.terminal import console
    from laptime.render.terminal.table import value_lines
    from laptime.training.config.reading import explain
    from laptime.training.device_setup import choose_device, share_of_threads

    train, rows = resolved.config.train, explain(resolved)
    if workers > 1 and train.threads is None:
        with suppress(UnsupportedDevice):  # one that this machine lacks, another may have
            if choose_device(train.device, locals=workers)[0].type == "cpu":  # which all ranks share
                threads, why = share_of_threads(workers)
                place = [row[0] for row in rows].index("train.threads")
                rows[place] = ("train.threads", str(threads), why, rows[place][3])
    document = {"values": [dict(zip(("key", "value", "why", "meaning"), row, strict=True)) for row in rows]}
    return Outcome(
        document=lambda: document,
        lines=lambda width: value_lines(rows, width if console().is_terminal else None),
    )


# -- one training --------------------------------------------------------------------------------------------


def _trained(asked: _Asked) -> Run:
    """Train in this process. As one of several ranks, end it: the launcher, or rank 0, tells the user."""
    quiet_torch()
    with waiting("building the network and opening the data"):
        from laptime.training.ranks import Ranks
        from laptime.training.session import launched
        from laptime.training.session import train as train_here
    first = Ranks.here().rank == 0

    def trained() -> Run:
        with _ProgressBar() as bar:
            return train_here(
                asked.resolved.config,
                out=asked.out,
                resume=asked.resume,
                fold=asked.fold,
                folder=asked.resolved.path.parent,
                watch=bar.watch if first else lambda _: None,
                say=say if first else lambda _: None,
                begin=bar.begin if first else lambda _: None,
            )

    if not launched():
        with _ending(_unfinished(asked.out) if first else lambda: ""):
            run = trained()
        if first:
            return run
        raise typer.Exit
    try:
        with redirect_stdout(sys.stderr):  # what a network prints must not spoil the launcher's answer
            trained()
    except KeyboardInterrupt as stop:
        raise typer.Exit(_status(stop)) from None
    except Exception:
        raise typer.Exit(1) from None
    raise typer.Exit


class _ProgressBar(ExitStack):
    """A progress bar whose length is known only once the data is open."""

    def __init__(self) -> None:
        super().__init__()
        self._tell: Callable[[str], None] = lambda _: None
        self._words = ""

    def begin(self, training: TrainingLoop) -> None:
        setup = training.setup
        say(f"{training.config.name or training.config.network.name}: device {setup.device} ({setup.why})")
        self._tell = self.enter_context(progress("training", training.steps))

    def watch(self, now: Progress) -> None:
        loss = f", loss {now.loss:.4g}" if now.loss is not None else ""
        if loss or not self._words:
            self._words = f"epoch {now.epoch + 1}/{now.epochs}{loss}"
        self._tell(self._words)


def _launched(asked: _Asked) -> Run:
    """Train in several processes of this machine."""
    from laptime.runs import load

    quiet_torch()  # for the ranks, too
    with waiting(f"starting {asked.workers} ranks"):
        from laptime.training.launch.local_ranks import RanksFailed, launch
        from laptime.training.launch.node import Node
        from laptime.training.stop_signals import CHILD
    node = Node.here()
    launched = node is not None and CHILD in os.environ  # by the launcher of all hosts, which tells the user
    with _ending((lambda: "") if launched else _unfinished(asked.out)):
        try:
            restarts = asked.resolved.config.parallel.restarts
            launch(asked.arguments(), workers=asked.workers, restarts=restarts, out=asked.out, say=say)
        except RanksFailed as failed:
            if not launched:
                raise
            answer(asdict(failed.cause))
            raise typer.Exit(1) from None
    if not launched and (node is None or node.number == 0):
        return load(asked.out)
    raise typer.Exit


def _launched_on_hosts(asked: _Asked) -> Run:
    """Train on other machines."""
    from laptime.runs import load
    from laptime.training.launch.host_folders import RUN, HostTask
    from laptime.training.launch.hosts import host_files, launch_on_hosts
    from laptime.training.strategies import STRATEGIES

    config, ranks = asked.resolved.config, len(asked.hosts) * asked.workers
    strategy = STRATEGIES[config.parallel.strategy]
    if strategy.served:
        raise ConfigError(f"{config.parallel.strategy} trains on a Ray cluster, not on --hosts; use --ray")
    if ranks > 1:
        strategy.check(config, ranks)
    files, settings = host_files(asked.resolved)
    there = replace(asked, file=Path(asked.file.name), settings=[*asked.settings, *settings], out=Path(RUN))
    arguments = tuple(replace(there, resume=False).arguments())
    with _ending(_unfinished(asked.out)):
        launch_on_hosts(
            HostTask(
                arguments=arguments,
                files=files,
                workers=asked.workers,
                restarts=config.parallel.restarts,
                laptime=__version__,
            ),
            asked.hosts,
            asked.ssh,
            out=asked.out,
            resume=asked.resume,
            say=say,
        )
    return load(asked.out)


def _launched_groups(asked: _Asked) -> Run:
    """Train in groups of processes with parameter servers between them."""
    from laptime.runs import load

    quiet_torch()
    with waiting("starting parameter servers"):
        from laptime.training.launch.groups import Groups, launch_groups, launch_groups_on_ray
        from laptime.training.strategies import STRATEGIES
    plan = asked.resolved.config.parallel
    STRATEGIES[plan.strategy].check(asked.resolved.config, asked.workers)
    groups = plan.groups or asked.workers
    size = asked.workers // groups
    of_all = Groups(groups=groups, size=size, servers=plan.servers, restarts=plan.restarts, out=asked.out)
    with _ending(_unfinished(asked.out)):
        if asked.ray is None:
            launch_groups([*asked.arguments(), "--workers", str(size)], of_all, say=say)
        else:
            task = _node_task(asked, workers=size)
            launch_groups_on_ray(
                task, of_all, address=asked.ray, laptime=__version__, resume=asked.resume, say=say
            )
    return load(asked.out)


def _node_task(asked: _Asked, *, workers: int) -> NodeTask:
    """What a process of so many ranks does on a node of a Ray cluster."""
    from laptime.training.launch.host_folders import RUN
    from laptime.training.launch.hosts import host_files
    from laptime.training.launch.ray_cluster import Need
    from laptime.training.launch.ray_process import NodeTask

    train = asked.resolved.config.train
    files, settings = host_files(asked.resolved)
    there = replace(asked, file=Path(asked.file.name), settings=[*asked.settings, *settings], out=Path(RUN))
    threads = train.threads or 1
    return NodeTask(
        arguments=(*there.arguments(), "--workers", str(workers)),
        files=files,
        out=asked.out,
        ranks=tuple(range(workers)),
        need=Need(
            cpus=workers * threads, gpus=0 if train.device == "cpu" else workers, if_any=train.device is None
        ),
        environment={"OMP_NUM_THREADS": str(threads)},
    )


def _ended(run: Run, every_layer: bool) -> Outcome:
    from laptime.runs.directory import LAST_CHECKPOINT
    from laptime.views.run_view import run_view

    view = run_view(run)
    where, laptime = shlex.quote(str(run.path)), laptime_command()
    # Without a checkpoint it would be refused.
    resume = f"    {laptime} train … --resume --out {where}" if (run.path / LAST_CHECKPOINT).exists() else ""
    told = f"\n{_learned(run, view)}\nThe run is in {run.path}\n  {laptime} show {where}{resume}"
    return Outcome.of_run(view, every_layer=every_layer, below=[told])


def _learned(run: Run, view: RunView) -> str:
    """Losses, accuracies and time of the whole training, in one line."""
    from laptime.views.format import loss, percent
    from laptime.views.run_view import NOUNS

    topn = run.config.get("validation", {}).get("topn", "n")
    words, names = [], {"loss": "loss", "top1": "top-1", "topn": f"top-{topn}"}
    for part in view.stages.values():
        results = part.results.values if part.results else {}
        shown = {key: loss(value) if key == "loss" else percent(value) for key, value in results.items()}
        if told := [f"{name} {shown[key]}" for key, name in names.items() if key in shown]:
            words.append(f"{NOUNS[part.stage.value]} {', '.join(told)}")
    return f"{'; '.join(words) or 'no loss was recorded'}; {run.tables.steps.end_s:.1f} s"


# -- one that ends early -------------------------------------------------------------------------------------


@contextmanager
def _ending(left: Callable[[], str], *, failed: bool = True) -> Iterator[None]:
    """Say what an interrupted training left on the disk; with `failed`, also one that raised an error."""
    try:
        yield
    except KeyboardInterrupt as stop:
        word = "laptime: interrupted" if _status(stop) == 130 else "laptime: terminated"
        say("; ".join(filter(None, (word, left()))))
        raise typer.Exit(_status(stop)) from None
    except Exception:
        if failed and left():
            say(left())
        raise


def _unfinished(out: Path) -> Callable[[], str]:
    """A line on the run that is there when it is called; empty where nothing was written since."""

    from laptime.runs.directory import LAST_CHECKPOINT
    from laptime.runs.document import RUN_FILE

    def written() -> int | None:
        with suppress(OSError):
            return (out / RUN_FILE).stat().st_mtime_ns
        return None

    def line() -> str:
        if written() == before:
            return ""
        goes_on = (
            f"; --resume --out {shlex.quote(str(out))} goes on" if (out / LAST_CHECKPOINT).exists() else ""
        )
        return f"the run so far is in {out}{goes_on}"

    before = written()
    return line


def _status(stop: KeyboardInterrupt) -> int:
    """The shell's numbers for SIGTERM and Ctrl-C."""
    from laptime.training.stop_signals import Terminated

    return 143 if isinstance(stop, Terminated) else 130


# -- several runs --------------------------------------------------------------------------------------------


def _experiment(asked: _Asked, repeat: int, sweep: list[str], folds: int) -> Outcome:
    from laptime.render.terminal.run_text import trial_lines
    from laptime.training.config.reading import read_config
    from laptime.training.launch.experiment import conduct, here, on_ray, python, spreads, trials
    from laptime.training.strategies import STRATEGIES
    from laptime.views.run_document import trial_row

    place, seed = asked.out, asked.resolved.config.train.seed
    chosen = trials(place, repeat=repeat, sweeps=sweep, folds=folds, seed=seed)
    # A wrong value is told before anything is trained.
    resolved = [read_config(asked.file, asked.settings, trial.settings) for trial in chosen]
    configs = [each.config for each in resolved]

    def of_trial(trial: Trial, goes_on: bool = False) -> _Asked:
        settings = [*asked.settings, *trial.settings]
        return replace(asked, settings=settings, out=trial.out, resume=goes_on, fold=trial.fold)

    def command(trial: Trial, goes_on: bool) -> list[str]:
        return [*python(), *of_trial(trial, goes_on).arguments(), *asked.spread(), "--json"]

    def placed() -> AbstractContextManager[Start]:
        # Groups with parameter servers spread over the cluster themselves, one trial after the other.
        if asked.ray is None or spread_themselves:
            return nullcontext(here(command))
        tasks = {
            trial.out: _node_task(replace(of_trial(trial), resolved=each), workers=asked.workers)
            for trial, each in zip(chosen, resolved, strict=True)
        }
        return on_ray(asked.ray, tasks, laptime=__version__)

    def tell(trial: Trial, number: int, count: int, where: str) -> None:
        say(f"{number}/{count}  {trial.name}{f'  on {where}' if where else ''}")

    def left() -> str:
        where = shlex.quote(str(place))
        return f"the trials so far are in {place}; --resume --out {where} goes on" if place.is_dir() else ""

    served = {STRATEGIES[config.parallel.strategy].served for config in configs}
    if asked.ray is not None and len(served) > 1:
        raise ConfigError("--ray: sweep strategies with parameter servers by themselves, and the others too")
    spread_themselves = True in served
    with _ending(left, failed=False), placed() as start:
        results = conduct(
            chosen,
            start,
            at_once=1 if asked.ray is None or spread_themselves else len(chosen),
            configs=configs,
            workers=asked.workers * (len(asked.hosts) or 1),
            resume=asked.resume,
            say=say,
            tell=tell,
        )
    rows = [trial_row(result.trial.name, result.status, result.trial.run()) for result in results]
    means = spreads(results, rows)
    failed = [result for result in results if result.status == "failed"]

    def lines(width: int) -> Iterator[Text | str]:
        yield from trial_lines(rows, width)
        yield from map(_mean_line, means)
        if good := [result.trial for result in results if result.status != "failed"]:
            yield f"\nThe runs are in {place}\n  {_next_command(place, good)}"

    spread = [{"point": mean.point, "trials": mean.trials, **mean.values} for mean in means]
    error = (
        TrainingError(
            f"{len(failed)} of {len(results)} trials failed, the first of them {failed[0].trial.name}: "
            f"{failed[0].reason or 'it said nothing'}; --resume tries them again"
        )
        if failed
        else None
    )
    document = {"experiment": str(place), "trials": rows, "spread": spread}
    return Outcome(document=lambda: document, lines=lines, error=error)


def _mean_line(spread: Spread) -> str:
    """Mean ± standard deviation of repetitions or folds, in one line."""
    from laptime.views.format import percent

    words = []
    for stage, of_stage in (("train", ""), ("validation", "val. ")):
        if (loss := spread.values.get(f"{stage}_loss")) is not None:
            words.append(f"{of_stage}loss {loss[0]:.4g} ± {loss[1]:.2g}")
        if (top1 := spread.values.get(f"{stage}_top1")) is not None:
            words.append(f"{of_stage}top-1 {percent(top1[0])} ± {100 * top1[1]:.1f}")
    return f"{' '.join([*spread.point, f'mean of {spread.trials}'])}: {', '.join(words)}"


def _next_command(place: Path, good: list[Trial]) -> str:
    """A command that looks at the trials: two points of a grid, or two trials, are compared."""
    groups = list(dict.fromkeys(place / Path(trial.name).parts[0] for trial in good if trial.out != place))
    words = ["show", good[0].out] if len(groups) < 2 else ["compare", groups[0], groups[-1]]
    return f"{laptime_command()} {shlex.join(map(str, words))}"
