"""Trainings of two ranks, in which rank 1 is late by a known time: what the processes of a test run."""

import multiprocessing
import os
import socket
import time

PLANTED_S = 0.3
STEPS = 6
PRELOADED = (
    "torch.distributed.fsdp",
    "lightning.pytorch",
    "transformers.trainer",
    "laptime.bridges.transformers",
)


def has_gloo():
    import torch.distributed as dist

    return dist.is_available() and dist.is_gloo_available()


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def start(target, *arguments, ranks=2):
    """Run `target(rank, ranks, port, *arguments)` in processes that share the import of torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    port = free_port()
    started = [
        context.Process(target=target, args=(rank, ranks, port, *arguments), daemon=True)
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(100)
    return [process.exitcode for process in started]


def meet(rank, ranks, port):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)


def network():
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def losses(called, rank, between=lambda: None):
    """Train a few steps; rank 1 is late by a known time, which rank 0 waits for."""
    import torch
    from torch.nn import functional

    optimizer = torch.optim.SGD(called.parameters(), 0.1)
    generator = torch.Generator().manual_seed(rank)
    batches = [(torch.randn(8, 16, generator=generator), torch.arange(8) % 4) for _ in range(STEPS)]

    def loop(recording=None):
        found = []
        for x, y in recording.steps(batches) if recording is not None else batches:
            if rank == 1:
                time.sleep(PLANTED_S)
            loss = functional.cross_entropy(called(x), y)
            loss.backward()
            between()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    return optimizer, loop


def ddp(rank):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(network()), lambda: None


def ddp_buffers(rank):
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    inner = network()
    inner.insert(1, nn.BatchNorm1d(32))
    return DistributedDataParallel(inner), lambda: None


def fsdp1(rank):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True)
    return wrapped, lambda: None


def fsdp2(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    whole = network()
    for layer in (whole[0], whole[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    return whole, lambda: None


def by_hand(rank):
    from torch.distributed import all_reduce  # a name of its own, taken before the recording begins

    whole = network()

    def average():
        for parameter in whole.parameters():
            all_reduce(parameter.grad)
            parameter.grad /= 2

    return whole, average


def functional(rank):
    import torch
    import torch.distributed as dist
    from torch.distributed._functional_collectives import all_reduce

    whole = network()

    def average():
        for parameter in whole.parameters():
            parameter.grad = torch.div(all_reduce(parameter.grad, "sum", dist.group.WORLD), 2)

    return whole, average


CASES = {
    "ddp": ddp,
    "ddp_buffers": ddp_buffers,
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "by_hand": by_hand,
    "functional": functional,
}


def planted(rank, ranks, port, folder, names, kinds):
    """Each case, recorded with layers on every step, or without layers."""
    import warnings

    import torch.distributed as dist

    from laptime.recorder.recorder import Recorder

    warnings.simplefilter("ignore")
    meet(rank, ranks, port)
    for name in names:
        for kind in kinds:
            called, between = CASES[name](rank)
            optimizer, loop = losses(called, rank, between)
            options = {"every_step": True} if kind == "layers" else {"layers": None}
            with Recorder(called, optimizer, out=folder / name / kind, rank=rank, **options) as recording:
                loop(recording)
    dist.destroy_process_group()


class Late:
    """A dataset that takes a known time for each item on rank 1."""

    def __init__(self, rank, items):
        self.rank, self.items = rank, items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        if self.rank == 1:
            time.sleep(PLANTED_S)
        return self.items[index]


def trainers(rank, ranks, port, folder):
    """A training by transformers and one by Lightning, with our callbacks on every rank."""
    import warnings

    warnings.simplefilter("ignore")
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0}
    elastic = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    os.environ.update({name: str(value) for name, value in (told | elastic).items()})
    os.chdir(folder)
    with_transformers(rank)
    with_lightning(rank)


def with_transformers(rank):
    import torch
    from transformers import Trainer, TrainingArguments

    from laptime.bridges.transformers import TrainerCallback

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    items = [{"x": torch.randn(16), "labels": index % 4} for index in range(2 * STEPS)]
    arguments = TrainingArguments(
        "hf",
        per_device_train_batch_size=1,
        num_train_epochs=1,
        report_to="none",
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        save_strategy="no",
    )
    callback = TrainerCallback(out="transformers", every_step=True)
    Trainer(model=Net(), args=arguments, train_dataset=Late(rank, items), callbacks=[callback]).train()


def with_lightning(rank):
    import lightning
    import torch
    from torch.utils.data import DataLoader

    from laptime.bridges.lightning import LightningCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    items = [(torch.randn(16), index % 4) for index in range(2 * STEPS)]
    lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LightningCallback(every_step=True)],  # in a directory that the ranks agree on
    ).fit(Module(), DataLoader(Late(rank, items), batch_size=1))
