"""Trains a network three steps, bare or recorded, and saves it in the middle of them in every way."""

from __future__ import annotations

import copy
import io
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

import laptime
from laptime.bridges.scripts.discovery import ScriptRecorder
from tests.recorder.cases import Case
from tests.recorder.saved_networks import loss_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What there is to save at a moment of a training."""

    name: str
    network: nn.Module
    batch: Any
    optimizer: torch.optim.Optimizer


Way = Callable[[Moment], bytes]
Loop = Callable[[Iterable[Any]], Iterable[Any]]

STEPS = 3
FIRST_HOOK = 1_000_000  # beyond all that the process has given out


# -- a training ----------------------------------------------------------------------------------------------


@contextmanager
def bare(network: nn.Module, optimizer: torch.optim.Optimizer, out: Path) -> Iterator[Loop]:
    """No recording."""
    yield lambda batches: batches


@contextmanager
def recorded(network: nn.Module, optimizer: torch.optim.Optimizer, out: Path) -> Iterator[Loop]:
    """`laptime.record`, with marks on the layers of every step."""
    with laptime.record(network, optimizer, out=out, every_step=True) as recording:
        yield recording.steps


@contextmanager
def found(network: nn.Module, optimizer: torch.optim.Optimizer, out: Path) -> Iterator[Loop]:
    """What `laptime run` does around a script, the search for its networks included."""
    with ScriptRecorder(out, every_step=True).watching():
        yield lambda batches: batches
    assert (out / "run.json").exists()


RECORDINGS = {"record": recorded, "run": found}


def train(case: Case, how: Any, out: Path, act: Callable[[Moment], None]) -> dict[str, torch.Tensor]:
    """Three steps; `act` is told each moment of them. The same every time. Returns the weights."""
    torch.manual_seed(0)
    RemovableHandle.next_id = FIRST_HOOK  # a network that has hooks is saved with their numbers
    network = case.build()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    batches = [case.batch() for _ in range(STEPS)]
    with how(network, optimizer, out) as loop:
        for step, batch in enumerate(loop(batches)):

            def at(moment: str, step: int = step, batch: Any = batch) -> None:
                act(Moment(name=f"{moment} {step}", network=network, batch=batch, optimizer=optimizer))

            with _in_a_hook(partial(at, "hook")):
                output = network(batch)
            at("forward")
            loss = loss_of(output)
            at("loss")
            loss.register_hook(partial(_in_backward, partial(at, "gradient")))
            loss.backward()
            at("backward")
            optimizer.step()
            optimizer.zero_grad()
            at("update")
    return network.state_dict()


def _in_backward(act: Callable[[], None], _: torch.Tensor) -> None:
    act()


@contextmanager
def _in_a_hook(act: Callable[[], None]) -> Iterator[None]:
    """Act once a module has been called. The hook is for all modules: one of a module would be saved, too."""

    def hook(*_: Any) -> None:
        handle.remove()
        act()

    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


# -- ways to save --------------------------------------------------------------------------------------------


def as_file(value: Any) -> bytes:
    """What `torch.save` writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _used(network: nn.Module, use: Callable[[], bytes]) -> bytes:
    """As a network is exported: in evaluation mode, and random numbers stay as they were."""
    training, state = network.training, torch.get_rng_state()
    network.eval()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated; tracing warns of branches
            return use()
    finally:
        network.train(training)
        torch.set_rng_state(state)


def _scripted(module: Any) -> bytes:
    file = io.BytesIO()
    torch.jit.save(module, file)
    return file.getvalue()


def _exported(network: nn.Module, batch: Any, *, strict: bool) -> bytes:
    file = io.BytesIO()
    torch.compiler.reset()
    torch.export.save(torch.export.export(network, (batch,), strict=strict), file)
    return file.getvalue()


def _packaged(network: nn.Module) -> bytes:
    from torch.package import PackageExporter

    file = io.BytesIO()
    with warnings.catch_warnings(), PackageExporter(file) as exporter:
        warnings.simplefilter("ignore")  # it has its storages named the old way
        exporter.extern("**")
        exporter.save_pickle("saved", "network.pkl", network)
    return file.getvalue()


def _safe(network: nn.Module) -> bytes:
    from safetensors.torch import save

    return save({name: one.clone() for name, one in network.state_dict().items()})


def _distributed(network: nn.Module) -> bytes:
    """A checkpoint of torch.distributed, brought into one file as torch's own tool does."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process saves by itself
        checkpoint.save(network.state_dict(), checkpoint_id=folder, no_dist=True)
        for file in Path(folder).rglob("*"):
            assert b"laptime" not in file.read_bytes()
        dcp_to_torch_save(folder, f"{folder}/one.pt")
        return as_file(torch.load(f"{folder}/one.pt"))


def _by_value(network: nn.Module) -> bytes:
    """As MLflow, joblib and Ray do it where classes are a script's own."""
    import cloudpickle

    from tests.recorder import cases, saved_networks

    for module in (cases, saved_networks):
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(network)
    finally:
        for module in (cases, saved_networks):
            cloudpickle.unregister_pickle_by_value(module)


PLAIN: dict[str, Way] = {
    "network.pt": lambda at: as_file(at.network),
    "weights.pt": lambda at: as_file(at.network.state_dict()),
    "network.pickle": lambda at: pickle.dumps(at.network),
    "copy.pickle": lambda at: pickle.dumps(copy.copy(at.network)),
    "deepcopy.pickle": lambda at: pickle.dumps(copy.deepcopy(at.network)),
    "deepcopy-weights.pt": lambda at: as_file(copy.deepcopy(at.network).state_dict()),
    "optimizer-weights.pt": lambda at: as_file(at.optimizer.state_dict()),
    "optimizer.pickle": lambda at: pickle.dumps(at.optimizer),
}
TENSORS: dict[str, Way] = {
    "safetensors": lambda at: _safe(at.network),
    "distributed-weights.pt": lambda at: _distributed(at.network),
    "packaged": lambda at: _packaged(at.network),
}
BY_VALUE: dict[str, Way] = {"by-value.pickle": lambda at: _by_value(at.network)}
PROGRAMS: dict[str, Way] = {
    "graph.pt": lambda at: _used(at.network, lambda: as_file(torch.fx.symbolic_trace(at.network))),
    "script.ts": lambda at: _used(at.network, lambda: _scripted(torch.jit.script(at.network))),
    "trace.ts": lambda at: _used(
        at.network, lambda: _scripted(torch.jit.trace(at.network, at.batch, strict=False))
    ),
    "program.pt2": lambda at: _used(at.network, lambda: _exported(at.network, at.batch, strict=False)),
    "strict-program.pt2": lambda at: _used(at.network, lambda: _exported(at.network, at.batch, strict=True)),
}


def saved(way: Way, moment: Moment) -> bytes | Exception:
    """What one way of saving gives; what it raises, where it cannot."""
    try:
        return way(moment)
    except Exception as error:
        return error
