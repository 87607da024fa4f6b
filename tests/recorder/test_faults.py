"""Whatever of ours fails, the training goes on as if nobody recorded it, and a line says so."""

import contextlib
import inspect
import io
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laptime
from laptime.bridges.scripts import discovery, step_ends
from laptime.bridges.scripts.run import run_script
from laptime.recorder import (
    arguments,
    autograd_graph,
    breakdown,
    budget,
    collectives,
    finished_steps,
    guard,
    kernel_trace,
    layer_division,
    live_workload,
    loss_end,
    network_hooks,
    optimizer_steps,
    phase_marks,
    recorder,
    timeline,
    torch_patches,
)
from laptime.recorder.backends import backend, cpu
from laptime.runs import parts, writer
from tests.recorder.loops import torch_is_untouched

IN_PROCESS = (
    arguments,
    backend,
    cpu,
    breakdown,
    budget,
    collectives,
    layer_division,
    autograd_graph,
    network_hooks,
    kernel_trace,
    loss_end,
    live_workload,
    recorder,
    finished_steps,
    timeline,
    optimizer_steps,
    phase_marks,
    torch_patches,
    writer,
    parts,
)
IN_SCRIPTS = (step_ends, discovery)

# What runs before a recording has begun, or is asked of it in so many words, may raise.
ASKED_FOR = {
    "__init__",
    "__enter__",
    "__exit__",
    "__repr__",
    "start",
    "create",
    "resume",
    "steps",  # generators and context managers: what they do is in functions of their own
    "step",
    "account",
    "run",
    "active",
    "watching",
    "begin",  # of a script's watcher: before the script
    "end",
    "named",
    "class_names",
    "listed",
    "check_optimizers",
    "refuse_nested",
    "refuse_replicas",
    "step_numbers",
    "device_of",
    "rehearse",
    "mark_seconds",
    "_running",  # raises where there is no recording
    "stop",  # made of parts, each of which is tried below
    "log",
    "lap",
    "_end_part",  # what a fault is told to
    "_execute",
    "watch_faults",
}
# What takes our hooks and patches off. Where that fails they stay, and do nothing.
CLEANUP = {
    "release",
    "restore",
    "uninstall",
    "detach",
    "undo_all",
    "keep_classes",
    "leave_in_child",
    "give_up",
}
# Around every call of a module or function: there is nothing in them but the call itself and what is guarded.
# `tracing` asks torch alone whether to step aside.
TRANSPARENT = {"call", "run", "__torch_function__", "__torch_dispatch__", "tracing"}
TRANSPARENT_CALLS = {optimizer_steps.Hook}
TEMPLATES = {"_call", "_call_replacement"}  # never called themselves: their code is


