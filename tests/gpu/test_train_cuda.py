"""Training on a CUDA device: every network of the zoo, precisions, exact resumption, memory, NCCL."""

import socket

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laptime
from laptime.errors import TrainingError, UnsupportedDevice
from laptime.model import Stage
from laptime.recorder import collectives
from laptime.recorder.recorder import Recorder
from laptime.runs.exchanges import read_exchanges
from laptime.training.build import ready
from laptime.training.config import Config, LoaderConfig
from laptime.training.config.reading import read_config
from laptime.training.data import NetworkInput, open_data
from laptime.training.data.datasets import Tensors
from laptime.training.data.generate import write_image_folder
from laptime.training.data.kinds import FolderData
from laptime.training.device_setup import DeviceSetup, choose_device
from laptime.training.loader import Batches, Order
from laptime.training.loop import TrainingLoop
from laptime.training.networks.registry import entries
from laptime.training.ranks import Ranks
from laptime.training.session import train
from laptime.training.strategies.data import AveragedGradients

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def configured(network="zener4", **sections):
    base = {
        "network": {"name": network},
        "data": {"kind": "zener", "samples": 128, "validation_samples": 32},
        "train": {"batch": 16, "epochs": 2, "device": "cuda"},
    }
    return Config(**{key: base.get(key, {}) | sections.get(key, {}) for key in base | sections})


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_network_of_the_zoo_trains_on_the_gpu(name, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(f'network = "{name}"')
    settings = ["batch=4", "steps=3", "device=cuda", "validation.every=0", "checkpoint.every=0"]
    run = train(read_config(file, settings).config, out=tmp_path / "run")
    assert run.status == "finished"
    assert {step.device for step in run.steps} == {"cuda:0"}
    assert all(step.loss == step.loss for step in run.steps)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_cards_are_learned_in_every_precision(precision, channels_last, tmp_path):
    config = configured(
        data={"samples": 2000, "validation_samples": 200},
        train={"epochs": 6, "batch": 32, "precision": precision, "channels_last": channels_last},
        optimizer={"name": "adam", "lr": 0.001},
    )
    run = train(config, out=tmp_path / "run")
    last = [step.top1 for step in run.steps if step.stage is Stage.VALIDATION and step.epoch == 5]
    assert sum(last) / len(last) > 0.6


def test_a_resumed_training_takes_the_steps_of_an_unbroken_one(tmp_path):
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        whole = train(configured(), out=tmp_path / "whole")
        train(configured(train={"epochs": 1}), out=tmp_path / "broken")
        config = configured()
        place = DeviceSetup.of("cuda", Ranks())
        TrainingLoop(config, ready(config, place), out=tmp_path / "broken", resume=True).run()
    finally:
        torch.use_deterministic_algorithms(False)
    import laptime

    broken = laptime.load(tmp_path / "broken")

    def losses(run):
        return [(s.epoch, s.loss) for s in run.steps if s.stage is Stage.TRAIN]

    assert losses(broken) == losses(whole)


def test_a_memory_limit_ends_a_training_that_needs_more_in_one_line(tmp_path):
    config = configured(
        "vgg16",
        data={"kind": "synthetic", "samples": 128},
        train={"batch": 64, "memory_limit": 1.0},
    )
    try:
        with pytest.raises(TrainingError, match=r"train\.batch = 32 or raise train\.memory_limit"):
            train(config, out=tmp_path / "run")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


@pytest.mark.parametrize("workers", [0, 2])
def test_images_arrive_as_bytes_and_are_the_floats_that_a_cpu_gets(workers, tmp_path):
    write_image_folder(tmp_path / "images", per_class=3)
    config = FolderData(path=tmp_path / "images", size=64, augment="none", validation_share=0.0)
    dataset = open_data(config, NetworkInput(input=(3, 64, 64))).train
    order = Order(len(dataset), 10, seed=0, shuffle=False, drop_last=False)

    def batches(device):
        made = Batches(dataset, order, LoaderConfig(workers=workers), torch.device(device))
        found = [tuple(one.clone() for one in batch) for batch in made.epoch(0)]
        made.close()
        return found

    for (here, labels), (there, others) in zip(batches("cpu"), batches("cuda"), strict=True):
        assert there.device.type == "cuda"
        torch.testing.assert_close(here, there.cpu(), rtol=0, atol=1e-5)
        assert torch.equal(labels, others.cpu())


def test_small_data_stays_on_the_device(tmp_path):
    data = Tensors(torch.arange(40.0).view(20, 2), torch.arange(20))
    order = Order(20, 4, seed=0, shuffle=True, drop_last=False)
    found = list(Batches(data, order, LoaderConfig(workers=4), torch.device("cuda")).epoch(1))
    assert len(found) == 5
    for values, labels in found:
        assert values.device.type == labels.device.type == "cuda"
        assert torch.equal(values[:, 0].long(), 2 * labels)


def test_ranks_without_a_gpu_each_are_told_so():
    gpus = torch.cuda.device_count()
    assert choose_device(None, gpus, gpus + 1)[0].type == "cpu"
    with pytest.raises(UnsupportedDevice, match="need a GPU each"):
        choose_device("cuda", 0, gpus + 1)
    with pytest.raises(UnsupportedDevice, match="cannot share"):
        choose_device("cuda:0", 0, 2)


@pytest.fixture
def nccl():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    device = torch.device("cuda", 0)
    store = dist.TCPStore("localhost", port, 1, is_master=True)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    yield device
    dist.destroy_process_group()


def averaged(network, device, out, monkeypatch, *, steps, before=lambda step: None):
    """What one rank that takes itself for several has exchanged in some steps of data parallel training."""
    monkeypatch.setattr(collectives, "several", lambda: True)
    data = AveragedGradients(network, device, losses=1)
    x = torch.randn(64, 2048, device=device)
    with Recorder(network, out=out, every_step=True) as recording:
        for step in range(steps):
            before(step)
            with recording.step():
                data.network(x).sum().backward()
    return read_exchanges(laptime.load(out))[0]


def test_the_exchange_over_nccl_is_timed_on_the_device(nccl, tmp_path, monkeypatch):
    network = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).to(nccl)
    found = averaged(network, nccl, tmp_path / "run", monkeypatch, steps=5)
    (all_reduce,) = [each for each in found.collectives if each.kind == "all_reduce"]
    assert all_reduce.bytes == 5 * 4 * sum(p.numel() for p in network.parameters())
    assert all_reduce.calls > 5
    assert 0 < all_reduce.seconds < 10
    assert 0 < all_reduce.exposed_s < 10
    assert {name for bucket in found.buckets for name in bucket.layers} == set("01234567")


