"""What is charged to `communication`, with a process group that stands for two ranks and sends nothing."""

import threading
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

import laptime
from laptime.recorder import collectives
from laptime.recorder.backends import FakeClock
from laptime.recorder.recorder import Recorder
from tests.recorder.loops import torch_is_untouched

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
PLACES = [(each.owner, each.name) for each in collectives._places() if each.name in vars(each.owner)]
AS_IT_WAS = [vars(owner)[name] for owner, name in PLACES]


@pytest.fixture
def world(request):
    ranks = getattr(request, "param", 2)
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=ranks)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind():
    yield
    assert torch_is_untouched()
    assert [vars(owner)[name] for owner, name in PLACES] == AS_IT_WAS


def recorded(out, body, *, network=None, **options):
    """One step, with layers; `body` gets the network, its loss and the clock."""
    clock = FakeClock()
    network = network or nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with Recorder(network, out=out, clock=clock, every_step=True, **options) as recording, recording.step():
        body(network, network(torch.randn(3, 4)).sum(), clock)
    return laptime.load(out)


class Takes:
    """A process group's method that takes a second."""

    def __init__(self, monkeypatch, clock_holder, name="allreduce"):
        original = getattr(dist.ProcessGroup, name)

        def slow(group, *args, **kwargs):
            clock_holder[0].advance(1.0)
            return original(group, *args, **kwargs)

        monkeypatch.setattr(dist.ProcessGroup, name, slow)


def exchanging(clocks, then=lambda: None):
    def body(network, loss, clock):
        clocks.append(clock)
        loss.backward()
        dist.all_reduce(torch.ones(2))
        then()

    return body


@pytest.mark.usefixtures("world")
def test_an_exchange_is_communication_and_counted_once(tmp_path, monkeypatch):
    clocks = []
    Takes(monkeypatch, clocks)
    (step,) = recorded(tmp_path / "run", exchanging(clocks)).steps
    assert (step.communication_s, step.host_s, step.backward_s) == (1.0, 0.0, 0.0)
    monkeypatch.undo()


@pytest.mark.parametrize("world", [1], indirect=True)
@pytest.mark.usefixtures("world")
def test_a_rank_on_its_own_waits_for_nobody(tmp_path, monkeypatch):
    clocks = []
    Takes(monkeypatch, clocks)
    (step,) = recorded(tmp_path / "run", exchanging(clocks)).steps
    assert (step.communication_s, step.host_s) == (0.0, 1.0)
    monkeypatch.undo()


@pytest.mark.usefixtures("world")
def test_what_another_thread_exchanges_is_not_the_loop_s(tmp_path, monkeypatch):
    clocks = []
    Takes(monkeypatch, clocks)

    def body(network, loss, clock):
        clocks.append(clock)
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(2),))
        thread.start()
        thread.join()
        loss.backward()

    (step,) = recorded(tmp_path / "run", body).steps
    assert step.communication_s == 0.0
    monkeypatch.undo()


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("options", [{}, {"layers": None}], ids=["layers", "bare"])
@pytest.mark.usefixtures("world")
def test_what_autograd_calls_back_after_its_last_node_is_waiting(early, options, tmp_path):
    """As the reducer of DDP queues its wait; `early` as FSDP does, from a hook on a loss that it returned."""

    def body(network, loss, clock):
        def wait():
            clock.advance(1.0)

        def queue(gradient):
            Variable._execution_engine.queue_callback(wait)

        (loss if early else network[0].weight).register_hook(queue)
        network[2].weight.register_hook(lambda _: clock.advance(0.25))
        loss.backward()

    options = {"every_step": not options, **options}
    clock = FakeClock()
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with Recorder(network, out=tmp_path / "run", clock=clock, **options) as recording, recording.step():
        body(network, network(torch.randn(3, 4)).sum(), clock)
    (step,) = laptime.load(tmp_path / "run").steps
    assert (step.communication_s, step.backward_s) == (1.0, 0.25)


@pytest.mark.usefixtures("world")
def test_a_graph_that_is_kept_is_called_back_once_in_each_pass(tmp_path):
    def body(network, loss, clock):
        for _ in range(2):
            network[0].weight.grad = None
            handle = network[0].weight.register_hook(
                lambda _: Variable._execution_engine.queue_callback(lambda: clock.advance(1.0))
            )
            loss.backward(retain_graph=True)
            handle.remove()
        assert not loss._backward_hooks

    (step,) = recorded(tmp_path / "run", body).steps
    assert step.communication_s == 2.0


@pytest.mark.usefixtures("world")
def test_a_fault_of_ours_is_told_once_and_the_exchange_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(collectives, "several", lambda: 1 / 0)

    def body(network, loss, clock):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loss.backward()
            assert dist.all_reduce(torch.ones(2)) is None
        assert [str(one.message) for one in told] == [
            "laptime: the account of waiting for other ranks ended at step 0, and the training goes on "
            "without (ZeroDivisionError: division by zero)"
        ]

    (step,) = recorded(tmp_path / "run", body).steps
    assert step.communication_s == 0.0