class Planted(Exception):
    """A fault of ours."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.recurrent = nn.GRU(16, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.features(x)[:, None])
        return self.head(hidden[:, -1])


def loader() -> DataLoader[Any]:
    data = torch.Generator().manual_seed(1)
    x, y = torch.randn(24, 8, generator=data), torch.randint(0, 4, (24,), generator=data)
    return DataLoader(TensorDataset(x, y), batch_size=8)


def digest(network: nn.Module) -> float:
    return float(sum(p.detach().double().abs().sum() for p in network.parameters()))


def train(record: Any) -> float:
    """Two epochs of all that is watched: a criterion, a penalty, copies, evaluation, two optimizers."""
    torch.manual_seed(0)
    network = Net()
    first = torch.optim.SGD(network.features.parameters(), lr=0.1)
    second = torch.optim.Adam([*network.recurrent.parameters(), *network.head.parameters()], lr=0.01)
    criterion = nn.CrossEntropyLoss()

    def one(batch: Any) -> torch.Tensor:
        x, y = (part.to("cpu") for part in batch)
        x.requires_grad_()
        scores = network(x)
        (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        value = criterion(scores, y) + 0.1 * slope.pow(2).mean()
        value.backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
        return value

    def evaluate(batch: Any) -> None:
        with torch.no_grad():
            network(batch[0])

    record(network, [first, second], one, evaluate)
    return digest(network)


def bare(network: Any, optimizers: Any, one: Any, evaluate: Any) -> None:
    for _ in range(2):
        for batch in loader():
            one(batch)
        for batch in loader():
            evaluate(batch)


def functions(modules: tuple[ModuleType, ...]) -> Iterator[tuple[Any, str]]:
    """Every function and method that a module defines: where a fault may be planted."""
    for module in modules:
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if isinstance(value, FunctionType):
                yield module, name
            elif inspect.isclass(value):
                yield from ((value, inner) for inner, one in vars(value).items() if _plain(one))


def _plain(value: Any) -> bool:
    return isinstance(value, FunctionType | property | staticmethod | classmethod)


def places(modules: tuple[ModuleType, ...]) -> list[Any]:
    found = []
    for owner, name in functions(modules):
        ours = name not in ASKED_FOR | TRANSPARENT | TEMPLATES and not (
            name.startswith("__") and name != "__call__"
        )
        ours = ours and not (name == "__call__" and owner in TRANSPARENT_CALLS)
        if ours and not inspect.isgeneratorfunction(getattr(owner, name)):
            found.append(pytest.param(owner, name, id=f"{owner.__name__.rpartition('.')[2]}.{name}"))
    return found


class Fault:
    """Raises at the n-th call of a function, and from then on if it is to stay."""

    def __init__(self, owner: Any, name: str, *, at: int) -> None:
        self.calls, self._at, self._armed = 0, at, False
        self._owner, self._name = owner, name
        self._original = vars(owner)[name]

    def arm(self, *_: Any) -> None:
        self._armed = True

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        original = self._original
        if isinstance(original, property):
            patch.setattr(self._owner, self._name, property(self._raising(original.fget)))
        elif isinstance(original, staticmethod | classmethod):
            kind = type(original)
            patch.setattr(self._owner, self._name, kind(self._raising(original.__func__)))
        elif hasattr(original, "shields"):  # what is inside the shield fails, not the shield
            shield = guard.shielded(original.shields)
            patch.setattr(self._owner, self._name, shield(self._raising(original.__wrapped__)))
        else:
            patch.setattr(self._owner, self._name, self._raising(original))

    def _raising(self, original: Any) -> Any:
        def raising(*args: Any, **kwargs: Any) -> Any:
            if self._armed:
                self.calls += 1
                if self.calls >= self._at:
                    raise Planted("planted")
            return original(*args, **kwargs)

        return raising


def in_a_fork(body: Callable[[], None]) -> None:
    """Run a test in a process of its own: what a fault leaves behind must not meet other tests."""
    read, write = os.pipe()
    process = os.fork()
    if not process:
        try:
            body()
            told = b"passed"
        except BaseException:
            told = traceback.format_exc().encode()
        os.write(write, told[-60_000:])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        told = file.read()
    os.waitpid(process, 0)
    assert told == b"passed", told.decode()


@pytest.fixture(scope="module")
def expected() -> float:
    return train(bare)


EVERY = 9  # place in the default suite; all of them, and at a later call, are a slow test


def sampled(found: list[Any]) -> list[Any]:
    """Some places by default, the others in the slow suite."""
    return [
        one if index % EVERY == 0 else pytest.param(*one.values, id=one.id, marks=pytest.mark.slow)
        for index, one in enumerate(found)
    ]


@pytest.mark.parametrize("at", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("owner", "name"), sampled(places(IN_PROCESS)))
def test_a_fault_anywhere_in_a_recording_leaves_the_training_as_it_is(
    owner, name, at, expected, tmp_path, monkeypatch
):
    def body() -> None:
        fault = Fault(owner, name, at=at)
        fault.plant(monkeypatch)

        def recorded(network: Any, optimizers: Any, one: Any, evaluate: Any) -> None:
            options = {"every_step": True, "kernels": [3], "flush_s": 0.01}
            with recorder.Recorder(network, optimizers, out=tmp_path / "run", **options) as recording:
                fault.arm()
                for _ in range(2):
                    for batch in recording.steps(loader()):
                        recording.log(loss=one(batch))
                    for batch in recording.steps(loader(), stage="validation"):
                        evaluate(batch)
                recording.note("the end")
                recording.flush()

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert train(recorded) == expected
        lines = [str(one.message) for one in told if str(one.message).startswith("laptime")]
        assert len(lines) <= 4, lines  # layers, the workload, the recording, its summary: each once
        monkeypatch.undo()
        if name not in CLEANUP:
            assert torch_is_untouched()
            with laptime.record(Net(), out=tmp_path / "next"):  # nothing is left of the one that failed
                pass

    in_a_fork(body)


SCRIPT = """
import torch
from tests.recorder.test_faults import bare, train
print(train(bare))
"""


@pytest.mark.parametrize(("owner", "name"), sampled(places(IN_SCRIPTS)))
def test_a_fault_in_what_follows_a_script_leaves_its_output_as_it_is(
    owner, name, expected, tmp_path, monkeypatch
):
    def body() -> None:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        fault = Fault(owner, name, at=1)
        fault.plant(monkeypatch)
        monkeypatch.setattr(discovery.ScriptRecorder, "begin", _arming(discovery.ScriptRecorder.begin, fault))
        printed = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.simplefilter("ignore")
            assert run_script(script, [], out=tmp_path / "run", every_step=True) == 0
        assert printed.getvalue() == f"{expected}\n"
        monkeypatch.undo()
        guard.watch_faults(None)
        assert torch_is_untouched()

    in_a_fork(body)


def _arming(begin: Any, fault: Fault) -> Any:
    def armed(self: Any) -> None:
        begin(self)
        fault.arm()

    return armed


def test_a_fault_is_told_once_with_what_is_lost_and_why(tmp_path, monkeypatch, expected):
    fault = Fault(layer_division.Division, "resolve", at=1)
    fault.plant(monkeypatch)

    def recorded(network: Any, optimizers: Any, one: Any, evaluate: Any) -> None:
        with laptime.record(network, optimizers, out=tmp_path / "run", every_step=True) as recording:
            fault.arm()
            for _ in range(2):
                for batch in recording.steps(loader()):
                    one(batch)
                for batch in recording.steps(loader(), stage="validation"):
                    evaluate(batch)

    with pytest.warns(UserWarning, match=r"layer times ended at step 0.*Planted: planted") as told:
        assert train(recorded) == expected
    assert len(told) == 1
    run = laptime.load(tmp_path / "run")
    assert run.status == "finished"
    assert len(run.steps) == 12  # the accounts go on without the layers
    assert any("layer times ended" in note for note in run.summary["notes"])


def test_warnings_that_are_errors_do_not_end_a_training(tmp_path, monkeypatch, expected, capfd):
    fault = Fault(network_hooks.NetworkHooks, "root_exit", at=2)
    fault.plant(monkeypatch)

    def recorded(network: Any, optimizers: Any, one: Any, evaluate: Any) -> None:
        with laptime.record(network, optimizers, out=tmp_path / "run") as recording:
            fault.arm()
            for _ in range(2):
                for batch in recording.steps(loader()):
                    one(batch)
                for batch in recording.steps(loader()):
                    evaluate(batch)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(recorded) == expected
    assert "the recording ended at step" in capfd.readouterr().err
    assert laptime.load(tmp_path / "run").status == "interrupted"
