"""What only a CUDA device can show: `make test-gpu`, or `pytest -m gpu tests/gpu` where one is."""

import pytest
import torch
import torch.nn.functional as F
from tests.recorder.cases import CASES
from torch import nn

import laptime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CYCLES = 100_000_000  # some 50 ms of an H200


def train(network, out, *, device, steps=6, batch=None, call=lambda network, x: network(x), **options):
    network = network.to(device).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    batch = torch.randn(8, 3, 64, 64) if batch is None else batch
    with laptime.record(network, optimizer, out=out, every_step=True, **options) as recording:
        for x in recording.steps([batch] * steps):
            output = call(network, x.to(device))
            loss = F.cross_entropy(output, torch.zeros(output.shape[0], dtype=torch.long, device=device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.log(loss=loss)
    return recording.run


class Spin(torch.autograd.Function):
    """The identity; keeps the device busy for a known number of cycles in one direction."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_cycles = backward
        if forward:
            torch.cuda._sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.backward_cycles:
            torch.cuda._sleep(ctx.backward_cycles)
        return gradient, None, None


class Net(nn.Module):
    def __init__(self, forward=0, backward=0):
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3)
        self.two = nn.Conv2d(8, 8, 3)
        self.three = nn.Linear(8, 5)
        self.cycles = forward, backward

    def forward(self, x):
        x = F.relu_(self.two(F.relu_(self.one(x))))
        return self.three(Spin.apply(x, *self.cycles).mean((2, 3)))


def spin_seconds():
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(CYCLES)
    begin.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_busy_device_is_charged_to_the_layer_and_phase_that_made_it_busy(phase, tmp_path):
    wanted = spin_seconds()
    base = train(Net(), tmp_path / "base", device="cuda").layers()
    slow = train(Net(**{phase: CYCLES}), tmp_path / "slow", device="cuda").layers()
    for layer in base:
        for name in ("forward", "backward"):
            if getattr(layer, name) is None:
                continue
            extra = getattr(slow[layer.layer], name).median - getattr(layer, name).median
            here = (layer.layer, name) == ("two", phase)
            assert extra == pytest.approx(wanted if here else 0.0, abs=0.02 * wanted), (layer.layer, name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cpu_and_cuda_give_the_same_tables(case, tmp_path):
    tables = []
    for device in ("cpu", "cuda"):
        run = train(
            case.build(), tmp_path / device, device=device, batch=case.batch(), call=case.call, steps=3
        )
        rows = {
            (row["step"], row["layer"], row["phase"], row["calls"]) for row in run.layer_table.to_pylist()
        }
        tables.append((rows, [layer.name for layer in run.network], len(run.steps)))
        assert run.summary["named_share"] > 0.98
    assert tables[0] == tables[1]


def test_the_device_timeline_agrees_with_the_host_clock(tmp_path):
    network = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)])
    run = train(network, tmp_path / "run", device="cuda", batch=torch.randn(8192, 4096), steps=100)
    assert run.summary["host_clock_ratio"] == pytest.approx(1.0, abs=0.01)
    assert run.summary["unexplained_share"] == pytest.approx(0.0, abs=1e-6)


def test_logged_losses_are_read_without_waiting_and_are_right(tmp_path):
    torch.manual_seed(0)
    network = Net()
    run = train(network, tmp_path / "run", device="cuda", steps=30)
    losses = [step.loss for step in run.steps]
    assert all(loss is not None and loss > 0 for loss in losses)


def test_the_kernel_tier_splits_busy_from_idle_and_counts_its_records(tmp_path):
    network = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)])
    run = train(
        network, tmp_path / "run", device="cuda", batch=torch.randn(4096, 2048), steps=60, kernels=[20, 21]
    )
    kernels = run.summary["kernels"]
    assert kernels["steps"] == [20, 21]
    assert kernels["dropped"] == 0
    traced = [row for row in run.layer_table.to_pylist() if row["step"] in (20, 21)]
    assert all(row["busy_s"] + row["idle_s"] == pytest.approx(row["seconds"]) for row in traced)
    assert kernels["reconciliation"]["busy_share"] > 0.8
    names = {
        row["name"] for row in run.kernel_table.to_pylist() if row["layer"] == "0" and row["kind"] == "kernel"
    }
    assert names
    assert any(layer.activation_bytes for layer in run.network)
    assert {row["kind"] for row in run.kernel_table.to_pylist()} >= {"kernel", "copy"}


def test_kernels_lie_inside_the_spans_of_the_layers_that_launched_them(tmp_path):
    network = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)])
    batch = torch.randn(8192, 2048)  # long kernels: the device is steps behind the host
    run = train(network, tmp_path / "run", device="cuda", batch=batch, steps=60, kernels=[20, 21])
    spans = {
        (row["step"], row["layer"], row["phase"]): (row["start_s"], row["start_s"] + row["seconds"])
        for row in run.layer_table.to_pylist()
        if row["phase"] != "update"
    }
    outside = 0.0
    for row in run.kernel_table.to_pylist():
        if (key := (row["step"], row["layer"], row["phase"])) in spans:
            begin, end = spans[key]
            outside = max(outside, begin - row["start_s"], row["start_s"] + row["seconds"] - end)
    assert outside < 50e-6  # two clocks: CUPTI's and the events'


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_recomputes_on_the_engine_thread(reentrant, tmp_path):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.Linear(64, 64)
            self.inner = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
            self.after = nn.Linear(64, 5)

        def forward(self, x):
            x = self.before(x)
            x = checkpoint(self.inner, Spin.apply(x, 0, 0), use_reentrant=reentrant)
            return self.after(x)

    run = train(Checkpointed(), tmp_path / "run", device="cuda", batch=torch.randn(16, 64))
    phases = {(row["layer"], row["phase"]) for row in run.layer_table.to_pylist()}
    assert {(layer, "backward") for layer in ("before", "inner.0", "inner.2", "after")} <= phases
    assert run.summary["named_share"] > 0.98


def test_autocast_and_a_scaler_on_cuda(tmp_path):
    network = Net().cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for x in recording.steps([torch.randn(8, 3, 64, 64, device="cuda")] * 6):
            with torch.autocast("cuda"):
                loss = F.cross_entropy(network(x), torch.zeros(8, dtype=torch.long, device="cuda"))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert recording.run.summary["named_share"] > 0.98


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch 2.11, of itself
def test_a_compiled_network_on_cuda_is_one_unit(tmp_path):
    network = Net().cuda()
    compiled = torch.compile(network, backend="aot_eager")
    run = train(compiled, tmp_path / "run", device="cuda")
    assert [layer.compiled for layer in run.network] == [True]
    assert {row["phase"] for row in run.layer_table.to_pylist() if row["layer"] == "(Net)"} >= {
        "forward",
        "backward",
    }
