"""The contract of device backends, and one that a test registers."""

from itertools import pairwise

import pytest
import torch
from torch.profiler import ProfilerActivity

import laptime
from laptime.errors import UnsupportedDevice
from laptime.recorder.backends import accelerators, backend_of, device_facts, register, unregister
from laptime.recorder.backends.backend import Backend
from laptime.recorder.backends.cpu import CpuBackend
from laptime.recorder.backends.cuda import CudaBackend
from tests.recorder.loops import Net, batches, sgd, train_step


class BackendContract:
    """What every backend does. Inherit, and give a backend and a device of it that is there."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError

    @pytest.fixture
    def device(self, backend) -> torch.device:
        if not backend.count():
            pytest.skip(f"no {backend.name} device here")
        return torch.device(backend.type, 0) if backend.accelerator else torch.device(backend.type)

    def test_it_is_found_by_its_type(self, backend):
        assert backend_of(f"{backend.type}:0").type == backend.type
        assert backend.name
        assert backend.collectives
        assert ProfilerActivity.CPU in backend.activities
        assert all(hasattr(torch.Tensor, name) for name in backend.copies)
        assert backend in accelerators() or not backend.accelerator

    def test_its_facts_name_it(self, backend, device):
        facts = device_facts(device)
        assert facts["type"] == backend.type
        assert facts["name"]
        assert (backend.memory_bytes(device) or 1) > 0

    def test_its_clock_tells_the_time_between_stamps(self, backend, device):
        clock = backend.clock(device)
        clock.follow()
        assert clock.device.startswith(backend.type)
        stamps = [clock.now()]
        torch.ones(1000, 1000, device=device).matmul(torch.ones(1000, 1000, device=device))
        stamps += [clock.now(), clock.now()]
        clock.wait(stamps[-1])
        assert clock.ready(stamps[-1])
        first, second = clock.read(stamps)
        assert first > 0
        assert second >= 0
        clock.recycle(stamps)

    def test_numbers_are_read_in_their_order(self, backend, device):
        numbers = [torch.tensor(value, device=device) for value in (1.5, 2.5, -3.0)]
        backend.synchronize()
        assert backend.read_numbers(device, numbers) == [1.5, 2.5, -3.0]

    def test_work_on_another_stream_is_seen_once_the_first_waits_for_it(self, backend, device):
        backend.select(device)
        stream, compute = backend.stream(device), backend.current_stream(device)
        with backend.on_stream(stream):
            made = torch.ones(8, device=device) * 3
        if compute is not None:
            compute.wait_stream(stream)
        assert made.sum().item() == 24

    def test_an_event_is_passed_after_it_was_waited_for(self, backend, device):
        event = backend.event()
        assert (event is None) == (not backend.accelerator)
        if event is not None:
            event.record()
            event.synchronize()
            assert event.query()

    def test_random_states_repeat_what_was_drawn(self, backend, device):
        states = backend.random_states()
        drawn = torch.rand(4, device=device)
        backend.set_random_states(states)
        assert torch.equal(torch.rand(4, device=device), drawn)


class TestCpu(BackendContract):
    @pytest.fixture
    def backend(self):
        return backend_of("cpu")


@pytest.mark.gpu
class TestCuda(BackendContract):
    @pytest.fixture
    def backend(self):
        return backend_of("cuda")


class Slow(CpuBackend):
    """The CPU under another clock: every stamp is a second after the one before, and is read later."""

    name = "slow CPU"
    variables = ("SLOW_SETTING",)

    class Clock:
        def __init__(self):
            self.device, self.deferred, self.seconds, self.waited = "cpu", True, 0, 0

        def now(self):
            self.seconds += 1
            return self.seconds

        def ready(self, stamp):
            return False

        def wait(self, stamp):
            self.ready = lambda stamp: True
            self.waited += 1

        def read(self, stamps):
            return [1000.0 * (b - a) for a, b in pairwise(stamps)]

        def recycle(self, stamps):
            pass

        def follow(self):
            pass

    def __init__(self):
        self.clocks = []
        self.synchronized = 0

    def facts(self, device):
        return {"type": "cpu", "name": "a slow one"}

    def clock(self, device):
        self.clocks.append(self.Clock())
        return self.clocks[-1]

    def synchronize(self):
        self.synchronized += 1


@pytest.fixture
def slow():
    backend, usual = Slow(), backend_of("cpu")
    register(backend)
    yield backend
    register(usual)


class TestSlow(BackendContract):
    @pytest.fixture
    def backend(self, slow):
        return slow


def test_a_backend_that_was_registered_is_what_a_recording_uses(slow, tmp_path, monkeypatch):
    monkeypatch.setenv("SLOW_SETTING", "on")
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", kernels=[2]) as recording:
        for batch in recording.steps(batches(4)):
            recording.log(loss=train_step(network, optimizer, batch))
    run = recording.run
    assert len(slow.clocks) == 1
    assert slow.clocks[0].waited == 1  # at the end alone
    assert slow.synchronized == 1  # before its trace was read
    assert run.environment["device"] == {"type": "cpu", "name": "a slow one"}
    assert run.environment["variables"]["SLOW_SETTING"] == "on"
    assert all(step.wall_s == round(step.wall_s) > 0 for step in run.steps)


def test_a_backend_may_be_taken_back():
    class Other(Slow):
        type = "other"

    other = Other()
    register(other)
    assert backend_of("other:1") is other
    unregister(other)
    with pytest.raises(UnsupportedDevice, match="'other'"):
        backend_of("other:1")


def test_a_device_without_a_backend_is_refused_with_those_there_are(slow):
    with pytest.raises(UnsupportedDevice, match=r"cannot time 'mps' devices yet.*'cpu'.*'cuda'"):
        backend_of(torch.device("mps"))


def test_the_backends_of_torch_are_registered_by_default():
    assert isinstance(backend_of(torch.device("cpu")), CpuBackend)
    assert isinstance(backend_of("cuda:1"), CudaBackend)
    assert [backend.type for backend in accelerators()] == ["cuda"]


def test_the_copies_of_an_accelerator_are_watched(tmp_path):
    network = Net()
    with laptime.record(network, out=tmp_path / "run"):
        assert type(torch.Tensor.cuda).__name__ == "_Standin"
    assert type(torch.Tensor.cuda).__name__ == "method_descriptor"
