"""What a rank of `benchmarks.scale_peers` does: `python -m benchmarks.scale_ranks ORDER`, an `Order` as JSON.

Ranks start as under torchrun, with `RANK` and the like in their environment. Recorded and bare steps, and
`laptime train` and a plain DDP loop, take turns in the same processes on the very same network; every rank
changes over at the same step, since rank 0's clock decides. Loops of others run one to a launch.
"""

from __future__ import annotations

import gc
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import Block, Size, Variant, run_block, run_rounds
from benchmarks.loop import SKIPPED, Ends
from benchmarks.networks import LEARNING_RATE, Workload
from benchmarks.slowdown import sizes
from benchmarks.variants import Bare, Laptime
from laptime.training.build import Ready, ready
from laptime.training.config import Config
from laptime.training.device_setup import DeviceSetup
from laptime.training.loop import TrainingLoop
from laptime.training.ranks import Ranks

AN_EPOCH = 32  # steps
TURN_S = 2.0  # the recorder's writer flushes every 2 s: one flush in each turn
TIMEOUT_S = 120.0  # of a rank that waits for another
FIRST_STEPS = 10
LAUNCH_STEPS = 100  # timed in a launch
FEWEST_ROUNDS = 6  # see benchmarks.tables.ENOUGH_ROUNDS
RECORDING, TRAIN, BARE, LAPTIME, RAY, TORCHFT = "recording", "train", "bare", "laptime", "ray", "torchft"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network with the batch of a rank."""

    network: str
    batch: int
    pixels: int | None = None  # None: Zener cards

    @property
    def label(self) -> str:
        """As the tables name it."""
        return f"{self.network} b{self.batch}" + (f", {self.pixels} pixels" if self.pixels else "")


# On one thread a step takes about 20 and 90 ms.
CASES = {
    one.network: one
    for one in (Case(network="zener4", batch=128), Case(network="resnet18", batch=8, pixels=32))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the ranks of a launch are to do."""

    network: str
    ranks: int
    loops: tuple[str, ...]  # `RECORDING` and `TRAIN`, or one of the others
    out: str  # a folder; rank 0's figures go to `seconds.json` there
    seconds: float = 60.0  # of each comparison
    rounds: int | None = None  # otherwise as many as the seconds allow
    steps: int | None = None  # timed steps of a block, turn or launch
    port: int = 0  # of torchft's lighthouse
    processor: bool = False  # processor time of rank 0, where a machine is shared: waiting does not count

    @property
    def case(self) -> Case:
        """The network and its batch."""
        return CASES[self.network]

    @property
    def now(self) -> Callable[[], float]:
        """The clock that steps are timed by."""
        return time.process_time if self.processor else time.perf_counter