class Slow:
    """An exchange that takes a known number of cycles more, on the stream of its own future."""

    def __init__(self, work, cycles):
        def spin(future):
            torch.cuda._sleep(cycles)
            return future.value()

        self.future = work.get_future().then(spin)

    def get_future(self):
        return self.future


@pytest.mark.parametrize("hidden", [True, False])
def test_only_what_comes_after_the_last_gradient_is_exposed(hidden, nccl, tmp_path, monkeypatch):
    cycles = 50_000_000  # some 25 ms of an H200
    spins, calls, compute = [], [], []
    real = dist.ProcessGroup.allreduce

    def slow(*arguments, **named):
        calls.append(1)
        return Slow(real(*arguments, **named), spins.pop(0) if spins else 0)

    monkeypatch.setattr(dist.ProcessGroup, "allreduce", slow)
    network = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4))).to(nccl)

    def compute_longer(module, inputs, output):  # between the first bucket and the last
        output.register_hook(lambda gradient: torch.cuda._sleep(sum(compute)))

    network[0].register_forward_hook(compute_longer)

    def before(step):
        if step == 3:  # torch builds its buckets anew after the first pass
            calls.clear()
        if step == 4:
            assert len(calls) > 1
            compute[:] = [2 * cycles]
            quick = [0] * (len(calls) - 1)
            spins[:] = [cycles, *quick] if hidden else [*quick, cycles]

    found = averaged(network, nccl, tmp_path / "run", monkeypatch, steps=5, before=before)
    whole = max(bucket.seconds for bucket in found.buckets)
    exposed = max(bucket.exposed_s for bucket in found.buckets)
    assert whole > 0.01
    assert exposed < 0.3 * whole if hidden else exposed > 0.7 * whole
