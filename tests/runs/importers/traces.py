"""Chrome traces for the tests: real ones from torch.profiler, and small ones written by hand."""

import json
import time
import warnings

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, TensorDataset

from laptime.runs.importers import collect

MAIN, AUTOGRAD = 1, 2


class Named(nn.Module):
    """Two layers, each in a range of its own."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 5)

    def forward(self, images):
        with record_function("network"):
            with record_function("first conv"):
                found = self.one(images)
            found = torch.relu(found)
            with record_function("head"):
                return self.two(found.flatten(1))


class _SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(_, given):
        return given.clone()

    @staticmethod
    def backward(_, gradient):
        time.sleep(0.01)
        return gradient.clone()


class Slow(nn.Module):
    """Takes 10 ms in its backward pass, next to nothing in its forward."""

    def forward(self, given):
        return _SlowBackward.apply(given)


def plain_network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 36, 5)
    )


def a_trace(path, network, *, steps=3, stack=False, numbered=True, backward=True):
    """What torch.profiler saves of a few steps."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    data = TensorDataset(torch.randn(4 * (steps + 2), 3, 8, 8), torch.randint(0, 5, (4 * (steps + 2),)))
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1) if numbered else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], with_stack=stack, schedule=plan) as profiler:
            if numbered:
                profiler.on_trace_ready = lambda done: done.export_chrome_trace(str(path))
            for images, labels in DataLoader(data, batch_size=4):
                loss = criterion(network(images), labels)
                if backward:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                if numbered:
                    profiler.step()
        if not numbered:
            profiler.export_chrome_trace(str(path))
    return path


def span(category, name, start, end, thread=MAIN, **args):
    """One complete event; microseconds."""
    event = {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": end - start,
    }
    return event | {"args": args}


def operator(name, start, end, number=None, thread=MAIN):
    args = {} if number is None else {"Sequence number": number}
    return span("cpu_op", name, start, end, thread, **args)


def node(name, start, end, number=None, thread=AUTOGRAD):
    return operator(f"autograd::engine::evaluate_function: {name}", start, end, number, thread)


def kernel(name, launched, start, end, correlation, thread=MAIN, category="kernel", stream=7):
    """A kernel and the call that launched it."""
    return [
        span("cuda_runtime", "cudaLaunchKernel", launched, launched + 1, thread, correlation=correlation),
        span(category, name, start, end, 99, correlation=correlation, stream=stream, device=0),
    ]


def save(path, events, **about):
    path.write_text(json.dumps({"schemaVersion": 1, **about, "traceEvents": events}))
    return path


def a_gpu_step(at=0, number=0, sequence=0):
    """A step of 1000 µs on the host, whose kernels trail it: two layers in both passes, and an update."""
    return [
        span("user_annotation", f"ProfilerStep#{number}", at, at + 1000),
        span("user_annotation", "enumerate(DataLoader)#x.__next__", at, at + 100),
        span("python_function", "nn.Module: Net_0", at + 110, at + 300),
        span("python_function", "nn.Module: Conv2d_0", at + 110, at + 190),
        operator("aten::conv2d", at + 120, at + 180, sequence),
        *kernel("conv", at + 150, at + 200, at + 400, 10 * number + 1),
        span("python_function", "nn.Module: Linear_0", at + 200, at + 300),
        operator("aten::linear", at + 210, at + 290, sequence + 1),
        *kernel("gemm", at + 250, at + 400, at + 450, 10 * number + 2),
        operator("aten::cross_entropy_loss", at + 310, at + 350, sequence + 2),
        *kernel("loss", at + 320, at + 450, at + 460, 10 * number + 3),
        node("LossBackward0", at + 400, at + 420, sequence + 2),
        *kernel("loss_back", at + 410, at + 460, at + 480, 10 * number + 4, AUTOGRAD),
        node("AddmmBackward0", at + 420, at + 440, sequence + 1),
        *kernel("gemm_back", at + 430, at + 480, at + 580, 10 * number + 5, AUTOGRAD),
        node("ConvolutionBackward0", at + 440, at + 470, sequence),
        *kernel("conv_back", at + 450, at + 600, at + 800, 10 * number + 6, AUTOGRAD),
        node("torch::autograd::AccumulateGrad", at + 470, at + 480),
        span("user_annotation", "Optimizer.step#SGD.step", at + 500, at + 600),
        *kernel("sgd", at + 550, at + 800, at + 850, 10 * number + 7),
    ]


def step(number, start, end):
    return span("user_annotation", f"ProfilerStep#{number}", start, end)


def layer(name, start, end):
    return span("user_annotation", name, start, end)


def collected(tmp_path, events, **about):
    return collect(save(tmp_path / "t.json", events, **about), tmp_path / "run")


def accounts(one):
    """Microseconds by account of a step, without those that are nothing."""
    found = {account.value: seconds for account, seconds in one.accounts().items() if seconds is not None}
    return {name: seconds * 1e6 for name, seconds in found.items() if abs(seconds) > 1e-9}


def layers(run):
    """(microseconds, busy microseconds) by layer and phase."""
    return {
        (row["layer"], row["phase"]): (row["seconds"] * 1e6, row["busy_s"] * 1e6)
        for row in run.layer_table.to_pylist()
    }


def near(figures):
    return pytest.approx(figures, abs=1e-3)