def configured(order: Order, steps: int) -> dict[str, Any]:
    """A training of so many steps without validation and checkpoints, one thread a rank."""
    case = order.case
    data: dict[str, Any] = {"kind": "zener"}
    options = {}
    if case.pixels:
        data = {"kind": "synthetic", "shape": [3, case.pixels, case.pixels], "classes": 10}
        options = {"num_classes": 10}
    return {
        "network": {"name": case.network, "options": options},
        "data": {**data, "samples": case.batch * AN_EPOCH * order.ranks, "validation_samples": 0},
        "train": {"batch": case.batch, "epochs": 1 + steps // AN_EPOCH, "steps": steps, "threads": 1},
        "optimizer": {"lr": LEARNING_RATE},
        "checkpoint": {"every": 0, "best": False},
        "validation": {"every": 0},
    }


def built(order: Order, steps: int, ranks: Ranks) -> Ready:
    """Network, data and optimizer of this rank; a GPU each where there are enough."""
    config = Config.model_validate(configured(order, steps))
    return ready(config, DeviceSetup.of(None, ranks, threads=1))


def distributed(made: Ready) -> DistributedDataParallel:
    """The network under DDP with torch's defaults."""
    device = made.setup.device
    return DistributedDataParallel(made.network, device_ids=None if device.type == "cpu" else [device])


# -- in turns ------------------------------------------------------------------------------------------------


class InStep(Workload):
    """A step under DDP, timed between two moments at which all ranks are there."""

    def synchronize(self) -> None:
        """Wait for the device and for the other ranks."""
        dist.barrier()
        super().synchronize()


def agreed(now: Callable[[], float] = time.monotonic) -> float:
    """Rank 0's time, the same on every rank: all of them decide alike by it."""
    told = [now()]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def take_turns(order: Order) -> dict[str, Any]:
    """Mean steps of all blocks and turns, in seconds, by loop and round."""
    ranks = Ranks.here()
    steps = 10_000 * AN_EPOCH  # more than any turn takes
    setup = DeviceSetup.of(None, ranks, threads=1)
    found: dict[str, Any] = {}
    with ranks.joined(setup.device, timeout_s=TIMEOUT_S), tempfile.TemporaryDirectory() as folder:
        root = Path(folder if ranks.rank == 0 else ".")
        root = Path(ranks.gather(str(root))[0])
        made = built(order, steps, ranks)
        step_s = _warm(made)
        if RECORDING in order.loops:
            found[RECORDING] = [_told(block) for block in _recorded(order, made, root, step_s)]
        if TRAIN in order.loops:
            found[TRAIN] = [_told(block) for block in _trained(order, made, root, step_s)]
        found |= {"device": str(setup.device), "backend": dist.get_backend()}
        ranks.wait()
    return found


def _told(block: Block) -> dict[str, Any]:
    return {"loop": block.variant, "round": block.round, "steps": block.steps, "mean_s": block.mean_s}


def _warm(made: Ready) -> float:
    """Take the first steps; gives the seconds of one, the same on every rank."""
    ends = _plain(distributed(made), made.optimizers["all"], made, FIRST_STEPS)
    told = [(ends[-1] - ends[FIRST_STEPS // 2]) / (FIRST_STEPS - 1 - FIRST_STEPS // 2)]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def _recorded(order: Order, made: Ready, root: Path, step_s: float) -> list[Block]:
    """Bare steps, and steps of the same DDP loop recorded by `laptime.record`."""
    network, optimizer = distributed(made), made.optimizers["all"]

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(batch[0]), batch[1]).backward()
        optimizer.step()

    batch = next(made.batches.epoch(0))
    work = InStep(network, optimizer, batch, made.setup.device, step)
    every, budget = (Laptime(work, root, every_step=each) for each in (True, False))
    size = sizes(step_s)

    def block(variant: Variant, index: int) -> Block:
        gc.collect()
        few = Size(warmup=2, steps=order.steps) if order.steps else size.of(variant.name)
        return run_block(work, variant, few, index=index, each_step=False, now=order.now)

    return run_rounds(
        block,
        [Bare(), every, Bare(), budget],
        rounds=order.rounds,
        fewest=FEWEST_ROUNDS,
        until=agreed() + order.seconds,
        now=agreed,
    )


class _Turn:
    """A loop by its name, where the harness wants a variant."""

    def __init__(self, name: str, run: Callable[[int], list[float]]) -> None:
        self.name, self.run = name, run

    attach = detach = lambda self: None

    def each(self, batches: Any) -> Any:
        return batches


def _trained(order: Order, made: Ready, root: Path, step_s: float) -> list[Block]:
    """A plain DDP loop, and `laptime train` with every step recorded."""
    steps = SKIPPED + (order.steps or math.ceil(TURN_S / step_s))
    config = Config.model_validate(configured(order, steps))

    def plain(_: int) -> list[float]:
        return _plain(distributed(made), made.optimizers["all"], made, steps, order.now)

    def ours(index: int) -> list[float]:
        ends = Ends({"steps": steps}, order.now)
        TrainingLoop(config, made, out=root / f"train-{index}", watch=ends.step).run()
        return ends

    def block(variant: Variant, index: int) -> Block:
        gc.collect()  # DDP averages no more once it is gone
        dist.barrier()
        assert isinstance(variant, _Turn)
        ends = variant.run(index)[SKIPPED:]
        return Block(variant=variant.name, round=index, steps=len(ends) - 1, seconds=ends[-1] - ends[0])

    return run_rounds(
        block,
        [_Turn(BARE, plain), _Turn(LAPTIME, ours)],
        rounds=order.rounds,
        fewest=FEWEST_ROUNDS,
        until=agreed() + order.seconds,
        now=agreed,
    )


# -- a launch each -------------------------------------------------------------------------------------------


def _plain(
    network: nn.Module,
    optimizer: Any,
    made: Ready,
    steps: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """The loop that anyone would write, and that each of the others takes; gives when each step ended."""
    ends = Ends({"steps": steps}, now)
    epoch = 0
    while True:
        for inputs, targets in made.batches.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(network(inputs), targets).backward()
            optimizer.step()
            ends.step()
            if len(ends) == steps:
                return ends
        epoch += 1


def bare(order: Order, steps: int) -> list[float]:
    """DDP under torchrun."""
    ranks = Ranks.here()
    made = built(order, steps, ranks)
    with ranks.joined(made.setup.device, timeout_s=TIMEOUT_S):
        ends = _plain(distributed(made), made.optimizers["all"], made, steps)
        ranks.wait()
    return ends


def torchft(order: Order, steps: int) -> list[float]:
    """Its manager, DDP and optimizer; each rank is a replica of its own, rank 0 has the lighthouse."""
    package, coordination = import_module("torchft"), import_module("torchft.coordination")
    ranks = Ranks.here()
    made = built(order, steps, ranks)
    lighthouse = None
    if ranks.rank == 0:
        lighthouse = coordination.LighthouseServer(bind=f"127.0.0.1:{order.port}", min_replicas=ranks.ranks)
    gpu = made.setup.device.type == "cuda"
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    optimizer = made.optimizers["all"]

    def load(state: dict[str, Any]) -> None:
        made.network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])

    manager = package.Manager(
        pg=package.ProcessGroupNCCL() if gpu else package.ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=lambda: {"network": made.network.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=ranks.ranks,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=f"http://127.0.0.1:{order.port}",
        replica_id=f"rank-{ranks.rank}",
        hostname="127.0.0.1",
    )
    try:
        network = package.DistributedDataParallel(manager, made.network)
        return _plain(network, package.Optimizer(manager, optimizer), made, steps)
    finally:
        if lighthouse is not None:
            time.sleep(1.0)  # others may be in their last step
        manager.shutdown(wait=False)
        if lighthouse is not None:
            lighthouse.shutdown()


def ray(order: Order, steps: int) -> list[float]:
    """Ray Train's trainer, on a cluster of this process."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    gpu = torch.cuda.device_count() >= order.ranks
    ray.init(
        address="local",
        num_cpus=order.ranks + 1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=256 * 2**20,
    )
    try:
        TorchTrainer(
            ray_worker,
            train_loop_config={"order": json.dumps(asdict(order)), "steps": steps},
            scaling_config=ScalingConfig(num_workers=order.ranks, use_gpu=gpu),
            run_config=RunConfig(storage_path=str(Path(order.out).absolute() / "ray")),
        ).fit()
    finally:
        ray.shutdown()
    return list(json.loads((Path(order.out) / "ray.json").read_bytes()))


def ray_worker(asked: dict[str, Any]) -> None:
    """The training function of a worker of Ray Train."""
    from ray import train
    from ray.train.torch import prepare_model

    order, context = read(asked["order"]), train.get_context()
    ranks = Ranks(
        rank=context.get_world_rank(),
        ranks=context.get_world_size(),
        local=context.get_local_rank(),
        locals=context.get_local_world_size(),
    )
    made = built(order, asked["steps"], ranks)
    ends = _plain(prepare_model(made.network), made.optimizers["all"], made, asked["steps"])
    if ranks.rank == 0:
        (Path(order.out) / "ray.json").write_text(json.dumps(ends), encoding="utf-8")


LOOPS: dict[str, Callable[[Order, int], list[float]]] = {BARE: bare, RAY: ray, TORCHFT: torchft}


def read(text: str) -> Order:
    """An order from JSON."""
    document = json.loads(text)
    return Order(**{**document, "loops": tuple(document["loops"])})


def main() -> None:
    """Carry out the order; rank 0 writes the figures."""
    # By its name and not as `__main__`, so that Ray's workers import what they are given.
    here = import_module("benchmarks.scale_ranks")
    order = here.read(sys.argv[1])
    torch.set_num_threads(1)
    if order.loops[0] in LOOPS:
        steps = SKIPPED + (order.steps or LAUNCH_STEPS)
        ends = here.LOOPS[order.loops[0]](order, steps)
        found: Any = [end - begin for begin, end in pairwise(ends[SKIPPED:])]
    else:
        found = here.take_turns(order)
    if Ranks.here().rank == 0:
        (Path(order.out) / "seconds.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
